"""Feetech STS3215 servos on one half-duplex bus, without the motors: bytes in, bytes out.

For tests and for a first try without an arm: LeRobot's own driver runs on it unmodified
(`feetech_pty` is the port, `kairos sim-so101` the command). Packets are `FF FF id length
instruction-or-error parameters checksum`, registers those of the STS series. What is modelled:
ping, read, write, sync read and write, checksums, status levels, the EEPROM and its lock, the
homing offset, position limits, torque, and a motor that follows its goal at limited speed. What is
not: acceleration, load, friction, gravity, temperature, PWM and velocity modes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

HEADER = b"\xff\xff"
BROADCAST = 0xFE
LONGEST = 250
"""Bytes after the length byte; more is no packet."""
GAP_S = 0.02
"""Half a packet is given up after so long a silence."""


class Instruction(IntEnum):
    PING = 0x01
    READ = 0x02
    WRITE = 0x03
    SYNC_READ = 0x82
    SYNC_WRITE = 0x83


STEPS = 4096
"""Of the encoder, in one turn."""
FULL_SPEED = 3073.0
"""Steps per second of an STS3215 without load, 45 turns per minute."""
MODEL = 777
EEPROM = range(5, 40)
"""Registers that outlast the power; what is below and the measurements are read-only."""

ID, STATUS_LEVEL, LOW, HIGH, HOMING = 5, 8, 9, 11, 31
TORQUE, GOAL, SPEED, LOCK = 40, 42, 46, 55
POSITION, VELOCITY, VOLTAGE, TEMPERATURE, MOVING = 56, 58, 62, 63, 66
READ_ONLY = {*range(5), *range(56, 80)}
SIGNED_BY_BIT = {HOMING: 11, GOAL: 15, POSITION: 15, VELOCITY: 15}
"""Registers of sign and magnitude: address -> bit of the sign."""


@dataclass(frozen=True, slots=True)
class Joint:
    """One motor of an arm as it was calibrated."""

    name: str
    id: int
    homing_offset: int
    """Steps; the position is the encoder's minus this."""
    low: int
    high: int
    """Range of positions, steps."""
    start: int
    """Position at first, steps."""


SO101 = (
    Joint("shoulder_pan", 1, -1450, 750, 3430, start=2047),
    Joint("shoulder_lift", 2, 880, 820, 3240, start=900),
    Joint("elbow_flex", 3, -730, 870, 3080, start=3000),
    Joint("wrist_flex", 4, 1190, 850, 3220, start=2850),
    Joint("wrist_roll", 5, -320, 0, 4095, start=2047),
    Joint("gripper", 6, 1010, 2030, 3500, start=2060),
)
"""The motors of LeRobot's `so101_follower`, folded. Plausible numbers, not those of a real arm."""


