"""The state machine of a robot, and who drives it."""
