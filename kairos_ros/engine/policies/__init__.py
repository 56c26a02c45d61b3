"""Policies of LeRobot as engines: folders, inputs, samplers and what is read from them."""
