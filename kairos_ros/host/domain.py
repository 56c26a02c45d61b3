"""A ROS domain for a fleet of its own, so that fleets on one host do not meet."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LAST_DOMAIN = 101
"""Domains up to here use UDP ports below Linux's range of ephemeral ports."""


def stay_on_this_host() -> None:
    """Keeps DDS on this host and in a domain of its own, unless the user has chosen otherwise."""
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    if "ROS_DOMAIN_ID" not in os.environ:
        os.environ["ROS_DOMAIN_ID"] = str(claim_domain())


def claim_domain() -> int:
    """A ROS domain that nobody on this host uses, claimed until this process ends.

    Not 0, everybody's default. Where all are taken, any.
    """
    domains = random.sample(range(1, LAST_DOMAIN + 1), LAST_DOMAIN)
    return next((d for d in domains if not domain_in_use(d) and _claim(d)), domains[0])


def domain_in_use(domain: int) -> bool:
    """Whether the first participant's discovery port is taken (DDSI-RTPS 2.5, 9.6.2.3)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", 7400 + 250 * domain + 10))
        except OSError:
            return True
    return False


def _claim(domain: int) -> bool:
    """Takes the domain's lock file, which the kernel frees when this process ends."""
    path = Path(tempfile.gettempdir()) / f"kairos-domain-{domain}.lock"
    try:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError:  # another user's file
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    return True
