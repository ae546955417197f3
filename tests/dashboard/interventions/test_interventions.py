"""Causes of pairs and data sets through Compute, their figures and tables, and the command."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import ablation_method
from poslens.attribution.interventions.agreement import Agreement
from poslens.attribution.interventions.null_controls import null_method
from poslens.attribution.interventions.relocation import Relocation, relocated, relocation_method
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.maintenance import listing
from poslens.compute.compute import Compute, service
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.names import data_name
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.agreement import AGREEMENT, AgreementSummary
from poslens.studies.cause.figures import (
    causes_over_curve,
    minus_null_curves,
    relocation_scores,
)
from poslens.studies.cause.study import CAUSE
from poslens.studies.curves import null_controls
from poslens.study_plan import so_far
from tests.support.nouns import NOUNS
from tests.support.pages import open_page

MOVE, CUT, OCCLUSION = relocation_method(), ablation_method("mask"), make_method("occlusion")
STYLE = Style()
SIDES = ("primacy", "recency")


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    return Compute(tmp_path_factory.mktemp("causes"))


@pytest.fixture(scope="module")
def bm25(sample: DataSet):
    return with_corpus(resolve("BM25"), sample.name)


def test_a_data_set_is_computed_stored_and_averaged(
    compute: Compute, bm25, sample: DataSet
) -> None:
    pairs = [p for p in sample.pairs if p.language == "pol"]
    with pytest.raises(UserError, match="compute the curves"):
        interventions.data_set_cause(compute, bm25, MOVE, pairs, "sample")
    for what in (MOVE, CUT):
        run = interventions.job(compute, bm25, what, pairs, "test").start()
        run.wait()
        assert not run.error and run.progress.done == len(pairs)
        assert interventions.job(compute, bm25, what, pairs, "test").run is run
    found = interventions.data_set_cause(compute, bm25, MOVE, pairs, "sample", "Polish")
    # BM25 ignores positions of words.
    assert np.abs(found.summary.curve.mean).max() == 0
    assert (
        found.last_minus_first is not None
        and found.last_minus_first.value == 0
        and found.lost is None
    )
    assert found.summary.curve.n == len(pairs) and found.provenance().selection == "Polish"
    cut = interventions.data_set_cause(compute, bm25, CUT, pairs, "sample")
    assert cut.summary.curve.mean.max() > 0
    compute.attribution_job(bm25, OCCLUSION, pairs, "test").start().wait()
    agreed = interventions.agreement_of(compute, bm25, OCCLUSION, CUT, pairs)
    assert agreed.n == len(pairs) and agreed.each is not None and agreed.each.value > 0.8
    blind = interventions.agreement_of(compute, bm25, OCCLUSION, MOVE, pairs)
    assert blind.each is None and blind.means is None


def test_notes_say_how_many_results_they_are_true_of(
    compute: Compute, bm25, sample: DataSet
) -> None:
    by_note: dict[str, list[TextPair]] = {}
    for pair in (pair for pair in sample.pairs if pair.language == "eng"):
        by_note.setdefault(relocated(pair, 11)[1], []).append(pair)
    note = next(filter(None, by_note))
    pairs = [*by_note[note], *by_note[""][:3]]
    interventions.job(compute, bm25, MOVE, pairs, "test").start().wait()
    average = interventions.data_set_cause(compute, bm25, MOVE, pairs, "sample")
    assert average.notes == (f"{note} ({len(by_note[note])} of {len(pairs)})",)


def test_pairs_of_one_document_do_not_narrow_the_intervals() -> None:
    """Repeating each document's pair adds no information."""
    lot, ids = np.random.default_rng(3), range(12)
    places = np.array([0.05, 0.3, 0.6, 0.95])
    found = [
        Relocation(
            "m",
            f"p{one}",
            places,
            lot.normal(size=4),
            np.array([1.0, 1.0, 1.0, 0.2]),
            0.0,
            0.5,
            0.8,
            "",
            0.0,
        )
        for one in ids
    ]

    def average(n: int):
        return interventions._average(found * n, [*ids] * n, "m", "d", MOVE, 0)

    for once, twice in zip(average(1)[1:], average(2)[1:], strict=True):
        assert (once.n, twice.n, twice.n_resampled) == (12, 24, 12)
        assert once.interval is not None and twice.interval == pytest.approx(once.interval)


