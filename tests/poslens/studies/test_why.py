"""Why: misses explained once, ranks equal to a search, tables, the Python call, invalid input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.proportions import mean_share
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.why import Wanted, why
from poslens.attribution.evaluation.why_causes import CAUSES, Above, Step, Why, why_method
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import EvidenceSpan, Side
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds.study_items import EXPLANATIONS, WhyItem
from poslens.cache.storage.codec import pack_fields, unpack_fields
from poslens.cache.storage.schema import Owner
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.names import data_name
from poslens.studies.why import search as why_search
from poslens.studies.why import study as why_study
from poslens.studies.why.figures import ladder_chart
from poslens.studies.why.search import QueryRanking, known_ranking, ranking, search_job
from poslens.studies.why.study import WHY
from poslens.studies.why.summary import UNSPECIFIC, WhyCorpus, WhySummary, remedy, sentence
from poslens.study import Asked
from tests.attribution.datasets.test_beir import CORPUS, QRELS, QUERIES, write
from tests.support import tiny_families

MINILM = resolve("MiniLM")
GULLS = "Gulls rest on the old pier today. "
ROWS = [
    # 4 words of 32 are evidence: `short` with 7 words ranks higher, but the evidence alone ranks
    # first.
    ("long", "heron", GULLS * 2 + "The heron nests here. " + GULLS * 2, "The heron nests here."),
    ("short", "pier walk", "heron pier walk now then and again", None),
    # Contains no word of the query.
    ("blind", "egret", "A white bird stands there. Nobody saw it.", None),
    # `copy` is a shorter near-duplicate.
    ("twin", "stork", "A stork builds its large nest upon that roof. It returns in spring.", None),
    ("copy", "large roof", "A stork builds its large nest upon that roof.", None),
]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "mine.jsonl"
    names = ("pair_id", "query", "document", "evidence")
    rows = [{k: v for k, v in zip(names, row, strict=True) if v} for row in ROWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["why", *arguments], catch_exceptions=False)


def test_misses_of_a_data_set_and_their_causes(
    corpus: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = ("--model", "BM25", "--dataset", corpus, "--top", "1")
    result = run(*asked)
    found = json.loads(result.stdout)
    causes = {row["document"]: row["cause"] for row in found["rows"]}
    assert causes == {"long": "dilution", "blind": "no match", "twin": "competitor"}
    rows = {row["document"]: row for row in found["rows"]}
    assert rows["blind"]["rank"] is None and rows["blind"]["shared_words"] == 0
    long = rows["long"]
    # BM25 ignores position: rank 2 wherever the evidence is. Alone, it is shorter than `short`.
    assert (long["rank"], long["moved"], long["alone"], long["all_read"]) == (2, 2, 1, None)
    assert long["evidence"] == "data set" and long["evidence_read"] == 1
    assert (rows["twin"]["without_competitors"], rows["twin"]["duplicates_above"]) == (1, 1)
    assert rows["twin"]["evidence"] == "proposed"
    assert "BM25 misses 3 of 5 query-document pairs" in result.stderr
    (provenance,) = found["provenance"]
    assert "why(top=1" in provenance["method"] and provenance["n_documents"] == 5
    monkeypatch.setattr(why_study, "why", lambda *_: pytest.fail("a rank was explained again"))
    table = json.loads(run(*asked, "--table", "causes").stdout)["rows"]
    assert {row["cause"]: row["misses"] for row in table} == {
        "not read": 0,
        "position": 0,
        "dilution": 1,
        "no match": 1,
        "competitor": 1,
    }
    assert all(row["all_misses"] == 3 and row["wanted"] == 5 for row in table)
    file = tmp_path / "causes.json"
    run(*asked, "--figure", str(file))
    drawn = json.loads(file.read_text())
    assert drawn["layout"]["meta"]["figure"] == "why_causes"
    assert drawn["data"][0]["text"] == ["", "", "1", "1", "1"]


def test_one_query_and_document(corpus: str, tmp_path: Path) -> None:
    asked = ("--model", "BM25", "--dataset", corpus, "--top", "1")
    file = tmp_path / "ladder.json"
    one = run(
        *asked, "--query", "heron", "--document", "long", "--table", "steps", "--figure", str(file)
    )
    steps = {row["change"]: (row["rank"], row["null"]) for row in json.loads(one.stdout)["rows"]}
    assert steps["unchanged"] == (2, None) and steps["evidence alone"] == (1, None)
    assert (
        "Rank 2 → 1 as the evidence alone (control, other sentences alone: not found)" in one.stderr
    )
    drawn = json.loads(file.read_text())
    assert drawn["layout"]["meta"]["figure"] == "why_ladder"
    assert drawn["data"][0]["text"] == ["2", "2", "1"]
    only = run(*asked, "--query", "heron", "--document", "long", "--table", "causes")
    causes = {row["cause"]: row["misses"] for row in json.loads(only.stdout)["rows"]}
    assert causes == {cause: cause == "dilution" for cause in CAUSES}
    assert "is empty" not in only.stderr
    # Impossible changes are not listed.
    labels = ["Unchanged", "Evidence<br>moved", "Evidence<br>alone"]
    assert drawn["layout"]["xaxis"]["ticktext"] == labels
    typed = run(*asked, "--query", "gulls on the pier", "--document", "long")
    assert "long is at rank 1 of 5, in the top 1." in typed.stderr
    marked = run(*asked, "--query", "spring", "--document", "copy", "--evidence", "large nest")
    assert "copy is not found." in marked.stderr and "Cause: no match." in marked.stderr


def assert_ranks(summary: WhySummary, ranked: dict[str, tuple[str, ...]]) -> None:
    for key, item in summary.items.items():
        ids, rank = ranked[item.query_id], summary.explained[key].rank
        if item.document_id in ids:
            assert rank == ids.index(item.document_id) + 1
        else:
            assert rank == NOT_FOUND


def test_ranks_equal_those_of_a_search(corpus: str, tiny_folder: Callable[..., Path]) -> None:
    for name in ("BM25", str(tiny_folder("bert"))):
        (summary,) = poslens.why(name, dataset=corpus, top=1).summaries
        ranked = poslens.rank(name, corpus).summaries[0].rankings
        assert_ranks(summary, {one.query_id: one.document_ids for one in ranked})


def test_one_of_several_queries_is_called_a_query(corpus: str) -> None:
    settings = WHY.parameters.settings({"queries": 1})
    assert WHY.corpus(WHY.read(data_name(corpus)), settings).selection == "1 query, spread evenly"


def test_a_stored_ranking_equals_that_of_a_search(corpus: str) -> None:
    data = WHY.read(data_name(corpus))
    settings = WHY.parameters.settings({"top": 3})
    asked = WHY.corpus(data, settings)
    spec, compute = with_corpus(resolve("BM25"), data.name), service()
    (misses,) = WHY.subjects(compute, spec, asked, settings)
    query = next(one for one in asked.collection.queries if one.text == "heron")
    poslens.rank("BM25", corpus)
    job = search_job(compute, spec, asked.collection, query.text)
    assert job.doing == "search", "the log must not contain typed queries"
    named = search_job(compute, spec, asked.collection, query.text, query.query_id)
    assert named.doing == f"search for {query.query_id}"
    job.start().wait()
    searched = ranking(compute, spec, asked.collection, query.text, 5, query.pairs)
    assert searched is not None and [one.rank for one in searched.documents] == [1, 2]
    assert known_ranking(compute, misses, query, 5) == searched
    # A selected document is listed too, unless it is below the stored depth.
    pier = next(one for one in asked.collection.queries if one.text == "pier walk")
    search_job(compute, spec, asked.collection, pier.text).start().wait()
    listed = ranking(compute, spec, asked.collection, pier.text, 1, pier.pairs, document="long")
    assert listed is not None and [one.document_id for one in listed.documents] == ["short", "long"]
    assert known_ranking(compute, misses, pier, 1, "long") == listed
    assert known_ranking(compute, misses, pier, 1, "blind") is None
    # The rank of a wanted document below the stored depth comes from its explanation.
    blind = next(one for one in asked.collection.queries if one.text == "egret")
    assert known_ranking(compute, misses, blind, 5) is None
    WHY.job(compute, misses).start().wait()
    assert known_ranking(compute, misses, blind, 5) == QueryRanking((), len(ROWS))


@pytest.mark.parametrize("family", ["late_interaction", "sparse"])
def test_models_without_a_stored_index_can_be_explained(
    family: str, corpus: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    make = getattr(tiny_families, family)
    folder = make(tiny_folder("bert").parent / "raw", tmp_path / "tiny")
    (summary,) = poslens.why(str(folder), dataset=corpus, top=1).summaries
    assert len(summary.explained) == len(ROWS) and not summary.failed
    ranked = poslens.rank(str(folder), corpus).summaries[0].rankings
    assert_ranks(summary, {one.query_id: one.document_ids for one in ranked})


def test_queries_that_miss_the_same_document_share_its_variants(
    corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, collection = service(), datasets.collection(data_name(corpus))
    model = compute.identify(resolve("MiniLM"))
    retriever = compute.retriever(model)
    opened = why_search.opened(compute, model.key, retriever, collection)
    searcher = why_search.Searcher(opened, retriever, RunOptions())
    start, number = ROWS[0][2].index("The heron"), opened.number_of["long"]
    read: list[str] = []
    encode = type(retriever).encode_plain

    def counted(self: Any, texts: list[str], side: Side) -> Any:
        read.extend(texts)
        return encode(self, texts, side)

    monkeypatch.setattr(type(retriever), "encode_plain", counted)

    def explain(query: str) -> Why:
        span = EvidenceSpan(start, start + len("The heron nests here."))
        wanted = Wanted(query, "long", number, ROWS[0][2], span)
        # A document without a score is missed by every query.
        searched = searcher.search(query)
        searched.scores[number] = -np.inf
        return why(wanted, searched, 1, frozenset())

    first = explain("heron")
    # The query, evidence and another sentence alone, and the evidence at four other positions.
    assert first.cause != "found" and len(read) == len(set(read)) == 7
    read.clear()
    again = explain("heron")
    assert read == [] and again == first
    explain("pier walk")
    assert read == ["pier walk"]


def test_two_models_over_the_same_documents(corpus: str) -> None:
    found = poslens.why(["BM25", "MiniLM"], dataset=corpus, top=1)
    table = found.to_frame("differences").set_index("measure")
    assert set(table["units"]) == {"query-document pairs"}
    first, second = found.summaries
    assert list(table["n"].unique()) == [5] and len(table) == 1 + len(CAUSES)
    for cause in (None, "dilution", "no match", "competitor"):
        row = table.loc[f"share missed ({cause})" if cause else "share missed"]
        misses = second.count(cause) if cause else len(second.misses)
        other = first.count(cause) if cause else len(first.misses)
        assert (row["value"], row["other_value"]) == pytest.approx((misses / 5, other / 5))
        assert row["difference"] == pytest.approx((misses - other) / 5)
    one = poslens.why(["BM25", "MiniLM"], dataset=corpus, top=1, query="heron", document="long")
    assert one.to_frame("differences").empty


def test_each_query_has_its_own_explanations(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    rows = [
        {"pair_id": f"{query}-{n}", "query": query, "document": f"A {query} and {n} others."}
        for query in ("heron", "stork")
        for n in (2, 3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for query in ("heron", "stork"):
        (summary,) = poslens.why("BM25", dataset=path, query=query, top=1).summaries
        assert [item.query for item in summary.items.values()] == [query] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--query", "nope"], "has no query 'nope'"),
        (["--query", "heron", "--document", "nope"], "has no document 'nope'"),
        (["--document", "nope"], "has the relevant document 'nope': check its id, or name a query"),
        (["--evidence", "x"], "name the document, too"),
        (
            ["--query", "x", "--document", "long", "--evidence", "z"],
            "copy it character for character",
        ),
        (["--top", "0"], "must be a whole number from 1"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(
    corpus: str, arguments: list[str], words: str
) -> None:
    result = run("--model", "BM25", "--dataset", corpus, *arguments)
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.stderr


def test_a_query_without_judgments_is_named_by_its_id(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", queries=[*QUERIES, {"_id": "q3", "text": "who asks for it"}])
    asked = ("--model", "BM25", "--dataset", str(folder), "--query", "q3")
    assert "has no judgments for 'q3'" in run(*asked).stderr
    named = run(*asked, "--document", "d3")
    assert "used as text" not in named.stderr and "d3 is at rank 1 of 3" in named.stderr


def test_a_top_that_includes_the_whole_corpus_is_reported(tmp_path: Path) -> None:
    """No document can be missed, whatever the model does."""
    asked = ("--model", "BM25", "--dataset", str(write(tmp_path / "set")))
    note = "the top 3 includes all 3 documents: choose a smaller top k."
    assert f": {note}" in run(*asked, "--top", "3").stderr
    one_query = run(*asked, "--top", "3", "--query", "q1", "--document", "d1").stderr
    assert f"BM25: d1 is at rank 1 of 3: {note}" in one_query
    assert "choose a smaller top" not in run(*asked, "--top", "2").stderr


def test_a_word_that_is_not_an_id_is_reported_as_text(corpus: str) -> None:
    """It may be a mistyped id."""
    asked = ("--model", "BM25", "--dataset", corpus, "--document", "long")
    note = "has no query with the id hheron: it is used as text."
    assert note in run(*asked, "--query", "hheron").stderr
    assert "used as text" not in run(*asked, "--query", "where is the heron").stderr


def test_an_empty_corpus_is_refused_in_one_sentence(corpus: str) -> None:
    collection = replace(datasets.collection(data_name(corpus)), stream=lambda: iter(()))
    settings = WHY.parameters.settings()
    nothing = Asked(resolve("BM25"), WhyCorpus(collection, (), ""), settings)
    with pytest.raises(UserError, match=r"^BM25: there is no document to explain\.$"):
        WHY.summarize(service(), nothing)


def test_judged_documents_missing_from_the_corpus_are_reported_in_one_sentence(
    corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = WHY.read(data_name(corpus))
    whole = datasets.collection(data.name)
    lost = tuple(replace(query, pairs={}) for query in whole.queries)
    monkeypatch.setattr(why_study, "searched", lambda _: replace(whole, queries=lost))
    with pytest.raises(UserError, match="lacks all documents that are judged relevant"):
        WHY.corpus(data, WHY.parameters.settings())
    some = (lost[0], *whole.queries[1:])
    monkeypatch.setattr(why_study, "searched", lambda _: replace(whole, queries=some))
    drawn = WHY.corpus(data, WHY.parameters.settings({"queries": 1}))
    assert len(drawn.items) == 1 and drawn.selection == "1 query, spread evenly"


def test_judged_documents_outside_the_corpus_are_counted_in_a_note(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", qrels=QRELS + "q1\tgone\t1\n")
    asked = ("--model", "BM25", "--dataset", str(folder))
    note = "Not counted as missed: 1 judged document outside the corpus"
    assert note in run(*asked).stderr
    assert note not in run(*asked, "--query", "q1", "--document", "d1").stderr


def test_a_document_with_its_querys_id_is_not_counted_as_missed(tmp_path: Path) -> None:
    own = {"_id": "q2", "title": "", "text": "Nobody asks for it."}
    qrels = QRELS + "q2\tq2\t1\n"
    folder = write(tmp_path / "set", corpus=[*CORPUS, own], qrels=qrels)
    asked = ("--model", "BM25", "--dataset", str(folder), "--top", "1")
    done = run(*asked, "--table", "misses", "--format", "json")
    assert "missed: 1 judged document with the same id as the query, exclu" in done.stderr
    assert "q2" not in {row["document"] for row in json.loads(done.stdout)["rows"]}
    alone = run(*asked, "--query", "q2", "--document", "q2")
    assert alone.exit_code == 2 and "they have their query's id: add them" in alone.stderr


def test_a_reranker_has_no_ranking_to_explain(
    corpus: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_families.cross_encoder(tiny_folder("bert").parent / "raw", tmp_path)
    with pytest.raises(UserError, match="only reranks documents"):
        poslens.why(str(folder), dataset=corpus)


def test_stored_explanations_are_read_back_unchanged() -> None:
    one = Why(
        "d",
        10,
        20,
        12,
        0.5,
        "marked",
        0,
        5,
        0.5,
        1.0,
        None,
        Step(3, 11),
        Step(1),
        None,
        0.1,
        9,
        3,
        ("a", "b"),
        (Above("e", 1, True, False, 4),),
        1,
        2,
        3,
    )
    packed = unpack_fields(pack_fields(EXPLANATIONS.pack(one)))
    assert packed is not None
    assert EXPLANATIONS.unpack(packed, Owner(ModelKey("m", "0" * 16), why_method(10), "d")) == one


@pytest.mark.parametrize(
    ("moved", "alone", "words"),
    [
        (Step(12), None, "by itself (none improves its rank);"),
        (Step(11), None, "by itself (best: rank 11 with the evidence moved to 20% of the"),
        (
            Step(10, 10, 0.9, 0.71),
            Step(11),
            "No other change brings it into the top 10 by itself (best: rank 11 as the evidence "
            "alone); its evidence shares 0 of 0 query words. Position is ruled out, although "
            "moving the evidence brings it to rank 10 (another sentence moved: 10). Cause: no "
            "match",
        ),
        (
            Step(3, 10, 0.9, 0.71),
            Step(1, 12),
            "12 → 1 as the evidence alone (control, other sentences alone: 12). Position is ruled "
            "out, although moving the evidence brings it to rank 3 (another sentence moved: 10). "
            "Cause: dilution.",
        ),
    ],
)
def test_the_verdict_states_the_effect_of_moving_the_evidence(
    moved: Step, alone: Step | None, words: str
) -> None:
    about = Why(
        "d", 10, 20, 12, 0.5, "marked", 0, 5, 0.5, 1.0, None, moved, alone, best_position=0.2
    )
    assert words in sentence(about, MINILM) and "proposed" not in sentence(about, MINILM)
    proposed = sentence(replace(about, source="proposed"), MINILM)
    assert proposed.startswith(sentence(about, MINILM)) and proposed.endswith(
        " The evidence was proposed by PosLens, because it scores highest on its own."
    )
    assert "proposed" not in sentence(replace(about, source="proposed", rank=3), MINILM)


@pytest.mark.parametrize(
    ("name", "chunked", "debiased"),
    [
        ("MiniLM", True, True),
        ("MiniLM@calibrated", True, False),
        ("BM25", True, False),
        ("splade-tiny", False, False),
        ("colbertv2.0", False, False),
    ],
)
def test_only_studies_that_accept_the_model_are_suggested(
    name: str, chunked: bool, debiased: bool
) -> None:
    spec = resolve(name)
    for cause in ("not read", "dilution"):
        assert remedy(cause, spec).endswith(", so compare chunk sizes first.") == chunked  # type: ignore[arg-type]
    assert remedy("position", spec) == (
        f"Smaller chunks{' or a debiased model' * debiased} may bring it up."
    )


def test_the_labels_of_a_step_are_on_the_far_sides_of_the_markers() -> None:
    def labeled(*models: tuple[int, int]) -> list[tuple[str, str]]:
        """The sides of each model's labels, from its ranks before and after a change."""
        explained = {
            f"m{at}": Why(
                "d", 10, 90, rank, 0.5, "marked", 0, 5, 0.5, 1.0, None, Step(moved), best_position=0
            )
            for at, (rank, moved) in enumerate(models)
        }
        drawn = ladder_chart(explained, Style())
        return [trace.textposition for trace in drawn.data if trace.text]

    above, below = "top center", "bottom center"
    assert labeled((47, 6)) == [(above, above)]
    assert labeled((47, 6), (48, 4)) == [(above, below), (below, above)]
    assert labeled((47, 6), (48, 6)) == [(above, above), (below, below)]
    assert labeled((12, 6), (11, 5), (13, 7))[0] == ("middle right", "middle right")


