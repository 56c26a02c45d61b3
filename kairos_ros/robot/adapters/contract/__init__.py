"""Robots behind ROS 2 drivers, described by a contract."""