def test_unchanged_results_are_not_averaged_again(
    bm25, sample: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, made = Compute(tmp_path), []
    for name in ("_average", "agreement"):
        original = getattr(interventions, name)
        monkeypatch.setattr(
            interventions,
            name,
            lambda *given, of=original, name=name: made.append(name) or of(*given),
        )
    pairs = [p for p in sample.pairs if p.language == "pol"][:6]
    compute.attribution_job(bm25, OCCLUSION, pairs, "test").start().wait()

    def asked() -> tuple[list[float], str, str]:
        mean = interventions.data_set_cause(compute, bm25, CUT, pairs, "sample")
        agreed = interventions.agreement_of(compute, bm25, OCCLUSION, CUT, pairs)
        return mean.summary.curve.mean.tolist(), str(mean.last_minus_first), str(agreed)

    for n in (4, 6):  # two more results change the mean
        interventions.job(compute, bm25, CUT, pairs[:n], f"first {n}").start().wait()
        made.clear()
        first = asked()
        assert made == ["_average", "agreement"]
        assert asked() == first and made == ["_average", "agreement"]
        with monkeypatch.context() as patch:
            patch.setattr(interventions, "_answers", LRUCache(8))
            assert asked() == first, "as made anew"
        made.clear()
    kept = interventions.causes(compute.root, CUT)
    key = compute.identify(bm25).key
    found = kept.get(key, CUT, pairs[0])
    kept.put(key, CUT, [(pairs[1], found)])
    assert asked()[0] != first[0] and made == ["_average", "agreement"]


def test_controls_are_stored_as_separate_pairs(compute: Compute, bm25, sample: DataSet) -> None:
    pairs = [p for p in sample.pairs if p.language == "slk"]
    nulls = null_controls.controls("unrelated", pairs, sample.pairs)
    assert len(nulls) == len(pairs)
    compute.attribution_job(bm25, OCCLUSION, pairs, "a").start().wait()
    with pytest.raises(UserError, match="a control curve"):
        null_controls.controlled(compute, bm25, OCCLUSION, "unrelated", pairs, sample.pairs)
    compute.attribution_job(bm25, OCCLUSION, nulls, "b").start().wait()
    found = null_controls.controlled(compute, bm25, OCCLUSION, "unrelated", pairs, sample.pairs)
    own = compute.curve(bm25, OCCLUSION, pairs, "sample").summary.curve.mean
    null = compute.curve(bm25, OCCLUSION, nulls, "sample").summary.curve.mean
    np.testing.assert_allclose(found.mean, own - null, atol=1e-5)
    assert compute.attribution_job(bm25, OCCLUSION, pairs, "a").n_done() == len(pairs), (
        "controls replace nothing"
    )
    assert found.n_documents == len({pair.document for pair in pairs}) < 10
    (line,) = minus_null_curves([("<b>BM25", found)], OCCLUSION, STYLE).data
    assert str(line.name) == "&lt;b&gt;BM25"
    banded = replace(found, ci_low=found.mean - 1, ci_high=found.mean + 1)
    assert len(minus_null_curves([("BM25", banded)], OCCLUSION, STYLE).data) == 2


def test_the_profile_is_subtracted_from_saliency_and_agrees_with_the_other_control(
    compute: Compute, sample: DataSet
) -> None:
    spec, method = resolve("MiniLM"), make_method("saliency")
    # Short pairs: the profile needs up to 32 backward passes over each text.
    pairs = sorted(sample.pairs, key=lambda pair: pair.document_tokens or 999)[:3]
    for kind in ("unrelated", "profile"):
        nulls = null_controls.controls(kind, pairs, sample.pairs)
        compute.attribution_job(spec, null_method(kind, method), nulls, kind).start().wait()
    assert null_controls.query_controls_agree(compute, spec, method, pairs, sample.pairs)
    compute.attribution_job(spec, method, pairs, "own").start().wait()
    found = null_controls.controlled(compute, spec, method, "profile", pairs, sample.pairs)
    own = compute.curve(spec, method, pairs, "sample").summary.curve.mean
    profile = null_method("profile", method)
    null = compute.curve(spec, profile, pairs, "sample").summary.curve.mean
    np.testing.assert_allclose(found.mean, own - null, atol=1e-5)
    decomposition = make_method("decomposition")
    args = compute, spec, decomposition, pairs, sample.pairs
    assert null_controls.query_controls_agree(*args) is None


def test_a_pair_is_computed_and_drawn(compute: Compute, bm25, sample: DataSet) -> None:
    pair = sample.pairs[0]
    moved = interventions.ask(compute, pair, bm25, MOVE).result()
    again = interventions.ask(compute, pair, bm25, MOVE).result()
    assert again.scores.tolist() == moved.scores.tolist()
    cut = interventions.ask(compute, pair, bm25, CUT).result()
    documents = interventions.other_documents(pair, sample.pairs)
    assert len(documents) == 55 and pair.document not in documents
    others = interventions.ask_others(compute, pair, bm25, documents).result()
    same = interventions.ask_others(compute, pair, bm25, documents).result()
    assert same.tolist() == others.tolist()
    fewer = interventions.ask_others(compute, pair, bm25, documents[:3]).result()
    assert fewer.tolist() == others[:3].tolist()
    files = [one for one in listing(compute.store) if one.method.name == "others"]
    assert len(files) == 1, "one file, whatever the documents"
    frame = intervention_tables.relocation_frame({"BM25": moved}, {"BM25": others})
    assert len(frame) == len(moved.scores)
    assert frame["rank"].tolist() == [1 + int((others > s).sum()) for s in moved.scores]
    assert len(intervention_tables.ablation_frame({"BM25": cut})) == len(cut.spans)
    figure = relocation_scores({"BM25": moved}, 2, STYLE)
    np.testing.assert_allclose(figure.data[0].x, 100 * moved.positions)
    _, marked, unchanged = figure.data
    evidence = pair.evidence
    middle = (evidence.start + evidence.end) / 2 / len(pair.document)
    assert (unchanged.x[0], unchanged.y[0]) == (pytest.approx(100 * middle), moved.original)
    assert marked.y[0] == moved.scores[2]
    over = causes_over_curve(np.linspace(0, 3, 100), "Saliency", moved, cut, STYLE, (0.1, 0.2))
    assert [trace.type for trace in over.data] == ["scatter", "bar", "scatter"]
    assert max(over.data[0].y) == 1 and over.data[0].customdata[-1] == 3


def test_curve_parts_and_positions_share_an_axis_if_tokens_differ_in_length(
    compute: Compute, bm25
) -> None:
    """Twenty words of one letter, then twenty of nine: half of the tokens are only a sixth of the
    text."""
    ends = [chr(ord("a") + n) for n in range(20)]
    document = " ".join([*ends, *(9 * letter for letter in ends)])
    pair = TextPair("p", "kkkkkkkkk", document, evidence=EvidenceSpan(138, 148))
    cut = interventions.ask(compute, pair, bm25, CUT).result()
    curve = np.where(np.arange(100) < 80, 1.0, np.nan)
    read = replace(cut, read_share=0.8)
    figure = causes_over_curve(curve, "Saliency", None, read, STYLE)
    line, bars = figure.data
    assert len(line.x) == 80 and max(line.x) == 79.5, "nothing behind what was read"
    # Each bar is at the characters of its part.
    middles = [(start + end) / 2 / len(document) for start, end in cut.spans]
    np.testing.assert_allclose(bars.x, 80 * np.array(middles), rtol=1e-5)
    by_tokens = (cut.edges[1:] + cut.edges[:-1]) / 2
    assert np.abs(by_tokens - middles).max() > 0.2, "by tokens they would stand elsewhere"


def rows_of(*arguments: str) -> tuple[list[dict[str, object]], str]:
    """The rows that a command prints, and its stderr."""
    run = CliRunner().invoke(app, list(arguments))
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)["rows"], run.stderr


