"""What people see in rviz: plain data in, plain descriptions of markers out. No ROS."""
