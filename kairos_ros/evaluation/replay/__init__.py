"""Traces brought back to life: by virtual robots, in real time or in virtual time."""
