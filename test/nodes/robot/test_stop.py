"""A process that is told to end ends, at whatever moment the signal comes."""

import random
import signal
import threading

import pytest

from kairos_ros.nodes.process import Stop


@pytest.fixture
def alarm():
    """Calls a handler of SIGALRM after so many seconds."""
    before = signal.getsignal(signal.SIGALRM)

    def after(seconds, handler):
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(60, method="thread")  # the other one needs the alarm itself
def test_a_signal_at_any_moment_of_a_wait_ends_it(alarm):
    draw = random.Random(1)
    for _ in range(2000):
        stop = Stop()
        alarm(draw.uniform(1e-5, 1e-3), stop.set)
        while not stop.is_set():
            stop.wait(1e-6)  # so often that the alarm meets every line of it


def test_it_may_be_set_more_often_than_anybody_listens():
    stop = Stop()
    for _ in range(10_000):
        stop.set()
    assert stop.wait()
    assert stop.is_set()


def test_a_wait_ends_by_itself_or_by_another_thread():
    stop = Stop()
    assert not stop.wait(0.01)
    assert not stop.wait(-1.0)
    threading.Timer(0.05, stop.set).start()
    assert stop.wait(30.0)
