"""Child processes that read files for several tests, because starting one takes most of the time of
a test that reads a small file."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from subprocess import Popen
from unittest.mock import patch

from poslens.attribution import isolated
from poslens.attribution.isolated import Limits, Reader


class Children:
    """Idle children of `isolated.Reader`, by their program and limits."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, Limits], list[Popen[bytes]]] = defaultdict(list)

    def shared(self) -> ExitStack:
        """A context in which a reader takes an idle child, and leaves it to later readers unless a
        file crashed it."""
        start = Reader._start

        def take(reader: Reader) -> Popen[bytes]:
            idle = self._idle[isolated._CHILD, reader.limits]
            while idle:
                if (child := idle.pop()).poll() is None:
                    return child
            return start(reader)

        def leave(reader: Reader, *_: object) -> None:
            if reader._child is not None:
                self._idle[isolated._CHILD, reader.limits].append(reader._child)
                reader._child = None

        stack = ExitStack()
        stack.enter_context(patch.object(Reader, "_start", take))
        stack.enter_context(patch.object(Reader, "__exit__", leave))
        return stack

    def end(self) -> None:
        """End all of them."""
        for children in self._idle.values():
            for child in children:
                child.kill()
                child.communicate()
