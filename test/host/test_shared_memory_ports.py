"""Own ports in shared memory that were replaced, as the /proc of a deaf serving node had it, and
what is done then. With real DDS: test/nodes/robot/test_replaced_ports.py."""

import ctypes
import logging
import mmap

import pytest

from kairos_ros.host import shared_memory
from kairos_ros.host.shared_memory import LOST_LOOKS, PortKeeper, mark_as_broken, replaced_ports

MAPS = """\
7f88af031000-7f88af03e000 rw-s 00000000 00:1b 90740      /dev/shm/fastdds_port22661{own}
7f88af03e000-7f88af04b000 rw-s 00000000 00:1b 90741      /dev/shm/fastdds_port22663{other}
7f88af04b000-7f88af058000 rw-s 00000000 00:1b 90742      /dev/shm/fastdds_port7000
7f88af058000-7f88af0e0000 rw-s 00000000 00:1b 90743      /dev/shm/fastdds_34bd66255f6cd4e4 (deleted)
"""
GONE = " (deleted)"
REOPENED = """ (deleted)
7f88af0e0000-7f88af0ed000 rw-s 00000000 00:1b 90744      /dev/shm/fastdds_port22661"""
OWN = {22661: range(0x7F88AF031000, 0x7F88AF03E000)}


@pytest.fixture
def proc(tmp_path):
    for number, name in enumerate(
        ("serving_node", "dds.shm.22661", "dds.shm.7000", "dds.shm.wdog")
    ):
        (tmp_path / "task" / str(number)).mkdir(parents=True)
        (tmp_path / "task" / str(number) / "comm").write_text(name + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("own", "other", "found"), [("", "", {}), ("", GONE, {}), (GONE, "", OWN), (REOPENED, "", {})]
)
def test_only_a_port_that_the_process_reads_counts(proc, own, other, found):
    (proc / "maps").write_text(MAPS.format(own=own, other=other))
    assert replaced_ports(proc) == found


@pytest.fixture
def memory():
    """4 kB of this process, and where they are."""
    with mmap.mmap(-1, 4096) as memory:
        view = ctypes.c_char.from_buffer(memory)
        begin = ctypes.addressof(view)
        yield memory, range(begin, begin + 4096)
        del view


def test_memory_of_another_layout_is_left_alone_and_the_port_is_lost(memory, monkeypatch, caplog):
    content, addresses = memory
    content[:] = before = bytes(range(256)) * 16
    monkeypatch.setattr(shared_memory, "replaced_ports", lambda: {7001: addresses})
    monkeypatch.setattr(shared_memory, "_LOG", logging.getLogger("ports"))  # caplog hears it
    keeper = PortKeeper()
    for _ in range(LOST_LOOKS):
        assert keeper.lost == []
        keeper.look()
    assert keeper.lost == [7001]
    assert content[:] == before
    (said,) = caplog.messages
    assert "restart this program" in said
    monkeypatch.setattr(shared_memory, "replaced_ports", dict)
    keeper.look()
    assert keeper.lost == []


def test_memory_that_was_given_back_meanwhile_is_no_crash():
    with mmap.mmap(-1, 4096) as memory:
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert not mark_as_broken(7001, range(begin, begin + 4096))
