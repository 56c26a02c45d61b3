"""Several engines behind one endpoint."""
