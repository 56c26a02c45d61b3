"""The names of a fleet's topics, frames and diagnostics, all of which lie below its ROS namespace.

A fleet in namespace `/site_a` has its topics in `/site_a/kairos/...` and those of its robots in
`/site_a/ROBOT/...`; a robot's name may be nested, such as `cell_1/arm_1`. The fleet without a
namespace has `/kairos/...` and `/ROBOT/...`. Fleets in other namespaces are not its business.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.wire_check import NAME_CHARS, is_name, printable

COMMON = "kairos"
"""Below the fleet's namespace: what there is once for a whole fleet."""
_STATUS = f"/{COMMON}/robot_status"
_CAMERA = ("camera", "compressed")
_DIAGNOSTIC = re.compile(rf"((?:\w+/)*){COMMON}(?: \w+)?: ")


def is_robot_name(text: str) -> bool:
    """Whether it names a robot: ROS names separated by `/`, none of them `kairos`."""
    parts = text.split("/")
    return len(text) <= NAME_CHARS and all(is_name(part) and part != COMMON for part in parts)


@dataclass(frozen=True, slots=True)
class FleetNames:
    """The names of one fleet."""

    namespace: str = ""
    """Such as `/site_a`; empty for the root."""

    @classmethod
    def below(cls, text: str) -> "FleetNames":
        """From what people write: `site_a`, `/site_a/`, or `/` or nothing for the root.

        Raises ConfigError for what is no namespace.
        """
        inside = text.strip().strip("/")
        if inside and not is_robot_name(inside):
            raise ConfigError(
                f"namespace '{printable(text)}' must be ROS names separated by /, such as site_a, "
                f"none of them {COMMON}, of at most {NAME_CHARS} characters together"
            )
        return cls(f"/{inside}" if inside else "")

    @classmethod
    def of_common_node(cls, namespace: str) -> "FleetNames":
        """The fleet of a node that is there once for all, by the node's namespace."""
        return cls(namespace.rstrip("/").removesuffix(f"/{COMMON}"))

    @property
    def prefix(self) -> str:
        """Before names that do not begin with a slash; empty, or such as `site_a/`."""
        return f"{self.namespace[1:]}/" if self.namespace else ""

    def common(self, name: str) -> str:
        """A topic or node of the whole fleet."""
        return f"{self.namespace}/{COMMON}/{name}"

    def robot(self, robot: str, name: str) -> str:
        """A topic of one robot."""
        return f"{self.namespace}/{robot}/{name}"

    def resolve(self, name: str) -> str:
        """An absolute name stays; any other one is below the fleet's namespace."""
        return name if name.startswith("/") else f"{self.namespace}/{name}"

    def robot_of(self, topic: str) -> str:
        """Whose topic it is, by `/NAMESPACE/ROBOT/TOPIC`; empty for one of no robot."""
        inside = topic.removeprefix(f"{self.namespace}/")
        parts = inside.split("/")
        if inside == topic or parts[0] == COMMON:
            return ""
        camera = len(parts) > 3 and (parts[-3], parts[-1]) == _CAMERA
        return "/".join(parts[: -3 if camera else -1])

    def diagnostic(self, name: str) -> str:
        """What one of our statuses is called on /diagnostics, which all fleets share."""
        return f"{self.prefix}{name}"

    def own_diagnostic(self, name: str) -> str | None:
        """What `diagnostic` was given; None for a status of another fleet.

        A status of somebody else, such as a driver, keeps its name.
        """
        found = _DIAGNOSTIC.match(name)
        if found is None:
            return name
        return name.removeprefix(self.prefix) if found[1] == self.prefix else None

    def has(self, topic: str, others: Iterable["FleetNames"]) -> bool:
        """Whether a topic is inside this fleet's namespace, and in none of `others` below it."""
        if not topic.startswith(f"{self.namespace}/"):
            return False
        below = [fleet.namespace for fleet in others if len(fleet.namespace) > len(self.namespace)]
        return not any(topic.startswith(f"{namespace}/") for namespace in below)


ROOT = FleetNames()
"""The fleet without a namespace."""


def fleets_among(topics: Iterable[str]) -> list[FleetNames]:
    """The fleets whose robots announce themselves on one of these topics, by namespace."""
    found = {topic.removesuffix(_STATUS) for topic in topics if topic.endswith(_STATUS)}
    return [FleetNames(namespace) for namespace in sorted(found)]
