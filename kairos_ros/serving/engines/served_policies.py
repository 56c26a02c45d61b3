"""Which of a server's policies a task gets: by name, by weights, or the default one."""

from collections.abc import Mapping, Sequence

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Refusal
from kairos_ros.core.fit import RobotInterface, misfit
from kairos_ros.core.server_status import ServedPolicy
from kairos_ros.core.wire_check import printable
from kairos_ros.serving.checks import policy_interface
from kairos_ros.serving.engines.engines import Engines
from kairos_ros.serving.options import SECOND_NS
from kairos_ros.transport.messages import EngineDescription


class ServedPolicies:
    """The policies of one server by name, and which of them stand in for others."""

    def __init__(self, names: Sequence[str], engines: Engines) -> None:
        """names: the default first; the one policy of a server that serves no other has none."""
        self.names = tuple(names)
        self.swaps: Mapping[str, str] = {}
        """Name -> name of the policy that new tasks get in its place."""
        self._engines = engines

    def rename(self, names: Sequence[str]) -> None:
        """From now on these are served. Swaps of others are forgotten."""
        self.names = tuple(names)
        kept = {old: new for old, new in self.swaps.items() if {old, new} <= set(names)}
        self.swaps = kept

    def swap(self, swaps: Mapping[str, str]) -> None:
        """From now on new tasks get these policies. Raises ConfigError for a name that is none, and
        for a policy that was not given so far and cannot be loaded."""
        for name in (*swaps, *swaps.values()):
            if name not in self.names or not name:
                served = ", ".join(filter(None, self.names)) or "one policy, without a name"
                raise ConfigError(
                    f"no policy {printable(name)!r} is served here; this server has {served}"
                )
        for old, new in swaps.items():
            why = self._engines.why_given_up(new)
            if why and self.swaps.get(old) != new != old:
                raise ConfigError(f"policy {new!r} cannot be given to tasks: {why}")
        self.swaps = {old: new for old, new in swaps.items() if old != new}

    @property
    def default(self) -> EngineDescription | None:
        """What new tasks get that name no policy; None before an engine of it was up."""
        return self.description(self.named(""))

    def description(self, name: str | None) -> EngineDescription | None:
        """Of the policy of this name; None before an engine of it was up."""
        slot = self._engines.described(name) if name is not None else None
        return slot.description if slot else None

    def described(self) -> dict[str, EngineDescription]:
        """Of the policies whose engines were up, by name, the default one first."""
        found = {name: self.description(name) for name in self.names}
        return {name: one for name, one in found.items() if one is not None}

    def told(self) -> tuple[ServedPolicy, ...]:
        """For robots: the policies, with what is known of them once an engine was up; nothing where
        there is one only, without a name."""
        return tuple(self._told(name) for name in self.names if name)

    def _told(self, name: str) -> ServedPolicy:
        known, swapped_for = self.description(name), self.swaps.get(name, "")
        if known is None:
            return ServedPolicy(name, None, 0, swapped_for)
        return ServedPolicy(name, policy_interface(known), known.chunk_size, swapped_for)

    def named(self, asked: str) -> str | None:
        """The policy that a new task gets that asks for this name; None: it is no name here."""
        name = asked or self.names[0]
        return self.swaps.get(name, name) if name in self.names else None

    def of(self, asked: str) -> str | Refusal:
        """The name of the policy that a new task gets, or why there is none.

        asked: a name, or type and fingerprint of weights: a task that began elsewhere names those,
        and no other policy stands in for them.
        """
        name = self.named(asked)
        weights = {one: described.policy_id for one, described in self.described().items()}
        if name is None:
            name = next((one for one, known in weights.items() if known == asked), None)
        if name is not None:
            return name
        loading = [n for n in self.names if n not in weights and not self._engines.why_given_up(n)]
        if loading:
            which = ", ".join(filter(None, loading)) or "the engine"
            text = f"policy {printable(asked)!r} is not served; {which} is not up yet"
            return Refusal(RefusalCode.ENGINE_DOWN, text, SECOND_NS)
        served = ", ".join(f"{n} ({known})" if n else known for n, known in weights.items())
        text = f"policy {printable(asked)!r} is not served here; this server serves {served}"
        return Refusal(RefusalCode.UNKNOWN_POLICY, text)

    def has_changed(self, name: str, asked: str) -> bool:
        """Whether a task asks for weights that the policy of this name had and has no more: an
        engine came up with others."""
        known = self.description(name)
        return known is not None and asked not in ("", known.policy_id, *self.names)

    def misfit(self, robot: RobotInterface, asked: str) -> str:
        """Why the policy that a robot asks for cannot move it; empty if it can, or is not known."""
        served = self.description(self.named(asked))
        return misfit(robot, policy_interface(served)) if served else ""
