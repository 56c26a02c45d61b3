"""Short-lived nodes with which commands ask and tell running ones."""
