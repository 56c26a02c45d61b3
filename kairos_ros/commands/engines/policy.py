"""`kairos policy swap|restore`: which policy new tasks get, from the command line."""

from typing import Annotated

import typer

from kairos_ros.commands.robots.task import DomainOption, NamespaceOption
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames


def swap_command(
    swap: Annotated[
        str, typer.Argument(help="OLD=NEW, names of two policies of the serving node.")
    ],
    domain: DomainOption = None,
    namespace: NamespaceOption = "",
) -> None:
    """Give tasks that ask for one policy another one, from the next task on.

    Tasks that run end on the policy that they began with. `kairos policy restore OLD` takes it
    back. The serving node forgets it when it is started again.
    """
    from kairos_ros.nodes.clients.policy_swaps import change_swaps

    old, equals, new = (part.strip() for part in swap.partition("="))
    if not (equals and old and new) or old == new:
        raise ConfigError(f"{swap!r}: write OLD=NEW, names of two policies of the serving node")
    change_swaps(lambda before: before | {old: new}, domain, FleetNames.below(namespace))
    typer.echo(f"new tasks that ask for {old} get {new}; kairos policy restore {old} takes it back")


def restore_command(
    old: Annotated[str, typer.Argument(help="Name of the policy that was swapped for another.")],
    domain: DomainOption = None,
    namespace: NamespaceOption = "",
) -> None:
    """Give tasks the policy again that they ask for, from the next task on."""
    from kairos_ros.nodes.clients.policy_swaps import change_swaps

    def without(before: dict[str, str]) -> dict[str, str]:
        if old not in before:
            known = ", ".join(f"{one}={new}" for one, new in before.items()) or "none is"
            raise ConfigError(f"policy {old!r} is not swapped for another one; swapped: {known}")
        return {one: new for one, new in before.items() if one != old}

    change_swaps(without, domain, FleetNames.below(namespace))
    typer.echo(f"new tasks that ask for {old} get it again")
