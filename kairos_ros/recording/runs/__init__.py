"""Runs: what robots and tasks did, from bags or from files."""
