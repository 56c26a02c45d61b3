"""Whatever numbers a request holds, it is answered: nothing that a robot sends can raise an error
in the serving node, where one would end the service for the whole fleet."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kairos_ros.msg import ActionChunk, ChunkRequest, ExecutionInfo
from kairos_ros.msg import Observation as ObservationMessage

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Announcement
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.engine.emulated import EmulatedEngine
from kairos_ros.nodes.messages.fleet import diagnostics, fleet_state
from kairos_ros.nodes.serving.messages import from_answer, malformed, to_request
from kairos_ros.serving.batching import Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions

ENGINE = EmulatedEngine("emulated:latency_ms=5,state=4,dim=4,chunk=8,observations=3", max_batch=8)
SECOND = 1_000_000_000

real = st.floats(width=32) | st.sampled_from([0.0, 1e-45, 1e-30, 0.5, 30.0, 1e6, 1e10, 1e19, 3e38])
count = st.integers(0, 3) | st.integers(0, 2**32 - 1)
states = st.just([0.0] * 4) | st.lists(real, max_size=4)
requests = st.builds(
    ChunkRequest,
    robot=st.just("arm"),
    session=st.just("s"),
    task=st.sampled_from(["", "1", "2"]),
    round=count,
    attempt=count,
    instruction=st.text(max_size=5),
    state=states,
    earlier=st.lists(st.builds(ObservationMessage, state=states), max_size=3),
    horizon_policy=st.sampled_from(["", "static:3", "static:0", "confidence:t=nan", "tail"]),
    execution=st.builds(
        ExecutionInfo,
        round=count,
        started=st.booleans(),
        started_ago_s=real,
        ended_ago_s=real,
        actions_remaining=count,
        chunk_index=count,
        control_rate_hz=real,
    ),
    committed=st.just([]) | st.lists(real, max_size=8),
    deadline_s=real,
    observed_ago_s=real,
    seed=st.integers(0, 2**64 - 1),
)


# what tests of other modules left to the garbage collector may warn here
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scheduling", ["wait_ratio", "least_service", "oldest_task", "admit"])
@settings(max_examples=150)
@given(messages=st.lists(requests, min_size=1, max_size=8))
@pytest.mark.slow
def test_every_request_gets_exactly_one_answer_whatever_it_holds(scheduling, messages):
    options = ServingOptions(parse_scheduling(scheduling), "static:5", stale_after_ns=0)
    serving = Dispatcher(options)
    serving.add_engine("edge", "edge")
    serving.engine_ready(0, "edge", ENGINE.description, warmup_profile(ENGINE.description))
    serving.announce(0, Announcement("arm", "s", ""))

    for i, message in enumerate(messages, start=1):
        now_ns = i * SECOND
        serving.announce(now_ns, Announcement("arm", "s", ""))
        try:
            effects = serving.request(now_ns, to_request(message))
        except WireError as error:
            effects = [malformed(message, error)]
        (effect,) = effects
        if isinstance(effect, Submit):
            outcomes = ENGINE.infer(effect.requests)
            (effect,) = serving.batch_done(now_ns + 1, "edge", effect.batch, outcomes, 0.005)
        answer = from_answer(effect)
        assert answer.kind in (ActionChunk.ACTIONS, ActionChunk.REFUSED)
        assert (answer.task, answer.round) == (message.task, message.round)
        assert np.isfinite(answer.actions).all()
        assert serving.tick(now_ns + 2) == []
        fleet_state(now_ns + 2, serving, Counter())
        diagnostics(now_ns + 2, serving, Counter(), {}, 1.0, 0.9)
