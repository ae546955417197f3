"""Endpoints: a real server compared with the local model, and one that misbehaves in every way."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, Unavailable, UserError
from poslens.attribution.interventions.ablation import ablation
from poslens.attribution.interventions.relocation import relocation
from poslens.attribution.interventions.segments import segment_curve
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers import endpoint_client, resolve
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.endpoint import EmbeddingEndpoint
from poslens.attribution.retrievers.endpoint_address import key_name, key_of, parse
from poslens.attribution.retrievers.endpoint_client import EndpointClient, client_of
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.scoring import score_texts
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.types import Array, EvidenceSpan, Side, TextPair
from tests.support.endpoint_server import (
    HOSTILE,
    EndpointServer,
    HostileServer,
    hashed,
    minilm,
    running,
    serving,
)

DOCUMENT = (
    "The moon pulls the sea. The tide turns about every six hours. Harbours print the hours. "
    "Nobody saw more of it than the gulls."
)
PAIR = TextPair("p", "when does the tide turn", DOCUMENT, evidence=EvidenceSpan(24, 61))
OTHERS = [
    TextPair("q", "what do harbours print", "Harbours print the hours of the tide each year."),
    TextPair("r", "qué es la sal", "La sal es un mineral. 塩は鉱物です。"),
]


@pytest.fixture(scope="module")
def real() -> Iterator[EndpointServer]:
    with running(minilm) as server:
        yield server


@pytest.fixture
def server() -> Iterator[EndpointServer]:
    with running(hashed) as found:
        yield found


@pytest.fixture(scope="module")
def hostile() -> Iterator[tuple[str, HostileServer]]:
    found = HostileServer()
    with serving(found.app()) as address:
        yield address, found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without waiting, and start without registered endpoints."""
    monkeypatch.setattr(endpoint_client, "_FIRST_WAIT_S", 0.01)


# -- numbers: the oracle is the local model --------------------------------------------------------


def test_results_equal_those_of_the_model_behind_the_endpoint(real: EndpointServer, minilm) -> None:
    found = load(resolve.register_endpoint(f"E5={real.url}#model=m"))
    texts = [(one.query, one.document) for one in (PAIR, *OTHERS)]
    actual, expected = score_texts(found, texts), score_texts(minilm, texts)
    assert np.abs(actual - expected).max() < 1e-5
    assert check_retriever(found).library.distance < 1e-5
    moved, local = relocation(found, PAIR), relocation(minilm, PAIR)
    assert np.abs(moved.scores - local.scores).max() < 1e-5
    curve, other = segment_curve(found, PAIR), segment_curve(minilm, PAIR)
    assert np.abs(curve.cosines - other.cosines).max() < 1e-5
    cut, known = ablation(found, PAIR, bins=4), ablation(minilm, PAIR, bins=4)
    assert cut.spans == known.spans
    assert np.abs(cut.effects - known.effects).max() < 1e-5


def test_a_forked_process_can_send_requests(server: EndpointServer) -> None:
    address = parse(f"E5={server.url}")
    vectors = EndpointClient(address).vectors(["tide"])
    if (child := os.fork()) == 0:
        signal.alarm(20)  # a child that waits forever ends with a signal
        same = np.array_equal(EndpointClient(address).vectors(["tide"]), vectors)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_occlusion_equals_the_loss_in_score_without_a_word(real: EndpointServer, minilm) -> None:
    """By hand: delete the characters of each word and score with the local model."""
    found = load(resolve.register_endpoint(f"E5={real.url}"))
    result = METHODS["occlusion"].compute(found, make_method("occlusion"), [PAIR])[0]
    texts = [DOCUMENT[: token.start] + DOCUMENT[token.end :] for token in result.document.tokens]
    queries = [PAIR.query[: token.start] + PAIR.query[token.end :] for token in result.query.tokens]
    whole = score_texts(minilm, [(PAIR.query, DOCUMENT)])[0]
    without = score_texts(minilm, [(PAIR.query, text) for text in texts])
    assert result.score == pytest.approx(whole, abs=1e-5)
    assert np.abs(result.document_scores - (whole - without)).max() < 1e-5
    without = score_texts(minilm, [(query, DOCUMENT) for query in queries])
    assert np.abs(result.query_scores - (whole - without)).max() < 1e-5
    assert [DOCUMENT[t.start : t.end] for t in result.document.tokens[:3]] == [
        "The",
        "moon",
        "pulls",
    ]


