"""`kairos robot check`: contracts of robots behind ROS 2 drivers."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.core.errors import ConfigError

if TYPE_CHECKING:
    from kairos_ros.robot.adapters.contract.contract import RobotContract


def check_command(
    file: Annotated[
        str,
        typer.Argument(
            help="A contract, or the name of a shipped one: so101, bi_so101, franka, or one of "
            "these with _real behind it.",
            metavar="FILE|NAME",
        ),
    ],
    live: Annotated[
        bool, typer.Option("--live", help="Also check it against the running drivers.")
    ] = False,
    driver: Annotated[
        list[str] | None,
        typer.Option(help="Namespace of an arm's driver, such as /so101; once for each arm."),
    ] = None,
    within: Annotated[
        float, typer.Option(min=0.1, max=600, help="Seconds to wait for the drivers.")
    ] = 5.0,
    policy: Annotated[
        str, typer.Option(help="Policy folder or emulated:...; also check that it fits this robot.")
    ] = "",
    camera_map: Annotated[
        list[str] | None,
        typer.Option(help="CAMERA=NAME, as in the robot node's parameter; once for each camera."),
    ] = None,
    absent_camera: Annotated[
        list[str] | None,
        typer.Option(help="A camera of the policy that the robot does not have; once for each."),
    ] = None,
) -> None:
    """Say everything that is wrong with a robot's contract.

    In the file: line, column, field, value, what is allowed. With --policy: state, actions and
    cameras that the policy has otherwise. With --live: what the drivers do not have or say
    otherwise. Nothing is commanded. Exit code 2 where something is wrong, else 0.
    """
    from kairos_ros.document.faults import FaultyFileError, shown
    from kairos_ros.robot.adapters.contract.contract_file import (
        at_drivers,
        contract_path,
        read_contract,
    )

    path = contract_path(file)
    try:
        contract = read_contract(path)
    except FaultyFileError as error:
        typer.echo("\n".join(shown(path, error)), err=True)
        raise typer.Exit(2) from None
    if driver:
        contract = at_drivers(contract, driver)
    typer.echo(f"{path}: {summary(contract)}")
    if policy:
        problem = policy_misfit(contract, policy, camera_map or (), absent_camera or ())
        if problem:
            typer.echo(problem, err=True)
            raise typer.Exit(2)
        typer.echo(f"policy {policy} fits{reads_several(contract, policy)}")
    if live and not _fits(contract, within):
        raise typer.Exit(2)


def policy_misfit(
    contract: "RobotContract", policy: str, named: Sequence[str], absent: Sequence[str]
) -> str:
    """Why `policy` cannot move the robot; empty if it can. named: texts CAMERA=NAME.

    Raises ConfigError for a policy that is none or not on this host, and for what `named` says of
    no camera.
    """
    from kairos_ros.core.fit import RobotInterface, misfit
    from kairos_ros.engine.policies.saved_policy import policy_inputs
    from kairos_ros.robot.cameras.camera_map import read_camera_map

    interface = policy_inputs(policy).interface(policy)
    if interface is None:
        raise ConfigError(
            f"what policy {policy!r} reads is not known before it was downloaded; give its folder"
        )
    sizes = {key: (one.height_px, one.width_px) for key, one in contract.cameras.items()}
    names = read_camera_map(named, sizes)
    cameras = {names.get(key, key): size for key, size in sizes.items()}
    joints, state = len(contract.joints), len(contract.state_features)
    return misfit(RobotInterface(state, joints, cameras, tuple(absent)), interface)


def reads_several(contract: "RobotContract", policy: str) -> str:
    """What it means for the robot that a policy reads several observations; empty for one."""
    from kairos_ros.engine.policies.saved_policy import policy_inputs

    inputs, rate_hz = policy_inputs(policy), contract.control_rate_hz
    if inputs.observations == 1:
        return ""
    apart = f"{inputs.observations} observations, {1e3 / rate_hz:.0f} ms apart"
    reads = "what was seen and executed in the task" if inputs.keeps_state else apart
    return f"; it reads {reads}: in a task the robot observes {rate_hz:g} times a second"


def summary(contract: "RobotContract") -> str:
    """A contract in one line."""
    drivers = ", ".join(arm.driver for arm in contract.arms)
    cameras = ", ".join(contract.cameras) or "none"
    return (
        f"{contract.robot} with {len(contract.joints)} joints at {contract.control_rate_hz:g} Hz, "
        f"drivers {drivers}, cameras {cameras}, state of {len(contract.state_features)}"
    )


def _fits(contract: "RobotContract", within_s: float) -> bool:
    """Whether the running drivers fit; prints what does not, and who commands them."""
    import rclpy

    from kairos_ros.nodes.robot.claim import LOOK_AROUND_S
    from kairos_ros.nodes.robot.drivers.link import RosDriverLink

    context = rclpy.Context()
    rclpy.init(context=context)
    link = RosDriverLink(contract, "/kairos", context)
    try:
        give_up = time.monotonic() + within_s
        while (problems := link.mismatches()) and time.monotonic() < give_up:
            time.sleep(0.1)
        give_up = time.monotonic() + LOOK_AROUND_S
        while time.monotonic() < give_up:  # who commands is found before its name is
            if (others := link.commanders()) and all(rival.named for rival in others):
                break
            time.sleep(0.1)
        for rival in others:
            typer.echo(f"note: {rival.told}")
    finally:
        link.close()
        rclpy.shutdown(context=context)
    for problem in problems:
        typer.echo(f"{problem.code}: {problem.text}", err=True)
    typer.echo(f"{len(problems)} to mend" if problems else "the drivers fit", err=bool(problems))
    return not problems
