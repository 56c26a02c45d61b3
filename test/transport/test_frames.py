"""The wire: what is sent arrives, and nothing that arrives can do more than be refused."""

import math
import tracemalloc
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.wire_check import OBSERVATIONS
from kairos_ros.transport.frames import DTYPES, VERSION, FrameLimits, Message, decode, encode
from kairos_ros.transport.message_codec import (
    READERS,
    description_message,
    error_message,
    infer_message,
    read_description,
    read_error,
    read_infer,
    read_result,
    read_status,
    result_message,
    status_message,
)
from kairos_ros.transport.messages import (
    BatchError,
    BatchResult,
    EngineDescription,
    InferFailure,
    InferRequest,
    InferResult,
    WorkerStatus,
)

DESCRIPTION = EngineDescription(
    policy_id="pi05-0123456789ab",
    policy_type="pi05",
    state_dim=7,
    images={"observation.images.top": (224, 320)},
    action_dim=7,
    chunk_size=50,
    steps=10,
    instructions=("open the drawer", "close the drawer"),
    device="cpu",
    dtype="float32",
    max_batch=8,
)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
arrays = st.sampled_from(list(DTYPES)).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


def wire(message: Message) -> list[bytes]:
    """The frames as a socket delivers them."""
    return [bytes(frame) for frame in encode(message)]


@given(st.text(max_size=20), st.dictionaries(st.text(), json_like), st.lists(arrays, max_size=5))
def test_what_is_encoded_is_decoded(kind, fields, sent):
    received = decode(wire(Message(kind, fields, tuple(sent))))
    assert received.kind == kind
    assert repr(received.fields) == repr(fields)  # repr: nan is not equal to itself
    for a, b in zip(sent, received.arrays, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        assert not b.flags.writeable


def test_a_non_contiguous_array_arrives_whole():
    sent = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert np.array_equal(decode(wire(Message("x", {}, (sent,)))).arrays[0], sent)


@pytest.mark.parametrize("dtype", ["object", "complex64", "S4", "float16", "datetime64[s]"])
def test_other_dtypes_do_not_travel(dtype):
    with pytest.raises(WireError, match="do not travel"):
        encode(Message("x", {}, (np.zeros(2, dtype),)))


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_any_bytes_are_a_message_or_a_wire_error(frames):
    read_whatever(frames)


@given(st.lists(json_like, max_size=6), st.lists(st.binary(max_size=64), max_size=4))
def test_any_msgpack_header_is_a_message_or_a_wire_error(header, bodies):
    read_whatever([msgpack.packb(header), *bodies])


@given(
    st.sampled_from(["infer", "result", "error", "status", "description"]),
    st.dictionaries(
        st.sampled_from(
            ["batch", "requests", "outcomes", "code", "images", "earlier", "seed", "compute_s"]
        ),
        json_like,
    ),
    st.lists(arrays, max_size=4),
)
def test_any_fields_are_a_message_or_a_wire_error(kind, fields, bodies):
    read_whatever(wire(Message(kind, fields, tuple(bodies))))


@given(st.data())
def test_a_damaged_message_is_a_message_or_a_wire_error(data):
    earlier = (Observation(request().state, request().images),)
    sent = [request(), replace(request(), earlier=earlier)]
    frames = [bytearray(frame) for frame in wire(infer_message(7, sent))]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = data.draw(st.sampled_from(frames))
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read_whatever([bytes(frame) for frame in frames])


def read_whatever(frames):
    try:
        message = decode(frames)
    except WireError:
        return
    for reader in READERS:
        try:
            reader(message)
        except WireError:
            continue


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float64", [2**31, 2**31]),
        ("float32", [2**63]),
        ("uint8", [0, 2**40]),
        ("uint8", [1] * 5),
        ("float32", [-1]),
        ("float32", [1.0]),
        ("float32", [True]),
        ("object", [1]),
        ("O", [1]),
        (["float32"], [1]),
        ("float32", 3),
    ],
)
def test_a_claimed_array_is_refused_before_it_is_allocated(dtype, shape):
    frames = [msgpack.packb([VERSION, "infer", {}, [[dtype, shape]]]), b"\0\0\0\0"]
    tracemalloc.start()
    with pytest.raises(WireError):
        decode(frames)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "header",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1 entries
        b"\xdf\xff\xff\xff\xff",  # a map of as many
        b"\xdb\xff\xff\xff\xff",  # a text of as many bytes
        b"\xc6\xff\xff\xff\xff",  # binary
        b"\xc9\xff\xff\xff\xff\x01",  # an extension type
        b"\x91" * 100_000,  # nested ever deeper
        msgpack.packb([VERSION, "x", {}, [], 5]),
        msgpack.packb([VERSION + 1, "x", {}, []]),
        msgpack.packb([True, "x", {}, []]),
        msgpack.packb({"v": 1}),
        msgpack.packb([VERSION, "x", {"t": msgpack.Timestamp(1)}, []]),
    ],
)
def test_a_hostile_header_is_refused(header):
    tracemalloc.start()
    with pytest.raises(WireError):
        decode([header])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (FrameLimits(frames=2), "3 frames"),
        (FrameLimits(header_bytes=8), "a header of"),
        (FrameLimits(message_bytes=64), "bytes, at most 64"),
        (FrameLimits(array_bytes=16), "an array of"),
        (FrameLimits(dims=0), "dimensions"),
        (FrameLimits(string_bytes=3), "within the limits"),
        (FrameLimits(items=2), "within the limits"),
    ],
)
def test_every_limit_holds(limits, reason):
    frames = wire(infer_message(7, [request()]))
    decode(frames)
    with pytest.raises(WireError, match=reason):
        decode(frames, limits)