def test_a_reranker_endpoint_scores_as_its_model_does(real: EndpointServer, minilm) -> None:
    found = load(resolve.register_endpoint(f"RR={real.url}/rerank"))
    texts = [(one.query, one.document) for one in (PAIR, *OTHERS)]
    texts.append((PAIR.query, OTHERS[0].document))
    assert np.abs(score_texts(found, texts) - score_texts(minilm, texts)).max() < 1e-5
    method = make_method("occlusion", {"level": "sentence"})
    result = METHODS["occlusion"].compute(found, method, [PAIR])[0]
    end = DOCUMENT.index(" The tide")
    lost = score_texts(minilm, [(PAIR.query, DOCUMENT), (PAIR.query, DOCUMENT[end:])])
    inside = [t.end <= end for t in result.document.tokens]
    assert result.document_scores[inside].sum() == pytest.approx(lost[0] - lost[1], abs=1e-5)


def test_prompts_and_the_dot_product_are_used(server: EndpointServer) -> None:
    address = f"E5={server.url}#query_prompt=query: &document_prompt=passage: &similarity=dot"
    found = load(resolve.register_endpoint(address))
    server.sent.clear()
    score = score_texts(found, [("a", "b c")])[0]
    assert {"query: a", "passage: b c"} <= set(server.sent)
    query, document = hashed(["query: a", "passage: b c"])
    assert score == pytest.approx(float(query @ document), rel=1e-6)


def test_only_the_first_words_of_a_text_are_sent(server: EndpointServer) -> None:
    """Of both sides, and without the words that occlusion removes; the rest is truncated."""
    address = f"{server.url}#words=3&document_prompt=passage: "
    pair = TextPair("p", "when, does it turn?", "The tide  turns. Twice a day.")
    found = load(resolve.register_endpoint(f"E5={address}"))
    server.sent.clear()
    (attribution,) = METHODS["occlusion"].compute(found, make_method("occlusion"), [pair])
    queries = ("when, does", ", does", "when does", "when, ")
    documents = ("The tide  turns", " tide  turns", "The   turns", "The tide  ")
    sent = {endpoint_client.PROBE, *queries, *(f"passage: {text}" for text in documents)}
    assert set(server.sent) == sent
    document = attribution.document
    assert (document.texts, document.n_tokens_full, document.max_length) == (
        ("The", "tide", "turns"),
        8,
        3,
    )
    assert document.truncated
    reranker = load(resolve.register_endpoint(f"RR={server.url}/rerank#words=2"))
    server.sent.clear()
    score_texts(reranker, [(pair.query, pair.document)])
    assert {"when,", "The tide"} <= set(server.sent)


def test_an_empty_text_is_sent_as_a_full_stop(server: EndpointServer) -> None:
    found = load(resolve.register_endpoint(f"E5={server.url}"))
    METHODS["occlusion"].compute(found, make_method("occlusion"), [TextPair("p", "tide", "tide")])
    assert server.sent["."] and "" not in server.sent


def test_requests_respect_the_maximum_number_of_texts(server: EndpointServer) -> None:
    found = load(resolve.register_endpoint(f"E5={server.url}#batch=4"))
    server.requests.clear()
    vectors = found._vectors([f"w{i}" for i in range(10)])
    assert [len(one["input"]) for one in server.requests] == [4, 4, 4, 2]  # one probe per request
    assert np.allclose(vectors, hashed([f"w{i}" for i in range(10)]))
    single = EndpointClient(parse(f"E5={server.url}#batch=1"))
    server.requests.clear()
    single.vectors(["a", "b"])
    assert [len(one["input"]) for one in server.requests] == [1, 1]


