"""The node that draws the fleet for rviz."""
