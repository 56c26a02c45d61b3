"""Whatever a gRPC client sends, it is answered or gone."""

from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.doors.grpc_refusal import LARGEST, PREFACE, TEXT, GrpcRefusal

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
CALL = bytes([0, 0, 1, 1, 4, 0, 0, 0, 5]) + b"x"


@given(st.lists(st.integers(1, 40), max_size=8))
def test_a_call_is_refused_however_it_is_cut(cuts):
    data, refusal, said, over = PREFACE + SETTINGS + CALL, GrpcRefusal(), b"", False
    at = 0
    for cut in [*cuts, len(data)]:
        if not over:
            more, over = refusal.answer(data[at : at + cut])
            said, at = said + more, at + cut
    assert over
    assert said.startswith(SETTINGS)
    assert said.count(TEXT.encode()) == 2  # of the call, and of the connection
    assert said[len(SETTINGS) + 5 : len(SETTINGS) + 9] == bytes([0, 0, 0, 5])


@given(st.binary(max_size=300))
def test_garbage_ends_the_connection_or_waits_for_more(data):
    said, over = GrpcRefusal().answer(PREFACE + data)
    assert said.startswith(SETTINGS)
    assert over or len(data) < 300 + 9


def test_who_never_makes_a_call_does_not_fill_the_memory():
    refusal = GrpcRefusal()
    refusal.answer(PREFACE + bytes([255, 255, 255, 0, 0, 0, 0, 0, 0]))
    over = False
    for _ in range(LARGEST // 1000 + 1):
        over = refusal.answer(b"x" * 1000)[1]
    assert over
    assert GrpcRefusal().answer(b"PRI * HTTP/2.0 but not quite that, no")[1]
