"""Clients of other policy servers as robots of the fleet: what they send, and what they get."""