def test_only_occlusion_fits_and_other_methods_state_why_not(server: EndpointServer) -> None:
    for value in (f"E5={server.url}", f"RR={server.url}/rerank"):
        family = family_of(resolve.register_endpoint(value))
        assert [name for name, entry in METHODS.items() if entry.fits(family)] == ["occlusion"]
        assert "no gradients" in family.why_not


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_every_invalid_answer_is_reported_in_one_sentence(
    name: str, hostile: tuple[str, HostileServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key_name("E5"), "sk-very-secret")
    seconds = 1 if name == "drips" else 30  # all others answer, though late on a busy machine
    client = EndpointClient(parse(f"E5={hostile[0]}/{name}/well-once#timeout={seconds}"))
    with pytest.raises(UserError) as raised:
        client.vectors(["a", "b"])
    said = str(raised.value)
    assert said.startswith("E5 ") and said.endswith(".") and said.count(". ") == 0
    assert "\n" not in said and "<" not in said and "secret" not in said and "169.254" not in said
    # Either a single text or the whole endpoint is refused.
    of_text = name in ("nan", "infinity", "beyond-float", "ragged", "too-long", "bad-request")
    assert isinstance(raised.value, Unavailable) != of_text


def test_a_rejected_text_is_named_by_its_beginning(server: EndpointServer) -> None:
    """Whether one request contained the text alone, or several texts that were made from it."""
    spec = resolve.register_endpoint(f"E5={server.url}#document_prompt=passage: ")
    found, text = load(spec), "A <b>\x1b[1m\n" + "x" * 99
    assert isinstance(found, EmbeddingEndpoint)
    quoted = f'"A <b>\N{REPLACEMENT CHARACTER}[1m {"x" * 49}…"'
    ending = (
        "may exceed the model's limit (set words=NUMBER in its address), or the model's name may "
        "be wrong."
    )

    def reason(texts: list[str]) -> str:
        server.fail = [400]
        with pytest.raises(UserError) as raised:
            found.embed(found.encode_texts(texts, "document"))
        return str(raised.value)

    assert reason([text]) == f"E5 rejects the text {quoted} (status 400): it {ending}"
    assert reason(["short"]) == f'E5 rejects the text "short" (status 400): it {ending}'
    # A request of several texts may be too large: each half is accepted.
    server.fail = [400]
    assert len(found.embed(found.encode_texts(["a", "b"], "document"))) == 2
    # Otherwise one text is named, whichever request it was in.
    server.longest = 200
    with pytest.raises(UserError, match=r'the text "y{59}…" \(status 400\)'):
        found.embed(found.encode_texts(["a", "b", "y" * 300, "c", "d"], "document"))
    server.longest = len(DOCUMENT) - 20
    with pytest.raises(UserError, match=r'the text "The moon pulls the sea\..*…" \(status 400\)'):
        METHODS["occlusion"].compute(found, make_method("occlusion"), [PAIR])


@pytest.mark.parametrize(
    "wrong, what",
    [
        ([np.inf, *[1.0] * 63], "a vector that is not finite for"),
        ([0.0] * 64, "a vector of zeros for"),
        ([1.0] * 3, "no vector, or one of another length, for"),
        ([], "no vector, or one of another length, for"),
    ],
)
def test_a_text_without_a_valid_vector_is_named(
    wrong: list[float], what: str, server: EndpointServer
) -> None:
    found = load(resolve.register_endpoint(f"E5={server.url}"))
    assert isinstance(found, EmbeddingEndpoint)

    def embed(texts: list[str]) -> Any:
        vectors = hashed(texts)
        return [np.array(wrong) if "salt" in t else v for t, v in zip(texts, vectors, strict=True)]

    server.embed = embed
    with pytest.raises(UserError, match=f'^E5 returns {what} the text "salt and ice"'):
        found.embed(found.encode_texts(["a", "b", "salt and ice", "c"], "document"))
    assert len(found.embed(found.encode_texts(["a", "b", "c"], "document"))) == 3


def test_a_pair_that_a_reranker_rejects_is_named(server: EndpointServer) -> None:
    found = load(resolve.register_endpoint(f"RR={server.url}/rerank"))
    server.fail = [422]
    with pytest.raises(UserError) as raised:
        score_texts(found, [("salt", OTHERS[1].document)])
    assert str(raised.value) == (
        'RR rejects the query "salt" with the document "La sal es un mineral. 塩は鉱物です。" '
        "(status 422): they may exceed the model's limit (set words=NUMBER in its address), or "
        "the model's name may be wrong."
    )


@contextmanager
def dripping(first: bytes, then: bytes) -> Iterator[tuple[str, threading.Event]]:
    """The address of a server whose answers never end, and an event set by its first request."""
    ended, asked = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(first)
            asked.set()
            while not ended.wait(0.05):
                connection.sendall(then)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", asked
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)


