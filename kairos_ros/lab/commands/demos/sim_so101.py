"""`kairos sim-so101`: a serial port with the six motors of an SO-101 behind it."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.text_file import read_json
from kairos_ros.lab.world.feetech_pty import BusPort
from kairos_ros.lab.world.feetech_sim import SO101, Bus, Joint, Servo
from kairos_ros.lab.world.servo_cameras import ServoCameras, lerobot_options, parse_cameras

LINK = Path.home() / "so101"

COMMANDS = """\b
Commands, one per line on the standard input:
  pull | plug           the cable; the motors keep their power
  power                 off and on again: motors lose torque and whatever is not in the EEPROM
  silence ID | speak ID that motor stops answering, answers again
  garble N | tear N | noise N   spoil the next N replies
  late N                the next N replies leave together with the one after them
  delay MS              every reply leaves so much later
  place ID STEPS        turn that motor by hand
  show                  print what the motors are at, as one line of JSON"""


def sim_so101_command(
    link: Annotated[
        Path,
        typer.Option(
            help="Path that stands for the serial port; a link is made there.",
            show_default="~/so101",
        ),
    ] = LINK,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Calibration file of LeRobot that the motors shall agree with, <id>.json; written "
            "where there is none."
        ),
    ] = None,
    camera: Annotated[
        list[str] | None,
        typer.Option(
            help="front=PORT or wrist=PORT: render what that camera sees for LeRobot's cameras of "
            "type zmq; prints what to say in LeRobot's option cameras."
        ),
    ] = None,
) -> None:
    """Stand in for an SO-101 arm on a serial port, for LeRobot's own driver.

    Two arms are two of these. Ends with Ctrl-C.
    """
    joints = _calibrated(calibration) if calibration else SO101
    servos = [Servo(joint) for joint in joints]
    port = BusPort(Bus(servos), link)
    cameras = parse_cameras(camera or ())
    running = True

    def stop(*_: object) -> None:
        nonlocal running
        running = False

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    port.plug()
    print(f"six motors on {link}" + (f", calibrated as {calibration}" if calibration else ""))
    if cameras:
        print(f"cameras: {json.dumps(lerobot_options(cameras))}")
    sys.stdout.flush()
    try:
        with ServoCameras(cameras) as shown:

            def still_running() -> bool:
                shown.show(servos)
                return running

            port.serve(sys.stdin.fileno(), _obey, still_running)
    finally:
        port.pull()


sim_so101_command.__doc__ = f"{sim_so101_command.__doc__}\n\n{COMMANDS}"


def _obey(port: BusPort, line: str) -> None:
    """Carries one command out; says what is wrong with one it does not know."""
    faults = port.bus.faults
    try:
        match line.split():
            case []:
                pass
            case ["pull"]:
                port.pull()
                print("the cable is pulled", file=sys.stderr)
            case ["plug"]:
                port.plug()
                print(f"the cable is plugged in: {port.link}", file=sys.stderr)
            case ["power"]:
                for servo in port.bus.servos:
                    servo.power_cycle()
            case ["silence", motor]:
                faults.silent.add(port.bus.servo(int(motor)).id)
            case ["speak", motor]:
                faults.silent.discard(port.bus.servo(int(motor)).id)
            case ["garble", count]:
                faults.garbled = int(count)
            case ["tear", count]:
                faults.torn = int(count)
            case ["noise", count]:
                faults.noise = int(count)
            case ["late", count]:
                faults.late = int(count)
            case ["delay", delay_ms]:
                faults.delay_s = float(delay_ms) / 1e3
            case ["place", motor, steps]:
                port.bus.servo(int(motor)).place(int(steps))
            case ["show"]:
                print(json.dumps(_shown(port)), flush=True)
            case _:
                print(f"no command: {line!r}; see kairos sim-so101 --help", file=sys.stderr)
    except ValueError as error:
        print(f"{line!r}: {error}", file=sys.stderr)


def _shown(port: BusPort) -> dict[str, object]:
    now_s = time.monotonic()
    motors = {}
    for servo in port.bus.servos:
        servo.advance(now_s)
        motors[servo.name] = {
            "position": round(servo.position),
            "goal": servo.goal,
            "torque": servo.torque,
        }
    return {"plugged": port.plugged, "motors": motors, "packets": dict(port.bus.counts)}


def _calibrated(path: Path) -> list[Joint]:
    """The arm's joints as the file says, in LeRobot's format; writes the file where it is missing.

    Raises ConfigError for a file that is not of this arm.
    """
    if not path.exists():
        fields = {
            joint.name: {
                "id": joint.id,
                "drive_mode": 0,
                "homing_offset": joint.homing_offset,
                "range_min": joint.low,
                "range_max": joint.high,
            }
            for joint in SO101
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(fields, indent=4))
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    try:
        read = read_json(path)
        return [
            Joint(
                joint.name,
                read[joint.name]["id"],
                read[joint.name]["homing_offset"],
                read[joint.name]["range_min"],
                read[joint.name]["range_max"],
                start=min(
                    max(joint.start, read[joint.name]["range_min"]), read[joint.name]["range_max"]
                ),
            )
            for joint in SO101
        ]
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no LeRobot calibration of an SO-101 ({type(error).__name__}: {error}); "
            "name another file, or one that does not exist yet"
        ) from error