def test_the_commands_print_pairs_and_agreement(sample: DataSet) -> None:
    asked = ["--model", "BM25", "--pairs", "2"]
    ablation = [*asked, "--intervention", "ablation", "--by", "mask"]
    (row,), stderr = rows_of("cause", *ablation)
    assert row["n"] == 2 and row["documents"] <= 2 and row["intervention"] == "ablation"
    assert row["last_minus_first_low"] is None, "too few documents for an interval"
    assert "left out" not in stderr, "parts can be taken out of any text"
    (agreed,), _ = rows_of("agreement", *ablation, "--method", "terms")
    assert (agreed["method"], agreed["intervention"], agreed["n"]) == ("terms", "ablation", 2)
    (provenance,) = poslens.agreement("BM25", methods=["terms"], pairs=2).provenance
    assert provenance.entry()["truncated"] == 0
    rows, stderr = rows_of("cause", *asked)
    assert [row["intervention"] for row in rows] == ["relocation", "ablation"]
    assert rows[0]["last_minus_first"] == 0 and rows[0]["lost"] is None, "BM25 cannot see order"
    assert "8 of 304 pairs with evidence cannot be used: PosLens" in stderr
    table = CliRunner().invoke(app, ["cause", *asked, "--table", "curve", "--format", "csv"])
    assert table.exit_code == 0 and "Provenance: poslens" in table.stderr
    assert len(pd.read_csv(io.StringIO(table.stdout))) == 200
    wrong = CliRunner().invoke(app, ["cause", "--intervention", "teleport"])
    assert wrong.exit_code == 2 and "choose from relocation, ablation" in wrong.stderr


