"""Children of a process, found while its threads come and go."""

import subprocess
import sys
import threading

import pytest

from kairos_ros.host.child_processes import children, command_line, descendants

PARENT = """
import subprocess, sys, threading
start = lambda: made.append(subprocess.Popen([sys.executable, "-c", "input()"]))
made = []
for thread in [threading.Thread(target=start) for _ in range(2)]:
    thread.start()
    thread.join()
print("started", flush=True)
end = threading.Event()
def churn():
    while not end.is_set():
        threading.Thread(target=int).start()
for _ in range(2):
    threading.Thread(target=churn).start()
input()
end.set()
for child in made:
    child.kill()
    child.wait()
"""

pytestmark = pytest.mark.slow


def test_children_are_found_while_threads_of_their_parent_end():
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe, text=True)
    with parent:
        assert parent.stdout.readline() == "started\n"
        found = [sorted(children(parent.pid)) for _ in range(2000)]
        assert len(found[0]) == 2
        assert all(each == found[0] for each in found)
        assert "input()" in command_line(found[0][0])
        below = descendants(threading.main_thread().native_id)
        assert {parent.pid, *found[0]} <= set(below)
        parent.communicate("\n")
    assert children(parent.pid) == []
    assert command_line(parent.pid) == ""
