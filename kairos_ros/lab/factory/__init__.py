"""Planned fleets in virtual time, against GPUs that are shared out in other ways (Rosa §4)."""
