"""Faults made on purpose in a running fleet, and the proof by executed actions."""
