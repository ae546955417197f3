"""What waits to be sent to a browser, so that parts of pages may stand within parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

Path = tuple[int, ...]


class FragmentQueue(ForwardMsgQueue):
    """Streamlit's queue for one browser, which drops all of a fragment when that runs again.

    Streamlit's own drops what the fragment itself drew and has not been sent, and keeps what was
    drawn inside it by a fragment of its own or is named by a hash. What is kept then has no place:
    the browser ends the page with "Bad delta path index". It happens where a run takes longer than
    the time after which the fragment runs again, so on slow machines above all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._roots: dict[str, Path] = {}

    def enqueue(self, msg: ForwardMsg) -> None:
        if msg.HasField("delta") and msg.delta.fragment_id:
            # The first that a fragment draws is the block that holds it; its id says where it is.
            self._roots.setdefault(msg.delta.fragment_id, _path(msg))
        super().enqueue(msg)

    def clear(
        self,
        retain_lifecycle_msgs: bool = False,
        fragment_ids_this_run: list[str] | None = None,
    ) -> None:
        roots = [self._roots[name] for name in fragment_ids_this_run or () if name in self._roots]
        if roots:
            self._queue = [msg for msg in self._queue if not _below(_path(msg), roots)]
        super().clear(retain_lifecycle_msgs, fragment_ids_this_run)


def install() -> None:
    """Let Streamlit's sessions use it."""
    from streamlit.runtime import app_session

    module: Any = app_session  # takes any queue of this kind, and has no setting for one
    module.ForwardMsgQueue = FragmentQueue


def _path(msg: ForwardMsg) -> Path:
    """Where on the page it draws; nothing for what draws nothing."""
    return tuple(msg.metadata.delta_path)


def _below(path: Path, roots: Sequence[Path]) -> bool:
    return any(path[: len(root)] == root for root in roots)
