"""What a worker says with its exit status."""

from enum import IntEnum


class WorkerExit(IntEnum):
    """Only some of these are worth a restart."""

    STOPPED = 0  # as asked; what ran was finished
    BROKEN = 1  # a bug
    OPTIONS = 2  # the endpoint or an option is wrong
    REFUSED = 3  # the policy cannot be loaded or verified
    DEVICE_LOST = 4  # only a new process can use the device again
    SILENCE = 5  # no client for too long


HOPELESS = {WorkerExit.OPTIONS, WorkerExit.REFUSED}
"""The next attempt would end the same way."""