def test_a_control_that_suffices_is_reported() -> None:
    alone, too = Step(1, 11), Step(1, 10)
    explained = {
        f"d{number}": Why(
            f"d{number}", 10, 20, 12, 0.5, "marked", 0, 5, 0.5, 1.0, None, Step(12), step
        )
        for number, step in enumerate((alone, too, too))
    }
    assert "no evidence" not in sentence(explained["d0"], MINILM)
    assert "The control brings it into the top k, too, so" in sentence(explained["d1"], MINILM)
    items = [
        WhyItem("mine", "", f"query of {name}", name, "corpus", None, "marked")
        for name in explained
    ]
    corpus = WhyCorpus(datasets.collection("sample"), tuple(items), "")
    asked = Asked(resolve("MiniLM"), corpus, WHY.parameters.settings({}))
    named = {item.name: explained[item.document_id] for item in items}
    summary = WhySummary(service().identify(resolve("MiniLM")), asked, named, {})
    assert (
        "For 2 of the 3 misses with the cause “dilution”, the control also brings the document "
        "into the top 10, so these misses are no evidence of the cause."
    ) in WHY.verdict(summary)
    (position, *_) = WHY.tables["misses"].text_frame([summary])["evidence position"]
    assert position == 50, "in percent, as in sentences"
    assert "Shares are of" in WHY.limits_of([summary])
    typed = replace(summary, asked=replace(asked, corpus=replace(corpus, typed=True)))
    assert "Shares are of" not in WHY.limits_of([typed]), "one document has no shares"
    rows = WHY.tables["causes"].frame([summary]).set_index("cause")
    assert rows.loc["dilution", "unspecific"] == 2 and rows.loc["not read", "unspecific"] == 0


