"""rclpy nodes, thin over the other packages, and conversion between messages and plain data."""
