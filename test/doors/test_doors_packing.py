"""Messages of openpi's real client, read and written by ours; and everything that is none."""

from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from openpi_client import msgpack_numpy

from kairos_ros.core.errors import WireError
from kairos_ros.core.wire_check import TooLargeError
from kairos_ros.doors.message import MOST_DEPTH, MOST_ELEMENTS, check_structure
from kairos_ros.doors.openpi.packing import (
    pack,
    unpack,
)

NUMBERS = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
ARRAYS = npst.arrays(NUMBERS, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
SCALARS = NUMBERS.flatmap(lambda dtype: npst.arrays(dtype, ())).map(lambda array: array[()])
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=20)
)
OBSERVATIONS = st.dictionaries(
    st.text(max_size=12),
    st.recursive(
        st.one_of(ARRAYS, SCALARS, PLAIN),
        lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=6,
)


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        alike = isinstance(other, np.ndarray) and one.dtype == other.dtype
        return alike and one.shape == other.shape and one.tobytes() == other.tobytes()
    return np.array_equal(one, other, equal_nan=isinstance(one, float | np.floating))


@given(OBSERVATIONS)
def test_what_the_real_client_packs_is_read_as_it_was(observation):
    assert same(observation, unpack(msgpack_numpy.packb(observation)))


@given(st.dictionaries(st.text(max_size=12), st.one_of(ARRAYS, SCALARS, PLAIN), max_size=6))
def test_what_is_packed_here_is_read_by_the_real_client_as_it_was(reply):
    assert same(reply, msgpack_numpy.unpackb(pack(reply)))


def test_arrays_are_views_of_the_message():
    data = msgpack_numpy.packb({"a": np.arange(6.0).reshape(2, 3)})
    array = unpack(data)["a"]
    assert not array.flags.owndata
    assert not array.flags.writeable


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    with suppress(WireError):
        assert isinstance(unpack(data), dict)


@given(OBSERVATIONS, st.data())
def test_a_damaged_observation_is_read_or_refused(observation, draw):
    data = bytearray(msgpack_numpy.packb(observation))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(WireError):
        assert isinstance(unpack(bytes(data)), dict)


@given(OBSERVATIONS, st.data())
def test_an_observation_that_is_cut_short_is_refused(observation, draw):
    data = msgpack_numpy.packb(observation)
    with pytest.raises(WireError):
        unpack(data[: draw.draw(st.integers(0, len(data) - 1))])


def array(dtype="<f4", shape=(2,), data=b"\0" * 8, **more) -> bytes:
    found = {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}
    return msgpack.packb({"state": found | more})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (array("|O"), "dtype '|O' is refused"),
        (array("O"), "is refused"),
        (array("<c8", (1,)), "is refused"),
        (array("|V8", (1,)), "is refused"),
        (array("<U2", (1,)), "is refused"),
        (array("<M8[s]", (1,)), "is refused"),
        (array("i4,f4", (1,)), "is refused"),
        (array(["<f4"]), "is refused"),
        (array(None), "is refused"),
        (array(shape=(3,)), "has 8 bytes"),
        (array(shape=(2**40,)), "is no shape"),
        (array(shape=(2**30, 2**30, 2**30)), "has 8 bytes"),
        (array(shape=(-2, -1)), "is no shape"),
        (array(shape=(2.0,)), "is no shape"),
        (array(shape=(1, 1, 1, 1, 1, 2)), "is no shape"),
        (array(shape=None), "is no shape"),
        (array(data="12345678"), "not bytes"),
        (msgpack.packb({"state": {b"__ndarray__": True}}), "is refused"),
        (msgpack.packb({"x": {b"__npgeneric__": True, b"dtype": "|O", b"data": b""}}), "refused"),
        (msgpack.packb({"x": {b"__npgeneric__": True, b"dtype": "<f4", b"data": "a"}}), "is str"),
        (msgpack.packb({"x": {b"__npgeneric__": True, b"dtype": "|u1", b"data": 300}}), "is no"),
        (msgpack.packb([1, 2]), "must be a dictionary"),
        (msgpack.packb(7), "must be a dictionary"),
        (msgpack.packb({"x": msgpack.ExtType(4, b"1234")}), "type 0xd6"),
        (msgpack.packb({(1, 2): 3}), "no msgpack"),
        (msgpack.packb({}) + b"\0", "1 bytes after the end"),
        (b"", "cut short"),
        (b"\xc1", "type 0xc1"),
    ],
)
def test_what_no_client_sends_is_refused_with_what_is_wrong(message, said):
    with pytest.raises(WireError) as refused:
        unpack(message)
    assert said in str(refused.value)


def test_the_lists_and_levels_of_a_message_are_counted_before_anything_is_made():
    with pytest.raises(TooLargeError):
        check_structure(b"\xdd\xff\xff\xff\xff" + b"\x90" * (MOST_ELEMENTS + 10))
    with pytest.raises(TooLargeError):
        check_structure(b"\x91" * (MOST_DEPTH + 5) + b"\0")
    with pytest.raises(WireError):
        check_structure(b"\xc6\xff\xff\xff\xff")
