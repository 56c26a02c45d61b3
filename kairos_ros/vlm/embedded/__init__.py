"""The judge and the planner that ship with the package: a small model in numpy, and rules."""
