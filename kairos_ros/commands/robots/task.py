"""`kairos task send|cancel`: one robot's task, from the command line."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames, is_robot_name

if TYPE_CHECKING:
    from kairos_ros.action import ExecuteTask

TOLD_EVERY_S = 2.0
"""How often progress is a line of its own where the output is no terminal."""
INTERRUPTED = 130

RobotArgument = Annotated[str, typer.Argument(help="Name of the robot, such as arm_1.")]
DomainOption = Annotated[
    int | None,
    typer.Option(min=0, max=232, help="ROS domain of the fleet [default: $ROS_DOMAIN_ID]."),
]


NamespaceOption = Annotated[
    str, typer.Option(help="ROS namespace of the fleet, such as site_a.", metavar="NAMESPACE")
]


def send_command(
    robot: RobotArgument,
    instruction: Annotated[
        str, typer.Argument(help="What the robot shall do, in words that the policy knows.")
    ],
    scene: Annotated[
        str,
        typer.Option(
            help="Scene of a simulated arm, such as drawer-open-v3 [default: the instruction's]."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scene and of the sampler.")] = 0,
    max_duration: Annotated[
        float, typer.Option(min=0, max=86400, help="Time limit in seconds; 0: no limit.")
    ] = 60.0,
    horizon: Annotated[
        str, typer.Option(help="Horizon policy, such as static:10; empty: the robot's.")
    ] = "",
    policy: Annotated[
        str, typer.Option(help="One of the server's policies, by name; empty: the robot's.")
    ] = "",
    domain: DomainOption = None,
    namespace: NamespaceOption = "",
) -> None:
    """Give a robot a task and watch it until it ends; Ctrl-C cancels it.

    Exit code 0 when the task succeeded, or came to its limit on an arm that cannot tell success; 1
    when it ended in any other way, 130 when Ctrl-C canceled it, 2 when no robot took it. A second
    Ctrl-C leaves at once, and the arm goes on with what it does.
    """
    from kairos_ros.action import ExecuteTask
    from kairos_ros.host.interrupt import Interrupt
    from kairos_ros.nodes.clients.task_client import TaskClient

    if not instruction.strip():
        raise ConfigError("the instruction is empty; say what the robot shall do")
    goal = ExecuteTask.Goal(
        instruction=instruction,
        scene=scene,
        seed=seed,
        max_duration_s=max_duration,
        horizon_policy=horizon,
        policy=policy,
    )
    name = robot_name(robot)
    progress = FeedbackLine(name)
    left = f"left at once; {name} goes on: kairos task cancel {name} ends it"
    with (
        Interrupt(at_once=lambda: print(f"\n{left}", file=sys.stderr, flush=True)) as interrupt,
        TaskClient(name, domain, FleetNames.below(namespace)) as client,
    ):
        client.find(lambda: interrupt.requested)
        if interrupt.requested:
            raise typer.Exit(INTERRUPTED)
        try:
            result = client.send(
                goal,
                lambda feedback: progress.show(feedback, client.why_unserved(policy)),
                lambda: interrupt.requested,
            )
        finally:
            progress.end()
    typer.echo(ended(name, result))
    if result.success or result.ended:
        raise typer.Exit(0)
    raise typer.Exit(INTERRUPTED if interrupt.requested else 1)


def cancel_command(
    robot: RobotArgument, domain: DomainOption = None, namespace: NamespaceOption = ""
) -> None:
    """End the task that a robot does, whoever gave it; waits until the arm holds still.

    Exit code 0 also where it did none, 2 where the robot does not answer.
    """
    from kairos_ros.nodes.clients.task_client import TaskClient

    name = robot_name(robot)
    with TaskClient(name, domain, FleetNames.below(namespace)) as client:
        client.find()
        canceled = client.cancel()
    typer.echo(f"{name}: canceled {canceled!r}" if canceled else f"{name} does no task")


def robot_name(text: str) -> str:
    """Raises ConfigError for what is no robot's name."""
    name = text.strip("/")
    if not is_robot_name(name):
        raise ConfigError(f"{text!r} is not a robot name; use letters, digits, _ and /")
    return name


def ended(robot: str, result: "ExecuteTask.Result") -> str:
    """A result in one line."""
    how = f"ended at its limit ({result.outcome})" if result.ended else result.outcome
    return (
        f"{robot}: {how}; {result.actions} actions in {result.rounds} rounds, the last after "
        f"{result.duration_s:.1f} s; held for {result.stalled_s:.1f} s"
    )


class FeedbackLine:
    """Feedback as one line that is written over in a terminal, as a line now and then elsewhere."""

    def __init__(self, robot: str) -> None:
        self._robot = robot
        self._told_at = 0.0
        self._open = False

    def show(self, feedback: "ExecuteTask.Feedback", why_unserved: str = "") -> None:
        doing = "holds, waiting for actions" if feedback.holding else "moves"
        if feedback.holding and why_unserved:
            doing += f" ({why_unserved})"
        text = (
            f"{self._robot} {doing}: round {feedback.round}, {feedback.actions} actions executed, "
            f"{feedback.buffered} to go, held for {feedback.stalled_s:.1f} s"
        )
        if sys.stdout.isatty():
            print(f"\r{text}\x1b[K", end="", flush=True)
            self._open = True
        elif time.monotonic() - self._told_at >= TOLD_EVERY_S:
            self._told_at = time.monotonic()
            print(text, flush=True)

    def end(self) -> None:
        if self._open:
            print(flush=True)
