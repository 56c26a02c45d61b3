"""Bodies: how a robot is observed and moved."""
