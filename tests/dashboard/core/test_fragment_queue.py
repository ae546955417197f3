"""Messages that wait for a browser, applied to a page as browsers do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

from poslens.dashboard.server.fragment_queue import FragmentQueue

Node = dict[int, "Node"]


def drawn(path: Sequence[int], fragment: str = "", *, block: bool = False) -> ForwardMsg:
    """A message that draws a block or a text in one of the fragments."""
    message = ForwardMsg()
    message.metadata.delta_path.extend(path)
    message.delta.fragment_id = fragment
    if block:
        message.delta.add_block.allow_empty = True
    else:
        message.delta.new_element.text.body = "text"
    return message


def by_hash(path: Sequence[int]) -> ForwardMsg:
    """A message that the browser has cached: it names neither a delta nor a fragment."""
    message = ForwardMsg(ref_hash="hash")
    message.metadata.delta_path.extend(path)
    return message


def show(page: Node, messages: Sequence[ForwardMsg]) -> None:
    """Apply the messages to the page in order, next to or inside existing nodes."""
    for message in messages:
        *above, last = message.metadata.delta_path
        node = page
        for index in above:
            node = node[index]
        assert last <= len(node), f"Bad delta path index {last} (between 0 and {len(node)})"
        node.setdefault(last, {})


def page_of(queue: ForwardMsgQueue, kept: ForwardMsg) -> Node:
    """A fragment `outer` in the middle of a page runs again while the end of its run waits: a text,
    a fragment `inner` and `kept`."""
    page: Node = {}
    queue.enqueue(drawn([0], block=True))
    queue.enqueue(drawn([0, 0], "outer", block=True))
    show(page, queue.flush())
    queue.enqueue(drawn([0, 0, 0], "outer"))
    queue.enqueue(drawn([0, 0, 1], "inner", block=True))
    queue.enqueue(drawn([0, 0, 1, 0], "inner"))
    queue.enqueue(kept)
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["outer"])
    queue.enqueue(drawn([0, 0], "outer", block=True))
    queue.enqueue(drawn([0, 0, 0], "outer"))
    show(page, queue.flush())
    return page


@pytest.mark.parametrize("kept", [drawn([0, 1], "beside", block=True), drawn([0, 1])])
def test_messages_in_a_fragment_are_dropped_with_it_and_others_stay(
    kept: ForwardMsg,
) -> None:
    assert page_of(FragmentQueue(), kept) == {0: {0: {0: {}}, 1: {}}}


def test_messages_referenced_by_hash_are_dropped_too() -> None:
    assert page_of(FragmentQueue(), by_hash([0, 0, 2])) == {0: {0: {0: {}}}}


def test_rerunning_the_inner_fragment_drops_only_its_messages() -> None:
    queue = FragmentQueue()
    for message in (
        drawn([0], block=True),
        drawn([0, 0], "outer", block=True),
        drawn([0, 0, 0], "inner", block=True),
        drawn([0, 0, 0, 0], "inner"),
    ):
        queue.enqueue(message)
    before = len(queue)
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["inner"])
    assert before - len(queue) == 2


def test_streamlits_own_queue_still_needs_it() -> None:
    with pytest.raises(AssertionError, match="Bad delta path"):
        page_of(ForwardMsgQueue(), drawn([0, 1]))


def test_toasts_stay() -> None:
    queue = FragmentQueue()
    queue.enqueue(drawn([0, 0], "outer", block=True))
    toast = drawn([2, 0], "outer")
    toast.delta.new_element.toast.body = "done"
    queue.enqueue(toast)
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["outer"])
    assert [message.delta.new_element.toast.body for message in queue.flush()] == ["done"]
