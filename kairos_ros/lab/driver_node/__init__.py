"""A ROS 2 driver of a simulated arm."""
