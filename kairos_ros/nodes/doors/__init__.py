"""The ROS side of `kairos doors`: clients on the topics of robots."""