class Servo:
    """One motor: its registers, and where it is. Times are in seconds of any steady clock."""

    def __init__(self, joint: Joint) -> None:
        self.name = joint.name
        self.encoder = float((joint.start + joint.homing_offset) % STEPS)
        """Where the shaft is, steps."""
        self._at_s: float | None = None
        self._velocity = 0.0
        self._stored = bytearray(max(EEPROM) + 1)
        factory = {0: 3, 1: 10, 3: MODEL & 0xFF, 4: MODEL >> 8, 13: 70, 14: 140, 15: 40}
        factory |= {16: 0xE8, 17: 3, 18: 0x0C, 21: 32, 22: 32, 24: 16, 28: 0xF4, 29: 1, 30: 1}
        factory |= {34: 20, 35: 200, 36: 80, STATUS_LEVEL: 1, ID: joint.id}
        for address, value in factory.items():
            self._stored[address] = value
        self.power_cycle()
        self.poke(HOMING, joint.homing_offset)
        self.poke(LOW, joint.low)
        self.poke(HIGH, joint.high)
        self._stored[:] = self._registers[: len(self._stored)]
        self.power_cycle()

    def power_cycle(self) -> None:
        """Back to what the EEPROM holds, without torque, with the EEPROM locked."""
        self._registers = bytearray(self._stored) + bytearray(128 - len(self._stored))
        self._registers[LOCK] = 1
        self._registers[VOLTAGE], self._registers[TEMPERATURE] = 120, 30
        self._velocity = 0.0
        self.poke(GOAL, round(self.position))

    @property
    def id(self) -> int:
        return self._registers[ID]

    @property
    def torque(self) -> bool:
        return self._registers[TORQUE] != 0

    @property
    def position(self) -> float:
        """As the motor reports it, steps from 0 to 4095."""
        return (self.encoder - self.peek(HOMING)) % STEPS

    @property
    def goal(self) -> int:
        return self.peek(GOAL)

    def place(self, position: float) -> None:
        """Turns the shaft by hand until the motor would report `position`, steps."""
        self.encoder = (position + self.peek(HOMING)) % STEPS

    def advance(self, now_s: float) -> None:
        """Moves toward the goal as far as it gets until `now_s`, while the torque is on."""
        elapsed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        position = self.position
        self._velocity = 0.0
        if self.torque and elapsed_s:
            speed = min(self.peek(SPEED, signed=False) or FULL_SPEED, FULL_SPEED)
            goal = min(max(self.goal, self.peek(LOW)), self.peek(HIGH))
            step = min(max(goal - position, -speed * elapsed_s), speed * elapsed_s)
            self.encoder = (position + step + self.peek(HOMING)) % STEPS
            self._velocity = step / elapsed_s
        self.poke(POSITION, round(self.position) % STEPS)
        self.poke(VELOCITY, round(self._velocity))
        self._registers[MOVING] = abs(self._velocity) > 1

    def read(self, address: int, length: int) -> bytes:
        return bytes(self._registers[address : address + length])

    def write(self, address: int, data: bytes) -> None:
        """Read-only registers stay; those of the EEPROM outlast the power unless it is locked."""
        for offset, value in enumerate(data):
            at = address + offset
            if at in READ_ONLY or at >= len(self._registers):
                continue
            self._registers[at] = value
            if at in EEPROM and not self._registers[LOCK]:
                self._stored[at] = value

    def peek(self, address: int, *, signed: bool = True) -> int:
        """The value of a register of two bytes."""
        raw = int.from_bytes(self.read(address, 2), "little")
        bit = SIGNED_BY_BIT.get(address) if signed else None
        if bit is None:
            return raw
        magnitude = raw & ((1 << bit) - 1)
        return -magnitude if raw >> bit & 1 else magnitude

    def poke(self, address: int, value: int) -> None:
        """Sets a register of two bytes, read-only or not."""
        bit = SIGNED_BY_BIT.get(address, 16)
        raw = abs(value) & ((1 << bit) - 1) | (value < 0) << bit
        self._registers[address : address + 2] = raw.to_bytes(2, "little")


@dataclass(slots=True)
class Faults:
    """What goes wrong on the bus."""

    silent: set[int] = field(default_factory=set)
    """Ids of motors that do not answer; they still hear."""
    garbled: int = 0
    """Replies to come that have a byte flipped."""
    torn: int = 0
    """Replies to come that end half way."""
    noise: int = 0
    """Replies to come with 7 bytes of garbage before them."""
    late: int = 0
    """Replies to come that leave together with the one after them."""
    delay_s: float = 0.0
    """How late every reply leaves; kept by the port."""


