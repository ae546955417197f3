"""Even a malicious answer of an endpoint costs no more than the largest valid one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.endpoint_address import parse
from poslens.attribution.retrievers.endpoint_answer import MAX_WIDTH, of_scores, of_vectors
from poslens.attribution.retrievers.endpoint_client import EndpointClient
from tests.support.endpoint_server import HostileServer, serving

MIB = 1 << 20


def answer(n: int, width: int, **more: object) -> bytes:
    vectors = np.random.default_rng(0).normal(size=(n, width)).tolist()
    rows = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
    return json.dumps({"object": "list", "data": rows, "model": "m[1, 2]", **more}).encode()


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize(("n", "width"), [(1, 3), (1, 1), (33, 384), (2, MAX_WIDTH)])
def test_vectors_equal_those_parsed_by_json(n: int, width: int, indent: int | None) -> None:
    known = json.loads(answer(n, width, usage={"prompt_tokens": 5}))
    body = json.dumps(known, indent=indent).encode()
    found = of_vectors(n).parse(body)
    assert isinstance(found, dict)
    assert found["data"] == known["data"] and found["usage"] == known["usage"]


@pytest.mark.parametrize(
    "value",
    ["[[1.0, 2.0]]", "[]", "[true]", '["1"]', "null", "0", '"abc"', "[{}]", "[[[]], 5]"],
)
def test_invalid_vectors_become_none(value: str) -> None:
    text = f'{{"data": [{{"index": 0, "embedding": {value}}}]}}'.encode()
    found = of_vectors(1).parse(text)
    assert isinstance(found, dict)
    vector = found["data"][0]["embedding"]
    numbers = isinstance(vector, list) and [type(one) for one in vector]
    right = json.loads(value)
    assert not vector or numbers != [float, float]
    assert type(vector) is type(right)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b'{"data": [' + b"[]," * (5 * MIB) + b"[]]}",
    "objects": lambda: b'{"data": [' + b"{}," * (5 * MIB) + b"{}]}",
    "numbers": lambda: b'{"data": [' + b"1," * (8 * MIB) + b"1]}",
    "numbers, mixed": lambda: b'{"data": [' + b'1,"",' * (3 * MIB) + b"1]}",
    "words": lambda: b'{"data": [' + b"null," * (3 * MIB) + b"null]}",
    "texts": lambda: b'{"data": [' + b'"",' * (5 * MIB) + b'""]}',
    "names": lambda: b'{"data": {' + b'"":1,' * (3 * MIB) + b'"":1}}',
    "digits": lambda: b'{"data": [0.' + b"1" * (16 * MIB) + b"]}",
    "digits outside": lambda: b'{"data": 0.' + b"1" * (16 * MIB) + b"}",
    "integer": lambda: b'{"data": ' + b"1" * (16 * MIB) + b"}",
    "spaces": lambda: b'{"data": [' + b" " * (16 * MIB) + b"]}",
    "backslashes": lambda: b'{"data": "' + b"\\\\" * (8 * MIB) + b'"}',
    "deep": lambda: b"[" * (16 * MIB),
    "unended": lambda: b"[1," * (5 * MIB),
}


@contextmanager
def ticking() -> Iterator[list[float]]:
    """The longest pause, in seconds, of a thread that constantly requests the interpreter."""
    longest, ended = [0.0], threading.Event()

    def tick() -> None:
        # Uses CPU time, so that waiting for other processes doesn't count as a pause.
        last = time.process_time()
        while not ended.is_set():
            time.sleep(0.001)
            now = time.process_time()
            longest[0] = max(longest[0], now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield longest
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malicious_answer_blocks_no_other_thread(name: str) -> None:
    body = HOSTILE[name]()
    asked = json.dumps({"query": "q", "documents": ["d"] * 100}).encode()
    with ticking() as longest:
        for bound in (of_vectors(33), of_scores(100, asked)):
            with pytest.raises(ValueError):  # JSON errors are ValueErrors, too
                bound.parse(body)
    assert longest[0] < 0.3, "seconds of this process's processor time in one piece"


def test_the_largest_valid_answer_blocks_no_other_thread() -> None:
    body = answer(300, 1536)
    with ticking() as longest:
        found = of_vectors(300).parse(body)
    assert isinstance(found, dict) and len(found["data"][299]["embedding"]) == 1536
    assert longest[0] < 0.3


def test_scores_are_read_from_answers_that_include_documents() -> None:
    documents = ['[1], {"a"}, ' * 1000, "\N{HIRAGANA LETTER A}" * 1000]
    asked = json.dumps({"query": "q", "documents": documents, "top_n": 2}).encode()
    rows = [
        {"index": i, "relevance_score": 0.5, "document": {"text": text}}
        for i, text in enumerate(documents)
    ]
    for kwargs in ({}, {"ensure_ascii": False}, {"indent": 4}):
        body = json.dumps({"results": rows}, **kwargs).encode()  # type: ignore[arg-type]
        assert of_scores(2, asked).parse(body) == {"results": rows}


@pytest.mark.parametrize("name", ["lists", "fewer-lists", "huge"])
def test_a_hostile_server_costs_little_memory_and_blocks_no_other_thread(name: str) -> None:
    with serving(HostileServer().app()) as address:
        client = EndpointClient(parse(f"E5={address}/{name}/well-once#timeout=120"))
        before = sys.getallocatedblocks()
        with pytest.raises(UserError) as raised:
            client.vectors(["a", "b"])
        assert "requested" in str(raised.value)
        assert sys.getallocatedblocks() - before < 200_000
