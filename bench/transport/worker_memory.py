"""Whether an engine worker grows: batches of one to eight robots with three JPEGs, without pause.

    python -m bench worker_memory [--batches 60000]

One worker process with an emulated engine that takes no time; robots under 260 names. Prints its
memory (what it allocated), descriptors and threads as it goes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import zmq
from PIL import Image

from bench.serving.robots50 import POLICY
from bench.support.camera import CAMERAS, picture
from bench.support.process_growth import sample
from bench.support.servers import LOADED_WITHIN_S, environment
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.message_codec import infer_message, read_result, read_status
from kairos_ros.transport.messages import InferRequest
from kairos_ros.transport.sockets import connect_dealer

NAMES = 260
LARGEST = 8
DIM = 7
TOLD_S = 15.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench worker_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batches", type=int, default=60_000, help="how many [60000]")
    batches = parser.parse_args().batches
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        endpoint = f"ipc://{folder}/worker"
        command = [sys.executable, "-m", "kairos_ros.engine.worker", "--listen", endpoint]
        command += ["--policy", POLICY]
        with log.open("wb") as stream:
            worker = subprocess.Popen(
                command, stdout=stream, stderr=stream, env=os.environ | environment()
            )
        try:
            _send(worker.pid, endpoint, batches, log)
        except KeyboardInterrupt:
            return 130
        finally:
            worker.terminate()
            worker.wait(10.0)
    return 0


def _send(pid: int, endpoint: str, batches: int, log: Path) -> None:
    stream = BytesIO()
    Image.fromarray(picture(0)).save(stream, "JPEG", quality=80)
    pictures = dict.fromkeys(CAMERAS, stream.getvalue())
    state, told_s = np.zeros(DIM, np.float32), -TOLD_S
    with (
        zmq.Context() as context,
        connect_dealer(context, endpoint) as dealer,
    ):
        inbox = Inbox(dealer)

        def exchange(message: Message) -> Message:
            dealer.send_multipart(encode(message), copy=False)
            if not dealer.poll(round(1e3 * LOADED_WITHIN_S)):
                raise RuntimeError(f"no answer: {log.read_text()[-500:]}")
            return decode(inbox.receive())

        while read_status(exchange(Message("ping"))).state == "loading":
            time.sleep(0.05)
        for batch in range(1, batches + 1):
            robots = range(1 + batch % LARGEST)
            requests = [
                InferRequest(
                    f"arm_{(7 * batch + i) % NAMES}", "s", f"t{batch}", batch, 0, 1, "go", state,
                    pictures,
                )
                for i in robots
            ]  # fmt: skip
            read_result(exchange(infer_message(batch, requests)))
            if time.monotonic() - told_s > TOLD_S or batch == batches:
                told_s = time.monotonic()
                one = sample(pid, told_s)
                if one is None:
                    raise RuntimeError(f"the worker ended: {log.read_text()[-500:]}")
                print(
                    f"{batch} batches: {one.memory_mb:.2f} MB, {one.descriptors} descriptors, "
                    f"{one.threads} threads",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
