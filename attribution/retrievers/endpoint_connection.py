"""A connection to an endpoint whose request another thread can end."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx2


class Connection(httpx2.Client):
    """A client for one request at a time. Each is to be sent with the `extensions` of here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.extensions = {"trace": self._traced}
        self._stream: Any = None
        self._ended = False

    def _traced(self, event: str, answer: Mapping[str, Any]) -> None:
        """Told of each step of a request."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._stream = answer["return_value"]
            if self._ended:  # it was still connecting
                self._shut()

    def _shut(self) -> None:
        stream = self._stream
        with suppress(OSError, AttributeError):  # nothing is connected, or no longer
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Close it. A thread that waits for an answer gets an error at once; `close` alone would
        leave it waiting for the next byte."""
        self._ended = True
        self._shut()
        self.close()
