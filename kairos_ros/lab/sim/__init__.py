"""Virtual robots in virtual time, through the real scheduler."""
