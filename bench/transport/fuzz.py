"""Fuzzes the decoder of engine messages: `python -m bench fuzz [--seconds S] [--mutate]`.

With atheris (`uv pip install --group fuzz`) it is guided by coverage; without, or with --mutate,
it damages real messages at random. Either way a finding is anything but a WireError, more memory
than the limits allow, or a message that does not survive a second trip. What it was given then is
written to --findings, and `--replay FILE` runs that again.
"""

import argparse
import inspect
import random
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

import kairos_ros.transport.frames as frames_module
import kairos_ros.transport.language_messages as language_module
import kairos_ros.transport.message_codec as codec_module
from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.transport.frames import LIMITS, Message, decode, encode
from kairos_ros.transport.language_messages import (
    LanguageAnswer,
    LanguageFailure,
    LanguageQuestion,
    ask_message,
    said_message,
)
from kairos_ros.transport.message_codec import (
    description_message,
    error_message,
    infer_message,
    received_message,
    result_message,
    status_message,
)
from kairos_ros.transport.messages import (
    BatchError,
    BatchResult,
    EngineDescription,
    InferFailure,
    InferRequest,
    InferResult,
    WorkerStatus,
)

READERS: tuple[Callable[[Message], object], ...] = (
    *codec_module.READERS,
    *language_module.READERS,
)
ALLOWANCE = 256 * 1024
"""Bytes of Python objects that any message may cost."""
PER_HEADER_BYTE = 80
"""A byte of msgpack can be an empty map: 64 bytes as an object, and a reference to it."""
PER_FRAME = 1024
"""An array's object, its shape, and what readers keep of it."""


class FindingError(AssertionError):
    """The decoder did what it must not."""


def examine(frames: Sequence[bytes]) -> str:
    """What came out of decoding and of every reader. Raises FindingError, or what they raised."""
    try:
        message = decode(frames)
    except WireError:
        return "refused by the decoder"
    again = decode([bytes(frame) for frame in encode(message)])
    if repr(again) != repr(message):
        raise FindingError("what was decoded does not survive being sent again")
    read = 0
    for reader in READERS:
        try:
            reader(message)
        except WireError:
            continue
        read += 1
    return "read" if read else "refused by every reader"


def memory_bound(frames: Sequence[bytes]) -> int:
    """Bytes that decoding and one reader may allocate for frames that are received already.

    Arrays are views on the frames; images are copied once; a header becomes objects.
    """
    header = len(frames[0]) if frames and len(frames[0]) <= LIMITS.header_bytes else 0
    bodies = sum(len(frame) for frame in frames[1:])
    return ALLOWANCE + PER_HEADER_BYTE * header + PER_FRAME * len(frames) + bodies


def examine_memory(frames: Sequence[bytes]) -> int:
    """The most memory that decoding and reading took. Raises FindingError beyond `memory_bound`."""
    peaks = []
    tracemalloc.start()
    try:
        for reader in READERS:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                kept: object = reader(decode(frames))
            except WireError as error:
                kept = str(error)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            del kept
    finally:
        tracemalloc.stop()
    if max(peaks) > memory_bound(frames):
        raise FindingError(f"{max(peaks)} bytes, at most {memory_bound(frames)} are expected")
    return max(peaks)


def split(data: bytes) -> list[bytes]:
    """Frames from what a fuzzer gives: lengths of two bytes, each before its frame."""
    frames: list[bytes] = []
    while len(data) >= 2 and len(frames) < 64:
        size = int.from_bytes(data[:2], "little")
        frames.append(data[2 : 2 + size])
        data = data[2 + size :]
    return frames


def join(frames: Sequence[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(2, "little") + frame for frame in frames)


def seeds() -> list[list[bytes]]:
    """One real message of every kind."""
    request = InferRequest(
        "arm_1",
        "s1",
        "t1",
        3,
        0,
        2**64 - 1,
        "open the drawer",
        np.array([0, np.nan, 1], np.float32),
        {"observation.images.top": b"\xff\xd8 not decoded here"},
        frozenset({"observation.images.top"}),
    )
    moving = replace(request, earlier=(Observation(request.state, request.images),) * 2)
    chunk, updates = np.ones((4, 2), np.float32), np.zeros((3, 4, 2), np.float32)
    bad = InferFailure(RefusalCode.NOT_FINITE, "state[0] is nan")
    description = EngineDescription(
        "pi05-0123456789ab",
        "pi05",
        7,
        {"observation.images.top": (224, 320)},
        7,
        50,
        10,
        ("open the drawer",),
        "cpu",
        "float32",
        8,
        (0.5,) * 7,
        warmup=((1, 0.1), (8, 0.3)),
    )
    messages = [
        infer_message(7, [request, request]),
        infer_message(8, [moving, request]),
        result_message(BatchResult(3, 0.25, (bad, InferResult(chunk, updates)))),
        error_message(BatchError(None, RefusalCode.MALFORMED, "an empty message")),
        status_message(WorkerStatus("loading", "weights", 4, 1.5)),
        status_message(WorkerStatus("ready", "", 4, 1.5, language=LanguageLoad(1, 2, 3, 4, 5))),
        ask_message(1, "pi05", LanguageQuestion("arm_1", "done?", ("yes", "no"))),
        said_message(1, LanguageAnswer("yes", (4, 5), (0.75, 0.25), "t1", 3)),
        said_message(2, LanguageFailure(RefusalCode.DEADLINE, "late")),
        description_message(description),
        received_message(2**63 - 1),
        Message("ping"),
        Message("hello", {}, tuple(np.zeros(2, name) for name in ("bool", "int64", "float64"))),
    ]
    return [[bytes(frame) for frame in encode(message)] for message in messages]


TOKENS = (
    b"\x90\x80\xc0\xc2\xc3",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x00\x01\x00\x00",
    b"\xdb\x7f\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\xa7float32",
    b"\xa6object",
)
"""Pieces of msgpack that claim much or mean something special."""


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64 - 1, -(2**63), 0.5, 1e308),
    *(float("nan"), float("inf"), "", "x", "x" * 4096, "x" * 4097, "float32", "object", "é", b""),
    *([], {}, [[]], [0] * 4096, [0] * 4097, {"": ""}, [2**40], [1, 2], ["uint8", [4]], [["a"], 3]),
)
"""What a peer may claim in the place of anything in a header."""


