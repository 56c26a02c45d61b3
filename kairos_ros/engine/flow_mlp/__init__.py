"""A small flow-matching chunk policy for state observations, in LeRobot's own format.

Importing `kairos_ros.engine.flow_mlp.configuration_flow_mlp` registers the type "flow_mlp", after
which LeRobot's factories find the model and its processors by their module names.
"""
