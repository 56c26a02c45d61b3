"""From a fleet plan to what a serving node serves, with as little change as can be to what runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component
from kairos_ros.core.placement.served_plan import Option, PlannedEngine, ServedPlan
from kairos_ros.fleet.fleet_file import FleetFile
from kairos_ros.fleet.places import NOT_IN_NAMES, options_of, policy_names, policy_of
from kairos_ros.fleet.server_cluster import Host
from kairos_ros.planning.plan import GPU, Plan, ServerPlan

LEAST_BATCH = 16
"""Of an engine, unless its options say something else."""
LAST_PORT = 65535


def served_plan(
    path: Path,
    fleet: FleetFile,
    plan: Plan,
    device: Callable[[int], str],
    running: ServedPlan | None = None,
) -> ServedPlan:
    """System 1 of a plan. path: of the fleet file. device: of GPU number i on this host: cpu or
    cuda:N. running: what stands by there goes on to, if it can."""
    names = policy_names(task.components.system1.model for task in fleet.tasks.values())
    servers = plan.servers_of(Component.SYSTEM1)
    planned = {names[server.model] for server in servers}
    every = policies_of(fleet, path.parent)
    policies = {name: options for name, options in every.items() if name in planned}
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
    engines = _placed(fleet.server_cluster.hosts, plan, engines, policies, running)
    hz_of = {one.name: one.requests_hz for one in plan.classes}
    periods = {
        robot: round(1 / hz_of[name], 6)
        for server in servers
        for name, robots in server.robots.items()
        for robot in robots
        if hz_of[name] > 0
    }
    return ServedPlan(fleet_name(path), policies, engines, periods)


def policies_of(fleet: FleetFile, folder: Path) -> dict[str, Mapping[str, Option]]:
    """Name of each System 1 model -> its `policy` and further options, as in a `ServedPlan`.
    folder: where the fleet file stands."""
    system1 = [task.components.system1 for task in fleet.tasks.values()]
    names = policy_names(one.model for one in system1)
    return {
        names[one.model]: {
            "policy": policy_of(fleet.located(one.model), folder),
            **options_of(one.options, folder),
        }
        for one in system1
    }


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


def worker_batch(batch: int) -> int:
    """Largest batch of an engine whose plan says so: as large as it may get without a new start."""
    return max(LEAST_BATCH, batch)


def _placed(
    hosts: Sequence[Host],
    plan: Plan,
    engines: Sequence[PlannedEngine],
    policies: Mapping[str, Mapping[str, Option]],
    running: ServedPlan | None,
) -> tuple[PlannedEngine, ...]:
    """The same engines with their hosts, and with endpoints where that is not the first one. An
    engine that runs keeps its endpoint; a new one gets the next free port of its host."""
    if not hosts:
        return tuple(engines)
    by_name = {host.name: host for host in hosts}
    runs = {one.name: one for one in running.engines} if running else {}
    taken = {one.endpoint for one in runs.values()}
    found = []
    for engine in engines:
        name = plan.host_of(engine.gpu)
        endpoint = ""
        if name != hosts[0].name:
            was = runs.get(engine.name)
            if (
                running
                and was
                and (was.host, was.device) == (name, engine.device)
                and worker_batch(was.batch) == worker_batch(engine.batch)
                and running.policies.get(was.policy) == policies[engine.policy]
            ):
                endpoint = was.endpoint
            else:
                free = (_endpoint(by_name[name], i) for i in count())
                endpoint = next(one for one in free if one not in taken)
            taken.add(endpoint)
        found.append(replace(engine, host=name, endpoint=endpoint))
    return tuple(found)


def _endpoint(host: Host, number: int) -> str:
    """Of the engine that is started as number i on a host. Raises ConfigError beyond the ports."""
    port = host.port + number
    if port > LAST_PORT:
        raise ConfigError(f"host {host.name} has no port left for its engines from {host.port} on")
    at = f"[{host.reached_at}]" if ":" in host.reached_at else host.reached_at
    return f"tcp://{at}:{port}"


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


def devices(plan: Plan, found: int, wanted: str, host: str = "") -> Callable[[int], str]:
    """Where GPU number i of a plan is on its host. found: CUDA GPUs of this one. wanted: auto (CUDA
    if there is any), cuda, or cpu: a CPU slot in the place of each GPU. host: this one, where the
    fleet has several; auto is cuda where it has no GPU of the plan.

    Raises ConfigError for a plan that uses more GPUs than there are."""
    last = plan.standby + max(int(one.gpu.removeprefix(GPU)) for one in plan.servers)
    if plan.hosts and not plan.host_of(f"{GPU}{last}"):
        there = sum(gpus for _, gpus in plan.hosts)
        raise ConfigError(
            f"the plan uses {last + 1} GPUs and the hosts of the fleet file have {there}; plan for "
            f"those with --gpus {there - plan.standby}, or add GPUs to server_cluster.hosts"
        )
    places = (plan.place_of(f"{GPU}{i}") for i in range(last + 1))
    mine = [number for of, number in places if of == host]
    if wanted == "cpu" or (wanted == "auto" and mine and not found):
        return lambda _: "cpu"
    needed = max(mine, default=-1) + 1
    if needed > found:
        raise ConfigError(
            f"the plan uses {needed} GPUs and this host has {found}; plan for those with --gpus "
            f"{max(1, found)}, or give --device cpu: a CPU slot in the place of each GPU"
        )
    return lambda i: f"cuda:{plan.place_of(f'{GPU}{i}')[1]}"
