"""The `kairos` command line: what nobody needs on a robot, an edge or a cloud host."""
