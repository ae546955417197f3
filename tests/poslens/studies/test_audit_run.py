"""An audit is computed once, resumes where it was stopped, and equals a plain loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from poslens.attribution import datasets
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.errors import Stopped, Unavailable, UserError
from poslens.attribution.evaluation.audit import (
    SentenceRanks,
    document_queries,
    frequent_words,
    shuffled,
)
from poslens.attribution.evaluation.chunks import (
    WHOLE,
    Chunks,
    chunks_of,
    late_vectors,
    windows_of,
)
from poslens.attribution.evaluation.truncation import TRUNCATION
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import presets
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.storage.store import ModelKey
from poslens.studies.audit.run import _long_texts, require_family, run_audit
from poslens.studies.audit.study import AUDIT

KEY = ModelKey("tiny", "0" * 16)
Tiny = Callable[..., DenseRetriever]


def corpus(n: int = 12, name: str = "set") -> Collection:
    documents = [
        Document(
            f"d{i}",
            " ".join(f"Snow number {i} melts {s} times in spring, fox {s * i}." for s in range(6)),
            language="eng",
        )
        for i in range(n)
    ]
    # A copy of a text, one that can't be searched for, and one without sentences.
    documents += [
        Document("copy", documents[3].text, language="eng"),
        Document("short", "Rain."),
        Document("thai", "นกเงือกเป็นนกขนาดใหญ่ อาศัยอยู่ในป่า"),
    ]
    return Collection(name, name, (), lambda: iter(documents))


def test_of_documents_longer_than_is_read_the_first_are_measured() -> None:
    """With a limit of 10 tokens, 60 characters are long and 120 are read. So texts don't claim that
    these are the corpus's longest."""
    lengths = [100, 130, 110, 125, 140, 900]
    documents = [Document(f"d{n}", str(k) * n) for k, n in enumerate(lengths)]
    long = Collection("long", "long", (), lambda: iter(documents))
    assert _long_texts(long, 10) == [(str(k) * 120, 1) for k in (1, 3, 4)]
    assert "on the beginnings of up to three long documents" in AUDIT.limits


def by_hand(retriever: DenseRetriever, found: Collection, chunks: Chunks) -> dict[str, list]:
    """Best and worst rank by a plain loop over every query and document."""
    documents = list(found.documents())
    frequent = frequent_words(documents)

    def vectors(text: str) -> torch.Tensor:
        if chunks.kind == "late":
            return late_vectors(retriever, [text], chunks.size)[0]
        parts = windows_of(retriever, text, chunks) if chunks.kind == "windows" else [text]
        with torch.no_grad():
            return torch.cat(
                [retriever.embed(retriever.encode_texts([p], "document")) for p in parts]
            )

    indexes = [
        [vectors(text) for text in texts]
        for texts in ([d.text for d in documents], [shuffled(d) for d in documents])
    ]
    result = {}
    for number, one in enumerate(documents):
        try:
            made = document_queries(one, frequent)
        except UserError:
            continue
        rows = []
        for index in indexes:
            row = []
            for query in (*made.sentences, *made.questions):
                with torch.no_grad():
                    asked = retriever.embed(retriever.encode_texts([query], "query"))
                scores = [float(torch.cosine_similarity(asked, v).max()) for v in index]
                mine = scores[number]
                # Scores that differ only by rounding may be in either order.
                row.append(
                    (1 + sum(s > mine + 1e-5 for s in scores), sum(s > mine - 1e-5 for s in scores))
                )
            rows.append(row)
        result[one.key] = rows
    return result


def same(found: dict[str, SentenceRanks], expected: dict[str, list]) -> None:
    assert list(found) == list(expected)
    for key, rows in expected.items():
        for actual, theirs in zip(found[key].ranks.reshape(2, -1).tolist(), rows, strict=True):
            assert all(low <= r <= high for r, (low, high) in zip(actual, theirs, strict=True)), key


