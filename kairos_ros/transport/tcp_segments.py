"""What the kernel counts about a TCP connection (Linux, `TCP_INFO` of tcp(7))."""

import os
import socket
import struct

TOTAL_RETRANSMISSIONS = 100
DATA_SEGMENTS_OUT = 156
"""Offsets in `struct tcp_info`; fields are only ever appended to it."""
SIZE = 160


def tcp_segments(fd: int) -> tuple[int, int] | None:
    """(data segments sent, segments sent again) since the connection began. None where the kernel
    does not say, or `fd` is no TCP connection (any more)."""
    try:
        own = os.dup(fd)
    except OSError:
        return None
    try:
        with socket.socket(fileno=own) as connection:
            own = -1  # the socket closes it
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SIZE)
    except OSError:
        if own >= 0:
            os.close(own)
        return None
    if len(info) < SIZE:
        return None
    (sent,) = struct.unpack_from("=I", info, DATA_SEGMENTS_OUT)
    (resent,) = struct.unpack_from("=I", info, TOTAL_RETRANSMISSIONS)
    return sent, resent