def test_requests_arrive_as_they_were_sent():
    sent = [request(robot="arm_1"), request(robot="arm_2", seed=2**64 - 1)]
    batch, received = read_infer(decode(wire(infer_message(7, sent))))
    assert batch == 7
    for a, b in zip(sent, received, strict=True):
        assert np.array_equal(a.state, b.state, equal_nan=True)
        assert (a.robot, a.seed, a.instruction, a.images) == (
            b.robot,
            b.seed,
            b.instruction,
            b.images,
        )


@pytest.mark.parametrize("periods", [0, 1, 4])
def test_earlier_observations_arrive_in_their_order(periods):
    earlier = tuple(
        Observation(np.full(3, n, np.float32), {"observation.images.top": bytes([n])})
        for n in range(periods)
    )
    sent = [request(), replace(request(), earlier=earlier), request()]
    message = infer_message(7, sent)
    assert len(message.arrays) == 2 * (3 + periods)
    (_, received, last) = read_infer(decode(wire(message)))[1]
    assert [one.state.tolist() for one in received.earlier] == [[n] * 3 for n in range(periods)]
    assert [one.images for one in received.earlier] == [one.images for one in earlier]
    assert received.images == last.images == sent[0].images
    assert last.earlier == ()


def test_what_was_executed_arrives_beside_what_is_committed():
    actions = np.arange(6, dtype=np.float32).reshape(3, 2)
    sent = [
        replace(request(), committed=-actions, executed=actions, task_actions=40),
        request(),
        replace(request(), executed=actions[:1], task_actions=1),
    ]
    first, second, third = read_infer(decode(wire(infer_message(7, sent))))[1]
    assert np.array_equal(first.committed, -actions)
    assert np.array_equal(first.executed, actions)
    assert np.array_equal(third.executed, actions[:1])
    assert len(second.executed) == len(third.committed) == 0
    assert [one.task_actions for one in (first, second, third)] == [40, 0, 1]


def test_why_a_state_was_begun_anew_arrives_with_its_chunk():
    chunk = InferResult(np.zeros((2, 1), np.float32), np.ones((3, 2, 1), np.float32), "it is gone")
    received = read_result(decode(wire(result_message(BatchResult(7, 0.1, (chunk,))))))
    assert received.outcomes[0].begun_anew == "it is gone"


@pytest.mark.parametrize("claimed", [-1, 2, 3, OBSERVATIONS, 2**40, "1", True, None, 1.0, [1]])
def test_a_wrong_number_of_earlier_observations_is_refused(claimed):
    sent = replace(request(), earlier=(Observation(np.zeros(3, np.float32), request().images),))
    message = infer_message(7, [sent])
    assert len(read_infer(message)[1][0].earlier) == 1
    message.fields["requests"][0]["earlier"] = claimed
    with pytest.raises(WireError):
        read_infer(decode(wire(message)))


