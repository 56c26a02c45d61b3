"""Which engines are elsewhere, as texts in the parameters of a serving node."""

from dataclasses import dataclass, replace
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.spec import split_options
from kairos_ros.engine.client.wan_image import AS_SENT, PerCamera, WanImages, read_per_camera
from kairos_ros.transport.endpoint import Insecure, check_endpoint, is_local
from kairos_ros.transport.key_file import NAME, Role
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.sockets import CurveClient, ListenKeys

LISTEN = "listen:"
OPTIONS = (
    *("policy", "profile", "jpeg", "size", "lossless"),
    *("key", "server_key", "worker_key", "insecure_loopback", "standby"),
)
FLAGS = ("lossless", "insecure_loopback", "standby")
"""Options that stand alone."""
LONGEST_PX = 4096
FORM = (
    "write NAME=tcp://HOST:PORT or, for a worker that dials in, NAME=listen:tcp://ADDRESS:PORT, "
    "then options such as ,policy=POLICY"
)


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """Which engine, and how it is reached."""

    endpoint: str
    policy: str = ""
    """Name in the worker's registry; empty: its only one."""
    security: CurveClient | ListenKeys | Insecure | None = None
    listen: bool = False
    """Wait for the worker to dial in, instead of dialling it."""
    images: WanImages = AS_SENT


@dataclass(frozen=True, slots=True)
class NamedRemote:
    """One engine elsewhere."""

    name: str
    spec: RemoteSpec
    profile: str = ""
    """JSON of `kairos profile`; empty: what the worker measured while warming up."""
    device: str = ""
    """What computes its batches, one at a time with those of the other engines of this device;
    empty: one of its own."""
    standby: bool = False
    """It serves only in the place of an engine of its policy that is down."""

    def per_policy(self) -> "list[NamedRemote]":
        """An engine, with a link of its own, for each policy of `policy=A|B`.

        Raises ConfigError for what cannot be had of several.
        """
        policies = self.spec.policy.split("|")
        if len(policies) == 1:
            return [self]
        for wrong, why in (
            (self.spec.listen, "a worker that dials in serves one policy; name one"),
            (self.profile, "profile is of one policy; leave it out, or name one policy"),
        ):
            if wrong:
                raise ConfigError(f"engine {self.name!r} with policy={self.spec.policy}: {why}")
        return [
            replace(
                self,
                name=f"{self.name}/{policy}",
                spec=replace(self.spec, policy=policy),
                device=self.name,
            )
            for policy in dict.fromkeys(policies)
        ]


def parse_remote(text: str, keys: KeyFolder) -> NamedRemote:
    """Reads `NAME=[listen:]ENDPOINT[,option=value...]`. Raises ConfigError.

    policy: its name in the worker's registry, where that has several, or `A|B` for several.
    jpeg, size, lossless: as WanImages, `jpeg=80|wrist:60` where cameras differ. key: the own key,
    where there are several. server_key: the server to find there. worker_key: the one client that
    may dial in.
    insecure_loopback: no keys, on loopback only. profile, standby: as in NamedRemote.
    """
    name, equals, rest = text.partition("=")
    (where, _, _), *parts = split_options(rest)
    if not equals or not where:
        raise ConfigError(f"engine {text!r}: {FORM}")
    if not NAME.fullmatch(name):
        raise ConfigError(f"engine {text!r}: a name has letters, digits, '-' and '_'; {FORM}")
    given: dict[str, str] = {}
    for _, option, value in parts:
        if option not in OPTIONS:
            raise ConfigError(f"engine {text!r}: unknown option {option!r}; {', '.join(OPTIONS)}")
        if option in FLAGS and value is not None:
            raise ConfigError(f"engine {text!r}: {option} takes no value; write it alone")
        given[option] = value or ""
    listen = where.startswith(LISTEN)
    endpoint = where.removeprefix(LISTEN)
    check_endpoint(endpoint, security=True, dial=not listen)
    profile = given.get("profile", "")
    if profile and not Path(profile).is_file():
        raise ConfigError(f"engine {text!r}: there is no profile {profile}")
    spec = RemoteSpec(
        endpoint,
        given.get("policy", ""),
        _security(endpoint, listen, given, keys),
        listen,
        _images(given),
    )
    return NamedRemote(name, spec, profile, standby="standby" in given)


def _security(
    endpoint: str, listen: bool, given: dict[str, str], keys: KeyFolder
) -> CurveClient | ListenKeys | Insecure | None:
    if is_local(endpoint):
        return None
    if "insecure_loopback" in given:
        return Insecure.LOOPBACK
    key = given.get("key", "")
    if listen:
        worker = given.get("worker_key", "") or _only_client(keys)
        return ListenKeys(keys.own(Role.SERVER, key), keys, worker)
    return CurveClient(keys.own(Role.CLIENT, key), keys.server(given.get("server_key", "")))


def _only_client(keys: KeyFolder) -> str:
    known = [key.name for key in keys.trusted(Role.CLIENT)]
    if len(known) != 1:
        raise ConfigError(
            f"which worker may dial in? name one with worker_key=NAME; known in {keys.path}: "
            f"{', '.join(known) or 'none, see `kairos keys import`'}"
        )
    return known[0]


def _images(given: dict[str, str]) -> WanImages:
    if "lossless" in given and ("jpeg" in given or "size" in given):
        raise ConfigError("lossless excludes jpeg and size, which change pixels")
    if "size" in given and "jpeg" not in given:
        raise ConfigError("size: say how smaller images are sent, for example jpeg=80,size=160")
    jpeg = read_per_camera("jpeg", given["jpeg"], 1, 95) if "jpeg" in given else PerCamera()
    size = read_per_camera("size", given["size"], 8, LONGEST_PX) if "size" in given else PerCamera()
    return WanImages(jpeg, size, "lossless" in given)
