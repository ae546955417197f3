"""A port for a server of a test."""

from __future__ import annotations

import os
import socket
from itertools import chain, cycle

_FIRST, _END, _EACH = 20_000, 32_000, 100
"""Below the ports that systems give to whoever asks for any, so that nobody is given one between
the look at it and its use."""
_start = _FIRST + os.getpid() * _EACH % (_END - _FIRST)
# Each process counts from a place of its own, since another one asks at the same time.
_ports = cycle(chain(range(_start, _END), range(_FIRST, _start)))


def free_port() -> int:
    """A port of this machine that nobody listens on now, and that this process has not just given.

    Raises:
        AssertionError: all are taken.
    """
    for _ in range(_END - _FIRST):
        port = next(_ports)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
