"""Which policies a worker offers its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kairos_ros.transport.messages import EngineDescription


@dataclass(frozen=True, slots=True)
class OfferedPolicies:
    """By their names in the worker's registry."""

    described: Mapping[str, EngineDescription] = field(default_factory=dict)
    """Those that are served."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Those that never are, and why."""

    def find(self, policy: str) -> EngineDescription | None:
        """The policy of that name; the only one where none is named."""
        if not policy and len(self.described) == 1 and not self.refused:
            return next(iter(self.described.values()))
        return self.described.get(policy)

    def why_not(self, policy: str) -> str:
        """For people: of a policy that is not served."""
        served = ", ".join(sorted(self.described))
        if not policy:
            return f"name the policy; this worker serves {served}"
        if policy in self.refused:
            return f"policy {policy!r:.80} is refused: {self.refused[policy]}"
        return f"policy {policy!r:.80} is not in the registry of this worker; it serves {served}"
