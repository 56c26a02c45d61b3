"""The robot node, and the ROS 2 side of its adapters."""
