"""Requests to an endpoint: vectors of texts, or scores of documents for a query.

Two request formats are supported, which most servers have: OpenAI's `/v1/embeddings`, and the
`/rerank` of Cohere, Jina and others. Responses are not trusted: their size and time are limited,
and every shape, number and count in them is checked. No text from a server is repeated in an error
message, because it could contain the key.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, TypeVar

import httpx2
import numpy as np

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import Stopped, Unavailable, UserError
from poslens.attribution.names import Names
from poslens.attribution.retrievers.endpoint_address import Address, key_name, key_of
from poslens.attribution.retrievers.endpoint_answer import Bound, of_scores, of_vectors
from poslens.attribution.types import Array

T = TypeVar("T")

MAX_WAIT_S = 120.0
"""Longest wait that a server may ask for."""
ATTEMPTS = 5
_TIMEOUTS = 2  # after so many timeouts there is no further attempt
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 20.0
_CONNECT_S = 10.0
_POLL_S = 0.2
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_THIS_TEXT = frozenset({400, 413, 422})

PROBE = "The tide turns about every six hours, and harbours print the hours of high water."
_PROBE_OTHER = "A recipe for bread asks for flour, salt, yeast and patience."
TOLERANCE = 0.02
"""Answers to the probe come from the same model if their distance, relative to their length, is at
most this: a server that computes in 16 bits differs by as much in batches of other sizes."""
_CHECK_EVERY = 20
"""Number of requests without the probe after which the probe is sent to check that the model is
still the same."""


class Rejected(UserError):
    """The service rejects a text of a request, or returns no valid answer for it. `sentence` says
    so of `{what}`, in which "it" refers to `{subject}`. `texts` are those that the computation
    asked for in this request."""

    texts: Sequence[str] = ()

    def __init__(self, sentence: str, what: str = "a text", subject: str = "the text") -> None:
        super().__init__(sentence.format(what=what, subject=subject))
        self.sentence = sentence

    def of(self, what: str, subject: str) -> Rejected:
        """The same error, which names the text."""
        return Rejected(self.sentence, what, subject)


def far(values: Array, array: Array) -> bool:
    """Whether two answers to the probe [H] come from different models."""
    if values.shape != array.shape:
        return True
    distance = float(np.linalg.norm(values.astype(np.float64) - array))
    return distance > TOLERANCE * max(float(np.linalg.norm(array)), 1e-12)


class EndpointClient:
    """One endpoint, used by any number of threads; each waits for its answer.

    Answers come from the model that answered the first probe. If another model replaces it,
    requests for the vectors of several texts return none of its answers; for scores, and for texts
    sent one by one, up to 19 answers can be returned until the probe is sent again.

    Raises:
        UserError: the key is invalid.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        key, timeout = key_of(address), address.timeout
        self._http = httpx2.AsyncClient(
            # Responses must not be compressed, because their size is limited as they arrive.
            # httpx2.Headers omits the key when printed.
            headers=httpx2.Headers(
                {
                    "Accept": "application/json",
                    "Content-Type": "application/json",
                    "Accept-Encoding": "identity",
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                }
            ),
            follow_redirects=False,
            # Proxies from the environment, but none for this machine.
            trust_env=not address.loopback,
            timeout=httpx2.Timeout(timeout, connect=min(_CONNECT_S, timeout)),
        )
        self._lock = threading.Lock()
        self._next = 0.0
        self._since_check = 0
        try:
            self.probe = self._ask_probe()
        except BaseException:
            _started(self._http.aclose())
            raise

    # -- vectors and scores ------------------------------------------------------------------------

    def vectors(self, texts: Sequence[str]) -> Array:
        """Vectors [n, H] of texts, in their order. Each request also contains the probe text, so
        that a change of the model behind the address is noticed with its first response; if
        requests contain one text each, every 20th is followed by the probe.

        Raises:
            Unavailable: the endpoint returns no valid response, or another model responds.
            Rejected: it rejects a text, or returns no vector that can be compared.
        """
        along = [PROBE] if self.address.batch > 1 else []
        size = self.address.texts_a_request
        parts = []
        for start in range(0, len(texts), size):
            checkpoint()
            part = texts[start : start + size]
            with _asking_for(part):
                values = self._vectors([*along, *part])
            if along:
                self._require_same(values[0])
            else:
                self._check_now_and_then()
            parts.append(values[len(along) :])
        return np.concatenate(parts) if parts else np.zeros((0, len(self.probe)), np.float32)

    def scores(self, query: str, documents: Sequence[str]) -> Array:
        """Scores [n] of documents for a query, in their order. Every 20th request is followed by
        the probe.

        Raises:
            Unavailable: the endpoint returns no valid response, or another model responds.
            Rejected: it rejects a text, or a score is not finite.
        """
        parts = []
        for start in range(0, len(documents), self.address.batch):
            checkpoint()
            part = documents[start : start + self.address.batch]
            with _asking_for(part):
                parts.append(self._scores(query, part))
            self._check_now_and_then()
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _check_now_and_then(self) -> None:
        self._since_check += 1
        if self._since_check >= _CHECK_EVERY:
            self._require_same(self._ask_probe())

    def _ask_probe(self) -> Array:
        self._since_check = 0
        if self.address.reranks:
            return self._scores(PROBE, [PROBE, _PROBE_OTHER])
        values: Array = self._vectors([PROBE])[0]
        return values

    def _require_same(self, values: Array) -> None:
        if far(values, self.probe):
            forget(self.address.name)
            raise Unavailable(
                f"{self.address.name} returns other vectors than before, so its model has changed. "
                "Results of the earlier model are kept; start again to compute with the new one."
            )

    def _vectors(self, texts: Sequence[str]) -> Array:
        n = len(texts)
        answer = self._post(self._request({"input": list(texts)}), of_vectors(n))
        rows = self._listed(answer, "data", n)
        vectors = [row.get("embedding") for row in rows]
        widths = Counter(len(vector) if isinstance(vector, list) else 0 for vector in vectors)
        if not any(widths):
            raise self._wrong("does not return one vector of the same length for each text")
        if len(widths) > 1:
            raise self._rejected("returns no vector, or one of another length, for {what}.")
        array = self._numbers(vectors, "vector")
        if self.address.similarity == "cosine" and not array.any(axis=1).all():
            raise self._rejected(
                "returns a vector of zeros for {what}, so its cosine is undefined."
            )
        return array

    def _scores(self, query: str, documents: Sequence[str]) -> Array:
        n = len(documents)
        body = self._request({"query": query, "documents": list(documents), "top_n": n})
        rows = self._listed(self._post(body, of_scores(n, body)), "results", n)
        return self._numbers([row.get("relevance_score") for row in rows], "score")

    # -- responses ---------------------------------------------------------------------------------

    def _listed(self, answer: object, key: str, n: int) -> list[dict[str, Any]]:
        """The `n` objects of the response's list, in the order of their indices."""
        rows = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._wrong(f"returns no list named {key}")
        if len(rows) != n:
            raise self._wrong(f"returns {len(rows):,} results for {n:,} texts")
        placed = {row.get("index"): row for row in rows if type(row.get("index")) is int}
        if set(placed) != set(range(n)):
            raise self._wrong("returns results without the indices of the texts")
        return [placed[number] for number in range(n)]

    def _numbers(self, values: list[Any], what: str) -> Array:
        flat = values if what == "score" else [number for row in values for number in row]
        if any(type(number) not in (int, float) for number in flat):
            raise self._wrong(f"returns a {what} that is not a number")
        try:
            with np.errstate(over="ignore"):
                array = np.array(values, dtype=np.float32)
        except (OverflowError, ValueError):
            raise self._wrong(f"returns a {what} that is not a number") from None
        if not np.isfinite(array).all():
            raise self._rejected(f"returns a {what} that is not finite for {{what}}.")
        return array

    def _rejected(self, sentence: str) -> Rejected:
        return Rejected(f"{self.address.name} {sentence}")

    def _wrong(self, what: str) -> Unavailable:
        kind = "a /rerank endpoint" if self.address.reranks else "an /embeddings endpoint"
        return Unavailable(f"{self.address.name} {what}: check that its address is {kind}.")

    # -- requests ----------------------------------------------------------------------------------

    def _request(self, asked: dict[str, Any]) -> bytes:
        if self.address.model:
            asked = {"model": self.address.model, **asked}
        return json.dumps(asked).encode()

    def _post(self, body: bytes, bound: Bound) -> object:
        """The response to a request, retried if the failure may be temporary."""
        failed, timeouts, wait_s = "", 0, 0.0
        for attempt in range(ATTEMPTS):
            self._sleep(wait_s)
            self._wait_for_turn()
            longest = min(_FIRST_WAIT_S * float(2**attempt), _LAST_WAIT_S)
            wait_s = longest * random.uniform(0.75, 1.25)
            try:
                return self._in_time(body, bound)
            except _Again as again:
                failed = str(again)
                wait_s = wait_s if again.after is None else again.after
            except httpx2.TimeoutException:
                failed = f"does not respond within {self.address.timeout:g} s"
                timeouts += 1
                if timeouts == _TIMEOUTS:
                    break
            except httpx2.HTTPError:
                failed = "can't be reached, or closes the connection"
            except httpx2.InvalidURL:
                raise self._wrong("has an invalid address") from None
        raise Unavailable(f"{self.address.name} {failed}: check it, then start again to resume.")

    def _in_time(self, asked: bytes, bound: Bound) -> object:
        """The response to a request. A stop waits for it, because the service charges for it."""
        answer = _started(self._once(asked, bound))
        try:
            wait([answer])
        except BaseException:
            answer.cancel()
            raise
        body = answer.result()
        try:
            return bound.parse(body)
        except ValueError:
            raise self._wrong(
                "returns something that is not JSON, or more than was requested"
            ) from None

    async def _once(self, asked: bytes, bound: Bound) -> bytearray:
        timeout, body = self.address.timeout, bytearray()
        try:
            # Read timeouts do not trigger on a server that sends one byte at a time.
            async with (
                asyncio.timeout(timeout + min(_CONNECT_S, timeout)),
                self._http.stream("POST", self.address.url, content=asked) as response,
            ):
                self._require_well(response)
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > bound.size:
                        raise self._wrong(
                            f"returns more than {bound.size:,} bytes, which is more than was "
                            "requested"
                        )
        except TimeoutError:
            raise httpx2.ReadTimeout("the answer drips") from None
        return body

    def _require_well(self, response: httpx2.Response) -> None:
        name, status = self.address.name, response.status_code
        if status in _AGAIN:
            after = _retry_after(response.headers.get("retry-after", ""))
            if after is not None and after > MAX_WAIT_S:
                raise Unavailable(
                    f"{name} asks to wait {after:,.0f} s: start again then to resume."
                )
            what = "gets too many requests" if status == 429 else f"fails (status {status})"
            raise _Again(what, after)
        if 300 <= status < 400:
            raise Unavailable(
                f"{name} redirects to another address, which PosLens does not follow: use the "
                "final address."
            )
        if status in (401, 403):
            raise Unavailable(
                f"{name} rejects its key (status {status}): set {key_name(name)} to a valid key."
            )
        if status in _THIS_TEXT:
            raise self._rejected(
                f"rejects {{what}} (status {status}): {{subject}} may exceed the model's limit "
                "(set words=NUMBER in its address), or the model's name may be wrong."
            )
        if status != 200:
            raise self._wrong(f"answers with status {status}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._wrong("returns a compressed response although none was requested")

    def _wait_for_turn(self) -> None:
        """Wait until the rate limit allows the next request."""
        if not self.address.rate:
            return
        with self._lock:
            now = time.monotonic()
            at = max(self._next, now)
            self._next = at + 60 / self.address.rate
        self._sleep(at - now)

    def _sleep(self, seconds: float) -> None:
        """Wait, unless the response is no longer wanted."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            checkpoint()
            time.sleep(min(left, _POLL_S))


@contextmanager
def _asking_for(texts: Sequence[str]) -> Iterator[None]:
    """Add the texts of a request to its rejection."""
    try:
        yield
    except Rejected as rejected:
        rejected.texts = texts
        raise


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """This process's event loop for requests, in a separate thread: only in an event loop can a
    request be canceled whatever it waits for."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="asks endpoints", daemon=True).start()
    return loop


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork, so a child process would wait forever for that of its parent.
    os.register_at_fork(after_in_child=_loop.cache_clear)


def _started(request: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(request, _loop())


class _Again(Exception):
    """The request may be retried, `after` this many seconds if the server specifies it."""

    def __init__(self, what: str, after: float | None) -> None:
        super().__init__(what)
        self.after = after


def _retry_after(text: str) -> float | None:
    """Seconds in a `Retry-After` header, which is a number or a date."""
    with suppress(ValueError, TypeError, OverflowError):
        if text.strip()[:1].isdigit():
            return float(text)
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return None


# -- one client per endpoint -----------------------------------------------------------------------

_FAILED_S = 15.0
"""Seconds for which an endpoint that did not respond is not tried again: pages try many times."""

_clients: Names[EndpointClient] = Names()
_failed: Names[tuple[float, UserError]] = Names()
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def client_of(address: Address) -> EndpointClient:
    """This process's client for an endpoint, after it has answered a probe.

    Raises:
        UserError: it does not respond, or did not a moment ago.
    """
    name = address.name
    with _locks[name]:
        client = _clients.get(name)
        if client is not None and client.address == address:
            return client
        at, failure = _failed.get(name, (0.0, None))
        if failure is not None and time.monotonic() < at + _FAILED_S:
            raise type(failure)(str(failure))
        try:
            client = EndpointClient(address)
        except UserError as error:
            if not isinstance(error, Stopped):
                _failed[name] = time.monotonic(), error
            raise
        _clients[name] = client
        return client


def forget(name: str) -> None:
    """Probe the endpoint again at the next request."""
    _clients.pop(name, None)
    _failed.pop(name, None)