@pytest.mark.usefixtures("own_service")
def test_failed_pairs_of_an_agreement_are_named_and_retried(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(
        "pair_id,query,document,evidence\n"
        "a,the play,The play has three acts. It was printed in 1901.,The play has three acts.\n"
        "b,?!,The hill is high. A road leads up.,The hill is high.\n"
    )
    asked = ["agreement", "--model", "BM25", "--method", "terms", "--dataset", str(path)]
    (moved, removed), _ = rows_of(*asked)
    assert moved["n"] == removed["n"] == 1
    settings = AGREEMENT.parameters.settings({"methods": ["terms"]})
    corpus = AGREEMENT.corpus(datasets.read(data_name(str(path))), settings)
    spec = with_corpus(resolve("BM25"), data_name(str(path)))
    (subject,) = AGREEMENT.subjects(service(), spec, corpus, settings)
    job = AGREEMENT.job(service(), subject)
    assert sorted(job.failures()) == ["b (ablation)", "b (relocation)", "b (terms)"]
    computed = []
    for retry in (False, True):
        run = job.start(retry_failed=retry)
        run.wait()
        ended = [part.run for part in job.parts if part.run is not None]
        computed.append(sum(part.progress.computed for part in ended if part.retry_failed))
    assert computed == [0, 3], "once more each, on request only"


def test_the_verdict_on_incomplete_curves_counts_what_is_missing(
    bm25, sample: DataSet, tmp_path: Path
) -> None:
    compute = Compute(tmp_path)
    settings = AGREEMENT.parameters.settings({"methods": ["terms"], "pairs": 4})
    corpus = AGREEMENT.corpus(sample, settings)
    (subject,) = AGREEMENT.subjects(compute, bm25, corpus, settings)

    def verdict(n: int) -> str:
        few = replace(subject, corpus=replace(corpus, pairs=Pairs(corpus.pairs[:n])))
        AGREEMENT.job(compute, few).start().wait()
        results = so_far(AGREEMENT, compute, [subject], [AGREEMENT.job(compute, subject)])
        (sentence,) = results.verdicts
        return sentence

    assert verdict(1) == (
        "BM25, Term shares: rank correlation of mean curves with relocation undefined (1 of "
        "4 pairs with both curves, 2 needed), ablation undefined (1 of 4 pairs with both curves, 2 "
        "needed). Not final: compute the remaining 9 results."
    )
    assert "relocation undefined (a mean curve is constant), ablation " in verdict(4)
    assert "Not final" not in verdict(4)


@pytest.mark.usefixtures("own_service")
def test_the_verdict_names_the_direction_of_the_loss_past_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the shipped results of the sample, and on an effect in the other direction."""
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    (summary,) = poslens.cause("MiniLM", interventions="relocation").summaries
    assert " Where the evidence is truncated, the score is lower by 0.0394 [" in CAUSE.verdict(
        summary
    )
    gained = replace(summary, cause=replace(summary.cause, lost=summary.cause.lost.times(-1)))
    assert "is truncated, the score is higher by 0.0394 [" in CAUSE.verdict(gained)


@pytest.mark.usefixtures("own_service")
def test_a_part_near_the_beginning_is_more_like_the_whole_for_a_primacy_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the shipped results of the sample."""
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    found = poslens.segments(["MiniLM-primacy", "MiniLM-recency"])
    rows = found.to_frame().set_index(["model", "parts"])
    ordered, shuffled = (f"segments in {order} order" for order in ("original", "random"))
    assert list(rows.index.unique("parts")) == [ordered, shuffled]
    shuffled = rows["last_minus_first_verdict"].xs(shuffled, level="parts")
    assert shuffled.to_dict() == {"MiniLM-primacy": "lower", "MiniLM-recency": "higher"}
    (curves,) = {len(found.to_frame("curve")) // 100}
    assert curves == 4 and len(found.to_frame("differences")) == 2, "one for each order"


@pytest.mark.usefixtures("own_service")
@pytest.mark.parametrize("study", [poslens.edits, poslens.segments])
def test_values_by_item_name_the_document_by_its_id(study: Any, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    texts = [f"People like {noun}. Nobody saw it. The tide turns." for noun in NOUNS[:3]]
    for ids in (("a", "b", "c"), ("x", "y", "z")):
        documents = [{"_id": i, "text": text} for i, text in zip(ids, texts, strict=True)]
        path.write_text("".join(json.dumps(each) + "\n" for each in documents))
        found = study("MiniLM", str(path), documents=0)
        assert tuple(found.to_frame("items")["item"].unique()) == ids


@pytest.mark.usefixtures("own_service")
def test_edits_at_the_side_that_a_model_favors_change_the_vector_more(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "query": "tide",
                    "document": f"In house {n} people like {noun} and the sea. The tide turns "
                    f"twice a day in summer. Nobody there ever saw more {noun} than ice.",
                }
            )
            + "\n"
            for n, noun in enumerate(NOUNS[:12])
        )
    )
    found = poslens.edits([f"MiniLM-{side}" for side in SIDES], str(path), documents=0)
    primacy, recency = found.summaries
    assert primacy.n == 12 and primacy.test.verdict == "higher"
    assert recency.test.verdict == "lower"
    assert "insertion at the beginning changes the vector more" in found.verdicts[0]
    rows = found.to_frame().query("model == 'MiniLM-primacy'").set_index(["position", "share"])
    gap = rows["cosine"].xs("end") - rows["cosine"].xs("beginning")
    assert primacy.test.difference.value == pytest.approx(gap.mean(), abs=1e-6)
    names = {line.name for line in found.figure().data}
    assert {f"MiniLM-{side}, {end}" for side in SIDES for end in ("beginning", "end")} <= names


