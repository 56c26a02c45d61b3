"""What the hybrid benchmark asks of a fleet, in real and virtual time alike: tasks, engines, WAN.

The workload is synthetic (`pi05-libero`, as in `config/studies/placement.yaml`), its engines are
assumed: the edge's computes like pi05 on an A6000, the cloud's twice as fast.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from kairos_ros.core.execution.latency import lead_actions
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.lab.sim.arrivals import TraceTask, trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.sim_engine import SimEngine, linear_profile
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.lab.sim.workloads import workload
from kairos_ros.lab.study.simulated import asking
from kairos_ros.lab.testbed.link_proxy import Conditions
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.serving.options import ServingOptions

Mode = Literal["edge", "cloud", "hybrid"]
MODES: tuple[Mode, ...] = ("edge", "cloud", "hybrid")

WORKLOAD = "pi05-libero"
LATENCY: dict[str, str] = {"edge": "80+35b", "cloud": "40+17.5b"}
"""Milliseconds of a batch of b requests."""
BATCH_CAP = 8
CAMERAS = ("top", "left", "right")
PIXELS = 224
ACTION_DIM = 7
STEPS = 10
"""Sampler steps, whose updates travel back with every chunk."""
SCHEDULING = "wait_ratio"
ROBOT_NETWORK_S = 0.003
"""Round trip between a robot and the serving node, over DDS on one host."""
ROBOTS = 40
"""Enough that tasks wait for a robot only where a fleet is far behind."""
PATIENCE_S = 60.0
"""A request without an answer for so long is sent again, and counts as lost."""


@dataclass(frozen=True, slots=True)
class Wan:
    """A WAN between edge and cloud."""

    name: str
    rtt_ms: float = 100.0
    mbps: float = 1000.0
    loss: float = 0.0
    """Share of packets that are dropped, 0..1."""
    jitter_ms: float = 0.0
    """Up to so much more delay per packet and direction."""
    congestion: str = "cubic"
    """TCP's, on both sides; Linux's default."""

    @property
    def conditions(self) -> Conditions:
        jitter_s = self.jitter_ms / 1e3
        return Conditions(self.rtt_ms / 2e3, jitter_s, self.loss, self.mbps * 1e6)


@dataclass(frozen=True)
class Cell:
    """One fleet, once. Load: what tasks ask for under static:10 over what the edge can do."""

    mode: Mode
    wan: Wan
    load: float
    tasks: int
    seed: int
    limit_s: float
    """Tasks that still run then are ended; their latency counts as what it was until then."""

    @classmethod
    def read(cls, data: dict[str, Any]) -> "Cell":
        return cls(**data | {"wan": Wan(**data["wan"])})

    def written(self) -> dict[str, Any]:
        return asdict(self)

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        """Those of a seed. Chunks are asked for in time for the slowest engine that may serve them,
        were it idle."""
        return tuple(
            replace(asking(trace, self._lead), action_dim=ACTION_DIM)
            for trace in workload(WORKLOAD, self.seed, self.tasks).traces
        )

    @property
    def rate(self) -> float:
        """Tasks per second."""
        return workload(WORKLOAD, self.seed, self.tasks).arrival_rate(self.load)

    @property
    def rules(self) -> Rules:
        patience_ns = round(PATIENCE_S * 1e9)
        return Rules("replay", timeout_ns=patience_ns, timeout_max_ns=patience_ns)

    def trace_tasks(self) -> Iterator[TraceTask]:
        return trace_tasks(self.traces, self.seed, self.rate, self.tasks)

    @property
    def _lead(self) -> int:
        needs_s = [ROBOT_NETWORK_S + linear_profile(LATENCY["edge"], BATCH_CAP).latency_s(1)]
        if self.mode != "edge":
            cloud_s = linear_profile(LATENCY["cloud"], BATCH_CAP).latency_s(1)
            needs_s.append(ROBOT_NETWORK_S + self.wan.rtt_ms / 1e3 + cloud_s)
        return lead_actions(round(max(needs_s) * 1e9), 0, round(1e9 / 30), 100)


def policy(engine: str) -> str:
    """The emulated policy of an engine, `edge` or `cloud`."""
    images = "|".join(f"{name}@{PIXELS}x{PIXELS}" for name in CAMERAS)
    return (
        f"emulated:latency_ms={LATENCY[engine]},chunk=50,dim={ACTION_DIM},state=1,steps={STEPS},"
        f"images={images}"
    )


def virtual(cell: Cell, request_bytes: int, *, pipelined: bool = True) -> FleetRun:
    """The same cell in virtual time: no packets, no TCP, an engine reached after rtt and upload."""
    engines = {
        "edge": SimEngine("edge", linear_profile(LATENCY["edge"], BATCH_CAP)),
        "cloud": SimEngine(
            "cloud",
            linear_profile(LATENCY["cloud"], BATCH_CAP),
            "cloud",
            cell.wan.rtt_ms / 1e3,
            cell.wan.mbps,
            pipelined,
        ),
    }
    chosen = [*engines.values()] if cell.mode == "hybrid" else [engines[cell.mode]]
    patience_ns = 10**15
    return simulate(
        cell.trace_tasks(),
        FleetOptions(ROBOTS, cell.rules, ROBOT_NETWORK_S, observation_bytes=request_bytes),
        ServingOptions(
            parse_scheduling(SCHEDULING),
            "static:10",
            default_deadline_ns=patience_ns,
            batch_cap=BATCH_CAP,
        ),
        chosen,
        cell.seed,
    )
