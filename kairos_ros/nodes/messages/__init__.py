"""The fleet's messages as plain data, and back."""
