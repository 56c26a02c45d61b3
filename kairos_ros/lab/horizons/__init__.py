"""Calibration of horizon policies, and their study on the demo policy."""
