"""Position effect on rank: an independent brute-force ranking, a planted bias, what is computed
once, and invalid input."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.position_effect import (
    MARGIN,
    PositionRanks,
    position_ranks_method,
    query_positions,
)
from poslens.attribution.interventions.relocation import (
    Relocation,
    relocated,
    relocation_method,
)
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.kinds import interventions
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.results import StudyResult
from poslens.studies.cause.study import CAUSE
from poslens.studies.positions import run as positions_run
from poslens.studies.positions.study import PART, POSITIONS
from poslens.studies.positions.summary import ndcg_by_position

WORDS = (
    "tide",
    "moon",
    "fog",
    "stone",
    "river",
    "cloud",
    "seed",
    "wind",
    "salt",
    "ash",
    "ice",
    "oak",
)
LINES = ("It rained on {}.", "Nobody saw {} there.", "We wrote about {} twice.", "{} is old.")


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


def sentences_of(word: str) -> list[str]:
    return [line.format(word) for line in LINES]


def document_of(word: str) -> str:
    return " ".join(sentences_of(word))


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    rows = [
        {
            "pair_id": f"{word}{at}",
            "query": f"what of {word} {at}",
            "document": document_of(word),
            "evidence": sentences_of(word)[at],
            "language": "eng" if at else "pol",
        }
        for word in WORDS
        for at in (0, 2)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["positions", *arguments], catch_exceptions=False)


def by_hand(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Pair, position and rank, computed with only sentence-transformers and lists."""
    model = SentenceTransformer(str(folder), device="cpu")

    def vector(text: str) -> np.ndarray:
        made = model.encode([text])[0].astype(np.float64)
        return made / np.linalg.norm(made)

    others = {word: vector(document_of(word)) for word in WORDS}
    for word in WORDS:
        for at in (0, 2):
            rest = [line for n, line in enumerate(sentences_of(word)) if n != at]
            asked = vector(f"what of {word} {at}")
            for place in range(len(rest) + 1):
                moved = [*rest[:place], sentences_of(word)[at], *rest[place:]]
                score = vector(" ".join(moved)) @ asked
                higher = [v @ asked > score for w, v in others.items() if w != word]
                yield f"{word}{at}", place, 1 + sum(higher)


def test_ranks_equal_those_of_a_brute_force_ranking(
    corpus: str, tiny_folder: Callable[..., Path]
) -> None:
    folder = tiny_folder("bert")
    ranks: dict[str, list[int]] = {}
    for pair, _, rank in by_hand(folder):
        ranks.setdefault(pair, []).append(rank)
    # Otherwise there is nothing to distinguish.
    assert len({tuple(one) for one in ranks.values()}) > 5
    found = poslens.positions(str(folder), corpus, positions=4)
    queries = found.to_frame("queries").set_index("id")
    for pair, own in ranks.items():
        row = queries.loc[pair]
        assert [row["rank_first"], row["rank_middle"], row["rank_last"]] == [own[0], own[1], own[3]]
        assert (row["best"], row["worst"]) == (min(own), max(own))
    table = np.array(list(ranks.values()))
    gains = np.where(table <= 10, 1 / np.log2(1 + table), 0)
    positions = found.to_frame("positions")
    assert positions["position"].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert positions["ndcg_at_10"].tolist() == pytest.approx(gains.mean(0).tolist())
    assert positions["mrr"].tolist() == pytest.approx((1 / table).mean(0).tolist())
    assert positions["rank"].tolist() == pytest.approx(table.mean(0).tolist())
    (effect,) = found.to_frame("effect").to_dict("records")
    assert effect["first_minus_last"] == pytest.approx(float((gains[:, 0] - gains[:, 3]).mean()))
    assert effect["controlled_psi"] == pytest.approx(1 - gains.mean(0).min() / gains.mean(0).max())
    assert (effect["queries"], effect["documents"]) == (24, 12)
    groups = found.to_frame("groups").set_index(["by", "group"])
    assert groups.loc[("read whole", ""), "queries"] == 24
    polish = [own for pair, own in ranks.items() if pair.endswith("0")]
    first = [1 / np.log2(1 + own[0]) if own[0] <= 10 else 0 for own in polish]
    assert groups.loc[("language", "pol"), "first"] == pytest.approx(float(np.mean(first)))


class Alike:
    """A model for which all texts are alike, up to rounding."""

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.full((len(texts), 3), 1 / 3) + np.array([[1e-9 * len(text)] for text in texts])


