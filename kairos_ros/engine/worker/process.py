"""Starting a worker as a process of its own, how it ended, and the private folder of its socket."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import kairos_ros
from kairos_ros.engine.interface import EngineOptions

STDERR = 2
FOLDER_PREFIX = "kairos-engine-"
ORPHANED_AFTER_S = 60.0
"""A folder without an owner is left alone for so long: it may be about to get one."""


class WorkerExit(IntEnum):
    """What a worker says with its exit status; only some of these are worth a restart."""

    STOPPED = 0  # as asked; what ran was finished
    BROKEN = 1  # a bug
    OPTIONS = 2  # the endpoint or an option is wrong
    REFUSED = 3  # the policy cannot be loaded or verified
    DEVICE_LOST = 4  # only a new process can use the device again
    SILENCE = 5  # no client for too long


HOPELESS = {WorkerExit.OPTIONS, WorkerExit.REFUSED}
"""The next attempt would end the same way."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Which worker a supervisor keeps alive."""

    options: EngineOptions
    python: str = sys.executable
    """Interpreter of the environment that has torch; the serving node's own may do without."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the worker's environment, for example CUDA_VISIBLE_DEVICES."""
    log: Path | None = None
    """File that gets what the worker prints; None: the standard error of this process."""
    questions: str = ""
    """Endpoint where judges of this host ask its policy (`host.question_endpoint`); empty: none."""
    exit_if_silent_s: float = 60.0
    """The worker leaves when its client has said nothing for so long."""


def start_worker(spec: WorkerSpec, endpoint: str) -> subprocess.Popen[bytes]:
    """A worker in its own session, bound to die with the calling thread."""
    output = spec.log.open("ab") if spec.log else contextlib.nullcontext(STDERR)
    with output as stream:
        return subprocess.Popen(
            _command(spec, endpoint),
            env=worker_environment(spec),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


def _command(spec: WorkerSpec, endpoint: str) -> list[str]:
    options = spec.options
    return [
        spec.python,
        *("-m", "kairos_ros.engine.worker"),
        *("--listen", endpoint),
        *("--policy", options.policy),
        *("--device", options.device),
        *("--dtype", options.dtype),
        *("--threads", str(options.threads)),
        *("--max-batch", str(options.max_batch)),
        *("--tokenizer", options.tokenizer),
        *("--allowed-steps", options.allowed_steps),
        *(["--rtc"] if options.rtc else []),
        *(["--compile"] if options.compile else []),
        *("--language-mib", str(options.language_mib)),
        *("--language-decoding", options.language_decoding),
        *(["--questions", spec.questions] if spec.questions else []),
        *("--parent-pid", str(os.getpid())),
        *("--exit-if-silent-s", str(spec.exit_if_silent_s)),
    ]


def worker_environment(spec: WorkerSpec) -> dict[str, str]:
    """The parent's environment, with bounded CPU threads and this very package importable.

    An interpreter of another environment must not inherit the library path that the PyPI ROS
    wheels set for their own: it would look for its libraries in the wrong place.
    """
    environment = dict(os.environ)
    if Path(spec.python).parent != Path(sys.executable).parent:
        for name in ("_ROS_WHEELS_BOOTSTRAP_COMPLETE", "LD_LIBRARY_PATH"):
            environment.pop(name, None)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[name] = str(spec.options.threads)
    package_root = str(Path(kairos_ros.__file__).resolve().parents[1])
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, inherited)))
    return environment | spec.environment


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the worker and whatever it started, also when it is stopped or hangs; waits for it."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def how_it_ended(returncode: int) -> str:
    if returncode < 0:
        return f"the worker was killed by {signal.Signals(-returncode).name}"
    known = returncode in WorkerExit.__members__.values()
    name = WorkerExit(returncode).name.lower().replace("_", " ") if known else "unknown"
    return f"the worker exited with status {returncode} ({name})"


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, for ipc sockets; removed in the end.

    The owner holds a lock on it, so that folders of owners that were killed can be told from
    others and are removed on the way.
    """
    _remove_orphans(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_orphans(parent: Path) -> None:
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        # OSError: another user's, gone already, or (BlockingIOError) in use.
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < ORPHANED_AFTER_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
