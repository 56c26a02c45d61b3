"""One cell of a study: everything that decides one simulated run, and the name of its result."""

from functools import cache
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import TUNED
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.lab.metrics.cells import cell_name, source_version
from kairos_ros.lab.sim.recorded import ENGINES
from kairos_ros.lab.sim.rules import RECORDED
from kairos_ros.lab.sim.workloads import SYNTHETIC

DECIDES = (
    "core",
    "serving",
    "transport/link_estimate.py",
    "transport/messages.py",
    "lab/sim",
    "recording/runs/trace.py",
    "recording/runs/trace_file.py",
    "recording/runs/run.py",
    "recording/runs/observation_age.py",
    "recording/runs/summary.py",
    "lab/study/cell.py",
    "lab/study/simulated.py",
)
"""Sources, below the package, that a result depends on: a change to one makes it outdated."""


class Cell(BaseModel):
    """The settings of one run, with units in their names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str = RECORDED
    """recorded: tasks of `policy`; or a synthetic one, as `kairos simulate --workload` names it."""
    policy: str = ""
    """Folder of the policy whose traces are replayed; with workload recorded."""
    traces: str = ""
    """Version of these traces."""
    engine: str = "pi05"
    """Assumed to serve them, see `sim.recorded.ENGINES`."""
    rounds_ratio: Annotated[float, Field(ge=1, le=2.7)] | None = None
    """Of a synthetic workload: rounds under static:10 over rounds under its dynamic horizon, an
    assumption; None: the workload's own."""
    arrivals: Literal["poisson", "back_to_back"] = "poisson"
    """poisson: every task brings its robot (Dai et al.'s online setting). back_to_back: a fixed
    fleet whose robots take the next task as soon as they end one (offline)."""
    load: Annotated[float, Field(gt=0, le=10)] = 1.0
    """rho, with poisson arrivals: arrival rate x rounds of a task under the baseline's horizon
    (recorded: static:tuned; synthetic: static:10), over the requests per second that the edge
    engine serves in full batches. Every horizon policy is offered the same tasks at the same times,
    so its own load is another."""
    tasks: Annotated[int, Field(ge=1, le=1_000_000)] = 160
    robots: Annotated[int, Field(ge=1, le=100_000)] = 10
    """Size of the fleet, with back_to_back."""
    horizon: str = TUNED
    """recorded: a horizon policy that traces were recorded under; synthetic: static or dynamic."""
    scheduling: str = "fifo"
    options: dict[str, str | int | float | bool] = {}
    """Of the scheduling policy, besides those that `scheduling` names."""
    refetch: bool = False
    """Fetch an observation older than 50 ms again before it is dispatched."""
    accounting: Literal["replay", "observation"] = "replay"
    lead: Literal["expected", "hidden", "delivery"] | Annotated[int, Field(ge=0, le=1000)] = (
        "hidden"
    )
    """When the next chunk is requested: hidden, so that an unloaded edge just hides its latency;
    expected, as the robots' loop does, with its margin and, counting from the observation, the
    latency that it measures; delivery, as soon as the last chunk begins; or a number of actions
    before the running chunk ends."""
    batch_cap: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Largest batch; none: as the workload says."""
    placement: Literal["edge", "cloud", "hybrid"] = "edge"
    wan_ms: Annotated[float, Field(ge=0, le=10_000)] = 100.0
    """Round trip to the cloud without payload."""
    wan_mbps: Annotated[float, Field(gt=0)] = 1000.0
    wan_stalls: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the cloud's batches whose answer comes a second late, on the way."""
    pipelined: bool = True
    """Whether batches are sent to the cloud while others are under way or computed there."""
    comparison: Literal["completion", "printed"] = "completion"
    """How edge and cloud are compared (`Capacity.comparison`)."""
    hedge_budget: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Copies per request that may be sent to the other tier (`ServingOptions.hedge_budget`)."""
    spread: Annotated[float, Field(ge=0, le=2)] = 0.03
    """Standard deviation of the logarithm of a batch's compute time."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Draws tasks, arrivals and latencies. Cells that share it get the same ones."""

    @model_validator(mode="after")
    def _fits_its_workload(self) -> Self:
        if self.workload == RECORDED:
            if self.engine not in ENGINES:
                raise ValueError(f"engine: {self.engine!r} is none of {', '.join(ENGINES)}")
            if self.rounds_ratio is not None:
                raise ValueError("rounds_ratio: is recorded, not assumed, in recorded workloads")
        elif self.workload not in SYNTHETIC:
            raise ValueError(
                f"workload: {self.workload!r} is none of {', '.join((RECORDED, *SYNTHETIC))}"
            )
        elif self.horizon not in ("static", "dynamic"):
            raise ValueError(f"horizon: {self.horizon!r} is neither static nor dynamic")
        return self

    @model_validator(mode="after")
    def _scheduling_exists(self) -> Self:
        try:
            parse_scheduling(self.scheduling_spec)
        except ConfigError as error:
            raise ValueError(f"scheduling: {error}") from None
        return self

    @property
    def scheduling_spec(self) -> str:
        """`scheduling` with its `options`, in one line."""
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        separator = ("," if ":" in self.scheduling else ":") if options else ""
        return f"{self.scheduling}{separator}{options}"

    @property
    def key(self) -> str:
        """Names the configuration: the same for equal settings, whatever study they are in."""
        return cell_name(self.model_dump())


Metrics = dict[str, float]
"""What a cell came to, by name; units are in the names. NaN: no data."""


@cache
def code_version() -> str:
    """Changes with every source that decides results."""
    return source_version(DECIDES)