def test_a_request_without_earlier_observations_is_as_it_was_before_there_were_any():
    (row,) = infer_message(7, [request()]).fields["requests"]
    assert "earlier" not in row


@pytest.mark.parametrize("read", [0, OBSERVATIONS + 1, 2**63])
def test_a_policy_cannot_read_any_number_of_observations(read):
    message = description_message(replace(DESCRIPTION, observations=OBSERVATIONS))
    assert read_description(decode(wire(message))).observations == OBSERVATIONS
    with pytest.raises(WireError, match="observations is"):
        read_description(Message("description", {**message.fields, "observations": read}))


def test_a_worker_that_says_nothing_of_observations_serves_a_policy_that_reads_one():
    fields = dict(description_message(DESCRIPTION).fields)
    del fields["observations"]
    older = decode(wire(Message("description", fields)))
    assert read_description(older).observations == 1


def test_a_request_says_which_of_its_images_were_made_smaller():
    camera = "observation.images.top"
    sent = replace(request(), shrunk=frozenset({camera}))
    assert read_infer(decode(wire(infer_message(7, [sent]))))[1][0].shrunk == {camera}
    odd = replace(sent, shrunk=frozenset({"elsewhere"}))
    with pytest.raises(WireError, match="whose images are there"):
        read_infer(decode(wire(infer_message(7, [odd]))))


@pytest.mark.parametrize("steps", [3, 0])
def test_outcomes_arrive_as_they_were_sent(steps):
    good = InferResult(np.ones((4, 2), np.float32), np.zeros((steps, 4, 2), np.float32))
    bad = InferFailure(RefusalCode.NOT_FINITE, "state[0] is nan")
    received = read_result(decode(wire(result_message(BatchResult(3, 0.25, (bad, good))))))
    assert (received.batch, received.compute_s, received.outcomes[0]) == (3, 0.25, bad)
    assert np.array_equal(received.outcomes[1].chunk, good.chunk)
    assert np.array_equal(received.outcomes[1].updates, good.updates)


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused(seconds):
    bad = InferFailure(RefusalCode.NOT_FINITE, "state[0] is nan")
    with pytest.raises(WireError, match=r"compute_s is .*, expected a finite number"):
        read_result(decode(wire(result_message(BatchResult(3, seconds, (bad,))))))


def test_updates_that_do_not_fit_the_chunk_are_refused():
    odd = InferResult(np.ones((4, 2), np.float32), np.zeros((3, 5, 2), np.float32))
    with pytest.raises(WireError, match="updates of shape"):
        read_result(decode(wire(result_message(BatchResult(3, 0.25, (odd,))))))


def test_control_messages_arrive_as_they_were_sent():
    status = WorkerStatus("loading", "weights", None, 1.5)
    error = BatchError(None, RefusalCode.MALFORMED, "an empty message")
    assert read_status(decode(wire(status_message(status)))) == status
    assert read_error(decode(wire(error_message(error)))) == error
    assert read_description(decode(wire(description_message(DESCRIPTION)))) == DESCRIPTION


def test_a_worker_that_says_nothing_of_replicas_has_one():
    status = WorkerStatus("ready", "", None, 0.0, replicas=3)
    message = status_message(status)
    assert read_status(decode(wire(message))).replicas == 3
    older = {name: value for name, value in message.fields.items() if name != "replicas"}
    assert read_status(decode(wire(Message("status", older)))).replicas == 1


@pytest.mark.parametrize("replicas", [257, 2**63, -1, "2"])
def test_a_worker_cannot_have_any_number_of_replicas(replicas):
    status = status_message(WorkerStatus("ready", "", None, 0.0, replicas=256))
    assert read_status(decode(wire(status))).replicas == 256
    with pytest.raises(WireError, match="replicas is"):
        read_status(decode(wire(Message("status", {**status.fields, "replicas": replicas}))))


def request(robot="arm_1", seed=1):
    return InferRequest(
        robot=robot,
        session="s1",
        task="t1",
        round=3,
        attempt=0,
        seed=seed,
        instruction="open the drawer",
        state=np.array([0.0, np.nan, 1.0], np.float32),
        images={"observation.images.top": b"\xff\xd8 not decoded here"},
    )