@pytest.mark.parametrize("chunks", ["whole", "windows:16:4", "late:16"])
def test_ranks_equal_those_of_a_plain_loop(tiny: Tiny, tmp_path: Path, chunks: str) -> None:
    retriever, found, how = tiny("bert", max_length=48), corpus(), chunks_of(chunks)
    store = AuditStore(tmp_path, found)
    done = run_audit(store, retriever, KEY, how)
    assert (done.total, done.done, done.failed, done.stopped) == (15, 15, 2, False)
    kept = store.select(KEY, how)
    same(kept.results, by_hand(retriever, found, how))
    assert "no sentence" in kept.failed["short"] and "Thai" in kept.failed["thai"]
    assert store.missing(KEY, how) == 0
    read = kept.results["d5"].read
    if how.kind == "windows":
        assert (read == 1).all()
    else:
        assert read[0, 0] == 1 and read[0, -1] == 0


def test_a_resumed_audit_gives_the_same_results(tiny: Tiny, tmp_path: Path) -> None:
    retriever, found = tiny("bert", max_length=48), corpus()
    whole = AuditStore(tmp_path / "whole", found)
    run_audit(whole, retriever, KEY, WHOLE)
    expected = whole.select(KEY, WHOLE).results

    store = AuditStore(tmp_path / "parts", found)
    stop, stages = threading.Event(), []

    def report(progress) -> None:
        if stages[-1] == "Searching for sentences" and progress.done >= 4:
            stop.set()

    options = RunOptions(report, on_stage=stages.append)
    with stoppable(stop.is_set):
        half = run_audit(store, retriever, KEY, WHOLE, options=options)
    assert half.stopped and 3 <= len(store.select(KEY, WHOLE).results) < len(expected)
    again = AuditStore(tmp_path / "parts", found)
    n_before = 15 - again.missing(KEY, WHOLE)
    rest = run_audit(again, retriever, KEY, WHOLE)
    assert rest.computed == 15 - n_before and rest.done == 15
    kept = again.select(KEY, WHOLE).results
    assert list(kept) == list(expected)
    for key, one in kept.items():
        assert one.ranks.tolist() == expected[key].ranks.tolist()
        assert one.positions.tolist() == expected[key].positions.tolist()


def test_an_audit_can_be_stopped_while_documents_are_encoded(tiny: Tiny, tmp_path: Path) -> None:
    store = AuditStore(tmp_path, corpus())
    stages: list[str] = []
    options = RunOptions(on_stage=stages.append)
    with pytest.raises(Stopped), stoppable(lambda: "Reading documents" in stages):
        run_audit(store, tiny("bert"), KEY, WHOLE, options=options)
    assert not store.select(KEY, WHOLE).results