def test_a_model_that_scores_all_documents_alike_ranks_none_of_them_first(corpus: str) -> None:
    """Twelve documents share one score, so each relocated one ranks below the eleven others."""
    positions = poslens.positions(Alike(), corpus).to_frame("positions")
    assert set(positions["rank"]) == {12} and set(positions["ndcg_at_10"]) == {0}
    effect = poslens.cause(Alike(), corpus)
    assert all(
        "not tested, because the unchanged documents all have" in each for each in effect.verdicts
    )
    assert effect.to_frame()["in_deviations"].isna().all()


def test_a_ranking_says_for_how_many_queries_the_order_of_the_corpus_decides(corpus: str) -> None:
    class Constant:
        def encode(self, texts: list[str]) -> np.ndarray:
            return np.ones((len(texts), 2))

    ranking = poslens.rank(Constant(), corpus)
    n = len(ranking.to_frame("queries"))
    remark = f"for {n} of {n} queries, a relevant document has the same score as a less relevant"
    assert any(remark in sentence for sentence in ranking.remarks)
    assert ranking.remarks[0].startswith(f"{n} queries and 12 documents of "), "what was searched"
    shown = ranking._repr_html_()
    assert remark in shown and remark in repr(ranking)
    assert html.escape(ranking.verdicts[0]) in shown and "weights: " in shown


def texts_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that dense models encode from now on."""
    read: list[int] = []
    embed = DenseRetriever.embed

    def counted(self: DenseRetriever, *given: Any) -> Any:
        vectors = embed(self, *given)
        read.append(len(vectors))
        return vectors

    monkeypatch.setattr(DenseRetriever, "embed", counted)
    return read


def test_each_text_is_embedded_once(
    corpus: str, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four sentences, with the first or the third at four positions each, have seven orders; the
    original one is also the text of the corpus."""
    folder = str(tiny_folder("bert"))
    poslens.explain(folder, "what of it", "It is old.")  # loading checks the model
    read = texts_read(monkeypatch)
    assert run("--model", folder, "--dataset", corpus, "--positions", "4").exit_code == 0
    assert sum(read) == len(WORDS) * (7 + 2)


def test_results_of_cause_are_reused(
    corpus: str, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tiny_folder("bert"))
    told = CliRunner().invoke(
        app, ["cause", "--model", folder, "--dataset", corpus], catch_exceptions=False
    )
    assert told.exit_code == 0
    monkeypatch.setattr(interventions, "relocation", lambda *_, **__: pytest.fail("moved again"))
    read = texts_read(monkeypatch)
    first = json.loads(run("--model", folder, "--dataset", corpus).stdout)
    assert not read, "the corpus consists of the pairs' documents"
    monkeypatch.setattr(positions_run, "_scores", lambda *_: pytest.fail("ranked again"))
    assert json.loads(run("--model", folder, "--dataset", corpus).stdout) == first


def test_the_estimate_counts_failed_items_on_a_retry(corpus: str, tmp_path: Path) -> None:
    data = datasets.read_upload("mine.jsonl", Path(corpus).read_bytes())
    settings, compute = POSITIONS.parameters.settings({"positions": 3}), Compute(tmp_path)
    (subject,) = POSITIONS.subjects(
        compute, resolve("BM25"), POSITIONS.corpus(data, settings), settings
    )
    model, item = compute.identify(subject.spec).key, subject.corpus.items[0]
    moved, ranks = relocation_method(3), position_ranks_method(3)
    interventions.causes(compute.root, moved).put_failures(model, moved, [(item.pair, "No space.")])
    interventions.position_ranks(compute.root).put_failures(model, ranks, [(item, "No space.")])
    for retry_failed, n in ((False, len(WORDS) * 2 - 1), (True, len(WORDS) * 2)):
        estimate = POSITIONS.estimate(compute, subject, retry_failed=retry_failed)
        assert estimate.startswith(f"up to {4 * n} texts with moved sentences")


def test_bm25_has_no_position_effect(corpus: str) -> None:
    found = run("--model", "BM25", "--dataset", corpus, "--null", "--positions", "4")
    assert "BM25 ignores word order, so position cannot matter." in found.stderr
    (row,) = json.loads(found.stdout)["rows"]
    assert row["first_minus_last"] == row["null_first_minus_last"] == row["controlled_psi"] == 0
    assert row["verdict"] == "equivalent" and row["documents_needed"] is None
    (provenance,) = json.loads(found.stdout)["provenance"]
    assert provenance["control"] == "another sentence moved"
    assert provenance["method"] == "position_ranks(positions=4, version=1, ties=last)"


