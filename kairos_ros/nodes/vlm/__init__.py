"""The safety, monitor and planner nodes."""
