"""Recorded tasks in real time, through real nodes."""