def test_models_are_compared_on_the_same_queries(
    corpus: str, tiny_folder: Callable[..., Path]
) -> None:
    folders = [str(tiny_folder("bert")), str(tiny_folder("bert-cls"))]
    found = poslens.positions(folders, corpus, positions=4)
    assert len(found.verdicts) == 3 and "bert-cls compared with bert" in found.verdicts[2]
    effects = found.to_frame("effect")["first_minus_last"].tolist()
    (row,) = found.to_frame("differences").to_dict("records")
    assert row["difference"] == pytest.approx(effects[1] - effects[0])
    assert (row["n"], row["units"], row["documents"]) == (24, "queries", 12)
    single = poslens.positions(folders[0], corpus, positions=4).to_frame("effect")
    p = found.to_frame("effect")["p_holm"].tolist()
    assert p[0] >= single["p_holm"].tolist()[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--positions", "1"), "Positions must be a whole number from 2 to 101, not '1'."),
        (("--pairs", "-1"), "must be a whole number from 0 to"),
    ],
)
def test_invalid_values_are_refused_in_one_sentence(options: tuple[str, ...], words: str) -> None:
    found = run("--model", "BM25", *options)
    assert found.exit_code == 2 and words in found.stderr
    assert "\n" not in found.stderr.strip()


def test_data_without_evidence_and_cross_encoders_are_refused(
    tmp_path: Path, corpus: str, tiny_folder: Callable[..., Path]
) -> None:
    (tmp_path / "plain.csv").write_text("query,document\na,One b. Two c.\n")
    found = run("--model", "BM25", "--dataset", str(tmp_path / "plain.csv"))
    assert found.exit_code == 2 and "choose a data set with evidence spans" in found.stderr
    with pytest.raises(UserError, match="There is no parameter 'null'"):
        poslens.rank("BM25", corpus, null=True)


def _shipped(tmp_path: Path, **changed: Any) -> list[Any]:
    """The shipped results of the planted models."""
    compute, data = Compute(tmp_path), datasets.read("sample")
    settings = POSITIONS.parameters.settings(changed)
    corpus = POSITIONS.corpus(data, settings)
    summaries: list[Any] = []
    for name in ("MiniLM-primacy", "MiniLM-recency"):
        (asked,) = POSITIONS.subjects(compute, resolve(name), corpus, settings)
        summaries.append(POSITIONS.summarize(compute, asked))
    return summaries


def test_a_planted_bias_moves_ranks_in_its_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    summaries = _shipped(tmp_path)
    primacy, recency = (summary.effect.effect for summary in summaries)
    assert primacy.difference.value == pytest.approx(0.070, abs=2e-3)
    assert recency.difference.value == pytest.approx(-0.060, abs=2e-3)
    assert "rank higher with the evidence first" in POSITIONS.verdict(summaries[0])
    together = [each.effect.effect for each in POSITIONS.together(summaries)]
    assert [each.verdict for each in together] == ["higher", "lower"]
    assert all((each.p_holm or 1) < 0.01 for each in together)


def test_p_of_one_query_per_document_is_the_paired_t_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By scipy, from the queries' own gains, of which only some differ."""
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    for summary in _shipped(tmp_path, pairs=30):
        gains = np.array([query.gains for query in summary.queries])
        expected = stats.ttest_rel(gains[:, 0], gains[:, -1]).pvalue
        assert summary.effect.effect.p == pytest.approx(expected)
        assert 0 < np.count_nonzero(gains[:, 0] - gains[:, -1]) < 15


def test_the_sentence_claims_a_change_only_if_the_verdict_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    summary = _shipped(tmp_path)[0]
    moves, is_ = "nDCG@10 drops by 0.", "nDCG@10 with the evidence first minus last is "
    assert moves in POSITIONS.verdict(summary) and is_ not in POSITIONS.verdict(summary)

    def verdict(effect: Comparison) -> str:
        changed = replace(summary, effect=replace(summary.effect, effect=effect))
        assert changed.effect.effect.verdict == effect.verdict
        return POSITIONS.verdict(changed)

    unknown = Comparison(Estimate(0.0, -0.128, 0.128), MARGIN, (-0.1, 0.1), 1.0, 1.0, rare=70)
    text = verdict(unknown)
    assert f"{is_}+0.000 [-0.128, +0.128] (" in text and "change" not in text
    assert "Too few documents to decide; about 70 documents would be needed." in text
    same = replace(unknown, difference=Estimate(0.004, 0.001, 0.007), narrow=(0.002, 0.006))
    text = verdict(same)
    assert f"{is_}+0.004 [+0.001, +0.007] (" in text and "drops" not in text
    assert "The first and the last position are equivalent" in text


