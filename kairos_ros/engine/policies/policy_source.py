"""Where the files of a policy come from: a folder of this host, or a hub repository."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import PolicyError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MAX_JSON_BYTES = 4_000_000
HUB_S = 2.0
"""How long the hub may take to say whether it has a file."""


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A folder here, or one commit of a hub repository in the hub client's cache."""

    policy: str
    path: Path
    commit: str = ""
    """Empty: a folder."""

    @classmethod
    def of(cls, policy: str) -> "PolicySource":
        """Raises PolicyError where there is no such folder, or no such repository."""
        if Path(policy).is_dir():
            return cls(policy, Path(policy))
        if is_path(policy):
            raise PolicyError(f"there is no policy folder {policy}")
        try:
            path = _download(policy, CONFIG)
        except Exception as error:  # many kinds: no such id, no such file, no network, no right
            raise PolicyError(
                f"policy {policy!r:.200} is no folder here, and as a hub id it has no {CONFIG}: "
                f"{one_line(error)}"
            ) from error
        # all other files are taken from the same commit, whatever the repository holds by then
        return cls(policy, path.parent, path.parent.name)

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS

    def file(self, name: str) -> Path:
        """Raises PolicyError where there is no such file."""
        file = self.path / name
        if self.commit and not file.is_file():
            try:
                file = _download(self.policy, name, self.commit)
            except Exception as error:  # as above
                raise PolicyError(
                    f"hub repository {self.policy} has no {name}: {one_line(error)}"
                ) from error
        if not file.is_file():
            link = ": it is a symbolic link that leads to no file" if file.is_symlink() else ""
            raise PolicyError(f"policy folder {self.policy} has no {name}{link}")
        return file

    def json(self, name: str) -> dict[str, Any]:
        """Raises PolicyError for what is no JSON object."""
        file = self.file(name)
        try:
            with file.open("rb") as stream:
                text = stream.read(MAX_JSON_BYTES + 1)
            data = json.loads(text) if len(text) <= MAX_JSON_BYTES else None
        except (OSError, ValueError, RecursionError) as error:
            raise PolicyError(f"{file} cannot be read: {one_line(error)}") from error
        if not isinstance(data, dict):
            raise PolicyError(f"{file} is no JSON object of at most {MAX_JSON_BYTES} bytes")
        return data


def _download(repository: str, name: str, commit: str | None = None) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repository, name, revision=commit))


def why_missing(repository: str, name: str) -> str:
    """Why `name` of a folder or hub repository can be neither read nor fetched; empty: it can."""
    if Path(repository).is_dir():
        return ""
    if is_path(repository):
        return "there is no such folder"
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        if try_to_load_from_cache(repository, name) is None:
            get_hf_file_metadata(hf_hub_url(repository, name), timeout=HUB_S)
    except RemoteEntryNotFoundError:
        pass  # the repository is there; what it should hold is for its reader to say
    except Exception as error:  # as above
        return one_line(error)
    return ""


def is_path(policy: str) -> bool:
    """Whether this names a folder of this host and cannot be a hub id."""
    return policy.startswith(("/", ".", "~"))


def one_line(error: BaseException | str, most: int = 300) -> str:
    """What somebody else's error says, for a line of ours."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[:most]}…"


def policy_id(folder: Path, kind: str) -> str:
    """Type and the first 12 hex digits of the SHA-256 over names and contents of the files that the
    policy in this folder is made of. Raises OSError."""
    digest = hashlib.sha256()
    parts = [folder / CONFIG, folder / WEIGHTS, *folder.glob("policy_p*processor*")]
    for part in sorted(parts, key=lambda part: part.name):
        with part.open("rb") as stream:
            digest.update(part.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return f"{kind}-{digest.hexdigest()[:12]}"


def may_hold(folder: Path, policy: str) -> bool:
    """Whether the policy in this folder has this id; also where the folder holds none."""
    known = (folder / CONFIG).is_file()
    return not known or policy == policy_id(folder, policy.rpartition("-")[0])
