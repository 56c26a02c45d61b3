"""Recorded tasks against a live serving node, in real time, over DDS."""
