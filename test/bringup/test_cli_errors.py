"""Whatever is named on the command line: a sentence and exit code 2, no traceback, no leftovers."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer.main

from kairos_ros.commands import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BIN = Path(sys.prefix, "bin")
PROGRAMS = [
    *(("kairos", "report", "nowhere"), ("kairos", "record"), ("kairos", "up"), ("kairos", "demo")),
    *(("kairos", "fleet", "up", "factory"), ("kairos", "dashboard")),
    ("serving_node", "--ros-args", "-p", "policy:=emulated:latency_ms=1"),
    ("robot_node", "--ros-args", "-r", "__ns:=/early"),
    *(("recorder_node",), ("viz_node",), ("vlm_node",)),
]
LONG = "x" * 300
"""More than a name may have."""


@pytest.fixture
def kairos(monkeypatch, capsys):
    """`kairos("fleet", "check", path)`: what is printed on stderr, by a command that refuses."""

    def run(*arguments: object, code: int = 2) -> str:
        monkeypatch.setattr(sys, "argv", ["kairos", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr().err
        assert ended.value.code == code, said
        return said

    return run


@pytest.fixture
def files(tmp_path):
    """Files that are none of ours, by what they are."""
    content = {
        "empty": b"",
        "zero byte": b"a: \0b\n",
        "binary": bytes(range(256)) * 20,
        "base 60": b"tasks: " + b"1:" * 20_000 + b"2\n",
        "base 60 with a point": b"tasks: " + b"1:" * 20_000 + b"2.5\n",
        "digits": b"tasks: " + b"9" * 6000 + b"\n",
        "hexadecimal digits": b"tasks: 0x" + b"f" * 6000 + b"\n",
        "no date": b"tasks: 2026-13-41\n",
        "no integer": b'tasks: !!int ""\n',
        "no truth": b"tasks: !!bool maybe\n",
        "no time": b"tasks: !!timestamp maybe\n",
        "latin": b"a: \xe9\n",
        "list": b"[1, 2]",
        "number": b"3",
        "nothing": b"null",
        "no number": b'{"a": NaN}',
        "deep": b"[" * 100_000,
        "packed": b"\x1f\x8b\x08\0torn",
        "trace": b'{"format":"kairos-traces","version":1}\n{"type":"trace"}\n',
    }
    found = {name: tmp_path / f"{name}.json" for name in content}
    for name, data in content.items():
        found[name].write_bytes(data)
    os.mkfifo(tmp_path / "fifo")
    torn = tmp_path / "bag"
    torn.mkdir()
    (torn / "bag.mcap").write_bytes(b"\x89MCAP0\r")
    return found | {
        "missing": tmp_path / "missing",
        "folder": tmp_path,
        "pipe": tmp_path / "fifo",
        "endless": Path("/dev/zero"),
        "long name": tmp_path / LONG,
        "below a file": found["empty"] / "x",
        "torn bag": torn,
    }


READERS = {
    "fleet check": ("fleet", "check"),
    "fleet show": ("fleet", "show"),
    "schedule explain": ("schedule", "explain"),
    "horizon": ("horizon",),
    "simulate": ("simulate",),
    "simulate --profile": ("simulate", "--workload", "pi05-libero", "--profile"),
    "study": ("study",),
    "replay": ("replay",),
    "report": ("report",),
    "slo": ("slo",),
    "bag info": ("bag", "info"),
    "trace extract": ("trace", "extract"),
    "robot check": ("robot", "check"),
    "keys import": ("keys", "import"),
    "worker --registry": ("worker", "--listen", "ipc:///tmp/none", "--registry"),
    "sim-so101 --calibration": ("sim-so101", "--calibration"),
}


@pytest.mark.parametrize("command", READERS.values(), ids=READERS.keys())
def test_a_file_that_is_none_of_ours_is_refused_in_a_sentence(command, files, kairos, tmp_path):
    if command[0] in ("trace", "replay", "study"):
        command = (*command, "--out", tmp_path / "new.jsonl")
    if command[0] == "sim-so101":
        command = ("sim-so101", "--link", tmp_path / "port", "--calibration")
    for name, path in files.items():
        if command[0] == "keys" and name == "pipe":
            continue  # a key may come out of a pipe, which is what opens it
        if command[0] == "sim-so101" and name == "missing":
            continue  # it is made
        if command[0] == "worker" and name == "no number":
            continue  # in YAML it names the policy "NaN"
        began = time.process_time()
        said = kairos(*command, path)
        assert time.process_time() - began < 20.0, name
        assert said.strip(), name
        assert len(said) < 3000, name
    assert not (tmp_path / "new.jsonl").exists()
    assert not (tmp_path / "port").exists()


WRITERS = {
    "up": ("up", "--robots", "1", "--policy", "emulated:", "--out"),
    "up --record": ("up", "--robots", "1", "--policy", "emulated:", "--record", "--out"),
    "demo": ("demo", "--robots", "1", "--out"),
    "drill": ("drill", "--quick", "--robots", "1", "--out"),
    "fleet up": ("fleet", "up", "factory", "--out"),
    "fleet demo": ("fleet", "demo", "factory", "--out"),
    "arm up": ("arm", "up", "so101", "--out"),
    "arm demo": ("arm", "demo", "so101", "--out"),
    "record": ("record", "--duration", "1", "--out"),
    "simulate": ("simulate", "--workload", "pi05-libero", "--tasks", "4", "--robots", "2", "--out"),
    "study": ("study", "refetch", "--size", "quick", "--out"),
    "fleet show": ("fleet", "show", "factory", "--png"),
    "profile": ("profile", "--policy", "emulated:latency_ms=1", "--max-batch", "1", "--out"),
    "keys new": ("keys", "new", "site", "--keys"),
    "sim-so101": ("sim-so101", "--link"),
}


@pytest.mark.parametrize("command", WRITERS.values(), ids=WRITERS.keys())
@pytest.mark.parametrize("below", ["a file", "proc"])
def test_where_nothing_can_be_written_it_is_said_and_nothing_is_left(
    command, below, kairos, tmp_path
):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    out = taken / "x" if below == "a file" else Path("/proc/nowhere/x")
    said = kairos(*command, out)
    assert str(out.parent) in said.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert taken.read_text() == "mine"


def test_a_page_and_an_exported_key_say_where_they_cannot_be_written(kairos, tmp_path):
    kairos("keys", "new", "site", "--keys", tmp_path / "keys", code=0)
    assert "cannot write" in kairos("keys", "export", "site", "--keys", tmp_path / "keys",
                                    "--out", tmp_path)  # fmt: skip


ENDPOINTS = {
    "tcp://127.0.0.1:99999": "a port is 1 to 65535",
    "tcp://127.0.0.1:65536": "a port is 1 to 65535",
    "tcp://[::1]:70000": "a port is 1 to 65535",
    "tcp://127.0.0.1:0": "a port is 1 to 65535",
    "tcp://127.0.0.1": "write ipc:///PATH, tcp://ADDRESS:PORT",
    "tcp://127.0.0.1:٣٤٥": "write ipc:///PATH, tcp://ADDRESS:PORT",
    "ipc://": "name a path",
    "http://127.0.0.1:80": "write ipc:///PATH, tcp://ADDRESS:PORT",
}


@pytest.mark.parametrize("side", ["--listen", "--connect"])
@pytest.mark.parametrize(("endpoint", "reason"), ENDPOINTS.items(), ids=ENDPOINTS.keys())
def test_an_endpoint_that_is_none_is_refused_before_anything_is_loaded(
    endpoint, reason, side, kairos
):
    policy = ("--policy", "a=emulated:", "--insecure-loopback")
    assert reason in kairos("worker", side, endpoint, *policy)


def test_a_worker_dials_a_port_and_not_any(kairos):
    policy = ("--policy", "a=emulated:", "--insecure-loopback")
    said = kairos("worker", "--connect", "tcp://127.0.0.1:*", *policy)
    assert "a host and a port are dialled" in said


@pytest.mark.parametrize("swap", ["pick", "pick=", "=place", "pick=pick"])
def test_a_swap_names_two_policies(kairos, swap):
    assert "write OLD=NEW, names of two policies" in kairos("policy", "swap", swap)


def test_a_full_disk_leaves_no_part_of_a_secret(tmp_path):
    line = f"ulimit -f 0; exec {BIN / 'kairos'} keys new site --keys {tmp_path / 'keys'}"
    ignored = "import signal, os, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    ignored += "os.execvp('bash', ['bash', '-c', sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", ignored, line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "site.secret cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("program", ["serving_node", "viz_node", "recorder_node"])
@pytest.mark.parametrize(
    ("arguments", "domain", "reason"),
    [
        (["-p", "a:=b:"], "0", "Couldn't parse parameter override rule"),
        (["--params-file", "/nowhere"], "0", "Couldn't parse params file: '--params-file /nowhere"),
        (["-r", "__ns:=a b"], "0", "Couldn't parse remap rule"),
        ([], "many", "ROS_DOMAIN_ID is not an integral number"),
    ],
)
def test_what_ros_cannot_read_is_said_in_a_line(program, arguments, domain, reason):
    done = subprocess.run(
        [BIN / program, "--ros-args", *arguments],
        env=os.environ | {"ROS_DOMAIN_ID": domain},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert f"{program}: ROS cannot start: " in done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_domain_that_is_none_is_said_before_a_fleet_starts(kairos, monkeypatch, tmp_path):
    monkeypatch.setenv("ROS_DOMAIN_ID", "many")
    for command in (("record",), ("demo", "--robots", "1"), ("drill", "--quick")):
        assert "ROS_DOMAIN_ID is not" in kairos(*command, "--out", tmp_path / "new", code=2)


def _loads(pid: int) -> bool:
    """Whether a program has begun: Python alone does not catch SIGTERM."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
