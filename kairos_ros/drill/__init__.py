"""Faults made on purpose in a fleet of real processes, and a judge of what came of them."""
