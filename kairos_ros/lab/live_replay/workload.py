"""Recorded tasks made ready for a replay: what is replayed, and whether a policy can be asked."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.spec import split_options
from kairos_ros.engine.emulated import parse_emulated
from kairos_ros.engine.policies.saved_policy import PREFIX, PolicyInputs
from kairos_ros.lab.live_replay.process_messages import RecordedTask, Seen
from kairos_ros.lab.live_replay.seen import made_up, recorded_seen
from kairos_ros.lab.sim.retrim import as_replayed
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.recording.extract import extract
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.recording.runs.trace_file import read_traces
from kairos_ros.robot.adapter import RobotSpec

Tell = Callable[[str], None]


def is_bag(path: Path) -> bool:
    """Whether traces are to be extracted from it first."""
    return path.is_dir() or path.suffix == ".mcap"


def load_traces(path: Path, tell: Tell) -> list[Trace]:
    """The recorded tasks of a bag or a trace file that can be replayed together.

    Raises ConfigError for a file that is neither, and where there is none.
    """
    try:
        traces = _extracted(path, tell) if is_bag(path) else read_traces(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if not traces:
        raise ConfigError(f"{path} holds no finished task, so there is nothing to replay")
    usable = [trace for trace in traces if trace.actions]
    if not usable:
        raise ConfigError(f"no trace in {path} executed an action; there is nothing to replay")
    if len(usable) < len(traces):
        tell(f"left out {len(traces) - len(usable)} traces that executed no actions")
    like = usable[0]
    for trace in usable:
        for name in ("policy", "action_dim", "chunk_size"):
            if getattr(trace, name) != getattr(like, name):
                raise ConfigError(
                    f"{path} mixes policies: trace {trace.name!r} has {name} "
                    f"{getattr(trace, name)!r}, {like.name!r} has {getattr(like, name)!r}"
                )
    return usable


def _extracted(path: Path, tell: Tell) -> list[Trace]:
    found = extract(path)
    for line in found.messages_left_out:
        tell(f"left out {line}")
    return list(found.traces)


def state_dim(traces: Sequence[Trace]) -> int | None:
    """Length of the recorded states; None where a trace has none. Raises ConfigError for a mix."""
    sizes = {None if r.state is None else len(r.state) for t in traces for r in t.rounds}
    if None in sizes:
        return None
    if len(sizes) > 1:
        raise ConfigError(f"the traces hold states of different lengths: {sorted(sizes, key=str)}")
    return sizes.pop()


def fitting_emulated(policy: str, traces: Sequence[Trace]) -> str:
    """An `emulated:` policy, with the sizes that it leaves open as the traces have them.

    Raises ConfigError where it names others.
    """
    spec = parse_emulated(policy)
    named = {name for _, name, _ in split_options(policy.removeprefix(PREFIX))}
    like = traces[0]
    sizes = {"state": state_dim(traces) or spec.state, "dim": like.action_dim}
    sizes["chunk"] = like.chunk_size
    missing = [f"{name}={size}" for name, size in sizes.items() if name not in named]
    return policy if not missing else f"{policy.rstrip(',')},{','.join(missing)}"


def check_fit(traces: Sequence[Trace], inputs: PolicyInputs, policy: str) -> None:
    """Raises ConfigError where the policy would refuse what was recorded with another one."""
    if inputs.keeps_state:
        raise ConfigError(
            f"{policy!r} goes on from what its robot saw and executed in a task, which would "
            "not be what was recorded; replay with --policy emulated:latency_ms=..."
        )
    recorded = state_dim(traces)
    if recorded is None and not inputs.emulated:
        bare = next(t.name for t in traces if any(r.state is None for r in t.rounds))
        raise ConfigError(
            f"trace {bare!r} holds no states, so a policy cannot be asked again; use "
            "--policy emulated:... or traces of `kairos trace extract`"
        )
    like = traces[0]
    found = {"state_dim": recorded, "action_dim": like.action_dim, "chunk_size": like.chunk_size}
    for name, have in found.items():
        want = getattr(inputs, name)
        if have is not None and want is not None and have != want:
            raise ConfigError(
                f"the traces are of policy {like.policy!r} with {name} {have}, but "
                f"{policy or 'the policy that ships'!r} has {want}; replay them with the policy "
                "that they were recorded with, or with --policy emulated:latency_ms=..."
            )
    unknown = {t.instruction for t in traces} - set(inputs.instructions or ())
    if inputs.instructions is not None and unknown:
        raise ConfigError(
            f"{policy or 'the policy that ships'!r} does not know the instruction "
            f"{sorted(unknown)[0]!r}; it knows {', '.join(inputs.instructions)}"
        )


def recorded_tasks(
    source: Path,
    traces: Sequence[Trace],
    inputs: PolicyInputs,
    rules: Rules,
    engine_ns: int | None,
    horizons: Sequence[str],
) -> tuple[RecordedTask, ...]:
    """The traces as virtual robots live through them, one each.

    engine_ns: latency of one request alone; None: as the rules assume. horizons: of the requests
    of each trace, see `RecordedTask`. Raises ConfigError where the traces lack what `rules` or the
    policy needs.
    """
    seen_at = _seen(source, traces, inputs)
    expected_ns = rules.initial_network_ns + (
        rules.initial_engine_ns if engine_ns is None else engine_ns
    )
    prepared = []
    for trace, horizon in zip(traces, horizons, strict=True):
        own = as_replayed(trace, rules, expected_ns)
        seen = tuple(map(seen_at, own.rounds)) if seen_at else ()
        light = replace(own, rounds=tuple(map(_light, own.rounds)), scale=None)
        prepared.append(RecordedTask(light, horizon, seen))
    return tuple(prepared)


def robot_spec(traces: Sequence[Trace], inputs: PolicyInputs) -> RobotSpec:
    """The body that all virtual robots say they have."""
    like = traces[0]
    dim = state_dim(traces) or inputs.state_dim or 1
    return RobotSpec(dim, like.action_dim, like.control_rate_hz, dict(inputs.cameras or {}))


def _seen(
    source: Path, traces: Sequence[Trace], inputs: PolicyInputs
) -> Callable[[TraceRound], Seen] | None:
    """None where the policy reads nothing but one state."""
    read = [*(inputs.cameras or ())]
    if inputs.observations > 1:
        read.append(f"{inputs.observations} observations")
    if not read:
        return None
    if inputs.emulated:
        return made_up(inputs)
    if not is_bag(source):
        raise ConfigError(
            f"the policy reads {', '.join(read)}, which trace files do not hold; replay the bag, "
            "or use --policy emulated:..."
        )
    with Bag(source) as bag:
        found = recorded_seen(bag, traces, inputs)
    # the state is the one array that a round keeps whatever is done to its trace
    return lambda recorded: found[id(recorded.state)]


def _light(recorded: TraceRound) -> TraceRound:
    state = None if recorded.state is None else np.ascontiguousarray(recorded.state)
    return replace(recorded, state=state, chunk=None, step_norms=None, updates=None)
