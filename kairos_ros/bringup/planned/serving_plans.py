"""How the serving nodes of a fleet change to another plan.

All of them prepare for it, and only when the one that serves is ready are they told to follow it.
One that is not told, because the program that runs the fleet has ended, keeps to the old plan.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kairos_ros.bringup.planned.change import (
    LIVE,
    STAGED,
    Change,
    Client,
    PlannedFleet,
    Setting,
)
from kairos_ros.bringup.planned.hosts.process_watch import ProcessWatch
from kairos_ros.core.errors import KairosError, UnansweredError

LONGEST_S = 3600.0
"""A change whose engines are not up by then is called off: models may compile for minutes."""
SETTLED_S = 30.0
"""Within this time serving nodes follow a plan whose engines are up, and engines that are not in it
have finished their batches."""
AGAIN_S = 1.0
"""Between two attempts to have a serving node follow the plan that it should."""
SILENT_S = 10.0
"""Without a word of the serving node about a change for so long, it is called off."""


class ServingPlans:
    """Somebody must spin the client again and again."""

    def __init__(self, client: Client, watch: ProcessWatch) -> None:
        self._client, self._watch = client, watch
        self._again_s = 0.0

    def prepare(
        self, wanted: PlannedFleet, running: PlannedFleet, steps: Change, check: Callable[[], None]
    ) -> Iterator[str]:
        """Until the node that serves has all engines of the new plan. Yields news, mostly empty,
        about ten times a second. check: raises KairosError where this is in vain.

        Raises KairosError where a serving node refuses the plan, or gives it up.
        """
        goal, told = wanted.served, ""
        settings = self._set(running, {key: {STAGED: goal.text} for key in steps.tell})
        while not all(self._answers(running, settings)):
            check()
            yield ""
        before, began_s = self._client.state, time.monotonic()
        heard_s = began_s
        yield "the serving node loads new engines" if steps.engines_start else ""
        while True:
            state, now_s = self._client.state, time.monotonic()
            check()
            if state is not None and state is not before:
                if state.staged_plan == goal.identity:
                    heard_s = now_s
                    if not state.plan_reason:
                        return
                    if state.plan_reason != told:
                        told = state.plan_reason
                        yield told
                elif state.plan_reason and now_s - began_s > 1.0:  # not of a change before it
                    raise KairosError(state.plan_reason)
            if now_s - heard_s > SILENT_S:
                raise KairosError(f"the serving node has said nothing of it for {SILENT_S:.0f} s")
            if now_s - began_s > LONGEST_S:
                raise KairosError(f"new engines are not up after {LONGEST_S:.0f} s: {told}")
            yield ""

    def apply(self, running: PlannedFleet, steps: Change) -> Iterator[str]:
        """Tells all serving nodes to follow the new plan, until one has taken it: the others are
        told again by `settle` and `keep_to`. Raises KairosError where they do not."""
        settings = self._set(running, {key: {**v, STAGED: ""} for key, v in steps.tell.items()})
        while not any(self._answers(running, settings)):
            yield ""

    def settle(self, running: PlannedFleet) -> Iterator[str]:
        """Until the node that serves follows the plan, or is gone, or does not for long."""
        until_s = time.monotonic() + SETTLED_S
        while (state := self._client.state) is not None and time.monotonic() < until_s:
            if state.plan == running.served.identity:
                return
            self.keep_to(running)
            yield ""

    def keep_to(self, running: PlannedFleet) -> None:
        """No change is under way: a serving node that makes one, or follows another plan, is told
        so until that holds."""
        identity = running.served.identity
        others = (one.staged_plan or one.plan != identity for one in self._client.states)
        if time.monotonic() >= self._again_s and any(others):
            self.tell(running)

    def tell(self, running: PlannedFleet) -> None:
        """Its answer is not waited for: what a serving node does then is seen in its state."""
        self._again_s = time.monotonic() + AGAIN_S
        for key in self._watch.servers(running):
            parameters = running.nodes[key].parameters
            values = {name: parameters[name] for name in LIVE["serving"] if name in parameters}
            with contextlib.suppress(KairosError):
                self._client.set(key, {**values, STAGED: ""}).is_done()

    def _set(
        self, running: PlannedFleet, values: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Setting]:
        """values: of the nodes that are told anything, judges included."""
        keys = [key for key in self._watch.servers(running) if key in values]
        return {key: self._client.set(key, values[key]) for key in keys}

    def _answers(self, running: PlannedFleet, settings: dict[str, Setting]) -> list[bool]:
        """Whether each serving node has taken what it was told. Raises KairosError where one of
        them refuses it, and where none answers; one that does not, or is gone, while another one
        is there, is told again when it is back."""
        there = self._watch.servers(running)
        done = []
        for key, setting in list(settings.items()):
            try:
                answered = setting.is_done()
            except UnansweredError:
                if len(settings) == 1:
                    raise
                del settings[key]
                continue
            if answered or key in there or len(settings) == 1:
                done.append(answered)
            else:
                del settings[key]
        return done
