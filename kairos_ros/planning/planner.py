"""From a workload and GPUs to a plan (Rosa §3.4): obligations first, then the most actions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component
from kairos_ros.planning.ilp import Configuration, choose
from kairos_ros.planning.packing import Packed, Stream
from kairos_ros.planning.plan import ClassPlan, Plan, ServerPlan
from kairos_ros.planning.search import Rates, Search
from kairos_ros.planning.sizing import Footprint, Sizing
from kairos_ros.planning.workload import Cluster, PlanOptions, Use, Workload

SLACK = 0.005
"""Rates that differ by less are alike, and the plan with less latency is better: profiles are not
more exact than that."""
ORDER = (Component.SYSTEM1, Component.SYSTEM2, Component.SAFETY, Component.MONITOR)
MORE_GPUS = 4
"""So many are tried, until one makes the fleet faster."""
WORTH_TELLING = 0.005
NAMES = {Component.SYSTEM1: "System 1", Component.SYSTEM2: "System 2"}


class ClusterTooSmallError(ConfigError):
    """The GPUs do not carry what every robot must have."""


class Planner:
    """Plans one workload on clusters of one kind of GPU, of any size; remembers what it tried."""

    def __init__(self, workload: Workload, cluster: Cluster, options: PlanOptions) -> None:
        """Raises ConfigError for a model that does not fit a GPU, and for an SLO that a single
        robot does not get."""
        self.workload, self.cluster, self.options = workload, cluster, options
        self.sizing = Sizing(workload, cluster.memory_mib, options)
        self._check()
        self.search = Search(self.sizing, options.objective, options.evaluations)
        obligations = self.sizing.obligations()
        assert obligations is not None  # `_check` asked for a single robot of each
        even = self._chosen(obligations.streams, obligations.total)
        self.obligations = even or obligations

    @property
    def least_gpus(self) -> int:
        """That carry obligations and floors."""
        needed = self.search.needed(self.search.floors)
        if needed is None:
            raise ConfigError(self._unreachable_floor())
        return self.obligations.total + needed

    def plan(self, gpus: int | None = None, *, explain: bool = True) -> Plan:
        """The best plan for so many GPUs, by default all of the cluster. explain: with its bound
        and with what limits it.

        Raises ClusterTooSmallError where they do not carry obligations and floors."""
        gpus = self.cluster.gpus if gpus is None else gpus
        if gpus < self.least_gpus:
            raise ClusterTooSmallError(self._too_small(gpus))
        goal_gpus = gpus - self.obligations.total
        rates = self._slackened(self._rates(goal_gpus))
        made = self._made(gpus, rates, self._placed(rates, goal_gpus))
        if explain:
            bound = self.search.bound(goal_gpus) if self.options.objective == "weighted" else None
            made = replace(made, bound_hz=bound)
            made = replace(made, limits=self._limits(made, rates))
        return made

    def value_hz(self, gpus: int) -> float | None:
        """What a plan for so many GPUs is worth; None where they are too few."""
        if gpus < self.least_gpus:
            return None
        rates = self._slackened(self._rates(gpus - self.obligations.total))
        return self.search.value(rates)

    def _rates(self, goal_gpus: int) -> Rates:
        rates = self.search.best(goal_gpus)
        assert rates is not None  # the floors fit
        return rates

    def _slackened(self, rates: Rates) -> Rates:
        if self.options.objective == "fewest":
            return rates
        slack = zip(rates, self.search.floors, strict=True)
        return tuple(max(floor, hz * (1 - SLACK)) for hz, floor in slack)

    # Placement

    def _placed(self, rates: Rates, servers: int) -> Footprint:
        """Eq. 3 with all servers: of all ways to fill them, that with the least latency."""
        least = self.sizing.goal(rates)
        assert least is not None  # the search found them feasible
        if self.options.objective == "fewest":
            return least
        best: tuple[float, Footprint] | None = None
        for streams in self.sizing.ways(rates):
            if (chosen := self._chosen(streams, servers)) is not None:
                cost = self._latency(chosen.servers)
                if best is None or cost < best[0]:
                    best = cost, chosen
        return best[1] if best else self._spread(least, servers)

    def _chosen(self, streams: Mapping[Use, list[Stream]], servers: int) -> Footprint | None:
        """These streams on at most so many servers, each with robots of one class."""
        configurations = self._configurations(streams)
        chosen = choose(configurations, servers) if configurations else None
        return None if chosen is None else Footprint(chosen, streams)

    def _configurations(self, streams: Mapping[Use, list[Stream]]) -> list[Configuration]:
        """Every number of robots of one class that one server carries; none where a robot is too
        much for a server."""
        found = []
        for use, mine in streams.items():
            for stream in mine:
                most = min(stream.per_server, stream.robots)
                if most < 1:
                    return []
                for robots in range(1, most + 1):
                    server = Packed()
                    server.add(stream, robots)
                    cost = self._latency({use: [server]})
                    found.append(Configuration(use, stream, robots, cost))
        return found

    def _latency(self, servers: Mapping[Use, Sequence[Packed]]) -> float:
        """Of all robots per action, in s: that of plans counts by the share of an action."""
        total = 0.0
        for use, mine in servers.items():
            for server in mine:
                chosen = self.sizing.capacities[use].at(server.load_hz, server.limits_hz)
                assert chosen is not None  # packing keeps the limits
                for owner, robots in server.robots.items():
                    ratio = self.workload.classes[owner].system2_ratio
                    share = 1 / ratio if use[1] is Component.SYSTEM2 else 1.0
                    total += robots * share * chosen.mean_s
        return total

    def _spread(self, footprint: Footprint, servers: int) -> Footprint:
        """The footprint, and for each server that is left over the fullest one halved."""
        placed = {use: list(mine) for use, mine in footprint.servers.items()}
        for _ in range(servers - footprint.total):
            able = [
                (server.load_hz / max(server.limits_hz), use, i)
                for use, mine in placed.items()
                for i, server in enumerate(mine)
                if sum(server.robots.values()) > 1
            ]
            if not able:
                break
            _, use, i = max(able, key=lambda one: one[0])
            whole = placed[use].pop(i)
            of = {stream.owner: stream for stream in footprint.streams[use]}
            halves = Packed(), Packed()
            for n, owner in enumerate(whole.robots):
                robots = whole.robots[owner]
                first = (robots + n % 2) // 2
                for half, share in zip(halves, (first, robots - first), strict=True):
                    if share:
                        half.add(of[owner], share)
            placed[use] += [half for half in halves if half.robots]
        return Footprint(placed, footprint.streams)

    def _made(self, gpus: int, rates: Rates, goal: Footprint) -> Plan:
        classes = self.workload.classes
        servers = {**goal.servers, **self.obligations.servers}
        next_robot: dict[tuple[Use, int], int] = {}
        asked = {
            (component, stream.owner): stream.rate_hz
            for (_, component), streams in goal.streams.items()
            for stream in streams
        }
        made: list[ServerPlan] = []
        used = sorted(servers, key=lambda use: ORDER.index(use[1]))
        for use in used:
            model, component = use
            for server in sorted(servers[use], key=lambda one: -one.load_hz):
                chosen = self.sizing.capacities[use].at(server.load_hz, server.limits_hz)
                assert chosen is not None  # packing keeps the limits
                routed = {}
                for owner, count in server.robots.items():
                    first = next_robot.get((use, owner), 0)
                    next_robot[use, owner] = first + count
                    routed[classes[owner].name] = classes[owner].robots[first : first + count]
                network = self.options.network_s
                made.append(
                    ServerPlan(
                        gpu=f"gpu{len(made)}",
                        component=component,
                        model=model,
                        batch=chosen.batch,
                        robots=routed,
                        rate_hz=server.load_hz,
                        limit_hz=chosen.limit_hz,
                        mean_s=chosen.mean_s + network,
                        p99_s=chosen.slo_quantile_s + network,
                        slo_s=min(classes[o].needs[component].slo_s for o in server.robots),
                        memory_mib=chosen.memory_mib,
                        assumed=self.workload.profiles[use].assumed,
                    )
                )
        told = tuple(
            ClassPlan(
                name=one.name,
                robots=one.count,
                actions_hz=rates[i],
                requests_hz=asked.get((Component.SYSTEM1, i), 0.0),
                plans_hz=asked.get((Component.SYSTEM2, i), 0.0),
                ceiling_hz=self.search.ceilings[i],
                value=one.value,
                floor_hz=one.floor_hz,
            )
            for i, one in enumerate(classes)
        )
        return Plan(
            device=self.cluster.device,
            gpus=gpus,
            execution=self.options.execution,
            objective=self.options.objective,
            network_s=self.options.network_s,
            classes=told,
            servers=tuple(made),
            spare=gpus - len(made),
            value_hz=self.search.value(rates),
            bound_hz=None,
            standby=self.cluster.standby,
            hosts=self.cluster.hosts,
        )

    # What limits it, and what keeps it from being

    def _limits(self, made: Plan, rates: Rates) -> str:
        if self.options.objective == "fewest":
            return "the floors of the classes, on the fewest GPUs"
        share = min(hz / top for hz, top in zip(rates, self.search.ceilings, strict=True))
        if share >= 1 - 2 * SLACK:
            return "the robots themselves: no GPU makes them faster"
        goal = [one for one in made.servers if one.component in NAMES]
        fullest = max(goal, key=lambda one: one.load)
        where = f"{NAMES[fullest.component]} on {fullest.gpu} at {100 * fullest.load:.0f} %"
        for more in range(1, MORE_GPUS + 1):
            value = self.value_hz(made.gpus + more)
            gain = (value or 0.0) / made.value_hz - 1
            if gain > WORTH_TELLING:
                gpus = "one more GPU gives" if more == 1 else f"{more} more GPUs give"
                return f"{where}: {gpus} {100 * gain:+.0f} %"
        return (
            f"{where}, but {MORE_GPUS} more GPUs give less than {100 * WORTH_TELLING:g} %: robots "
            f"are at {100 * share:.0f} % of what they could do with idle models"
        )

    def _check(self) -> None:
        """A single robot of each class on servers of its own must get what it needs."""
        for one in self.workload.classes:
            for component, need in one.needs.items():
                capacity = self.sizing.capacity(one, component)
                profile = capacity.profile
                if not capacity.fits:
                    least = min(load.memory_mib for load in profile.loads)
                    raise ConfigError(
                        f"{component} of {one.name}: {need.model} takes at least {least:g} MiB, "
                        f"but a {self.cluster.device} has {self.cluster.memory_mib:g} MiB"
                    )
                if max(self.sizing.limits(need, component)) < max(need.hz, 1e-9):
                    tail_s = capacity.tail_s(need.hz) + self.options.network_s
                    raise ConfigError(
                        f"{component} of {one.name}: {need.model} answers a single robot within "
                        f"{1e3 * tail_s:.0f} ms (p99, network included), which is more than its "
                        f"slo_ms {1e3 * need.slo_s:g}; no number of GPUs helps"
                    )

    def _unreachable_floor(self) -> str:
        told = [
            f"{one.name}: {floor * one.count:g} of at most {ceiling * one.count:.1f} actions/s"
            for one, floor, ceiling in zip(
                self.workload.classes, self.search.floors, self.search.ceilings, strict=True
            )
            if one.floor_hz
        ]
        return (
            "no number of GPUs carries the floors (min_actions_per_s) with these SLOs: "
            + "; ".join(told)
        )

    def _too_small(self, gpus: int) -> str:
        """Which SLO fails first, by how much, and what would do."""
        floors = self.sizing.goal(self.search.floors)
        assert floors is not None  # `least_gpus` needs them
        footprints = {**self.obligations.servers, **floors.servers}
        streams = {**self.obligations.streams, **floors.streams}
        left = gpus
        for (model, component), servers in footprints.items():
            if left < len(servers):
                rate = sum(one.robots * one.rate_hz for one in streams[model, component])
                owners = [self.workload.classes[one.owner] for one in streams[model, component]]
                slo_s = min(owner.needs[component].slo_s for owner in owners)
                names = ", ".join(owner.name for owner in owners)
                what = (
                    f"{component} of {names} ({model}) fails first: {_fails(left)} of "
                    f"{len(servers)}"
                )
                if left:
                    capacity = self.sizing.capacities[model, component]
                    tail_s = capacity.tail_s(rate / left) + self.options.network_s
                    most = f"{left * capacity.max_rate_hz:.3g}/s"
                    at = f"its slo_ms {1e3 * slo_s:g}, at {rate:.3g} requests/s"
                    if tail_s == float("inf"):
                        late = (
                            f"{rate:.3g} requests/s are more than the {most} that it answers at all"
                        )
                    elif tail_s <= slo_s:
                        late = f"robots cannot be split so that every server keeps {at}"
                    else:
                        beyond = f"{1e3 * (tail_s - slo_s):.0f} ms beyond {at}"
                        late = f"p99 would be {1e3 * tail_s:.0f} ms, {beyond}"
                    what = f"{what}; {late}"
                break
            left -= len(servers)
        shares = ", ".join(f"{component} {len(s)}" for (_, component), s in footprints.items())
        return (
            f"{gpus} GPU{' is' if gpus == 1 else 's are'} too few: {what}. At least "
            f"{self.least_gpus} are needed ({shares}); give more GPUs, fewer robots, or longer SLOs"
        )


def _fails(left: int) -> str:
    return f"{left} GPU{'s' * (left != 1)} left" if left else "no GPU left"
