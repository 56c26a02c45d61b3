"""Bags without ROS: what is written, what other readers make of it, and what survives damage."""

import errno
import json
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.definition import Definitions, installed_prefixes
from kairos_ros.recording.metadata import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
    Topic,
)
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.repair import repair
from kairos_ros.recording.selection import parse_topics, selected
from kairos_ros.recording.spool import Spool
from kairos_ros.recording.writer import BagWriter

DEFINITIONS = Definitions(installed_prefixes())
NEVER = QosTime(9223372036, 854775807)
BEST_EFFORT = Qos(
    QosHistory.UNKNOWN,
    0,
    QosReliability.BEST_EFFORT,
    QosDurability.VOLATILE,
    NEVER,
    NEVER,
    QosLiveliness.AUTOMATIC,
    NEVER,
    False,
)
TYPE = "kairos_ros/msg/ChunkUpdates"
STORE = get_typestore(Stores.EMPTY)
STORE.register(get_types_from_msg(DEFINITIONS.of(TYPE).text, TYPE))


def updates(number: int, robot: str) -> bytes:
    """A serialized ChunkUpdates of which every field depends on `number`."""
    rng = np.random.default_rng(number)
    array = lambda n: rng.normal(size=n).astype(np.float32)  # noqa: E731
    message = STORE.types[TYPE](
        robot=robot,
        session="s",
        task=str(number),
        round=number,
        attempt=0,
        policy="p",
        horizon_policy="static:5",
        horizon=5,
        chunk_size=6,
        action_dim=2,
        steps=3,
        chunk=array(12),
        action_scale=array(2),
        step_norms=array(18),
        updates=array(36),
    )
    return bytes(STORE.serialize_cdr(message, TYPE))


def write(folder: Path, count: int = 40, *, end: bool = True, **options) -> dict[str, list]:
    """A bag of two topics, flushed every ten messages; returns what each topic holds."""
    bag = BagWriter(folder, **options)
    definition = DEFINITIONS.of(TYPE)
    topics = [Topic(f"/arm_{i}/x", TYPE, definition.rihs01, (BEST_EFFORT,)) for i in (1, 2)]
    channels = [bag.add_topic(topic, definition) for topic in topics]
    held: dict[str, list] = {topic.name: [] for topic in topics}
    for number in range(count):
        topic = number % 3 == 0
        data = updates(number, f"arm_{topic}")
        at_ns = 10**18 + number * 10**7
        bag.write(channels[topic], at_ns, at_ns - 1000, data)
        held[topics[topic].name].append((at_ns, data))
        if number % 10 == 9:
            bag.flush()
    if end:
        bag.close()
    else:
        bag.abandon()
    return held


def read_with_rosbags(folder: Path) -> dict[str, list]:
    held: dict[str, list] = {}
    with Reader(folder) as reader:
        for connection, at_ns, data in reader.messages():
            held.setdefault(connection.topic, []).append((at_ns, data))
        assert {c.topic: c.msgcount for c in reader.connections} == {
            topic: len(messages) for topic, messages in held.items()
        }
    return held


def read_with_mcap(folder: Path) -> dict[str, list]:
    """Every message decoded by the schema in the file."""
    held: dict[str, list] = {}
    (path,) = folder.glob("*.mcap")
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        for _, channel, message, decoded in reader.iter_decoded_messages():
            assert decoded.round == int(decoded.task)
            held.setdefault(channel.topic, []).append((message.log_time, message.data))
    return held


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("version", [5, 7, 9])
def test_two_independent_readers_find_what_was_written(tmp_path, version, compression):
    held = write(tmp_path / "bag", version=version, compression=compression)
    assert read_with_rosbags(tmp_path / "bag") == held
    assert read_with_mcap(tmp_path / "bag") == held
    with Reader(tmp_path / "bag") as reader:
        assert [c.ext.offered_qos_profiles for c in reader.connections] == [[BEST_EFFORT]] * 2
        digest = DEFINITIONS.of(TYPE).rihs01 if version >= 7 else ""
        assert {c.digest for c in reader.connections} <= {digest, DEFINITIONS.of(TYPE).rihs01}
        assert reader.duration == 39 * 10**7 + 1
    information = (tmp_path / "bag" / "metadata.yaml").read_text()
    assert f"version: {version}\n" in information
    assert ("type_description_hash" in information) == (version >= 7)


