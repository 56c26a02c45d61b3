"""An arm behind a ROS 2 driver, by its contract."""
