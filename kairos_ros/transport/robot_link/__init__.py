"""Robots without ROS over a WebSocket: what they and `kairos doors` tell each other."""