def test_type_hashes_are_those_of_rosidl():
    for path in sorted((Path(installed_prefixes()[-1]) / "share/kairos_ros/msg").glob("*.json")):
        told = {
            t["type_name"]: t["hash_string"] for t in json.loads(path.read_text())["type_hashes"]
        }
        name = f"kairos_ros/msg/{path.stem}"
        assert DEFINITIONS.of(name).rihs01 == told[name]


def test_a_type_that_is_not_installed_is_named_with_its_package():
    with pytest.raises(ConfigError, match="nowhere_msgs/msg/Gone is not installed"):
        DEFINITIONS.of("nowhere_msgs/msg/Gone")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_bag_that_was_never_ended_holds_every_flushed_message(tmp_path, compression):
    folder = tmp_path / "bag"
    held = write(folder, 45, end=False, compression=compression, version=7)
    done = repair(folder)
    assert done.messages == 40
    assert done.index_rebuilt
    whole = {topic: [m for m in ms if m[0] < 10**18 + 40 * 10**7] for topic, ms in held.items()}
    assert read_with_rosbags(folder) == whole
    assert read_with_mcap(folder) == whole
    assert "version: 7\n" in (folder / "metadata.yaml").read_text()
    assert repair(folder) is None


def test_a_healthy_bag_is_left_as_it_is(tmp_path):
    write(tmp_path / "bag")
    before = {path.name: path.read_bytes() for path in (tmp_path / "bag").iterdir()}
    assert repair(tmp_path / "bag") is None
    assert {path.name: path.read_bytes() for path in (tmp_path / "bag").iterdir()} == before


def test_missing_metadata_is_rebuilt_from_the_file(tmp_path):
    held = write(tmp_path / "bag")
    before = (tmp_path / "bag" / "metadata.yaml").read_text()
    (tmp_path / "bag" / "metadata.yaml").unlink()
    assert not repair(tmp_path / "bag").index_rebuilt
    assert (tmp_path / "bag" / "metadata.yaml").read_text() == before
    assert read_with_rosbags(tmp_path / "bag") == held


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), garbage=st.binary(max_size=200), compression=st.booleans())
@example(share=0.002, garbage=b"\x00\x80", compression=True)  # the header is no text
@pytest.mark.slow
def test_whatever_the_tail_is_all_whole_chunks_are_read(tmp_path, share, garbage, compression):
    folder = tmp_path / f"bag{time.monotonic_ns()}"
    held = write(folder, compression="zstd" if compression else "none")
    (path,) = folder.glob("*.mcap")
    intact = path.read_bytes()
    written = intact[: round(share * len(intact))] + garbage
    path.write_bytes(written)
    (folder / "metadata.yaml").unlink()
    try:
        with Bag(folder) as bag:
            found = [m.topic for m in bag.messages((TYPE,))]
    except ConfigError:
        header = intact[: 17 + int.from_bytes(intact[9:17], "little")]  # magic and first record
        assert not path.read_bytes().startswith(header)
        return
    assert len(found) % 10 == 0
    assert len(found) >= 10 * (round(share * len(intact)) * 4 // len(intact) - 1)
    whole = sorted(m for ms in held.values() for m in ms)[: len(found)]
    assert sorted(m for ms in read_with_rosbags(folder).values() for m in ms) == whole
    assert sorted(m for ms in read_with_mcap(folder).values() for m in ms) == whole
    tail = path.with_name(path.name + ".tail")
    if tail.exists():  # garbage may begin as what was cut off did
        left = tail.read_bytes()
        assert written.endswith(left)
        assert path.read_bytes().startswith(written[: len(written) - len(left)])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=5),
    ended=st.booleans(),
    compression=st.booleans(),
)
@example(damage=[(0.33568, 174)], ended=False, compression=False)  # when the second chunk begins
def test_damage_anywhere_is_an_error_that_is_told_or_costs_messages_and_never_invents_any(
    tmp_path, damage, ended, compression
):
    folder = tmp_path / f"bag{time.monotonic_ns()}"
    write(folder, end=ended, compression="zstd" if compression else "none")
    (path,) = folder.glob("*.mcap")
    data = bytearray(path.read_bytes())
    for where, byte in damage:
        data[round(where * (len(data) - 1))] = byte
    path.write_bytes(data)
    (folder / "metadata.yaml").unlink(missing_ok=True)
    with suppress(ConfigError), Bag(folder) as bag:
        assert len([m.topic for m in bag.messages((TYPE,))]) in (0, 10, 20, 30, 40)


