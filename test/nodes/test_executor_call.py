"""What a thread asks for is called in the executor's thread, also where its trigger is lost."""

import threading
import time

import pytest
from rclpy.node import Node
from wire import Spinner, in_executor, until

from kairos_ros.nodes import executor_call
from kairos_ros.nodes.executor_call import ExecutorCall

pytestmark = pytest.mark.slow


@pytest.fixture
def made(context):
    """Makes an ExecutorCall of `act`, and the list of threads that it was called in."""
    node = Node("calls", context=context)
    spinner = Spinner(node)
    calls = []

    def make(act=lambda: None):
        threads = []

        def function():
            threads.append(threading.current_thread())
            act()

        call = in_executor(spinner.executor, lambda: ExecutorCall(node, function))
        calls.append(call)
        return call, threads

    yield make
    for call in calls:
        in_executor(spinner.executor, call.close)
    spinner.close()


def test_it_is_called_at_once_in_the_thread_of_the_executor(made, monkeypatch):
    monkeypatch.setattr(executor_call, "LOOK_EVERY_S", 1e6)  # so the guard condition alone does it
    call, threads = made()
    call.ask()
    until(lambda: threads, what="for the call")
    assert threads[0] is not threading.current_thread()


def test_a_lost_trigger_only_makes_it_later(made, monkeypatch):
    call, threads = made()
    monkeypatch.setattr(call._guard, "trigger", lambda: None)
    call.ask()
    until(lambda: threads, what="for the call")
    time.sleep(3 * executor_call.LOOK_EVERY_S)
    assert len(threads) == 1  # who asks once is called once


def test_what_is_asked_in_the_midst_of_a_call_is_called_for_once_more(made, monkeypatch):
    left = [2, 1]

    def ask_again():
        if left:
            left.pop()
            call.ask()

    call, threads = made(ask_again)
    monkeypatch.setattr(call._guard, "trigger", lambda: None)
    call.ask()
    until(lambda: len(threads) == 3, what="for three calls")
