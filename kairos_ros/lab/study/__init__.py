"""Experiments over many simulated runs, and what they find."""