def test_the_folder_of_a_recorded_run_is_read_as_the_bag_in_it(tmp_path):
    write(tmp_path / "run" / "bag")
    (tmp_path / "run" / "logs").mkdir()
    with Bag(tmp_path / "run") as bag:
        assert bag.path == tmp_path / "run" / "bag"
        assert sum(topic.messages for topic in bag.topics) > 0


def test_what_is_no_bag_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="there is no such bag"):
        Bag(tmp_path / "gone")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match="is no folder"):
        Bag(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match=r"no metadata.yaml that fits and 0 .mcap files"):
        Bag(tmp_path)
    (tmp_path / "bag_0.mcap").write_bytes(b"")
    with pytest.raises(ConfigError, match="is empty"):
        Bag(tmp_path)
    (tmp_path / "bag_0.mcap").write_text("hello, this is a letter")
    with pytest.raises(ConfigError, match="is no MCAP file"):
        Bag(tmp_path)
    (tmp_path / "bag_0.mcap").unlink()
    (tmp_path / "metadata.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="cannot be read"):
        Bag(tmp_path)
    (tmp_path / "metadata.yaml").write_text("a: 1")
    with pytest.raises(ConfigError, match="cannot be read"):
        Bag(tmp_path)


def test_a_bag_of_another_recorder_in_another_storage_is_read_too(tmp_path):
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connection = writer.add_connection("/x", TYPE, typestore=STORE)
        for number in range(5):
            writer.write(connection, 10**18 + number * 10**9, updates(number, "arm"))
    with Bag(tmp_path / "bag") as bag:
        assert [(m.at_s, m.body.round) for m in bag.messages((TYPE,))] == [
            (float(n), n) for n in range(5)
        ]


def test_a_bag_that_is_being_recorded_is_not_touched(tmp_path):
    bag = BagWriter(tmp_path / "bag")
    bag.flush()
    with pytest.raises(ConfigError, match="still being recorded"):
        Bag(tmp_path / "bag")
    bag.close()
    Bag(tmp_path / "bag").__exit__()


def test_a_bag_needs_a_new_folder_that_can_be_made(tmp_path):
    with pytest.raises(ConfigError, match="exists; a bag needs a new folder"):
        BagWriter(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot record into"):
        BagWriter(tmp_path / "file" / "bag")


class SlowBag(BagWriter):
    """A disk that takes nothing until it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ready = threading.Event()

    def write(self, *arguments, **options) -> None:
        self.ready.wait()
        super().write(*arguments, **options)


def test_a_full_queue_drops_and_counts_by_topic(tmp_path):
    bag = SlowBag(tmp_path / "bag")
    spool = Spool(bag, queue_bytes=10_000)
    definition = DEFINITIONS.of(TYPE)
    topics = [Topic(name, TYPE, definition.rihs01) for name in ("/a", "/b")]
    for topic in topics:
        spool.add_topic(topic, definition)
    for number in range(9):
        spool.put(topics[0], number, number, bytes(1000))
    for number in range(4):
        spool.put(topics[1], number, number, bytes(1000))
    assert spool.dropped == {"/b": 3}
    bag.ready.set()
    spool.close()
    assert spool.messages == 10
    assert bag.counts == {topics[0]: 9, topics[1]: 1}


@pytest.mark.parametrize(("full_at", "written"), [("add_message", 0), ("finish", 3)])
def test_a_full_disk_ends_the_recording_with_that_reason(full_at, written, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    bag = BagWriter(tmp_path / "bag")
    monkeypatch.setattr(bag._mcap, full_at, refuse)
    spool = Spool(bag, queue_bytes=10_000)
    definition = DEFINITIONS.of(TYPE)
    topic = Topic("/a", TYPE, definition.rihs01)
    spool.add_topic(topic, definition)
    for number in range(3):
        spool.put(topic, number, number, bytes(1000))
    closing = threading.Thread(target=spool.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert spool.failure.errno == errno.ENOSPC
    assert spool.messages == written


EXISTING = {
    "/arm_1/chunk_request": ["kairos_ros/msg/ChunkRequest"],
    "/arm_1/wrist/image": ["sensor_msgs/msg/CompressedImage"],
    "/arm_1/joint_states": ["sensor_msgs/msg/JointState"],
    "/arm_1/cmd_vel": ["geometry_msgs/msg/Twist"],
    "/arm_1/rules": ["std_msgs/msg/String"],
    "/arm_10/task_events": ["kairos_ros/msg/TaskEvent"],
    "/kairos/fleet_state": ["kairos_ros/msg/FleetState"],
    "/kairos/chunk_updates": ["kairos_ros/msg/ChunkUpdates"],
    "/kairos/chunk_updates/full": ["kairos_ros/msg/ChunkUpdates"],
    "/camera/image": ["sensor_msgs/msg/Image"],
    "/rosout": ["rcl_interfaces/msg/Log"],
}


def test_by_default_the_fleets_own_topics_are_recorded_and_updates_once():
    chosen = selected(EXISTING, None, full_updates=False)
    assert list(chosen) == [
        "/arm_1/chunk_request",
        "/arm_1/wrist/image",
        "/arm_1/joint_states",
        "/arm_1/rules",
        "/kairos/fleet_state",
        "/kairos/chunk_updates",
    ]
    full = selected(EXISTING, None, full_updates=True)
    assert "/kairos/chunk_updates/full" in full
    assert "/kairos/chunk_updates" not in full


def test_by_default_sensors_of_drivers_that_robots_listen_to_and_transforms_are_recorded():
    there = {
        **EXISTING,
        "/so101/joint_states": ["sensor_msgs/msg/JointState"],
        "/so101/target_pose": ["geometry_msgs/msg/PoseStamped"],
        "/tf": ["tf2_msgs/msg/TFMessage"],
        "/tf_static": ["tf2_msgs/msg/TFMessage"],
    }
    alone = selected(there, None, full_updates=False)
    heard = selected(
        there, None, full_updates=False, heard={"/so101/joint_states", "/so101/target_pose"}
    )
    assert heard.keys() - alone.keys() == {"/so101/joint_states"}
    assert {"/tf", "/tf_static"} <= alone.keys()


def test_topics_can_be_chosen_by_whole_name():
    chosen = selected(EXISTING, parse_topics("/arm_1/(joint.*|cmd_vel)"), full_updates=False)
    assert chosen == {
        "/arm_1/joint_states": ("sensor_msgs/msg/JointState",),
        "/arm_1/cmd_vel": ("geometry_msgs/msg/Twist",),
    }
    assert selected(EXISTING, parse_topics("arm_1"), full_updates=False) == {}
    with pytest.raises(ConfigError, match=r"\[ is no regular|'\[' is no regular"):
        parse_topics("[")


@pytest.mark.parametrize("wanted", [None, parse_topics(".*")], ids=["the fleet", "everything"])
def test_a_topic_of_the_fleet_has_its_own_type_whatever_else_is_published_there(wanted):
    strange, update = "std_msgs/msg/String", "kairos_ros/msg/ChunkUpdates"
    there = {
        "/arm_1/chunk_request": [strange, "kairos_ros/msg/ChunkRequest"],
        "/arm_1/action_chunk": [strange],
        "/arm_1/wrist/image": ["sensor_msgs/msg/Image", strange],
        "/kairos/chunk_updates": [strange, update],
        "/kairos/robot_status": [strange],
        "/ghost/chunk_request": [strange],
    }
    chosen = selected(there, wanted, full_updates=False)
    assert chosen["/arm_1/action_chunk"] == ("kairos_ros/msg/ActionChunk",)
    assert chosen["/kairos/robot_status"] == ("kairos_ros/msg/RobotStatus",)
    assert chosen["/kairos/chunk_updates"] == (update,)
    assert chosen["/arm_1/chunk_request"] == ("kairos_ros/msg/ChunkRequest",)
    camera = ("sensor_msgs/msg/Image",) if wanted is None else ("sensor_msgs/msg/Image", strange)
    assert chosen["/arm_1/wrist/image"] == camera
    assert ("/ghost/chunk_request" in chosen) == (wanted is not None)


@pytest.mark.slow
def test_the_command_line_starts_where_the_packages_for_bags_are_missing():
    program = textwrap.dedent("""
        import sys
        from importlib.abc import MetaPathFinder

        class Missing(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] in ("rosbags", "mcap"):
                    raise ModuleNotFoundError(name=name)

        sys.meta_path.insert(0, Missing())
        import kairos_ros.commands.bags.bag, kairos_ros.commands.bags.record
    """)
    subprocess.run([sys.executable, "-c", program], check=True)