def test_no_miss_among_twelve_documents_still_has_an_interval() -> None:
    """By hand: n' = 12 + 1.96^2, p' = 1.96^2 / 2 / n', p' + 1.96 sqrt(p' (1 - p') / n')."""

    def share(*rows: bool) -> Estimate:
        estimate = mean_share(rows, [f"d{n}" for n in range(len(rows))])
        assert estimate is not None
        return estimate

    assert share(*[False] * 12).interval == (0, pytest.approx(0.2820, abs=1e-4))
    assert share(*[True] * 12).interval == (pytest.approx(0.7180, abs=1e-4), 1)
    assert share(*[False] * 9).interval is None
    assert share(*[True, False] * 6).resampled == "documents"


def test_a_stopped_run_leaves_an_estimate_from_a_random_sample(tmp_path: Path) -> None:
    """The second half of the queries is missed, and a run in the data set's order would see none of
    them first."""
    words = [f"word{n}" for n in range(40)]
    path = tmp_path / "halves.jsonl"
    rows = [
        {"pair_id": word, "query": word if n < 20 else f"other{n}", "document": f"{word} here"}
        for n, word in enumerate(words)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = datasets.read(data_name(str(path)))
    compute, settings = service(), WHY.parameters.settings({"top": 1})
    corpus = WHY.corpus(data, settings)
    (subject,) = WHY.subjects(compute, resolve("BM25"), corpus, settings)
    job = WHY.job(compute, subject)

    def run_until(n: int) -> None:
        run = job.start(lambda progress: job.n_done() >= n and job.stop())
        assert run.wait(60) and job.n_done() == n

    run_until(9)
    assert WHY.so_far(compute, subject) is None
    run_until(20)
    assert WHY.summarize(compute, subject) is None
    summary = WHY.so_far(compute, subject)
    assert summary is not None and len(summary.explained) == 20
    assert WHY.provenance(summary).n_queries == 20
    assert 5 <= len(summary.misses) <= 15


def test_the_control_of_position_rules_it_out_or_counts_as_evidence() -> None:
    """Both controls reach the top 10: that of the move gains 0.19 of 0.4 in score, too little to
    rule position out; that of isolating the evidence shows nothing about dilution."""
    unchanged = Why("d", 10, 20, 12, 0.5, "marked", 0, 5, 0.5, 1.0)
    moved = replace(unchanged, moved=Step(3, 10, 0.9, 0.69))
    diluted = replace(unchanged, moved=Step(11, 12), alone=Step(1, 10, 0.9, 0.8))
    spec = resolve("BM25")
    assert moved.cause == "position" and UNSPECIFIC not in sentence(moved, spec)
    assert diluted.cause == "dilution" and UNSPECIFIC in sentence(diluted, spec)
