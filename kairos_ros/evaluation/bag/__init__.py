"""rosbag2 bags in MCAP storage: written without rosbag2, read back as runs and traces."""
