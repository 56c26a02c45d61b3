"""The algorithms, pure: no ROS, no torch, no clock, no I/O.

The same code decides for live robots, for replayed bags and in virtual time. Times are integer
nanoseconds on one monotonic clock, given by the caller.
"""