def test_a_model_that_is_unavailable_is_asked_once(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, asked = tiny("bert"), list[int]()
    real = retriever.encode_plain

    def down(texts, side):
        if side != "query":
            return real(texts, side)
        asked.append(len(texts))
        raise Unavailable("It does not answer.")

    monkeypatch.setattr(retriever, "encode_plain", down)
    with pytest.raises(Unavailable, match="does not answer"):
        run_audit(AuditStore(tmp_path, corpus()), retriever, KEY, WHOLE)
    assert len(asked) == 1


def test_the_time_estimate_ignores_stored_vectors(tiny: Tiny, tmp_path: Path) -> None:
    retriever = tiny("bert")

    def rates(again: bool) -> list[float | None]:
        """Rates while documents are encoded."""
        found: list[float | None] = []
        stages: list[str] = []

        def report(progress) -> None:
            if stages[-1].startswith("Reading"):
                found.append(progress.rate)

        collection = corpus(name="again" if again else "set")
        run_audit(
            AuditStore(tmp_path, collection),
            retriever,
            KEY,
            WHOLE,
            options=RunOptions(on_progress=report, on_stage=stages.append),
        )
        return found

    first = rates(again=False)
    assert len(first) == 2 and all(rate and rate > 0 for rate in first)
    assert rates(again=True) == [None, None]


def test_truncation_is_measured_once(tiny: Tiny, tmp_path: Path) -> None:
    retriever, store = tiny("bert", max_length=48), AuditStore(tmp_path, corpus())
    run_audit(store, retriever, KEY, WHOLE)
    found = store.truncations(KEY)
    assert found and all(one.claimed == 48 and one.as_claimed for one in found)
    assert not store.probed.select(KEY, TRUNCATION, store.probed_items).failed
    stages: list[str] = []
    run_audit(store, retriever, KEY, WHOLE, options=RunOptions(on_stage=stages.append))
    assert stages == []


def test_an_interrupted_measurement_of_truncation_is_resumed(tiny: Tiny, tmp_path: Path) -> None:
    retriever = tiny("bert", max_length=48)
    texts = [" ".join(f"{name}{n}" for n in range(200)) for name in ("ant", "bee", "cow")]
    documents = [Document(text[:3], text) for text in texts]
    stopped, whole = (
        AuditStore(tmp_path / name, Collection("long", "long", (), lambda: iter(documents)))
        for name in ("stopped", "whole")
    )
    with stoppable(lambda: bool(stopped.truncations(KEY))):
        assert run_audit(stopped, retriever, KEY, WHOLE).stopped
    assert len(stopped.truncations(KEY)) == 1
    run_audit(stopped, retriever, KEY, WHOLE)
    run_audit(whole, retriever, KEY, WHOLE)
    assert stopped.truncations(KEY) == whole.truncations(KEY) and len(whole.truncations(KEY)) == 3


def test_sentences_of_several_documents_are_encoded_together(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of similar length; document by document, most of a batch would be padding."""
    retriever, batches = tiny("bert"), list[int]()
    real = retriever.encode_plain

    def counted(texts, side):
        if side == "query":
            batches.append(len(texts))
        return real(texts, side)

    monkeypatch.setattr(retriever, "encode_plain", counted)
    store = AuditStore(tmp_path, corpus())
    run_audit(store, retriever, KEY, WHOLE)
    assert len(store.select(KEY, WHOLE).results) == 13
    assert len(batches) <= 4 and sum(batches) <= 12 * 12  # `copy` has the texts of `d3`


def test_a_changed_corpus_is_audited_separately(tiny: Tiny, tmp_path: Path) -> None:
    store = AuditStore(tmp_path, corpus())
    run_audit(store, tiny("bert"), KEY, WHOLE)
    assert not AuditStore(tmp_path, corpus(13)).select(KEY, WHOLE).results


def test_bm25_ignores_sentence_order(tmp_path: Path) -> None:
    """It ignores word order, so ranks in both orders are equal."""
    store = AuditStore(tmp_path, corpus())
    run_audit(store, load(presets()["BM25"]), KEY, WHOLE)
    found = store.select(KEY, WHOLE).results
    assert len(found) == 13
    for one in found.values():
        assert one.ranks[0].tolist() == one.ranks[1].tolist() and (one.read == 1).all()
    # `d3` and `copy` have the same text, so the first of them ranks first.
    assert (found["copy"].ranks[0, 0] > found["d3"].ranks[0, 0]).all()
    assert store.truncations(KEY) == []


def test_models_without_an_index_are_refused() -> None:
    spec = next(one for one in presets().values() if one.family == "cross_encoder")
    with pytest.raises(UserError, match="has neither a dense vector per text nor an index"):
        require_family(spec)


def test_an_audit_reads_documents_and_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit of millions of documents doesn't hold their pairs in memory."""
    monkeypatch.setattr(datasets, "read", lambda name: pytest.fail(f"pairs of {name} were read"))
    asked = AUDIT.parameters.settings({"documents": 12})
    data = AUDIT.read("sample")
    assert AUDIT.corpus(data, asked).drawn and not data.pairs
