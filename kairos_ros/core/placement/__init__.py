"""Which engine computes a batch: overflow, several policies, copies, and a host's memory."""
