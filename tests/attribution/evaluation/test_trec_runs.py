"""Runs in TREC's format: ordering, measures, and invalid lines."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from random import Random

import ir_measures
import pytest

from poslens.attribution.datasets import formats
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.datasets.streams import File
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation import trec_runs
from poslens.attribution.evaluation.ranking_measures import MEASURES, MRR, measure
from poslens.attribution.evaluation.trec_runs import TrecRun, placed, read_run

DOCUMENTS = [f"d{n}" for n in range(30)]


def collection(n_queries: int = 3, skips_own_id: bool = False) -> Collection:
    queries = tuple(
        Query(f"q{n}", f"what {n}", "", None, {f"d{n}": 1, f"d{n + 7}": 2}, {}, None, None)
        for n in range(n_queries)
    )
    documents = [Document(name, f"text of {name}") for name in DOCUMENTS]
    return Collection("c", "c", queries, lambda: iter(documents), skips_own_id=skips_own_id)


def run_of(text: str | bytes, name: str = "mine") -> TrecRun:
    return read_run(name, File("mine.run", text if isinstance(text, bytes) else text.encode()))


def line(query: str, document: str, score: object) -> str:
    return f"{query} Q0 {document} 1 {score} tag\n"


def test_results_are_ordered_as_by_trec_eval() -> None:
    """Compared with the program itself, with many tied scores."""
    draw = Random(7)
    asked = collection(8)
    given = [
        (f"q{n}", document, draw.choice((0.5, 0.25, 1.0)))
        for n in range(8)
        for document in draw.sample(DOCUMENTS, 25)
    ]
    found = placed(run_of("".join(line(*one) for one in given)), asked)
    actual = measure(found.rankings, asked.queries)
    qrels = [
        ir_measures.Qrel(query.query_id, key, grade)
        for query in asked.queries
        for key, grade in query.relevant.items()
    ]
    scored = [ir_measures.ScoredDoc(*one) for one in given]
    for name, wanted in MEASURES.items():
        if name == MRR:  # computed by another program, which breaks ties differently
            continue
        expected = {
            one.query_id: one.value
            for one in ir_measures.iter_calc([ir_measures.parse_measure(wanted)], qrels, scored)
        }
        values = dict(zip((q.query_id for q in asked.queries), actual[name], strict=True))
        assert values == pytest.approx(expected), name


def test_only_the_best_hundred_results_of_a_query_are_kept() -> None:
    order = list(range(3000))
    Random(1).shuffle(order)
    run = run_of("".join(line("q0", f"d{n:04}", n) for n in order))
    documents = [Document(f"d{n:04}", "text") for n in range(3000)]
    for own in (None, "d2999", "d2950", "d2900", "d2899"):
        name = own or "q0"
        asked = Query(name, "what", "", None, {"d2000": 1}, {}, None, None)
        ranked = replace(run, results={name: run.results["q0"]})
        found = placed(
            ranked,
            Collection("c", "c", (asked,), lambda: iter(documents), skips_own_id=own is not None),
        )
        best = [f"d{n:04}" for n in range(2999, 2898, -1) if f"d{n:04}" != own]
        assert list(found.rankings[0].document_ids) == best[:100] and found.n_lost == 0


def test_duplicate_documents_count_once_and_unknown_ones_are_dropped() -> None:
    text = line("q0", "d1", 3) + line("q0", "d1", 2) + line("q0", "nowhere", 9)
    text += line("strange", "d1", 1) + line("q1", "d2", "1e-3")
    found = placed(run_of(text), collection())
    assert [(one.query_id, one.document_ids) for one in found.rankings] == [
        ("q0", ("d1",)),
        ("q1", ("d2",)),
        ("q2", ()),
    ]
    assert (found.n_lost, found.n_strange) == (1, 1)


def test_runs_skip_the_document_with_the_querys_own_id() -> None:
    queries = (Query("d1", "what", "", None, {"d2": 1}, {}, None, None),)
    asked = collection(skips_own_id=True)
    asked = Collection("c", "c", queries, asked.stream, skips_own_id=True)
    (ranking,) = placed(run_of(line("d1", "d1", 2) + line("d1", "d2", 1)), asked).rankings
    assert ranking.document_ids == ("d2",)


def test_a_repeated_document_keeps_its_best_score_and_is_counted() -> None:
    lines = (line("q0", "d1", 2), line("q0", "d1", 5), line("q0", "d2", 3), line("q1", "d1", 1))
    run = run_of("".join(lines))
    assert run.results["q0"] == ((5.0, "d1"), (3.0, "d2")) and run.n_repeated == 1
    assert run_of(line("q0", "d1", 2)).n_repeated == 0


def test_invalid_lines_are_counted() -> None:
    text = (
        "\n".join(
            [
                "q0 Q0 d1 1 0.5 tag",
                "",
                "q0 Q0 d2 1 0.5",
                "q0 Q0 d3 1 nan tag",
                "q0 Q0 d4 1 much tag",
                "q0 Q0 d4 1 -1e39 tag",
                f"{'q' * 501} Q0 d5 1 1 tag",
                "q0\tQ0\td6\t2\t0.25\ttag",
            ]
        ).encode()
        + b"\nq0 Q0 d\xff7 1 1 tag\n"
    )
    run = run_of(text)
    assert [document for _, document in run.results["q0"]] == ["d1", "d6"]
    assert [one.row for one in run.rejected] == [3, 4, 5, 6, 7, 9] and run.n_rejected == 6
    assert run.rejected[0].reason.startswith("the line has 5 fields, not query, Q0")
    assert "is not a number" in run.rejected[1].reason


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\x00\x01", b"query,document\na,b\n"])
def test_a_file_that_is_not_a_run_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(UserError, match="is not a run in TREC's format"):
        run_of(data)


def test_a_run_of_other_queries_is_refused() -> None:
    run = run_of(line("other", "d1", 1))
    assert not run.fits(collection()) and run_of(line("q1", "d1", 1)).fits(collection())
    with pytest.raises(
        UserError, match="has no query of c: its first query id is 'other', that of the data set"
    ):
        placed(run, collection())


def test_a_gzipped_run_is_read_and_registered_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.run.gz"
    path.write_bytes(gzip.compress(line("q0", "d1", 1).encode()))
    assert trec_runs.register("a", path) is trec_runs.known()["a"]
    with pytest.raises(UserError, match=r"can't be read"):
        trec_runs.register("b", tmp_path / "gone")


def test_documents_of_several_parts_are_matched_by_key(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part / "qrels").mkdir(parents=True)
        (tmp_path / part / "corpus.jsonl").write_text('{"_id": "1", "text": "Fog lifts."}\n')
        (tmp_path / part / "queries.jsonl").write_text('{"_id": "q", "text": "when"}\n')
        (tmp_path / part / "qrels" / "test.tsv").write_text("q\t1\t1\n")
    asked = formats.collection(tmp_path, "parts")
    found = placed(run_of(line("a/q", "a/1", 1) + line("b/q", "a/1", 1)), asked)
    assert [one.document_ids for one in found.rankings] == [("a/1",), ("a/1",)]
