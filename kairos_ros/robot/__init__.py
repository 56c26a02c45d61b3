"""The robot side: chunk buffer, generate-execute loop, action guard, adapters. No ROS."""
