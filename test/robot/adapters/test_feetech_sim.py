"""Simulated Feetech servos: bytes in, bytes out, with the numbers of the protocol's manual."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.demos.sim_so101 import sim_so101_command
from kairos_ros.lab.world.feetech_sim import SO101, Bus, Instruction, Servo, packet

PING, READ, WRITE = Instruction.PING, Instruction.READ, Instruction.WRITE
SYNC_READ, SYNC_WRITE = Instruction.SYNC_READ, Instruction.SYNC_WRITE
EVERYBODY = 0xFE
GOAL, TORQUE, LOCK, POSITION, HOMING, LEVEL = 42, 40, 55, 56, 31, 8


@pytest.fixture
def bus():
    """Six motors at the positions of a folded SO-101."""
    return Bus([Servo(joint) for joint in SO101])


def word(value):
    return value.to_bytes(2, "little")


def read(bus, motor, address, length=2, now_s=0.0):
    """The value of a register, over the wire."""
    reply = bus.receive(packet(motor, READ, bytes([address, length])), now_s)
    assert reply[:5] == bytes([0xFF, 0xFF, motor, length + 2, 0])
    return int.from_bytes(reply[5:-1], "little")


def write(bus, motor, address, data, now_s=0.0):
    return bus.receive(packet(motor, WRITE, bytes([address]) + data), now_s)


def test_a_ping_is_answered_with_the_bytes_of_the_manual(bus):
    assert bus.receive(bytes.fromhex("ff ff 01 02 01 fb"), 0.0) == bytes.fromhex("ffff010200fc")


def test_everybody_answers_a_broadcast_ping(bus):
    reply = bus.receive(packet(EVERYBODY, PING), 0.0)
    assert [reply[i + 2] for i in range(0, len(reply), 6)] == [1, 2, 3, 4, 5, 6]


def test_a_packet_in_pieces_is_answered_once_it_is_whole(bus):
    ping = packet(3, PING)
    said = [bus.receive(ping[i : i + 1], 0.0) for i in range(len(ping))]
    assert said[:-1] == [b""] * 5
    assert said[-1] == packet(3, 0)


def test_a_wrong_checksum_is_not_answered_and_hides_nothing_behind_it(bus):
    ping = packet(3, PING)
    assert bus.receive(ping[:-1] + b"\x00" + ping, 0.0) == packet(3, 0)
    assert bus.counts["bad_checksum"] == 1


@given(noise=st.binary(max_size=300))
def test_whatever_was_on_the_line_a_motor_answers_after_a_pause(noise):
    bus = Bus([Servo(joint) for joint in SO101])
    bus.receive(noise, 0.0)
    assert bus.receive(packet(2, PING), 1.0) in (packet(2, 0), b"")  # a new id may be in the noise
    assert len(bus.servos) == 6


def test_the_position_is_that_of_the_encoder_minus_the_homing_offset(bus):
    pan = bus.servo(1)
    assert (pan.encoder, read(bus, 1, POSITION)) == (2047 - 1450, 2047)
    write(bus, 1, LOCK, b"\x00")
    write(bus, 1, HOMING, word(0))
    assert read(bus, 1, POSITION) == 597


def test_a_motor_follows_its_goal_no_faster_than_it_was_told(bus):
    write(bus, 1, TORQUE, b"\x01")
    write(bus, 1, 46, word(1000))  # steps per second
    write(bus, 1, GOAL, word(3047))
    assert read(bus, 1, POSITION, now_s=0.25) == 2297
    assert read(bus, 1, 66, length=1, now_s=0.5) == 1  # moving
    assert read(bus, 1, POSITION, now_s=5.0) == 3047


def test_a_motor_stops_at_its_limit_and_does_nothing_without_torque(bus):
    write(bus, 1, GOAL, word(4000))
    assert read(bus, 1, POSITION, now_s=9.0) == 2047
    write(bus, 1, TORQUE, b"\x01", now_s=9.0)
    assert read(bus, 1, POSITION, now_s=20.0) == 3430


def test_a_locked_eeprom_forgets_what_it_was_told_without_power(bus):
    write(bus, 1, 9, word(1000))
    write(bus, 2, LOCK, b"\x00")
    write(bus, 2, 9, word(1000))
    write(bus, 2, TORQUE, b"\x01")
    for servo in bus.servos:
        servo.power_cycle()
    assert (read(bus, 1, 9), read(bus, 2, 9)) == (750, 1000)
    assert read(bus, 2, TORQUE, length=1) == 0


def test_what_a_motor_measures_cannot_be_written(bus):
    assert write(bus, 1, POSITION, word(5)) == packet(1, 0)
    assert read(bus, 1, POSITION) == 2047


def test_sync_write_reaches_its_motors_without_an_answer_and_sync_read_keeps_their_order(bus):
    rows = b"".join(bytes([motor]) + word(100 * motor) for motor in (1, 2, 3))
    assert bus.receive(packet(EVERYBODY, SYNC_WRITE, bytes([GOAL, 2]) + rows), 0.0) == b""
    reply = bus.receive(packet(EVERYBODY, SYNC_READ, bytes([GOAL, 2, 3, 1, 9, 2])), 0.0)
    assert reply == packet(3, 0, word(300)) + packet(1, 0, word(100)) + packet(2, 0, word(200))


def test_a_motor_of_status_level_0_answers_reads_alone(bus):
    write(bus, 1, LEVEL, b"\x00")
    assert write(bus, 1, LOCK, b"\x00") == b""
    assert read(bus, 1, LOCK, length=1) == 0


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"shoulder_pan": {"id": 1}}), "[1]"])
def test_a_calibration_that_is_none_is_refused_by_name(tmp_path, text):
    path = tmp_path / "desk.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"desk\.json is no LeRobot calibration"):
        sim_so101_command(tmp_path / "so101", path)


def test_a_link_never_takes_the_place_of_a_file(tmp_path):
    (tmp_path / "so101").write_text("mine")
    with pytest.raises(ConfigError, match="so101 exists and is no link"):
        sim_so101_command(tmp_path / "so101", None)
    assert (tmp_path / "so101").read_text() == "mine"
