"""LeRobot checkpoints on the scenes of other simulators, in the loop of a fleet."""
