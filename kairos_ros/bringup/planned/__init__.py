"""Planned fleets: what their plan puts where, runs it, changes it and repairs it."""
