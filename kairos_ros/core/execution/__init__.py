"""The generate-execute loop of one robot, its tasks, and the server it asks. No I/O, no clock."""