HEADER = b"HTTP/1.1 200 OK\r\nX-Slow: "


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (HEADER, b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a"),
    ],
    ids=["header", "continue", "chunk-extension"],
)
def test_an_answer_that_never_starts_times_out(first: bytes, then: bytes) -> None:
    with dripping(first, then) as (address, _):
        with pytest.raises(Unavailable, match=r"does not respond within 0\.2 s"):
            EndpointClient(parse(f"Drips={address}#timeout=0.2"))
        assert_nobody_reads()


@pytest.mark.parametrize("dripped", [HEADER, b""], ids=["dripping", "silent"])
def test_a_stopped_request_is_not_sent_again(dripped: bytes) -> None:
    with dripping(dripped, dripped[-1:]) as (address, asked):
        with stoppable(asked.is_set), pytest.raises(Stopped) as raised:
            EndpointClient(parse(f"Drips={address}#timeout=0.2"))
        assert_nobody_reads()
    assert not isinstance(raised.value, Unavailable)


class Kept(dict[tuple[Side, str], Array]):
    """Received vectors in memory."""

    def select(self, side: Side, texts: Sequence[str]) -> dict[str, Array]:
        return {text: self[side, text] for text in texts if (side, text) in self}

    def put(self, side: Side, vectors: Iterable[tuple[str, Array]]) -> None:
        self.update({(side, text): vector for text, vector in vectors})


def test_a_stop_keeps_the_response_that_is_on_its_way(server: EndpointServer) -> None:
    """The service charges for it, so its texts must not be sent again."""
    whole = load(resolve.register_endpoint(f"E5={server.url}#batch=4"))
    kept = Kept()
    found = whole.storing(kept)
    texts, asked = [f"w{number}" for number in range(8)], threading.Event()

    def slowly(texts: list[str]) -> np.ndarray:
        asked.set()
        time.sleep(0.5)
        return hashed(texts)

    server.embed = slowly
    server.requests.clear()
    with stoppable(asked.is_set), pytest.raises(Stopped):
        found.embed(found.encode_texts(texts, "document"))
    assert [text for _, text in kept] == texts[:3] and len(server.requests) == 1
    server.embed = hashed
    vectors = found.embed(found.encode_texts(texts, "document"))
    sent = [text for one in server.requests for text in one["input"][1:]]
    assert sorted(sent) == texts
    assert torch.equal(vectors, whole.embed(whole.encode_texts(texts, "document")))


def test_texts_without_some_words_are_not_stored(server: EndpointServer) -> None:
    """Occlusion sends one per word, whose vectors would take twenty times the space of the
    results."""
    kept = Kept()
    found = load(resolve.register_endpoint(f"E5={server.url}")).storing(kept)
    pair = TextPair("p", "salt water", "the sea is salt and cold")
    METHODS["occlusion"].compute(found, make_method("occlusion"), [pair])
    assert set(kept) == {("query", "salt water"), ("document", "the sea is salt and cold")}
    assert server.sent["the  is salt and cold"] == 1


@pytest.mark.parametrize("kind", ["", "/rerank"])
def test_texts_with_the_same_beginning_are_sent_once(kind: str, server: EndpointServer) -> None:
    found = load(resolve.register_endpoint(f"E5={server.url}{kind}#words=2"))
    if not kind:
        found = found.storing(Kept())
    server.sent.clear()
    for documents in (["salt water one", "salt water two"], ["salt water three"]):
        scores = score_texts(found, [("salt", document) for document in documents])
        assert len(set(scores)) == 1
    # Scores of a reranker are not stored, so only those of one request count once.
    assert server.sent["salt water"] == (2 if kind else 1)


def assert_nobody_reads() -> None:
    """Assert that no task still reads an abandoned answer."""
    end = time.monotonic() + 30
    while asyncio.all_tasks(endpoint_client._loop()):
        assert time.monotonic() < end, "a task reads on"
        time.sleep(0.05)


def test_requests_reuse_an_open_connection(server: EndpointServer) -> None:
    client = EndpointClient(parse(f"E5={server.url}"))
    pool = client._http._transport._pool
    (connection,) = pool.connections
    client.vectors(["a", "b"])
    assert pool.connections == [connection]


