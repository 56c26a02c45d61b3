"""Whatever a client of any dialect sends, or fails to, it is told, and robots beside it are served
as before. Real sockets, processes and DDS throughout."""

import contextlib
import itertools
import resource
import socket
import struct
import subprocess
import sys
import threading

import pytest
from groot_robot import MAP as GROOT_MAP
from kairos_ros.msg import RobotStatus
from openpi_robot import MAP, POLICY, address, doors
from raw_peers import PEERS, Peer, host_port
from wire import until

from bench.support.peers import groot_client
from kairos_ros.bringup.plan import serving

NAMES = (f"peer_{n}x" for n in itertools.count())
SILENT = 2000
BODY = 2_000_000
"""Bytes, twice what a message may have."""
KILLED = (
    "import socket, sys, time\n"
    "said = bytes.fromhex(sys.stdin.readline())\n"
    "one = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    "one.sendall(said)\n"
    "print(one.getsockname()[1], flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture(scope="module")
def server(starter_for_module, wire):
    starter_for_module.start(serving(policy=POLICY, horizon="static:4"))
    wire.serving_since()


@pytest.fixture(scope="module")
def processes(server, starter_for_module, tmp_path_factory):
    """Dialect of its map -> process of doors."""
    options = ("--max-message-mb", "1", "--max-clients", "8")
    return {
        name: doors(starter_for_module.run, tmp_path_factory.mktemp(name), *options, text=text)
        for name, text in {"openpi": MAP, "groot": GROOT_MAP}.items()
    }


@pytest.fixture(scope="module")
def wheres(processes) -> dict[str, str]:
    """Dialect -> its address."""
    at = {name: address(process) for name, process in processes.items()}
    return at | {"kairos": at["openpi"]}


@pytest.fixture(params=PEERS)
def dialect(request) -> str:
    return request.param


@pytest.fixture
def connect(wheres):
    """Makes clients; they leave after the test."""
    made: list[Peer] = []

    def new(dialect: str) -> Peer:
        made.append(PEERS[dialect](wheres[dialect], next(NAMES)))
        return made[-1]

    yield new
    for peer in made:
        peer.close()


@pytest.fixture(autouse=True, scope="module")
def bystanders(wheres):
    """A robot of each dialect, which is served all the time."""
    robots = [
        kind(wheres[dialect], next(NAMES)).asking(1000.0 * (n + 1)).begin()
        for n, (dialect, kind) in enumerate(PEERS.items())
    ]
    yield robots
    for robot in robots:
        robot.end()


@pytest.fixture(autouse=True)
def unharmed(bystanders):
    yield
    for robot in bystanders:
        robot.check(rounds=2)


def robot_from(wire, port: int) -> str:
    """Which robot the client of this TCP port is, once its status says that it is there. The name
    may have been another client's, and diagnostics may be heard before statuses."""
    peer = f"127.0.0.1:{port}"

    def found() -> str:
        known = [name for name in [*wire.reports] if name.startswith("kairos: ")]
        own = [name for name in known if wire.diagnostic(name, "client") == peer]
        return own[0].removeprefix("kairos: ") if own else ""

    robot = until(found, what=f"for the robot at {peer}")
    until(lambda: wire.status_of(robot).state != RobotStatus.LEAVING, what=f"for {robot}")
    return robot


def test_what_cannot_be_used_is_told_and_the_client_goes_on(connect, dialect):
    peer = connect(dialect)
    for what, (message, said) in peer.hostile.items():
        peer.send(message)
        assert said in peer.error(), what
        assert peer.ask(3.0).tolist() == [3.0] * peer.horizon, what


@pytest.mark.parametrize("dialect", ["openpi", "groot"], indirect=True)
def test_keys_that_nobody_reads_are_counted(connect, wire, dialect):
    peer = connect(dialect)
    peer.send(peer.unknown)
    assert peer.first_numbers(peer.read()).tolist() == [0.5] * peer.horizon
    name = robot_from(wire, peer.socket.getsockname()[1])
    until(lambda: wire.diagnostic(f"kairos: {name}", "unused_keys") == "1")


def test_a_message_that_is_too_large_costs_its_sender_the_connection_at_most(connect, dialect):
    peer = connect(dialect)
    peer.send(bytes(BODY))
    if dialect == "groot":  # its client would wait for an answer for ever
        assert f"a message of {BODY} bytes; at most 1000000 are taken" in peer.error()
        assert peer.ask(4.0).tolist() == [4.0] * peer.horizon
        return
    assert peer.end().args == (1009,)


def test_a_message_that_is_announced_as_endless_ends_its_connection(connect, dialect):
    peer = connect(dialect)
    head = b"\x82\xff" if dialect != "groot" else b"\x01\x00\x02"
    peer.socket.sendall(head + struct.pack(">Q", 2**62) + b"mask" + bytes(1000))
    assert peer.end()


def test_half_a_message_hurts_nobody(connect, dialect):
    peer = connect(dialect)
    peer.socket.sendall(peer.framed(peer.request(1.0))[:-100])
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.end()


def test_who_does_not_read_is_cut(connect, processes):
    """Of GR00T's dialect; test_doors.py has it for the others, which share their code."""
    peer = connect("groot")
    asked = peer.framed(groot_client.packed({"endpoint": "get_modality_config"}))
    flood = threading.Thread(target=push, args=(peer.socket, asked * 10_000))
    flood.start()
    until(lambda: "it did not read for 10 s" in processes["groot"].output())
    flood.join()


def push(one: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        one.sendall(data)


def test_who_vanishes_is_noted_and_leaves(connect, wire):
    """All dialects at once: it takes up to 20 s."""
    gone = {}
    for dialect in PEERS:
        peer = connect(dialect)
        peer.ask(5.0)
        gone[robot_from(wire, peer.socket.getsockname()[1])] = peer
    try:
        for peer in gone.values():
            peer.vanish()
    except PermissionError:
        pytest.skip("only root may let a connection vanish")
    for robot in gone:
        until(lambda robot=robot: wire.status_of(robot).state == RobotStatus.LEAVING)


def test_who_is_killed_in_mid_request_leaves_at_once(wheres, wire, connect, dialect):
    peer = connect(dialect)
    asked = peer.framed(peer.request(6.0))
    said = peer.opening(next(NAMES)) + asked + asked[: len(asked) // 2]
    command = [sys.executable, "-S", "-c", KILLED, *map(str, host_port(wheres[dialect]))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as doomed:
        try:
            doomed.stdin.write(said.hex().encode() + b"\n")
            doomed.stdin.flush()
            robot = robot_from(wire, int(doomed.stdout.readline()))
        finally:
            doomed.kill()
    until(lambda: wire.status_of(robot).state == RobotStatus.LEAVING)


@pytest.mark.parametrize("dialect", ["openpi", "groot"], indirect=True)
def test_two_thousand_connections_that_say_nothing_are_ended(connect, wheres, dialect):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SILENT + 500
    if soft < wanted:
        if hard < wanted:
            pytest.skip(f"this process may open {hard} files, and {wanted} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    silent = []
    try:
        for _ in range(SILENT):
            one = socket.create_connection(host_port(wheres[dialect]))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            silent.append(one)
        peer = connect(dialect)
        assert peer.ask(7.0).tolist() == [7.0] * peer.horizon
        silent[0].settimeout(60)
        while silent[0].recv(1000):  # the handshake did not come in time
            pass
    finally:
        for one in silent:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
