"""rosbag2 bags in MCAP storage: written without rosbag2, read back as runs and traces."""

from kairos_ros.evaluation.bag.extract import extract_traces
from kairos_ros.evaluation.bag.fleet_run import read_bag

__all__ = ["extract_traces", "read_bag"]
