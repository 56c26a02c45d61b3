"""A robot's cameras: names, sizes, pictures."""
