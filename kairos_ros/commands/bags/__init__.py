"""Commands that write and read bags."""