class Bus:
    """Servos on one line. Not shared between threads."""

    def __init__(self, servos: Sequence[Servo]) -> None:
        self.servos = list(servos)
        self.faults = Faults()
        self.counts: Counter[str] = Counter()
        """Packets by what became of them: `answered`, `unanswered`, `bad_checksum`, `unknown`."""
        self._input = bytearray()
        self._late = b""
        self._heard_s = 0.0

    def servo(self, motor: int) -> Servo:
        """Raises ValueError where there is none."""
        for servo in self.servos:
            if servo.id == motor:
                return servo
        raise ValueError(f"there is no motor {motor}")

    def receive(self, data: bytes, now_s: float) -> bytes:
        """What the motors say to these bytes; packets may come in pieces."""
        if now_s - self._heard_s > GAP_S:
            self._input.clear()
        self._heard_s = now_s
        self._input += data
        for servo in self.servos:
            servo.advance(now_s)
        said = bytearray()
        while (packet := self._next_packet()) is not None:
            said += self._spoiled(self._answer(*packet))
        return bytes(said)

    def _next_packet(self) -> tuple[int, int, bytes] | None:
        """Id, instruction and parameters of the next whole packet; skips what is none."""
        buffer = self._input
        while True:
            start = buffer.find(HEADER)
            if start < 0:
                del buffer[: max(0, len(buffer) - 1)]
                return None
            del buffer[:start]
            while buffer[2:3] == b"\xff":  # a third FF: the header begins one byte later
                del buffer[0]
            if len(buffer) >= 4 and not 2 <= buffer[3] <= LONGEST:
                del buffer[:2]
                continue
            if len(buffer) < 4 or len(buffer) < buffer[3] + 4:
                return None
            whole = bytes(buffer[: buffer[3] + 4])
            if checksum(whole[2:-1]) != whole[-1]:
                self.counts["bad_checksum"] += 1
                del buffer[:2]
                continue
            del buffer[: len(whole)]
            return whole[2], whole[4], whole[5:-1]

    def _answer(self, to: int, instruction: int, parameters: bytes) -> list[bytes]:
        """Status packets, one per motor that has something to say."""
        addressed = [s for s in self.servos if to in (s.id, BROADCAST)]
        replies: list[bytes] = []
        match instruction, list(parameters):
            case Instruction.PING, []:
                replies = [self._status(servo) for servo in addressed]
            case Instruction.READ, [address, length] if to != BROADCAST:
                replies = [self._status(servo, servo.read(address, length)) for servo in addressed]
            case Instruction.WRITE, [address, *data] if data:
                for servo in addressed:
                    level = servo.read(STATUS_LEVEL, 1)[0]
                    servo.write(address, bytes(data))
                    if level and to != BROADCAST:
                        replies.append(self._status(servo))
            case Instruction.SYNC_READ, [address, length, *ids]:
                servos = {servo.id: servo for servo in self.servos}
                replies = [
                    self._status(servos[i], servos[i].read(address, length))
                    for i in ids
                    if i in servos
                ]
            case Instruction.SYNC_WRITE, [address, length, *rows] if (
                length and len(rows) % (length + 1) == 0
            ):
                servos = {servo.id: servo for servo in self.servos}
                for i in range(0, len(rows), length + 1):
                    if rows[i] in servos:
                        servos[rows[i]].write(address, bytes(rows[i + 1 : i + 1 + length]))
            case _:
                self.counts["unknown"] += 1
                return []
        replies = [reply for reply in replies if reply]
        self.counts["answered" if replies else "unanswered"] += 1
        return replies

    def _status(self, servo: Servo, data: bytes = b"") -> bytes:
        return b"" if servo.id in self.faults.silent else packet(servo.id, 0, data)

    def _spoiled(self, replies: list[bytes]) -> bytes:
        said = bytearray()
        for reply in replies:
            faults = self.faults
            if faults.garbled > 0:
                faults.garbled -= 1
                middle = len(reply) // 2
                reply = reply[:middle] + bytes([reply[middle] ^ 0x55]) + reply[middle + 1 :]
            if faults.torn > 0:
                faults.torn -= 1
                reply = reply[: len(reply) // 2]
            if faults.noise > 0:
                faults.noise -= 1
                reply = b"\x00\xff\xff\x13\xff\x7f\x02" + reply
            self._late += reply
            if faults.late > 0:
                faults.late -= 1
                continue
            said += self._late
            self._late = b""
        return bytes(said)


def packet(to: int, instruction: int, parameters: bytes = b"") -> bytes:
    """A packet to motor `to`, or from it, where `instruction` is its error byte."""
    body = bytes([to, len(parameters) + 2, instruction]) + parameters
    return HEADER + body + bytes([checksum(body)])


def checksum(body: bytes) -> int:
    """Of everything between header and checksum."""
    return ~sum(body) & 0xFF
