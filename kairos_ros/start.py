"""What every program of the package runs first: light, so that Ctrl-C finds somebody at once.

Loading a program takes seconds. Until its own handlers stand, SIGINT and SIGTERM end it without a
word: nothing has been begun by then.
"""

import importlib
import os
import signal
from functools import partial
from typing import Any

from kairos_ros.host.discovery import use_fastdds_profile
from kairos_ros.host.extras import explained
from kairos_ros.host.garbage import imports_stay
from kairos_ros.host.stacks import tell_stacks


def run(program: str, module: str, interrupted: int, *arguments: str) -> Any:
    """Runs `main` of a module with these arguments.

    interrupted: exit code where a signal comes before `main` has its own handlers.
    """
    tell_stacks()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as of what a shell runs with `&`
            signal.signal(number, lambda *_: os._exit(interrupted))
    use_fastdds_profile()
    with explained(program):
        with imports_stay():
            program_module = importlib.import_module(module)
        return program_module.main(*arguments)


def _node(program: str, module: str, *arguments: str) -> Any:
    """A node ends with exit code 0 where it is told to, at whatever moment."""
    return partial(run, program, f"kairos_ros.{module}", 0, *arguments)


kairos = partial(run, "kairos", "kairos_ros.commands.cli", 130)
monitor_node = _node("monitor_node", "nodes.vlm.node", "monitor")
planner_node = _node("planner_node", "nodes.vlm.node", "system2")
recorder_node = _node("recorder_node", "nodes.recorder.node")
robot_node = _node("robot_node", "nodes.robot.node")
safety_node = _node("safety_node", "nodes.vlm.node", "safety")
serving_node = _node("serving_node", "nodes.serving.node")
sim_driver_node = _node("sim_driver_node", "lab.driver_node.node")
viz_node = _node("viz_node", "nodes.viz.node")
vlm_node = _node("vlm_node", "nodes.vlm.node")
