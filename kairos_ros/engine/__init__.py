"""Engines: LeRobot policies, their update taps, batching, the worker program and its profiler."""
