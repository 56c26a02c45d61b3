"""Whatever a peer sends: a message or a WireError, and never more memory than the limits allow.

The same targets run for long with `python -m bench fuzz`.
"""

import random

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.transport.fuzz import (
    FindingError,
    examine,
    examine_memory,
    join,
    memory_bound,
    mutated,
    seeds,
    split,
)
from kairos_ros.transport.frames import LIMITS, VERSION

bounded = settings(max_examples=250)
damaged = st.integers(0, 2**64 - 1).map(lambda seed: mutated(random.Random(seed), seeds()))
claims = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
heads = st.lists(st.tuples(st.sampled_from(["uint8", "float32", "object"]), claims), max_size=4)


@bounded
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_raw_frames(frames):
    examine(frames)
    examine_memory(frames)


@bounded
@given(damaged)
def test_real_messages_with_damage(frames):
    examine(frames)
    examine_memory(frames)


@bounded
@given(
    st.sampled_from(["infer", "result", "error", "status", "description", "x"]),
    st.dictionaries(st.text(max_size=10), claims, max_size=6),
    heads,
    st.lists(st.binary(max_size=64), max_size=4),
)
@pytest.mark.slow
def test_headers_that_claim_anything(kind, fields, announced, bodies):
    frames = [msgpack.packb([VERSION, kind, fields, announced]), *bodies]
    examine(frames)
    examine_memory(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [bytes([0x94, VERSION, 0xA0, 0x80]) + b"\xdd\x00\x00\x10\x00" + b"\x80" * 4096],
        [
            bytes([0x94, VERSION, 0xA0])
            + msgpack.packb({str(i): [{}] * 4000 for i in range(60)})
            + b"\x90"
        ],
        [msgpack.packb([VERSION, "infer", {"batch": 1, "requests": [{}] * 4096}, []])],
        [
            msgpack.packb([VERSION, "x", {}, [["uint8", [0]]] * 4000]),
            *[b""] * 4000,
        ],
        [b"\x93" * LIMITS.header_bytes],
        [bytes(LIMITS.header_bytes + 1)],
        [b"x"] * (LIMITS.frames + 2),
    ],
    ids=["maps", "lists of maps", "requests", "arrays", "deep", "long header", "many frames"],
)
@pytest.mark.slow
def test_the_worst_that_fits_the_limits_costs_bounded_memory(frames):
    examine(frames)
    assert examine_memory(frames) < 24 * 1024 * 1024


def test_an_array_is_a_view_on_its_frame_and_costs_nothing():
    big = bytes(LIMITS.array_bytes)
    frames = [msgpack.packb([VERSION, "x", {}, [["uint8", [len(big)]]]]), big]
    assert examine_memory(frames) < 100_000


def test_an_image_is_copied_once():
    frames = [bytes(frame) for frame in seeds()[0]]
    image = np.zeros(4_000_000, np.uint8)
    header = msgpack.unpackb(frames[0])
    header[3][1] = ["uint8", [image.size]]
    frames[0], frames[2] = msgpack.packb(header), image.tobytes()
    assert examine(frames) == "read"
    assert image.size < examine_memory(frames) < image.size + 200_000


def test_the_fuzzer_notices_what_it_looks_for(monkeypatch):
    """A decoder that raises something else, or allocates what is claimed, is found."""
    frames = seeds()[0]
    monkeypatch.setattr("bench.transport.fuzz.READERS", (lambda message: [][0],))
    with pytest.raises(IndexError):
        examine(frames)
    monkeypatch.setattr("bench.transport.fuzz.READERS", (lambda message: bytearray(10_000_000),))
    with pytest.raises(FindingError, match="bytes, at most"):
        examine_memory(frames)


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_a_finding_can_be_run_again(frames):
    assert split(join(frames)) == frames
    assert memory_bound(frames) > 0
