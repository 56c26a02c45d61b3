"""rclpy nodes, thin over the other packages, and the conversion between messages and domain data."""
