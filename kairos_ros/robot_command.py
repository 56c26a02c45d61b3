"""`kairos robot check`: contracts of robots behind ROS 2 drivers."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kairos_ros.robot.contract import RobotContract


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
        bool, typer.Option("--live", help="Hold it against the drivers that are running, too.")
    ] = False,
    driver: Annotated[
        list[str] | None,
        typer.Option(help="Namespace of an arm's driver, such as /so101; once for each arm."),
    ] = None,
    within: Annotated[
        float, typer.Option(min=0.1, max=600, help="Seconds in which drivers must be found.")
    ] = 5.0,
) -> None:
    """Say everything that is wrong with a robot's contract.

    In the file: line, column, field, value, what is allowed. With --live: what the drivers do not
    have or say otherwise. Nothing is commanded. Exit code 2 where something is wrong, else 0.
    """
    from kairos_ros.document.faults import FaultyFileError, shown
    from kairos_ros.robot.contract_file import at_drivers, contract_path, read_contract

    path = contract_path(file)
    try:
        contract = read_contract(path)
    except FaultyFileError as error:
        typer.echo("\n".join(shown(path, error)), err=True)
        raise typer.Exit(2) from None
    if driver:
        contract = at_drivers(contract, driver)
    typer.echo(f"{path}: {summary(contract)}")
    if live and not _fits(contract, within):
        raise typer.Exit(2)


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

    from kairos_ros.nodes.arm_claim import LOOK_AROUND_S
    from kairos_ros.nodes.driver_link import RosDriverLink

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
