"""Local servers for embeddings and reranking: a real one, for example with the packaged MiniLM
weights, and one that misbehaves in every way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from poslens.attribution.retrievers.resolve import minilm_folder

Embed = Callable[[list[str]], np.ndarray]


@cache
def _minilm() -> Any:
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(str(minilm_folder()), device="cpu")
    found.max_seq_length = 512  # as the preset has it
    return found


def minilm(texts: list[str]) -> np.ndarray:
    """Vectors [n, 384] computed by sentence-transformers, one text at a time and so without
    padding."""
    found = [_minilm().encode([text], show_progress_bar=False)[0] for text in texts]
    return np.array(found)


def hashed(texts: list[str]) -> np.ndarray:
    """Vectors [n, 64] that count words by hash: a model without weights."""
    found = np.full((len(texts), 64), 0.1)
    for row, text in zip(found, texts, strict=True):
        for word in text.casefold().split():
            row[sum(word.encode()) % 64] += 1.0
    return found


class EndpointServer:
    """A server of `/v1/embeddings` and `/v1/rerank`; a reranker's score is the cosine of two texts.

    It counts what it was sent, and answers in reverse order, as servers may. `embed` may be
    replaced while it runs, which acts as another model behind the same address. Where `key` is set,
    requests without it are refused.
    """

    def __init__(self, embed: Embed = hashed, key: str = "") -> None:
        self.embed, self.key = embed, key
        self.sent: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.fail: list[int] = []
        """Statuses of the next answers."""
        self.longest = 1_000_000
        """Number of characters above which a text is rejected."""
        self.url = ""

    def app(self) -> Starlette:
        """Its routes."""
        return Starlette(
            routes=[
                Route("/v1/embeddings", self._embeddings, methods=["POST"]),
                Route("/v1/rerank", self._rerank, methods=["POST"]),
            ]
        )

    async def _asked(self, request: Request) -> dict[str, Any] | Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "no such key"}}, status_code=401)
        if self.fail:
            return JSONResponse({"error": "busy"}, status_code=self.fail.pop(0))
        asked: dict[str, Any] = await request.json()
        self.requests.append(asked)
        return asked

    async def _embeddings(self, request: Request) -> Response:
        asked = await self._asked(request)
        if isinstance(asked, Response):
            return asked
        texts = asked["input"]
        if any(len(text) > self.longest for text in texts):
            return JSONResponse({"error": "too long"}, status_code=400)
        self.sent.update(texts)
        vectors = await asyncio.to_thread(self.embed, texts)
        rows = [
            {"object": "embedding", "index": number, "embedding": vector.tolist()}
            for number, vector in enumerate(vectors)
        ]
        # With infinite numbers, which JSONResponse would refuse.
        return _raw(json.dumps({"object": "list", "data": rows[::-1], "model": "m"}))

    async def _rerank(self, request: Request) -> Response:
        asked = await self._asked(request)
        if isinstance(asked, Response):
            return asked
        texts = [asked["query"], *asked["documents"]]
        self.sent.update(texts)
        vectors = await asyncio.to_thread(self.embed, texts)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        scores = (vectors[1:] @ vectors[0]).tolist()
        rows = [{"index": n, "relevance_score": score} for n, score in enumerate(scores)]
        return JSONResponse({"results": sorted(rows, key=lambda row: -row["relevance_score"])})


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The address of a server that runs in a thread for as long as this is open."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
            assert thread.is_alive(), "the server has not started"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def running(embed: Embed = hashed, key: str = "") -> Iterator[EndpointServer]:
    """A real server; its `url` is what `--endpoint` takes."""
    found = EndpointServer(embed, key)
    with serving(found.app()) as address:
        found.url = f"{address}/v1"
        yield found


# -- misbehaving -----------------------------------------------------------------------------------


def _rows(n: int) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": [float(i + 1), 1.0]} for i in range(n)]


def _changed(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[int], Response]:
    def answer(n: int) -> Response:
        return JSONResponse({"data": change(_rows(n))})

    return answer


def _raw(body: str, kind: str = "application/json", status: int = 200, **headers: str) -> Response:
    return Response(body, status, headers={**headers, "content-type": kind})


def _row_of(vector: str) -> Callable[[int], Response]:
    """Vectors written without checks, which JSONResponse would refuse."""
    return lambda n: _raw(
        json.dumps({"data": [{"index": i, "embedding": "V"} for i in range(n)]}).replace(
            '"V"', vector
        )
    )


async def _huge() -> AsyncIterator[bytes]:
    yield b'{"data": ['
    for _ in range(80):
        yield b" " * (1 << 20)


def _packed(n: int) -> Response:
    """60 MiB of empty lists."""
    return _raw('{"data": [' + "[]," * (20 << 20) + "[]]}")


def _small_lists(n: int) -> Response:
    """Empty lists of as many bytes as vectors may have."""
    return _raw('{"data": [' + "[]," * (n * 100_000) + "[]]}")


async def _dripping() -> AsyncIterator[bytes]:
    for _ in range(600):
        yield b" "
        await asyncio.sleep(0.05)


async def _cut() -> AsyncIterator[bytes]:
    yield b'{"data": [{"index": 0,'
    raise ConnectionError("cut off")


HOSTILE: dict[str, Callable[[int], Response]] = {
    "html": lambda n: _raw("<html><b>hello</b></html>", "text/html"),
    "no-json": lambda n: _raw('{"data": ['),
    "deep": lambda n: _raw("[" * 200_000),
    "null": lambda n: _raw("null"),
    "text-for-list": lambda n: _raw('{"data": "abc"}'),
    "rows-are-text": lambda n: JSONResponse({"data": ["a"] * n}),
    "too-few": _changed(lambda rows: rows[:-1]),
    "too-many": _changed(lambda rows: [*rows, {"index": len(rows), "embedding": [1.0, 2.0]}]),
    "index-twice": _changed(lambda rows: [{**row, "index": 0} for row in rows]),
    "index-beyond": _changed(lambda rows: [{**row, "index": row["index"] + 1} for row in rows]),
    "index-true": _changed(lambda rows: [{**row, "index": True} for row in rows]),
    "no-vector": _changed(lambda rows: [{"index": row["index"]} for row in rows]),
    "ragged": _changed(lambda rows: [*rows[:-1], {**rows[-1], "embedding": [1.0] * 3}]),
    "empty-vector": _changed(lambda rows: [{**row, "embedding": []} for row in rows]),
    "nested": _changed(lambda rows: [{**row, "embedding": [[1.0, 2.0]]} for row in rows]),
    "words": _changed(lambda rows: [{**row, "embedding": ["1", "2"]} for row in rows]),
    "truth": _changed(lambda rows: [{**row, "embedding": [True, False]} for row in rows]),
    "nan": _row_of("[NaN, 1.0]"),
    "infinity": _row_of("[Infinity, 1.0]"),
    "beyond-float": _row_of("[1e39, 1.0]"),
    "huge-integer": _row_of("[1" + "0" * 400 + ", 1.0]"),
    "longer-integer": _row_of("[1" + "0" * 5000 + ", 1.0]"),
    "huge": lambda n: StreamingResponse(_huge(), media_type="application/json"),
    "lists": _packed,
    "fewer-lists": _small_lists,
    "drips": lambda n: StreamingResponse(_dripping(), media_type="application/json"),
    "cut-off": lambda n: StreamingResponse(_cut(), media_type="application/json"),
    "gzip": lambda n: _raw("x", **{"content-encoding": "gzip"}),
    "redirect": lambda n: RedirectResponse("http://169.254.169.254/latest", 307),
    "unauthorized": lambda n: _raw('{"error": "no key"}', status=401),
    "forbidden": lambda n: _raw('{"error": "no key"}', status=403),
    "missing": lambda n: _raw("{}", status=404),
    "too-long": lambda n: _raw("{}", status=413),
    "bad-request": lambda n: _raw("{}", status=400),
    "teapot": lambda n: _raw("{}", status=418),
    "wait-an-hour": lambda n: _raw("{}", status=429, **{"retry-after": "3600"}),
    "wait-forever": lambda n: _raw("{}", status=503, **{"retry-after": "9e999"}),
    "wait-nonsense": lambda n: _raw("{}", status=429, **{"retry-after": "soon"}),
}
"""Answers to `n` texts by their name in the path."""


class HostileServer:
    """`{url}/NAME/embeddings` answers as HOSTILE says; `{url}/NAME/then-well/embeddings` does once,
    and well from then on; `{url}/NAME/well-once/embeddings` the other way round. It repeats the key
    that it was sent."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def app(self) -> Starlette:
        """Its routes."""
        return Starlette(
            routes=[
                Route("/{name}/embeddings", self._answer, methods=["POST"]),
                Route("/{name}/then-well/embeddings", self._answer, methods=["POST"]),
                Route("/{name}/well-once/embeddings", self._answer, methods=["POST"]),
            ]
        )

    async def _answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        asked = await request.json()
        path = request.url.path
        self.asked[path] += 1
        first = self.asked[path] == 1
        if ("then-well" in path and not first) or ("well-once" in path and first):
            return JSONResponse(
                {
                    "data": [
                        {"index": i, "embedding": row.tolist()}
                        for i, row in enumerate(hashed(asked["input"]))
                    ]
                }
            )
        found = HOSTILE[name](len(asked["input"]))
        found.headers["x-your-key"] = request.headers.get("authorization", "")
        return found
