"""Own ports in shared memory that were replaced, as the /proc of a deaf serving node had it."""

import pytest

from kairos_ros.host.shared_memory import replaced_ports

MAPS = """\
7f88af031000-7f88af03e000 rw-s 00000000 00:1b 90740      /dev/shm/fastdds_port22661{own}
7f88af03e000-7f88af04b000 rw-s 00000000 00:1b 90741      /dev/shm/fastdds_port22663{other}
7f88af04b000-7f88af058000 rw-s 00000000 00:1b 90742      /dev/shm/fastdds_port7000
7f88af058000-7f88af0e0000 rw-s 00000000 00:1b 90743      /dev/shm/fastdds_34bd66255f6cd4e4 (deleted)
"""
GONE = " (deleted)"


@pytest.fixture
def proc(tmp_path):
    for number, name in enumerate(
        ("serving_node", "dds.shm.22661", "dds.shm.7000", "dds.shm.wdog")
    ):
        (tmp_path / "task" / str(number)).mkdir(parents=True)
        (tmp_path / "task" / str(number) / "comm").write_text(name + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("own", "other", "found"), [("", "", []), ("", GONE, []), (GONE, "", [22661])]
)
def test_only_a_port_that_the_process_reads_counts(proc, own, other, found):
    (proc / "maps").write_text(MAPS.format(own=own, other=other))
    assert replaced_ports(proc) == found
