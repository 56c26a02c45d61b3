"""Fleets that are planned while they run: what was decided, and what changes and repairs it."""
