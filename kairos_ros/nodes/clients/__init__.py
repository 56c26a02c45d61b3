"""Nodes of commands, dashboards and demos, and what these ask and tell the nodes of a fleet."""
