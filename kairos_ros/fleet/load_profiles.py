"""Load profiles in folders: those that a fleet's models have on its GPUs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import KIND, LoadProfile
from kairos_ros.core.pipeline import Component
from kairos_ros.document.text_file import read_json


@dataclass(frozen=True, slots=True)
class FoundProfile:
    """A profile and where it stands."""

    path: Path
    profile: LoadProfile


def read_profiles(folders: Iterable[Path]) -> list[FoundProfile]:
    """Every load profile of these folders, those of earlier folders first; other JSON is left out.

    Raises ConfigError for one that cannot be read."""
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            data = read_json(path)
            if isinstance(data, dict) and data.get("kind") == KIND:
                try:
                    found.append(FoundProfile(path, LoadProfile.from_dict(data)))
                except ConfigError as error:
                    raise ConfigError(f"{path}: {error}") from None
    return found


def profile_of(
    found: Sequence[FoundProfile], names: Sequence[str], component: Component, device: str
) -> LoadProfile:
    """Of a model by any of its names; a measured one before an assumed one.

    Raises ConfigError where there is none, or only of other devices or other uses."""
    named = [one.profile for one in found if one.profile.model in names]
    able = [profile for profile in named if component in profile.components]
    here = [profile for profile in able if profile.device == device]
    if here:
        return min(here, key=lambda profile: profile.assumed)
    measured = f"--judge {names[-1]} --as {component}"
    if component is Component.SYSTEM1:
        measured = f"--policy {names[-1]} --load"
    how = (
        f"measure it there with 'kairos profile {measured} --device-name \"{device}\"', or write "
        "down an assumption with --assume"
    )
    if able:
        others = ", ".join(sorted({repr(profile.device) for profile in able}))
        raise ConfigError(
            f"the profile of model {names[0]!r} as {component} is of {others}, but the servers are "
            f"{device!r} (gpu_type); {how}"
        )
    if named:
        uses = ", ".join(sorted({str(one) for profile in named for one in profile.components}))
        raise ConfigError(
            f"model {names[0]!r} has a profile as {uses}, but none as {component}, which writes "
            f"other answers; {how}"
        )
    raise ConfigError(f"no profile of model {names[0]!r} as {component} on {device!r}; {how}")
