"""Observations and actions in the modalities of Isaac-GR00T: what of them is which robot's.

    {"video": {KEY: uint8 [robots, observations, height, width, 3]},
     "state": {KEY: float [robots, observations, values]},
     "language": {KEY: [[text] per robot]}}

Flat keys, as of its simulations, say the same: `video.KEY`, `state.KEY`, and the bare key of the
language. Of several observations the newest one is read. Actions come back as float32 [robots,
actions, values] per key, under `action.KEY` where the observation was flat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError
from kairos_ros.doors.groot.packing import modality
from kairos_ros.doors.observation_map import ObservationMap

VIDEO, STATE, LANGUAGE = "video", "state", "language"
DIMENSIONS = {
    VIDEO: ("robots", "observations", "height", "width", "3"),
    STATE: ("robots", "observations", "values"),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """One observation of each robot of a request."""

    robots: list[dict[str, Any]]
    """For each robot: `MODALITY/KEY` -> its newest value."""
    flat: bool
    """The client reads flat keys of actions."""


def rows_of(observation: Any, read: ObservationMap) -> Rows:
    """Raises WireError for anything else than the observations above. Keys that the map does not
    name are kept, without their values."""
    if not isinstance(observation, Mapping):
        kind = type(observation).__name__
        raise WireError(f"the observation is {kind}; it must be a dictionary of video, state, ...")
    values: dict[str, Any] = {}
    flat = False
    for key, value in observation.items():
        if not isinstance(key, str):
            raise WireError(f"a key is {type(key).__name__}; keys must be text")
        if isinstance(value, Mapping):
            values |= {f"{key}/{inner}": one for inner, one in value.items()}
        else:
            flat = True
            kind, _, rest = key.partition(".")
            values[f"{kind}/{rest}" if kind in DIMENSIONS else f"{LANGUAGE}/{key}"] = value
    named = [key for key in read.keys if key in values]
    counts = {key: _count(key, values[key]) for key in named}
    robots = next(iter(counts.values()), 1)
    for key, count in counts.items():
        if count != robots:
            raise WireError(f"{key!r} is of {count} robots, {named[0]!r} of {robots}")
    if not robots:
        raise WireError(f"{named[0]!r} is of no robot")
    unused = dict.fromkeys(values.keys() - set(named))
    return Rows(
        [unused | {key: _newest(values[key][n]) for key in named} for n in range(robots)], flat
    )


def one_robot(observation: Mapping[Any, Any]) -> dict[Any, Any]:
    """What clients of GR00T N1.5 send, in the form of the later ones: they leave the robots out."""
    return {
        key: value[None] if isinstance(value, np.ndarray) else [value]
        for key, value in observation.items()
    }


def actions_of(
    chunks: Sequence[NDArray[np.float32]], read: ObservationMap, *, flat: bool
) -> dict[str, NDArray[np.float32]]:
    """The client's action keys.

    chunks: float32 [actions, action_dim] of each robot; all get as many as the shortest has.
    """
    shortest = min(len(chunk) for chunk in chunks)
    whole = np.stack([chunk[:shortest] for chunk in chunks])
    ends = np.cumsum([part.size for part in read.actions])
    parts = np.split(whole, ends[:-1], axis=2)
    before = "action." if flat else ""
    return {f"{before}{part.key}": values for part, values in zip(read.actions, parts, strict=True)}


def modality_config(read: ObservationMap, chunk_size: int) -> dict[str, Any]:
    """What `get_modality_config` answers: a client sends, and gets, these keys."""

    def keys(named: Sequence[str]) -> list[str]:
        return [key.partition("/")[2] for key in named]

    return {
        VIDEO: modality(keys([picture.key for picture in read.images.values()]), 1),
        STATE: modality(keys([part.key for part in read.state]), 1),
        "action": modality([part.key for part in read.actions], chunk_size),
        LANGUAGE: modality(keys([read.prompt]), 1),
    }


def _count(key: str, value: Any) -> int:
    """Robots of one value."""
    wanted = DIMENSIONS.get(key.partition("/")[0])
    if wanted is None:
        if not isinstance(value, list):
            kind = type(value).__name__
            raise WireError(f"{key!r} is {kind}; it must be a list with a text per robot")
        return len(value)
    if not isinstance(value, np.ndarray) or value.ndim != len(wanted) or not value.shape[1]:
        shape = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
        raise WireError(f"{key!r} is {shape}; it must be [{', '.join(wanted)}]")
    return len(value)


def _newest(value: Any) -> Any:
    """Of one robot: [observations, ...] -> the last of them."""
    if isinstance(value, np.ndarray) or (isinstance(value, list) and value):
        return value[-1]
    return value