@pytest.mark.parametrize("name", ["wait-nonsense", "cut-off"])
def test_temporary_errors_are_retried(name: str, hostile: tuple[str, HostileServer]) -> None:
    client = EndpointClient(parse(f"E5={hostile[0]}/{name}/then-well"))
    assert client.probe.shape == (64,)


def test_permanent_errors_are_not_retried(hostile: tuple[str, HostileServer]) -> None:
    address, server = hostile
    for name in ("html", "redirect", "unauthorized", "too-few", "wait-an-hour"):
        with pytest.raises(UserError):
            EndpointClient(parse(f"E5={address}/{name}/then-well"))
        assert server.asked[f"/{name}/then-well/embeddings"] == 1


def test_a_busy_server_is_retried_until_it_answers(server: EndpointServer) -> None:
    server.fail = [500, 429, 503, 502]
    assert EndpointClient(parse(f"E5={server.url}")).probe.shape == (64,)
    server.fail = [500] * 9
    with pytest.raises(Unavailable, match=r"E5 fails \(status 500\)"):
        EndpointClient(parse(f"E5={server.url}"))
    assert len(server.fail) == 9 - endpoint_client.ATTEMPTS


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("", None)],
)
def test_retry_after_is_parsed(header: str, seconds: float | None) -> None:
    assert endpoint_client._retry_after(header) == seconds


def test_an_unreachable_address_is_reported_in_one_sentence() -> None:
    with pytest.raises(Unavailable, match="can't be reached"):
        EndpointClient(parse("E5=http://127.0.0.1:9/v1"))


def test_a_failed_endpoint_is_not_asked_again_at_once(
    server: EndpointServer,
) -> None:
    server.fail = [401, 500]
    address = parse(f"E5={server.url}")
    for _ in range(2):
        with pytest.raises(Unavailable, match="rejects its key"):
            client_of(address)
    assert server.fail == [500]


def test_a_wait_between_retries_ends_when_canceled(
    server: EndpointServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_client, "_FIRST_WAIT_S", 1000.0)
    monkeypatch.setattr(endpoint_client, "_LAST_WAIT_S", 1000.0)
    client = EndpointClient(parse(f"E5={server.url}"))
    server.fail = [500]
    with stoppable(lambda: not server.fail), pytest.raises(Stopped):
        client.vectors(["a"])


def test_a_rate_limit_spaces_requests(server: EndpointServer) -> None:
    started = time.monotonic()
    client = EndpointClient(parse(f"E5={server.url}#rate=600"))
    for _ in range(3):
        client.vectors(["a"])
    assert time.monotonic() - started >= 0.3


def test_a_changed_model_is_noticed_at_once(server: EndpointServer) -> None:
    found = load(resolve.register_endpoint(f"E5={server.url}"))
    score_texts(found, [("a", "b")])
    server.embed = lambda texts: hashed(texts)[:, ::-1]
    for _ in range(2):  # and as long as it is loaded under the previous name
        with pytest.raises(Unavailable, match="its model has changed"):
            score_texts(found, [("a", "b")])
    again = load(found.spec)
    assert score_texts(again, [("a", "b")]).shape == (1,)


def test_a_changed_reranker_is_noticed_within_twenty_requests(server: EndpointServer) -> None:
    found = load(resolve.register_endpoint(f"RR={server.url}/rerank"))
    server.embed = lambda texts: hashed([text[::-1][:9] for text in texts])
    with pytest.raises(Unavailable, match="model has changed"):
        for number in range(20):
            score_texts(found, [(f"a{number}", "b")])


def test_answers_that_differ_by_rounding_are_of_the_same_model(server: EndpointServer) -> None:
    found = load(resolve.register_endpoint(f"E5={server.url}"))
    server.embed = lambda texts: hashed(texts).astype(np.float16) * 1.004
    score_texts(found, [("a", "b")])


def test_a_server_that_mixes_up_texts_is_refused(server: EndpointServer) -> None:
    server.embed = lambda texts: np.concatenate([hashed(texts[:1]), hashed(texts[1:])[::-1]])
    with pytest.raises(UserError, match="returns another embedding for a text in a batch"):
        check_retriever(load(resolve.register_endpoint(f"E5={server.url}")))


