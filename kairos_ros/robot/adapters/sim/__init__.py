"""Simulated bodies: Gymnasium and Meta-World."""
