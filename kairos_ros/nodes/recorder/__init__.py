"""The recorder node."""
