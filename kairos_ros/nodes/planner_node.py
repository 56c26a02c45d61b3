"""The planner node: what each robot shall do next (System 2)."""

from kairos_ros.core.pipeline import Component
from kairos_ros.nodes import vlm_node


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    return vlm_node.main((Component.SYSTEM2,))
