"""Serving nodes that others stand by for, engine workers and judges that end by themselves are
started again, ever later; one that lacks a key of a link is not before it has that.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping

from kairos_ros.bringup.foreground import how
from kairos_ros.bringup.planned.hosts.link_keys import check_keys
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import ConfigError

FIRST_S, LONGEST_S = 0.5, 30.0
"""Before the first new start, and at most before any."""
WELL_S = 30.0
"""A process that ran for so long has not failed again and again."""
KEYS_S = 5.0
"""After so long it is looked again whether a key that was lacking is there."""
AGAIN = 2
"""Ends in a row from which on it counts as failed."""


class Restarts:
    """`look` is to be called often."""

    def __init__(self, fleet: Fleet, say: Callable[[str], None]) -> None:
        """say: for whoever looks at the program."""
        self._fleet, self._say = fleet, say
        self._ends: dict[str, int] = {}
        """Process -> how often in a row it has ended."""
        self.ended: Counter[str] = Counter()
        """How often each has ended so far."""
        self._due_s: dict[str, float] = {}
        self._began_s: dict[str, float] = {}
        self._how: dict[str, str] = {}
        self._lack: dict[str, str] = {}
        """Those that are not started again for now, and why."""

    @property
    def failed(self) -> dict[str, str]:
        """Processes that have ended again and again, and how they did last; and those that are not
        started again."""
        return {
            key: f"{self._how[key]} ({ends} times in a row)"
            for key, ends in self._ends.items()
            if ends >= AGAIN
        } | {key: f"is not started again: {why}" for key, why in self._lack.items()}

    def look(self, specs: Mapping[str, ProcessSpec]) -> None:
        """specs: those that shall run, by their processes."""
        now_s, dead = time.monotonic(), self._fleet.dead()
        for key in self._ends.keys() - specs.keys():
            for known in (self._ends, self._due_s, self._began_s, self._how, self._lack):
                known.pop(key, None)
        for key, code in dead.items():
            if key not in specs:
                continue
            if key not in self._due_s:
                self._ends[key] = self._ends.get(key, 0) + 1
                self.ended[key] += 1
                self._how[key] = how(code)
                wait_s = min(LONGEST_S, FIRST_S * 2 ** (self._ends[key] - 1))
                self._due_s[key] = now_s + wait_s
            elif now_s >= self._due_s[key] and not self._lacks(key, specs[key]):
                del self._due_s[key]
                self._began_s[key] = now_s
                with contextlib.suppress(ConfigError):  # it is dead still, and tried again later
                    self._fleet.start(specs[key])
        for key, began_s in list(self._began_s.items()):
            if key not in dead and now_s - began_s > WELL_S:
                del self._began_s[key], self._ends[key]

    def _lacks(self, key: str, spec: ProcessSpec) -> bool:
        """Whether it lacks a key, which is said once."""
        try:
            check_keys([spec])
        except ConfigError as error:
            self._due_s[key] = time.monotonic() + KEYS_S
            if self._lack.get(key) != str(error):
                self._lack[key] = str(error)
                self._say(f"{key} is not started again: {error}")
            return True
        self._lack.pop(key, None)
        return False
