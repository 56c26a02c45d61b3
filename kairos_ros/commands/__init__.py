"""The `kairos` command line: what people run on robots, edge and cloud hosts."""
