"""From a fleet plan to what a serving node serves, with as little change as can be to what runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan
from kairos_ros.fleet.fleet_file import FleetFile
from kairos_ros.fleet.places import NOT_IN_NAMES, policy_names, policy_of
from kairos_ros.planning.plan import Plan, ServerPlan

GPU = "gpu"
"""With a number behind it: a GPU of a plan."""


def served_plan(
    path: Path,
    fleet: FleetFile,
    plan: Plan,
    device: Callable[[int], str],
    running: ServedPlan | None = None,
) -> ServedPlan:
    """System 1 of a plan. path: of the fleet file. device: of GPU number i on this host: cpu or
    cuda:N. running: what stands by there goes on to, if it can."""
    system1 = [task.components.system1 for task in fleet.tasks.values()]
    names = policy_names(one.model for one in system1)
    options = {one.model: one.options for one in system1}
    servers = plan.servers_of(Component.SYSTEM1)
    policies = {
        name: {"policy": policy_of(fleet.located(model), path.parent), **options[model]}
        for model, name in names.items()
        if any(server.model == model for server in servers)
    }
    engines = tuple(
        PlannedEngine(
            server.gpu,
            device(int(server.gpu.removeprefix(GPU))),
            names[server.model],
            server.batch,
            tuple(robot for robots in server.robots.values() for robot in robots),
        )
        for server in sorted(servers, key=lambda one: int(one.gpu.removeprefix(GPU)))
    )
    engines += _standby(plan, engines, running, device)
    hz_of = {one.name: one.requests_hz for one in plan.classes}
    periods = {
        robot: round(1 / hz_of[name], 6)
        for server in servers
        for name, robots in server.robots.items()
        for robot in robots
        if hz_of[name] > 0
    }
    return ServedPlan(fleet_name(path), policies, engines, periods)


def _standby(
    plan: Plan,
    engines: Sequence[PlannedEngine],
    running: ServedPlan | None,
    device: Callable[[int], str],
) -> tuple[PlannedEngine, ...]:
    """Engines that stand by: of the policies whose robots have the fewest of them, on GPUs that
    nothing runs on."""
    total = plan.gpus + plan.standby
    used = {server.gpu for server in plan.servers}
    free = [gpu for i in reversed(range(total)) if (gpu := f"{GPU}{i}") not in used]
    before = {one.gpu: one.policy for one in running.engines if one.standby} if running else {}
    free.sort(key=lambda gpu: gpu not in before)
    robots = Counter({one.policy: 0 for one in engines})
    for one in engines:
        robots[one.policy] += len(one.robots)
    wanted: Counter[str] = Counter()
    for _ in range(plan.standby):
        wanted[max(robots, key=lambda policy: robots[policy] / (1 + wanted[policy]))] += 1
    found = []
    for gpu in free[: plan.standby]:
        policy = before.get(gpu, "")
        if not wanted[policy]:
            policy = next(policy for policy in wanted if wanted[policy])
        wanted[policy] -= 1
        batch = max(one.batch for one in engines if one.policy == policy)
        where = device(int(gpu.removeprefix(GPU)))
        found.append(PlannedEngine(gpu, where, policy, batch, (), standby=True))
    return tuple(found)


def fleet_name(path: Path) -> str:
    """Of a fleet file."""
    return NOT_IN_NAMES.sub("-", path.stem)[:50].strip("-._") or "fleet"


def like_running(plan: Plan, fleet: FleetFile, running: ServedPlan) -> Plan:
    """The same plan with GPUs and robots exchanged for others of their kind, so that of what runs
    as much as possible stays: a model on its GPU, and a robot at its engine."""
    names = policy_names([task.components.system1.model for task in fleet.tasks.values()])
    system1 = list(plan.servers_of(Component.SYSTEM1))
    gpus = [f"{GPU}{i}" for i in range(plan.gpus + plan.standby)]
    serve = [old for old in running.engines if old.gpu in gpus and not old.standby]
    pairs = _pairs(system1, serve, names)
    robots = _kept_robots(system1, pairs)
    stay = {i: old.gpu for i, old in pairs.items()}
    free = [gpu for gpu in gpus if gpu not in stay.values()]
    # what is new goes where nothing runs, if there is such a GPU
    idle = [g for g in free if all(g != one.gpu for one in running.engines)]
    left = idle + [gpu for gpu in free if gpu not in idle]
    placed = [
        replace(server, gpu=stay.get(i) or left.pop(0), robots=robots[i])
        for i, server in enumerate(system1)
    ]
    left.sort(key=gpus.index)
    others = [server for server in plan.servers if server.component is not Component.SYSTEM1]
    placed += [replace(server, gpu=left.pop(0)) for server in others]
    return replace(plan, servers=tuple(placed))


def _pairs(
    servers: Sequence[ServerPlan], running: Sequence[PlannedEngine], names: Mapping[str, str]
) -> dict[int, PlannedEngine]:
    """Which server takes the place of which engine of the same model: those with the most robots
    in common first."""
    able = []
    for i, server in enumerate(servers):
        for old in running:
            if old.policy == names[server.model]:
                # robots of a class stand in for each other, so that only numbers count
                of_class = {name: _class_members(servers, name) for name in server.robots}
                common = sum(
                    min(len(robots), len(of_class[name] & set(old.robots)))
                    for name, robots in server.robots.items()
                )
                able.append((-common, old.gpu, i, old))
    pairs: dict[int, PlannedEngine] = {}
    for _, _, i, old in sorted(able, key=lambda one: one[:3]):
        if i not in pairs and old not in pairs.values():
            pairs[i] = old
    return pairs


def _class_members(servers: Sequence[ServerPlan], name: str) -> set[str]:
    return {robot for server in servers for robot in server.robots.get(name, ())}


def _kept_robots(
    servers: Sequence[ServerPlan], pairs: Mapping[int, PlannedEngine]
) -> list[dict[str, tuple[str, ...]]]:
    """As many robots of each class per server as planned, those that it has already first."""
    found: list[dict[str, tuple[str, ...]]] = [{} for _ in servers]
    for name in dict.fromkeys(name for server in servers for name in server.robots):
        members = [robot for server in servers for robot in server.robots.get(name, ())]
        mine: list[list[str]] = []
        for i, server in enumerate(servers):
            had = set(pairs[i].robots) if i in pairs else set()
            most = len(server.robots.get(name, ()))
            mine.append([robot for robot in members if robot in had][:most])
        taken = {robot for robots in mine for robot in robots}
        left = [robot for robot in members if robot not in taken]
        for i, server in enumerate(servers):
            missing = len(server.robots.get(name, ())) - len(mine[i])
            mine[i] += left[:missing]
            left = left[missing:]
            if mine[i]:
                found[i][name] = tuple(mine[i])
    return found


def devices(plan: Plan, found: int, wanted: str) -> Callable[[int], str]:
    """Where GPU number i of a plan is on this host. found: its CUDA GPUs. wanted: auto (CUDA if
    there is any), cuda, or cpu: a CPU slot in the place of each GPU.

    Raises ConfigError for a plan that uses more GPUs than there are."""
    if wanted == "cpu" or (wanted == "auto" and not found):
        return lambda _: "cpu"
    needed = plan.standby + 1 + max(int(one.gpu.removeprefix(GPU)) for one in plan.servers)
    if needed > found:
        raise ConfigError(
            f"the plan uses {needed} GPUs and this host has {found}; plan for those with --gpus "
            f"{max(1, found)}, or give --device cpu: a CPU slot in the place of each GPU"
        )
    return lambda i: f"cuda:{i}"