def test_bands_end_at_the_limits_of_ndcg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    figure = ndcg_by_position(_shipped(tmp_path, pairs=30), Style())
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert len(bands) >= 2 and max(max(trace.y) for trace in bands) == 1.0
    assert all(0 <= value <= 1 for trace in bands for value in trace.y)
    low, high = figure.layout.yaxis.range
    lowest = min(min(trace.y) for trace in figure.data)
    assert high == 1.03 and low <= lowest < low + 0.1, "Plotly's own is 0 to 2 if all values are 1"
    first, *_, last = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert first.marker.size > last.marker.size, "equal values would hide the first model"


def test_the_figures_provenance_says_what_its_bands_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are within queries, unlike the intervals of the table."""
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    summaries = _shipped(tmp_path, pairs=30)
    n = summaries[0].effect.n_documents
    entry, *_ = POSITIONS.draw(summaries, Style()).layout.meta["provenance"]
    assert entry["band"].startswith("interval within queries")
    assert entry["band"].endswith(f"95%, bootstrap over {n} documents") and "interval" not in entry
    (table, *_) = POSITIONS.provenances(summaries, "positions")
    assert table.interval == f"95%, bootstrap over {n} documents" and not table.band


def test_the_note_in_latex_says_that_the_interval_of_psi_is_one_sided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    result = StudyResult(POSITIONS, _shipped(tmp_path, pairs=30))
    note = result.save(tmp_path / "effect.tex").read_text()
    assert r"controlled PSI: 95\%, one-sided from 0, bootstrap over" in note


def test_one_pair_is_told_why_it_is_not_tested(corpus: str) -> None:
    verdicts = poslens.cause("BM25", corpus, interventions=["relocation"], pairs=1).verdicts
    assert "not tested with a single pair" in verdicts[0]
    constant = poslens.cause(Alike(), corpus, interventions=["ablation"], by="filler").verdicts[0]
    assert "changes the score as much as removing a part of the first third" in constant


def test_causes_are_stated_in_plain_sentences() -> None:
    same = Comparison(Estimate(0.0, -0.01, 0.01, n=30), 0.05, (-0.01, 0.01), 1.0, 1.0)
    cause = SimpleNamespace(
        last_minus_first=Estimate(0.0002, -0.0001, 0.0005, n=30), lost=Estimate(0.0414, 0.03, 0.05)
    )

    def verdict(method: str) -> str:
        asked = SimpleNamespace(method=SimpleNamespace(name=method))
        return CAUSE.verdict(SimpleNamespace(name="m", cause=cause, test=same, asked=asked))  # type: ignore[arg-type]

    ablation, relocation = verdict("ablation"), verdict("relocation")
    assert "part of the first or of the last third lowers the score about equally" in ablation
    assert "(last minus first: +0.0002 [-0.0001, +0.0005]; " in ablation
    assert " Where the evidence is truncated, the score is lower by 0.0414 [" in relocation


def test_positions_past_the_limit_are_dropped_from_those_over_the_whole_document() -> None:
    """Of 61 sentences, a model reads six, but only the first of 11 positions lies in them."""
    lines = [f"Line {n:02d} is here." for n in range(61)]
    text = " ".join(lines)
    pair = TextPair("p", "which line?", text, evidence=EvidenceSpan(0, len(lines[0])))
    variants, _ = relocated(pair)
    starts = [variant.evidence.start // (len(lines[0]) + 1) for variant in variants]
    assert starts == list(range(0, 61, 6))
    share = 6 / 61
    read = np.array([float(start < 6) for start in starts])
    at = np.array([variant.position for variant in variants])
    moved = Relocation("m", "p", at, np.zeros(11), read, 0.0, float(at[0]), share, "", 0.0)
    assert query_positions(pair, moved, PositionRanks("p", np.arange(1, 12)), 11) is None
    # So texts don't claim that the last position is the latest at which the model reads it all.
    for words in (POSITIONS.reads, PART.limits):
        assert "positions, spread evenly over its document" in words
        assert "the last position is the latest of these at which it reads all" in words


def test_pages_show_length_buckets_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    table, summaries = POSITIONS.tables["groups"], _shipped(tmp_path, pairs=30)
    words = set(table.text_frame(summaries)["group"])
    assert words >= {"≤ 512 tokens", "513–1,024 tokens", "eng"} and "Q1" not in words
    assert set(table.frame(summaries)["group"]) >= {"Q1", "Q2", "eng"}