# -- names, addresses and keys ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "E5",
        "=http://a/v1",
        "E5=",
        "E5=ftp://127.0.0.1/v1",
        "E5=file:///etc/passwd",
        "E5=127.0.0.1:8080",
        "E5=http://",
        "E5=http://a:99999/v1",
        "E5=http://a\n/v1",
        "E5=http://user:sk-very-secret@a/v1",
        "E5=https://a/v1?key=sk-very-secret",
        "E5=http://a/v1#color=red",
        "E5=http://a/v1#batch=0",
        "E5=http://a/v1#batch=1.5",
        "E5=http://a/v1#timeout=nan",
        "E5=http://a/v1#rate=-1",
        "E5=http://a/v1#similarity=l2",
        "E 5=http://a/v1",
        "a/b=http://a/v1",
        "a@last=http://a/v1",
        "MiniLM=http://a/v1",
    ],
)
def test_invalid_endpoints_are_refused_in_one_sentence(value: str) -> None:
    with pytest.raises(UserError) as raised:
        resolve.register_endpoint(value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://a", "http://a/embeddings"),
        ("http://a/v1/", "http://a/v1/embeddings"),
        ("http://a//v1//embeddings/", "http://a/v1/embeddings"),
        ("https://a:1/v1/rerank", "https://a:1/v1/rerank"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1/embeddings"),
    ],
)
def test_addresses_are_completed(written: str, url: str) -> None:
    assert parse(f"E5={written}#model=a/b:c").url == url


def test_only_endpoints_named_at_startup_can_be_used(server: EndpointServer) -> None:
    spec = parse(f"E5={server.url}").spec
    with pytest.raises(UserError, match="There is no model 'E5'"):
        resolve.resolve("E5")
    monkey = parse("Other=http://127.0.0.1:9/v1").spec
    with pytest.raises(UserError, match="was not started with"):
        load(monkey)
    assert resolve.register_endpoint(f"E5={server.url}") == spec == resolve.resolve("E5")


def test_keys_come_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = parse("my-e5.v2=https://a/v1")
    assert key_name(address.name) == "POSLENS_KEY_MY_E5_V2" and key_of(address) == ""
    file = tmp_path / "key"
    file.write_text("from-file\n")
    monkeypatch.setenv("POSLENS_KEY_MY_E5_V2_FILE", str(file))
    assert key_of(address) == "from-file"
    monkeypatch.setenv("POSLENS_KEY_MY_E5_V2", "from-environment")
    assert key_of(address) == "from-environment"
    for bad in ("two words", "ké", "a\tb", "x" * 5000):
        monkeypatch.setenv("POSLENS_KEY_MY_E5_V2", bad)
        with pytest.raises(UserError) as raised:
            key_of(address)
        assert bad not in str(raised.value)
    monkeypatch.delenv("POSLENS_KEY_MY_E5_V2")
    monkeypatch.setenv("POSLENS_KEY_MY_E5_V2_FILE", str(tmp_path / "none"))
    with pytest.raises(UserError, match="can't be read"):
        key_of(address)


def test_a_key_is_never_sent_unencrypted_over_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(key_name("E5"), "sk-very-secret")
    with pytest.raises(UserError, match="sent unencrypted"):
        resolve.register_endpoint("E5=http://10.0.0.1/v1")
    for url in ("https://10.0.0.1/v1", "http://127.0.0.1/v1", "http://[::1]/v1"):
        assert key_of(parse(f"E5={url}")) == "sk-very-secret"


def test_the_key_is_sent_and_never_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(key_name("E5"), "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    with running(hashed, key="sk-very-secret") as server:
        found = load(resolve.register_endpoint(f"E5={server.url}"))
        score_texts(found, [("a", "b")])
        server.fail = [500]
        score_texts(found, [("a", "b")])
    assert caplog.records and "secret" not in caplog.text
    assert "secret" not in repr(
        [found.spec, vars(found), vars(client_of(parse(f"E5={server.url}")))]
    )
    monkeypatch.setenv(key_name("E5"), "another")
    with running(hashed, key="sk-very-secret") as server, pytest.raises(Unavailable) as raised:
        EndpointClient(parse(f"E5={server.url}"))
    assert "POSLENS_KEY_E5" in str(raised.value) and "another" not in str(raised.value)
