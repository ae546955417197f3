"""Ports for servers of tests."""

from __future__ import annotations

import os
import socket
from itertools import chain, cycle

_FIRST, _END, _EACH = 20_000, 32_000, 100
"""Ports to try. Operating systems assign only higher ports, so that no other program is given one
after it was found free."""
_start = _FIRST + os.getpid() * _EACH % (_END - _FIRST)
# Each process starts at a different number, since others look for ports at the same time.
_ports = cycle(chain(range(_start, _END), range(_FIRST, _start)))


def free_port() -> int:
    """A port of this machine that nobody listens on, and that this process has not returned
    recently.

    Raises:
        AssertionError: all are in use.
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
