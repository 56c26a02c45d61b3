"""Tasks and their rounds as OpenTelemetry traces, live or of a bag; no ROS."""
