"""Processes that compute in parallel and end with the one that started them."""

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

from kairos_ros.host.orphan import die_with_parent


def process_pool(processes: int) -> ProcessPoolExecutor:
    """For the calling thread, which must live as long as the pool.

    Its processes are spawned: a fork of one that has run threads of torch may hang. They ignore
    Ctrl-C, which reaches the whole group: only their parent decides what it means. However it ends,
    none of them is left.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_tied, initargs=(os.getpid(),))


def _tied(parent_pid: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)
