"""Whether the engines can answer a request, as what, and what it tells of its task."""

import contextlib
from collections import Counter

from kairos_ros.core.errors import KairosError, RefusalCode
from kairos_ros.core.exchange import Refusal, Request
from kairos_ros.core.scheduling.wait_ratio import first_execution_ns
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.checks import check_request, with_policy_names
from kairos_ros.serving.engines.engines import Engines
from kairos_ros.serving.engines.served_policies import ServedPolicies
from kairos_ros.serving.options import SECOND_NS, ServingOptions
from kairos_ros.serving.request_queue import RequestQueue, executed
from kairos_ros.serving.sessions import Session


class Admission:
    """Of requests whose session is known. Times are integer nanoseconds, as the dispatcher's."""

    def __init__(
        self,
        options: ServingOptions,
        tasks: TaskTable,
        engines: Engines,
        queue: RequestQueue,
        policies: ServedPolicies,
        counters: Counter[str],
    ) -> None:
        self._options, self._tasks, self._engines = options, tasks, engines
        self._queue, self._policies, self._counters = queue, policies, counters

    def change(self, options: ServingOptions) -> None:
        """Checks by other options from now on."""
        self._options = options

    def check(self, now_ns: int, request: Request, session: Session) -> Request | Refusal:
        """The request as the policy of its task reads it, or why it cannot be answered. The first
        request of a task decides its policy; weights that it names later are found by any name."""
        key = session.task_key
        why, decided = self._engines.why_not_admitted(session.robot)
        if why:
            return Refusal(RefusalCode.NOT_ADMITTED, why, 0 if decided else SECOND_NS)
        if session.policy is not None and self._policies.has_changed(
            session.policy, request.policy
        ):
            session.policy = None
        if session.policy is None:
            named = self._policies.of(request.policy)
            if isinstance(named, Refusal):
                return named
            session.policy = named
        if why := self._engines.why_given_up(session.policy):
            text = f"policy {session.policy} cannot be loaded, restart the serving node: {why}"
            return Refusal(RefusalCode.ENGINE_DOWN, text)
        served = self._policies.description(session.policy)
        if served is None:
            why = self._engines.why_not_up(now_ns, session.policy)
            of = f" of policy {session.policy}" if session.policy else ""
            return Refusal(RefusalCode.ENGINE_DOWN, f"no engine{of} is up yet: {why}", SECOND_NS)
        if request.execution.round >= request.id.round:
            return Refusal(
                RefusalCode.MALFORMED,
                f"asks for round {request.id.round} "
                f"while executing round {request.execution.round}",
            )
        if len(self._queue.entries) >= self._options.max_queue and key not in self._queue.entries:
            return Refusal(
                RefusalCode.OVERLOADED,
                f"{len(self._queue.entries)} requests are pending",
                SECOND_NS // 2,
            )
        absent = session.interface.absent if session.interface else ()
        bad = check_request(request, served, self._options.max_bytes, absent)
        fewer = len(request.earlier) + 1 < served.observations
        if bad is None and fewer and not served.keyframe_stride:
            session.repeated += 1
            self._counters["repeated_observation"] += 1
        return bad or with_policy_names(request, served)

    def account(self, now_ns: int, request: Request, session: Session) -> None:
        """What a request tells of its task: that it began, and what was executed."""
        key, execution = session.task_key, request.execution
        if key not in self._tasks:
            engine = self._engines.described(session.policy or "")
            chunk_size = engine.description.chunk_size if engine and engine.description else 0
            first = first_execution_ns(
                chunk_size, 1e9 / execution.period_ns if execution.period_ns else 30.0
            )
            l0 = engine.latency_ns[0] if engine and engine.latency_ns else 0
            self._tasks.open(key, now_ns, kind=request.kind, first_exec_ns=first, l0_ns=l0)
        self._note_surprise(request, session)
        if execution.started:
            # KairosError: a round too old to matter any more
            with contextlib.suppress(KairosError):
                self._tasks.execution(key, execution.round, *executed(now_ns, execution))

    def _note_surprise(self, request: Request, session: Session) -> None:
        """Whether, and how far, the arm had departed from its actions; counted once per round."""
        execution, asked = request.execution, (request.id.task, request.id.round)
        session.surprised = execution.surprised
        session.surprise = execution.surprise if execution.surprised else 0.0
        session.surprise_joint = execution.surprise_joint if execution.surprised else ""
        if execution.surprised and session.surprised_by != asked:
            session.surprised_by = asked
            session.surprises += 1
            self._counters["surprised"] += 1
