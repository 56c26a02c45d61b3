"""Messages of GR00T's clients, in both forms of arrays; and everything that is none."""

import io
from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from bench.support.peers import groot_client
from kairos_ros.core.errors import WireError
from kairos_ros.doors.groot.packing import ArrayForm, pack, unpack

NUMBERS = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
ARRAYS = npst.arrays(NUMBERS, npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
FORMS = st.sampled_from(ArrayForm)
few = settings(max_examples=40)


def same(one: np.ndarray, other) -> bool:
    alike = isinstance(other, np.ndarray) and one.dtype == other.dtype
    return alike and one.shape == other.shape and one.tobytes() == other.tobytes()


@few
@given(ARRAYS, FORMS, st.booleans())
def test_arrays_of_clients_are_read_as_they_were(array, form, by_columns):
    sent = np.array(array, order="F" if by_columns else "C")
    data = groot_client.packed({"state": sent, "n": 1}, newer=form is ArrayForm.RAW)
    message, found = unpack(data)
    assert found is form
    assert same(array, message["state"])
    assert not message["state"].flags.writeable or not array.size


@few
@given(ARRAYS, FORMS)
def test_arrays_of_replies_are_read_by_clients_as_they_were(array, form):
    assert same(array, groot_client.unpacked(pack([{"arm": array}, {}], form))[0]["arm"])


def test_a_number_of_numpy_is_a_number():
    sent = {b"nd": False, b"type": "<f4", b"data": np.float32(0.5).tobytes()}
    assert unpack(msgpack.packb({"gripper": sent}))[0] == {"gripper": 0.5}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    with suppress(WireError):
        assert isinstance(unpack(data)[0], dict)
    with suppress(WireError):
        unpack(npy(data))
    with suppress(WireError):
        unpack(npy(np.lib.format.MAGIC_PREFIX + b"\1\0" + data))


@few
@given(ARRAYS, FORMS, st.data())
def test_a_damaged_message_is_read_or_refused(array, form, draw):
    data = bytearray(groot_client.packed({"state": array}, newer=form is ArrayForm.RAW))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(WireError):
        assert isinstance(unpack(bytes(data))[0], dict)


@given(st.text("([{'descr: 0123,})]f<", max_size=200))
def test_any_description_of_an_array_is_read_or_refused(text):
    with suppress(WireError):
        unpack(npy(described(text)))


def npy(data) -> bytes:
    return msgpack.packb({"state": {"__ndarray_class__": True, "as_npy": data}})


def described(text: str, values: bytes = b"\0" * 8, version: int = 1) -> bytes:
    length = len(text).to_bytes(2, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + values


def header(descr="'<f4'", shape="(2,)", order="False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def raw(**changes) -> bytes:
    fields = {"nd": True, "type": "<f4", "kind": b"", "shape": [2], "data": b"\0" * 8} | changes
    return msgpack.packb({"state": {key.encode(): value for key, value in fields.items()}})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (npy(saved(np.array([{"a": 1}], object))), "dtype '|O' is refused"),
        (npy(saved(np.zeros(2, [("a", "f4")]))), "is refused"),
        (npy(saved(np.zeros(2, "U3"))), "is refused"),
        (npy(saved(np.zeros(2, complex))), "is refused"),
        (npy(saved(np.zeros(4, np.float32))[:-4]), "has 12 bytes"),
        (npy(saved(np.zeros(4, np.float32))[:20]), "no array of numpy.save"),
        (npy(described(header(shape="(3,)"))), "has 8 bytes"),
        (npy(described(header(shape="(2000000000, 2000000000)"))), "has 8 bytes"),
        (npy(described(header(shape="(9999999999,)"))), "is no shape"),
        (npy(described(header(shape="(-1,)"))), "is no shape"),
        (npy(described(header(shape="(1, 1, 1, 1, 1, 2)"))), "is no shape"),
        (npy(described(header(shape="[2]"))), "no array of numpy.save"),
        (npy(described(header(descr="[[[['f4']]]]"))), "no array of numpy.save"),
        (npy(described(header(shape="(" * 220))), "no array of numpy.save"),
        (npy(described(header() + " " * 600)), "no array of numpy.save"),
        (npy(described(header(), version=3)), "no array of numpy.save"),
        (npy(described("__import__('os').abort()\n")), "no array of numpy.save"),
        (npy("text"), "is str"),
        (msgpack.packb({"state": {"__ndarray_class__": True}}), "is NoneType"),
        (raw(kind=b"O", data=b"cos\nsystem\n"), "arrays of objects or records are refused"),
        (raw(kind=b"V", type=[["a", "<f4"]]), "arrays of objects or records are refused"),
        (raw(type="|O"), "is refused"),
        (raw(type=None), "is refused"),
        (raw(shape=[3]), "has 8 bytes"),
        (raw(shape=[-2, -1]), "is no shape"),
        (raw(shape=None), "is no shape"),
        (raw(data="12345678"), "not bytes"),
        (raw(nd=False), "has 8 bytes"),
        (msgpack.packb([1, 2]), "must be a dictionary"),
    ],
)
def test_what_no_client_sends_is_refused_with_what_is_wrong(message, said):
    with pytest.raises(WireError) as refused:
        unpack(message)
    assert said in str(refused.value)


def test_what_is_no_array_of_numbers_is_not_sent():
    with pytest.raises(TypeError):
        pack({"arm": np.array([None])}, ArrayForm.NPY)
