"""Simulated arms and servos."""
