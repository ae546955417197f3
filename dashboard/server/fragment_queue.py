"""A message queue for Streamlit that supports nested fragments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

Path = tuple[int, ...]


class FragmentQueue(ForwardMsgQueue):
    """Streamlit's queue for one browser, except that it drops all pending messages of a fragment,
    including those of nested fragments, when the fragment runs again.

    Streamlit's own queue drops only unsent messages that the fragment itself produced; it keeps
    those of nested fragments and of elements identified by a hash. Their parent block no longer
    exists, and the browser fails with "Bad delta path index". This happens when a run takes longer
    than the fragment's refresh interval, so mostly on slow machines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[str, Path] = {}

    def enqueue(self, msg: ForwardMsg) -> None:
        if msg.HasField("delta") and msg.delta.fragment_id:
            # A fragment's first message is its container block, whose path contains all its
            # elements.
            self._roots.setdefault(msg.delta.fragment_id, _path(msg))
        super().enqueue(msg)

    def clear(
        self, retain_lifecycle_msgs: bool = False, fragment_ids_this_run: list[str] | None = None
    ) -> None:
        roots = [self._roots[name] for name in fragment_ids_this_run or () if name in self._roots]
        if roots:
            self._queue = [msg for msg in self._queue if not _below(_path(msg), roots)]
        super().clear(retain_lifecycle_msgs, fragment_ids_this_run)


def install() -> None:
    """Make Streamlit's sessions use this queue."""
    from streamlit.runtime import app_session

    module: Any = app_session  # accepts any such queue, but has no setting for it
    module.ForwardMsgQueue = FragmentQueue


def _path(msg: ForwardMsg) -> Path:
    """The position on the page that a message draws at; empty if it draws nothing."""
    return tuple(msg.metadata.delta_path)


def _below(path: Path, roots: Sequence[Path]) -> bool:
    return any(path[: len(root)] == root for root in roots)
