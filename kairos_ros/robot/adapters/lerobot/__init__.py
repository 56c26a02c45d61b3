"""Robots by LeRobot's own drivers."""
