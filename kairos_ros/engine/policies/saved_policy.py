"""What a policy reads and commands, from its name or its saved JSON files. Imports no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fit import PolicyInterface, Size, camera_name
from kairos_ros.document.text_file import read_json
from kairos_ros.engine.policies.served import FAMILIES

CONFIG = "config.json"
PREFIX = "emulated:"
"""Of an engine of known latency, in place of a policy folder."""
PREPROCESSOR = "policy_preprocessor.json"
STATE_FEATURES = ("observation.state", "observation.environment_state")
"""A request's state is these features, where the policy has them, one after the other."""


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """What a policy reads. None: not known before it runs."""

    state_dim: int | None = None
    action_dim: int | None = None
    chunk_size: int | None = None
    cameras: Mapping[str, Size] | None = None
    """Feature as requests have it, before the saved `rename_map` -> size of its pictures."""
    any_size: bool = False
    """As in `EngineDescription.any_image_size`."""
    optional: bool = False
    """As in `EngineDescription.images_optional`."""
    observations: int = 1
    """That it reads, one control period apart, the newest included."""
    keeps_state: bool = False
    """Of every task: it goes on from what its robot saw and executed."""
    instructions: tuple[str, ...] | None = None
    emulated: bool = False

    def interface(self, name: str) -> PolicyInterface | None:
        """For `core.fit.misfit`; None where too little is known."""
        if self.state_dim is None or self.action_dim is None or self.cameras is None:
            return None
        return PolicyInterface(
            name,
            self.state_dim,
            self.action_dim,
            self.cameras,
            self.any_size,
            self.optional,
            self.observations,
        )


def policy_inputs(policy: str) -> PolicyInputs:
    """What `policy` reads: a LeRobot policy folder or `emulated:...`; nothing is known of a hub id.

    Raises ConfigError for an emulated policy that is written wrongly, and for a folder without one.
    """
    if policy.startswith(PREFIX):
        from kairos_ros.engine.emulated import parse_emulated  # launch files lack what it needs

        spec = parse_emulated(policy)
        return PolicyInputs(
            spec.state,
            spec.dim,
            spec.chunk,
            spec.images,
            observations=spec.observations,
            emulated=True,
        )
    folder = Path(policy).expanduser()
    if not folder.exists() and policy.count("/") == 1 and policy[0] not in "./~":
        return PolicyInputs()  # a hub id
    try:
        return saved_inputs(folder)
    except (ConfigError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"policy {policy!r}: no LeRobot policy folder (config.json: {error}); give a folder, a "
            "hub id or emulated:..."
        ) from None


def saved_inputs(folder: Path) -> PolicyInputs:
    """Of a policy folder. Raises ConfigError, ValueError, LookupError, TypeError or AttributeError
    where it is none."""
    config = read_json(folder / CONFIG)
    features = config["input_features"]
    states = [features[name]["shape"][0] for name in STATE_FEATURES if name in features]
    action = (config.get("output_features") or {}).get("action")
    known = config.get("instructions")
    family = FAMILIES.get(config.get("type"))
    resizes = family is not None and family.resizes(config)
    keyframes = family.keyframes(config) if family else 0
    cameras = dict(_cameras(features, _renamed(folder / PREPROCESSOR)))
    if len({camera_name(feature) for feature in cameras}) < len(cameras):
        raise ConfigError(f"two of its cameras have one name: {', '.join(cameras)}")
    return PolicyInputs(
        state_dim=sum(states) if states else None,
        action_dim=action["shape"][0] if action else None,
        cameras=cameras,
        any_size=resizes,
        optional=resizes,
        observations=keyframes or config.get("n_obs_steps", 1),
        keeps_state=keyframes > 0,
        instructions=tuple(known) if known is not None else None,
    )


def _cameras(features: Mapping[str, Any], renamed: Mapping[str, str]) -> Iterator[tuple[str, Size]]:
    """The pictures that a policy is given, by the names that its saved preprocessor expects."""
    sent_as = {feature: sent for sent, feature in reversed(list(renamed.items()))}
    for key, feature in features.items():
        if feature.get("type") == "VISUAL" and "empty_camera" not in key:  # filled in by the policy
            channels, height, width = feature["shape"]
            if channels != 3:
                raise ConfigError(
                    f"{key} has shape {feature['shape']}; a picture is [3, height, width]"
                )
            yield sent_as.get(key, key), (height, width)


def _renamed(preprocessor: Path) -> Mapping[str, str]:
    """The saved `rename_map`: feature of the data that it was trained on -> the policy's own."""
    if not preprocessor.is_file():
        return {}
    for step in read_json(preprocessor).get("steps", []):
        if step.get("registry_name") == "rename_observations_processor":
            return dict(step.get("config", {}).get("rename_map") or {})
    return {}
