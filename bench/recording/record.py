"""A recorder under the load of a hundred robots: 250 requests/s with 36 kB of images, 9 MB/s.

Every message carries its number and a checksum of its images; the bag is read back and compared
with what was sent.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.recording.record_source import IMAGE_BYTES, IMAGES, checksum
from bench.support.client_process import ClientProcess
from bench.support.process_cost import cpu_s
from bench.support.report import Result, new_figure
from bench.support.servers import environment
from kairos_ros.bringup.plan import recorder
from kairos_ros.bringup.process_spec import command
from kairos_ros.lab.metrics.figure_style import OURS
from kairos_ros.recording.reader import Bag

ROBOTS = 100
PER_S = 250.0
SECONDS = 600.0
QUICK_S = 20.0
CLOSE_WITHIN_S = 30.0
LOOK_EVERY_S = 5.0
TYPE = "kairos_ros/msg/ChunkRequest"


def run(folder: Path, *, quick: bool) -> Result:
    seconds = QUICK_S if quick else SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    bag = folder / "bag"
    env = environment()
    with (folder / "recorder.log").open("wb") as log:
        node = subprocess.Popen(
            command(recorder(bag)),
            env=os.environ | env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with ClientProcess(folder / "source.log", env, "bench.recording.record_source") as source:
            source.tell({"robots": ROBOTS, "per_s": PER_S, "seconds": seconds})
            before, began = cpu_s([node.pid]), time.monotonic()
            sizes = []
            while time.monotonic() - began < seconds + LOOK_EVERY_S:
                sizes.append((time.monotonic() - began, _size(bag)))
                print(f"\r{sizes[-1][0]:4.0f} s: {sizes[-1][1] / 1e6:.0f} MB", end="", flush=True)
                time.sleep(LOOK_EVERY_S)
            told = source.hear()
            cpu = (cpu_s([node.pid]) - before) / (time.monotonic() - began)
    finally:
        node.terminate()
        node.wait(CLOSE_WITHIN_S)
    print("\nreading the bag back", flush=True)
    found, damaged, misplaced = _check(bag)
    sent = sum(told["sent"].values())
    lost = sum(max(0, n - found.get(topic, 0)) for topic, n in told["sent"].items())
    rate = told["bytes"] / told["seconds"] / 1e6
    data = {
        "seconds": told["seconds"],
        "sent": sent,
        "recorded": sum(found.values()),
        "lost": lost,
        "damaged": damaged,
        "misplaced": misplaced,
        "megabytes_per_s": rate,
        "bag_megabytes": _size(bag) / 1e6,
        "recorder_cpu": cpu,
        "recorder_said": (folder / "recorder.log").read_text().splitlines()[-1],
    }
    if not damaged and not misplaced:
        shutil.rmtree(bag)  # gigabytes that no later look needs
    header = ["robots", "seconds", "MB/s", "sent", "recorded", "lost"]
    header += ["damaged", "misplaced", "CPU %"]
    row = [f"{ROBOTS}", f"{told['seconds']:.0f}", f"{rate:.2f}", f"{sent}"]
    row += [f"{data['recorded']}", f"{lost}", f"{damaged}", f"{misplaced}", f"{100 * cpu:.0f}"]
    return Result(header, [row], data | {"sizes": sizes}, lambda path: _plot(path, data, sizes))


def _check(bag: Path) -> tuple[dict[str, int], int, int]:
    """Messages by topic; how many are not what was sent; how many are not in order."""
    found: dict[str, int] = {}
    damaged = misplaced = 0
    with Bag(bag, lambda text: print(text, file=sys.stderr)) as opened:
        for message in opened.messages((TYPE,)):
            found[message.topic] = found.get(message.topic, 0) + 1
            body = message.body
            images = [image.data.tobytes() for image in body.images]
            whole = [len(image) for image in images] == [IMAGE_BYTES] * IMAGES
            damaged += not whole or checksum(images) != body.seed
            misplaced += body.round != found[message.topic]
    return found, damaged, misplaced


def _size(bag: Path) -> int:
    return sum(path.stat().st_size for path in bag.glob("*.mcap"))


def _plot(path: Path, data: dict, sizes: list[tuple[float, int]]) -> None:
    title = (
        f"{data['megabytes_per_s']:.1f} MB/s for {data['seconds']:.0f} s: "
        f"{data['recorded']} messages recorded, {data['lost']} lost"
    )
    about = f"{ROBOTS} robots, requests with {IMAGES} × {IMAGE_BYTES / 1e3:.0f} kB of images"
    with new_figure(path, title, about) as axis:
        axis.plot([s for s, _ in sizes], [b / 1e6 for _, b in sizes], color=OURS)
        axis.set(xlabel="time (s)", ylabel="bag on disk (MB)", ylim=(0, None), xlim=(0, None))