@pytest.mark.usefixtures("own_service")
def test_documents_shortened_before_an_insertion_do_not_count_as_truncated(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    sentence = "The tide turns twice a day. "  # 8 tokens; MiniLM reads 512
    documents = [{"_id": str(n), "text": sentence * n} for n in (2, 50, 100)]
    path.write_text("".join(json.dumps(each) + "\n" for each in documents))
    found = poslens.edits("MiniLM", str(path), documents=0)
    assert found.to_frame()["shortened"].unique().tolist() == [2]
    (provenance,) = found.provenance
    assert (provenance.n_documents, provenance.truncated) == (3, 1)


@pytest.mark.usefixtures("own_service")
def test_models_are_compared_on_the_same_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the shipped results of the sample: both adapters, whose planted biases differ."""
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    names = ["MiniLM-primacy", "MiniLM-recency"]
    page = open_page("cause", tab="Data set", models=names)
    page.run()
    assert not page.exception and not page.error
    sentences = [one.value.replace("\\", "") for one in page.markdown]
    measure, unit = "relocation difference", "(standard deviations)"
    start = f"MiniLM-recency compared with MiniLM-primacy {unit}: {measure} over 29 pairs is "
    assert any(sentence.startswith(start) for sentence in sentences)
    (table,) = [one.value for one in page.dataframe if "difference" in one.value.columns]
    measures = {f"{measure} {unit}", f"ablation difference {unit}"}
    assert set(table["measure"]) == measures and table["n"].iloc[0] == 29


def test_runs_over_different_pairs_have_different_keys(sample: DataSet) -> None:
    """Ablation fits pairs that relocation doesn't, so the same number selects other pairs."""
    compute, spec = service(), resolve("BM25")
    keys = set()
    for names in (("ablation",), ("relocation", "ablation")):
        settings = AGREEMENT.parameters.settings(
            {"interventions": names, "methods": ["terms"], "pairs": 7}
        )
        corpus = AGREEMENT.corpus(sample, settings)
        (subject,) = AGREEMENT.subjects(compute, spec, corpus, settings)
        job = AGREEMENT.job(compute, subject)
        keys |= {job.key, next(part.key for part in job.parts if "ablation" in part.key[2])}
    assert len(keys) == 4


def test_the_provenance_of_agreement_counts_the_pairs_of_each_intervention() -> None:
    few, many = (Agreement("BM25", n, n - 1, 0, 0, None, None) for n in (3, 5))
    corpus = SimpleNamespace(dataset="sample", selection="6 pairs")
    asked: Any = SimpleNamespace(method=OCCLUSION, corpus=corpus)
    model = service().identify(resolve("BM25"))
    each = AGREEMENT.provenance(AgreementSummary(model, asked, {MOVE: few, CUT: many}))
    assert (each.n_pairs, each.n_documents) == (5, 4)
    assert each.selection == "6 pairs, pairs: relocation 3, ablation 5"
    alike = AGREEMENT.provenance(AgreementSummary(model, asked, {MOVE: many, CUT: many}))
    assert (alike.n_pairs, alike.selection) == (5, "6 pairs")
