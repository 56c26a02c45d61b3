"""Trains the policy that ships with the demo, from scripted demonstrations in simulation."""