@pytest.mark.parametrize("after_s", [0.0, 1.0])
def test_ctrl_c_while_a_program_loads_ends_it_without_a_word(program, after_s, domain_id, tmp_path):
    process = subprocess.Popen(
        [BIN / program[0], *program[1:]],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not _loads(process.pid) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert "Traceback" not in output + said, output + said
    assert "KeyboardInterrupt" not in output + said, output + said
    documented = {130, 0, 1} if program[0] == "kairos" else {0}
    if program[:2] == ("kairos", "report"):
        documented = {130, 2}
    documented |= {-signal.SIGINT}  # while Python itself ends; a shell says 130 of it
    assert process.returncode in documented, said
    if process.returncode == 130:
        assert list(tmp_path.rglob("*.log")) == []


INTERRUPTED_AT_THE_END = """
import os, signal, sys, threading, time
def interrupt():
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
threading.Thread(target=interrupt).start()
from kairos_ros.commands import cli
sys.argv = ["kairos", "report", "nowhere"]
cli.main()
"""


def test_ctrl_c_while_python_ends_adds_no_traceback(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED_AT_THE_END]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("kairos: nowhere")


INTERRUPTED_IN_A_CALLBACK = """
import signal, time
from kairos_ros.commands import cli
class Collected:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.001)
def command():
    Collected()
    time.sleep(30)
    print("goes on")
cli.app = lambda words: command
cli.main()
"""

INTERRUPTED_IN_AN_IMPORT = """
import signal
from kairos_ros.commands import cli
from kairos_ros.core.errors import ConfigError
def load():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:  # as pybind11 does it
        raise ImportError("initialization failed") from error
def command():
    try:
        load()
    except ImportError as error:
        raise ConfigError("cannot be imported; install it") from error
cli.app = lambda words: {}
cli.main()
"""


@pytest.mark.parametrize(
    "interrupted",
    [
        INTERRUPTED_IN_A_CALLBACK,
        INTERRUPTED_IN_AN_IMPORT.format("load"),
        INTERRUPTED_IN_AN_IMPORT.format("command"),
    ],
    ids=["in a callback", "in an import", "in an import whose error is explained"],
)
def test_ctrl_c_that_is_dropped_or_becomes_another_error_is_not_lost(interrupted):
    command = [sys.executable, "-c", interrupted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("typed", [["keys", "new", "site"], ["keys", "new", "--help"]])
def test_only_the_command_that_is_typed_is_loaded(typed):
    command = typer.main.get_command(cli.app(typed))
    assert set(command.commands) == {*cli.GROUPS}  # groups are there, and empty
    assert set(command.commands["keys"].commands) == {"new"}


@pytest.mark.parametrize("typed", [[], ["--help"], ["keys"], ["keys", "--help"], ["kyes", "new"]])
def test_whoever_types_no_command_is_shown_all(typed):
    assert len(typer.main.get_command(cli.app(typed)).commands["keys"].commands) == 5


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.app()(["--version"])
    assert ended.value.code == 0
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"kairos_ros {declared}\n"
