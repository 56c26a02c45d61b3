"""Which engine computes which request: overflow, several policies, hedging, and a host's memory."""
