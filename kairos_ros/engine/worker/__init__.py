"""The worker program: engines behind one endpoint. Run with `python -m`."""
