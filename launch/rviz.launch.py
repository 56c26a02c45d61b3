"""The viz node and rviz, for a fleet that runs already, on this host or others."""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import flag, rviz, viz

ARGUMENTS = {
    "frame": ("", "Fixed frame; empty: as in viz.yaml"),
    "rviz": ("true", "false: only the viz node, for a viewer elsewhere"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    open_it = flag("rviz", values.pop("rviz", ""))
    return [viz(**values), *([rviz()] if open_it else [])]
