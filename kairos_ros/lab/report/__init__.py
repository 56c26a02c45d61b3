"""Pages that show runs."""
