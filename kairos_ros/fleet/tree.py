"""A fleet as a tree for the terminal."""

from rich.markup import escape
from rich.tree import Tree

from kairos_ros.fleet.demand import demands
from kairos_ros.fleet.fleet_file import FleetFile, RobotGroup, TaskClass

SHOWN_ROBOTS = 4
"""A group of more is told by its first and last names."""


def fleet_tree(fleet: FleetFile) -> Tree:
    """Cluster, then tasks with their robots, rules and components."""
    cluster = fleet.server_cluster
    servers = escape(f"{cluster.num_servers} x {cluster.gpu_type}")
    tree = Tree(f"[bold]{len(fleet.robots)} robots[/], servers: {servers}")
    asked = demands(fleet)
    for name, task in fleet.tasks.items():
        branch = tree.add(f"[bold]{escape(name)}[/]  {_pace(task)}")
        for group in fleet.robot_fleet:
            if group.task == name:
                branch.add(f"{robots_told(group)}  [dim]{escape(_body(group))}[/]")
        models = branch.add("asks")
        for demand in (d for d in asked if d.task == name):
            one = task.components.used[demand.component]
            most = "" if hasattr(one, "freq_hz") else "at most "
            located = fleet.located(one.model)
            where = "" if located == one.model else f" at {located}"
            models.add(
                f"[bold]{demand.component}[/] {escape(one.model + where)}\n"
                f"{most}{demand.hz:.3g}/s, within {one.slo_ms:g} ms, else {one.fallback}\n"
                f"[dim]{escape(one.prompt)}[/]"
            )
        for limit in _limits(task):
            branch.add(limit)
    return tree


def robots_told(group: RobotGroup) -> str:
    """A group's robots in a few words."""
    names = group.robots
    if len(names) <= SHOWN_ROBOTS:
        return ", ".join(names)
    return f"{len(names)} robots: {names[0]} ... {names[-1]}"


def _body(group: RobotGroup) -> str:
    home = f", safe state {group.safe_state}" if group.safe_state else ""
    return f"{group.adapter}, {group.control_rate_hz:g} Hz{home}"


def _pace(task: TaskClass) -> str:
    policies = filter(None, (task.horizon, task.scheduling))
    period = f"acts {task.pipeline.action_period_ms:g} ms per prediction"
    return escape(", ".join([period, *plans_told(task), *policies]))


def plans_told(task: TaskClass) -> list[str]:
    """How often System 2 is asked; nothing where there is none."""
    if task.components.system2 is None:
        return []
    ratio = task.rules.system2_ratio
    return ["a plan per prediction" if ratio == 1 else f"a plan per {ratio} predictions"]


def _limits(task: TaskClass) -> list[str]:
    violation, retry = task.safety_and_slo_violation, task.task_retry
    limits = [
        f"more than {violation.max_consecutive_slo_violation} missed answers in a row: "
        f"{violation.on_max_violation}"
    ]
    if task.components.safety:
        limits.append(
            f"more than {violation.max_consecutive_safety_replan} unsafe verdicts in a row: "
            f"{violation.on_max_violation}"
        )
    if task.components.monitor:
        limits.append(f"failed: {retry.max_task_retries} retries, then {retry.on_max_task_retries}")
    return limits
