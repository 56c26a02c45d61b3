"""Successes per hour against load: rate control and load horizons."""
