"""Studies: one question each, answered by many simulated runs that a file describes."""
