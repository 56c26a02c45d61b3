"""Metrics, summaries and plots of served fleets."""
