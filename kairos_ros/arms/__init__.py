"""Simulated arms that stand where an arm's driver stands: bodies, controller and tasks, no ROS."""
