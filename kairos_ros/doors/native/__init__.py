"""Robots without ROS that run the generate-execute loop themselves, such as LeRobot's processes."""
