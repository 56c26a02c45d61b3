"""A plan for the terminal."""

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.tree import Tree

from kairos_ros.planning.plan import Plan, ServerPlan

SHOWN_SERVERS = 16
"""Of one model; more are told by the fullest, the emptiest, and their number."""
MODES = {
    "overlapped": "robots ask while they execute",
    "synchronous": "robots wait for every answer",
}


def plan_tree(plan: Plan) -> Tree:
    """What limits the fleet, rates by class, servers by model."""
    robots = sum(one.robots for one in plan.classes)
    tree = Tree(
        f"[bold]{robots} robots on {plan.gpus} x {escape(plan.device)}: "
        f"{plan.actions_hz:.4g} actions/s[/], {MODES[plan.execution]}"
    )
    if plan.assumed:
        tree.add(f"[yellow]assumed, not measured[/]: {escape(', '.join(plan.assumed))}")
    tree.add(f"limited by {escape(plan.limits)}")
    if plan.gap is not None:
        worth = "" if plan.value_hz == plan.actions_hz else f" (worth {plan.value_hz:.4g}/s)"
        tree.add(f"at most {100 * plan.gap:.1f} % below the best plan there is{worth}")
    rates = tree.add("rates")
    for one in plan.classes:
        floor = f", floor {one.floor_hz:g}/s" if one.floor_hz else ""
        value = f", value {one.value:g}" if one.value != 1 else ""
        asks = f"asks {one.requests_hz:.3g} times/s"
        plans = f", plans {one.plans_hz:.2g}/s" if one.plans_hz else ""
        rates.add(
            f"[bold]{escape(one.name)}[/] {one.robots} robots x {one.actions_hz:.3g} actions/s "
            f"({100 * one.actions_hz / one.ceiling_hz:.0f} % of their most){floor}{value}; each "
            f"{asks}{plans}"
        )
    models: dict[tuple[str, str], list[ServerPlan]] = {}
    for server in plan.servers:
        models.setdefault((str(server.component), server.model), []).append(server)
    for (component, model), servers in models.items():
        assumed = " [yellow](assumed profile)[/]" if servers[0].assumed else ""
        gpus = f"{len(servers)} GPU{'s' * (len(servers) > 1)}"
        branch = tree.add(f"[bold]{component}[/] {escape(model)}: {gpus}{assumed}")
        shown = servers
        if len(servers) > SHOWN_SERVERS:
            by_load = sorted(servers, key=lambda one: -one.load)
            shown = [by_load[0], by_load[-1]]
            branch.add(f"{len(servers)} servers; the fullest and the emptiest:")
        for server in shown:
            branch.add(_server(server, plan.host_of(server.gpu)))
    if plan.spare:
        tree.add(f"{plan.spare} GPUs are free")
    if plan.hosts:
        tree.add(f"hosts: {escape(', '.join(f'{name} ({gpus})' for name, gpus in plan.hosts))}")
    if plan.standby:
        tree.add(f"besides, {plan.standby} stand by with a model of system1 loaded")
    return tree


def _server(one: ServerPlan, host: str) -> str:
    at = f" on {escape(host)}" if host else ""
    return (
        f"{one.gpu}{at}: {_routed(one.robots)}, batches up to {one.batch}, {one.rate_hz:.3g}/s "
        f"({100 * one.load:.0f} %), mean {1e3 * one.mean_s:.0f} ms, p99 {1e3 * one.p99_s:.0f} of "
        f"{1e3 * one.slo_s:g} ms: [bold]{1e3 * one.margin_s:.0f} ms left[/]"
    )


def _routed(robots: Mapping[str, Sequence[str]]) -> str:
    return " + ".join(f"{len(names)} of {escape(name)}" for name, names in robots.items())
