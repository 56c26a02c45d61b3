"""Bags: what is recorded, written, read and repaired."""
