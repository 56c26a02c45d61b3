"""Recorded tasks made ready for a replay: what is replayed, and whether a policy can be asked."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros import bringup
from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.emulated import PREFIX, parse_emulated
from kairos_ros.evaluation.bag.extract import extract_traces
from kairos_ros.evaluation.bag.reader import Bag
from kairos_ros.evaluation.replay.retrim import retrimmed
from kairos_ros.evaluation.replay.rules import RECORDED, Rules
from kairos_ros.evaluation.trace import Trace, TraceRound
from kairos_ros.evaluation.trace_file import read_traces
from kairos_ros.replay.orders import Images, Role
from kairos_ros.replay.pictures import blank_pictures, recorded_images
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.robot.latency import lead_actions

Tell = Callable[[str], None]
STATE_FEATURES = ("observation.state", "observation.environment_state")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a policy reads. None: not known before it runs."""

    state_dim: int | None = None
    action_dim: int | None = None
    chunk_size: int | None = None
    images: tuple[tuple[str, tuple[int, int]], ...] = ()
    """Camera key, (height_px, width_px)."""
    instructions: tuple[str, ...] | None = None
    emulated: bool = False


def is_bag(path: Path) -> bool:
    """Whether traces are to be extracted from it first."""
    return path.is_dir() or path.suffix == ".mcap"


def load_traces(path: Path, tell: Tell) -> list[Trace]:
    """The recorded tasks of a bag or a trace file that can be replayed together.

    Raises ConfigError for a file that is neither, and where there is none.
    """
    try:
        traces = extract_traces(path) if is_bag(path) else read_traces(path)
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
    named = {part.partition("=")[0] for part in policy.removeprefix(PREFIX).split(",")}
    like = traces[0]
    sizes = {"state": state_dim(traces) or spec.state, "dim": like.action_dim}
    sizes["chunk"] = like.chunk_size
    missing = [f"{name}={size}" for name, size in sizes.items() if name not in named]
    return policy if not missing else f"{policy.rstrip(',')},{','.join(missing)}"


def policy_inputs(policy: str) -> Inputs:
    """What `policy` reads, from its name or its folder; nothing is known of a hub id.

    Raises ConfigError for an emulated policy that is written wrongly, and for a folder without one.
    """
    if policy.startswith(PREFIX):
        spec = parse_emulated(policy)
        images = tuple(spec.images.items())
        return Inputs(spec.state, spec.dim, spec.chunk, images, emulated=True)
    folder = Path(policy or bringup.shipped_policy()).expanduser()
    if not folder.exists() and policy.count("/") == 1 and policy[0] not in "./~":
        return Inputs()  # a hub id
    try:
        config = json.loads((folder / "config.json").read_text())
        return _saved_inputs(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"policy {policy!r}: no LeRobot policy folder (config.json: {error}); give a folder, a "
            "hub id or emulated:..."
        ) from None


def _saved_inputs(config: dict[str, Any]) -> Inputs:
    features = config["input_features"]
    states = [features[name]["shape"][0] for name in STATE_FEATURES if name in features]
    images = tuple(
        (key, (feature["shape"][1], feature["shape"][2]))
        for key, feature in features.items()
        if feature.get("type") == "VISUAL" and "empty_camera" not in key
    )
    known = config.get("instructions")
    return Inputs(
        state_dim=sum(states) if states else None,
        images=images,
        instructions=tuple(known) if known is not None else None,
    )


def check_fit(traces: Sequence[Trace], inputs: Inputs, policy: str) -> None:
    """Raises ConfigError where the policy would refuse what was recorded with another one."""
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


def roles(
    source: Path,
    traces: Sequence[Trace],
    inputs: Inputs,
    rules: Rules,
    engine_ns: int | None,
    horizons: Sequence[str],
) -> tuple[Role, ...]:
    """The traces as virtual robots live through them, one role per trace.

    engine_ns: latency of one request alone; None: as the rules assume. horizons: of the requests
    of each trace, see `Role`. Raises ConfigError where the traces lack what `rules` or the policy
    needs.
    """
    pictures = _pictures(source, traces, inputs)
    prepared = []
    for trace, horizon in zip(traces, horizons, strict=True):
        own = trace
        if rules.accounting == "replay" and rules.horizon != RECORDED:
            own = retrimmed(trace, rules.horizon, _lead(trace, rules, engine_ns), elapsed="kept")
        images = tuple(pictures(r) for r in own.rounds) if inputs.images else ()
        light = replace(own, rounds=tuple(map(_light, own.rounds)), scale=None)
        prepared.append(Role(light, horizon, images))
    return tuple(prepared)


def robot_spec(traces: Sequence[Trace], inputs: Inputs) -> RobotSpec:
    """The body that all virtual robots say they have."""
    like = traces[0]
    dim = state_dim(traces) or inputs.state_dim or 1
    return RobotSpec(dim, like.action_dim, like.control_rate_hz, dict(inputs.images))


def _pictures(
    source: Path, traces: Sequence[Trace], inputs: Inputs
) -> Callable[[TraceRound], Images]:
    if not inputs.images:
        return lambda recorded: {}
    if inputs.emulated:
        blank = blank_pictures(dict(inputs.images))
        return lambda recorded: blank
    if not is_bag(source):
        raise ConfigError(
            f"the policy reads images {', '.join(key for key, _ in inputs.images)}, which trace "
            "files do not hold; replay the bag, or use --policy emulated:..."
        )
    with Bag(source) as bag:
        images = recorded_images(bag, traces)
    # the state is the one array that a round keeps whatever is done to its trace
    return lambda recorded: images[id(recorded.state)]


def _lead(trace: Trace, rules: Rules, engine_ns: int | None) -> int:
    """Actions that an unloaded fleet would have left in the buffer when it asks."""
    if rules.lead is not None:
        return rules.lead
    expected_ns = rules.initial_network_ns + (
        rules.initial_engine_ns if engine_ns is None else engine_ns
    )
    period_ns = round(1e9 / trace.control_rate_hz)
    return lead_actions(expected_ns, rules.margin_ns, period_ns, 2 * trace.chunk_size)


def _light(recorded: TraceRound) -> TraceRound:
    state = None if recorded.state is None else np.ascontiguousarray(recorded.state)
    return replace(recorded, state=state, chunk=None, step_norms=None, updates=None)
