"""The serving node."""