def replaced(rng: random.Random, value: Any) -> Any:
    """`value` with something else in one place, however deep."""
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], replaced(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return value | {key: replaced(rng, value[key])}
    return rng.choice(VALUES)


def mutated(rng: random.Random, corpus: Sequence[Sequence[bytes]]) -> list[bytes]:
    """A real message with some damage: bytes, frames and claims changed, moved, and repeated."""
    frames = [bytearray(frame) for frame in rng.choice(corpus)]
    if rng.random() < 0.6:
        header = msgpack.unpackb(frames[0])
        for _ in range(rng.randint(1, 3)):
            header = replaced(rng, header)
        frames[0] = bytearray(msgpack.packb(header))
    for _ in range(rng.randint(0, 2)):
        at = 0 if rng.random() < 0.7 else rng.randrange(len(frames))
        frame = frames[at]
        where = rng.randint(0, len(frame))
        match rng.randrange(8):
            case 0 if frame:
                frame[min(where, len(frame) - 1)] = rng.randrange(256)
            case 1 if frame:
                frame[min(where, len(frame) - 1)] ^= 1 << rng.randrange(8)
            case 2:
                del frame[where : where + rng.randint(1, 8)]
            case 3:
                frame[where:where] = rng.choice(TOKENS)
            case 4:
                frame[where:where] = frame[where : where + rng.randint(1, 64)] * rng.randint(1, 30)
            case 5 if len(frames) > 1:
                del frames[rng.randrange(1, len(frames))]
            case 6:
                frames.insert(rng.randint(1, len(frames)), bytearray(rng.choice(frames)))
            case 7:
                other = rng.choice(rng.choice(corpus))
                frame[where:] = other[rng.randint(0, len(other)) :]
    return [bytes(frame) for frame in frames]


def mutations(seed: int) -> Iterator[list[bytes]]:
    rng, corpus = random.Random(seed), seeds()
    while True:
        yield mutated(rng, corpus)


def mutate_for(seconds: float, seed: int, findings: Path) -> int:
    """Tries mutations, every 50th for its memory; 1 when there is a finding."""
    outcomes: Counter[str] = Counter()
    started = told = time.monotonic()
    for number, frames in enumerate(mutations(seed), 1):
        try:
            outcomes[examine(frames)] += 1
            if number % 50 == 0:
                examine_memory(frames)
        except Exception:
            findings.mkdir(parents=True, exist_ok=True)
            path = findings / f"finding-{seed}-{number}"
            path.write_bytes(join(frames))
            print(f"finding: run `python -m bench fuzz --replay {path}`")
            raise
        now = time.monotonic()
        if now - told > 5 or now - started > seconds:
            told = now
            rate = number / (now - started)
            print(f"{number} messages, {rate:.0f}/s: {dict(outcomes)}", flush=True)
        if now - started > seconds:
            return 0
    return 1


def guided(seconds: float, findings: Path) -> None:
    """Coverage-guided by atheris; ends the process."""
    import atheris

    for module in (frames_module, codec_module, language_module):
        for function in vars(module).values():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                atheris.instrument_func(function)
    findings.mkdir(parents=True, exist_ok=True)

    def one(data: bytes) -> None:
        examine(split(data))

    corpus = Path(tempfile.mkdtemp(prefix="kairos-fuzz-"))
    for number, frames in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(join(frames))
    options = [
        f"-max_total_time={int(seconds)}",
        "-max_len=4096",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={findings}/",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=600.0, help="how long [600]")
    parser.add_argument("--seed", type=int, default=None, help="of random damage [the time]")
    parser.add_argument("--mutate", action="store_true", help="without atheris")
    parser.add_argument("--findings", type=Path, default=Path("runs/fuzz"), help="folder")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one finding again")
    arguments = parser.parse_args()
    if arguments.replay:
        frames = split(arguments.replay.read_bytes())
        print(f"{examine(frames)}; {examine_memory(frames)} bytes of memory")
        return 0
    if not arguments.mutate:
        try:
            guided(arguments.seconds, arguments.findings)
        except ImportError:
            print("atheris is not installed: random damage instead")
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    print(f"seed {seed}")
    return mutate_for(arguments.seconds, seed, arguments.findings)


if __name__ == "__main__":
    sys.exit(main())
