"""Position passport: its parts compared with their services; its files, page and command."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import yaml
from typer.testing import CliRunner

from poslens import results
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import SCORE_MARGIN, judged
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.interventions.relocation import Relocation, relocation_method
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import register_folder, resolve
from poslens.attribution.types import Side
from poslens.cache.kinds.interventions import causes
from poslens.compute.compute import Compute, service
from poslens.compute.runs import Job
from poslens.dashboard.__main__ import app
from poslens.export.browser import Page, in_page
from poslens.export.latex import latex
from poslens.figures.palettes import Style
from poslens.studies.cause.segments import SEGMENTS
from poslens.studies.cause.study import CAUSE
from poslens.studies.check.baseline import read_baseline
from poslens.studies.check.measures import MEASURES
from poslens.studies.curves.words import index_sentence
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import document_bytes, printed_html
from poslens.studies.passport.service import ModelPassport
from poslens.studies.ranking import service as rankings
from poslens.study_part import Part, PartAnswer, PartQuestion, Scope
from poslens.study_plan import stored
from tests.support import tiny_families
from tests.support.chromium import chromium
from tests.support.nouns import NOUNS
from tests.support.pages import open_page

ROWS = "query,document,evidence\n" + "".join(
    f"what is {word},{'Filler stands here. ' * (8 * (n % 3))}The {word} is {word}. {'More. ' * 20},"
    f"The {word} is {word}.\n"
    for n, word in enumerate(NOUNS)
)


def part(one: ModelPassport, key: str) -> Part:
    return next(found for found in one.parts if found.key == key)


def value(one: ModelPassport, key: str, number: str) -> float:
    return next(n.estimate.value for n in part(one, key).numbers if n.key == number)


@pytest.fixture(scope="module")
def sample() -> datasets.DataSet:
    return datasets.read("sample")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """A cache with the shipped results as its fallback, so that nothing has to be computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_SHIPPED", "yes")
        return Compute(tmp_path_factory.mktemp("passport"))


@pytest.fixture(scope="module")
def primacy(shipped: Compute, sample: datasets.DataSet) -> ModelPassport:
    return passports.passport(shipped, resolve("MiniLM-primacy"), sample)


def test_numbers_equal_those_of_their_services(
    primacy: ModelPassport, shipped: Compute, sample: datasets.DataSet
) -> None:
    compute, spec = shipped, resolve("MiniLM-primacy")
    stored = compute.store.curves(
        compute.identify(spec).key, make_method("saliency"), list(sample.pairs)
    )
    index = primacy_recency_index(stored.magnitudes.astype(np.float64).mean(0)[None])[0]
    assert value(primacy, "attribution", "saliency_primacy_recency_index") == pytest.approx(index)
    ranked = rankings.ranked(compute, spec, rankings.RankingSetup(rankings.collection_of(sample)))
    assert ranked is not None and ranked.evaluation.profile is not None
    assert value(primacy, "ranking", "ndcg_at_10") == pytest.approx(
        ranked.evaluation.per_query[NDCG].mean()
    )
    shown = next(n.estimate for n in part(primacy, "ranking").numbers if n.key == "ndcg_at_10")
    assert shown == ranked.evaluation.estimates[NDCG]
    assert (shown.n, shown.n_resampled, shown.resampled) == (304, 68, "documents")
    assert value(primacy, "ranking", "psi") == pytest.approx(ranked.evaluation.profile.psi)
    measured = ranked.evaluation.profile
    assert value(primacy, "ranking", "psi_minus_permutation") == pytest.approx(
        measured.psi - measured.psi_under_permutation
    )
    assert value(primacy, "audit", "tokens_read") == spec.max_length
    assert {key: one["score"] for key, one in primacy.scores.items()} == pytest.approx(
        dict(zip(stored.pair_ids, stored.scores.tolist(), strict=True))
    )
    # The planted bias: attribution is at the beginning, and moving the evidence there raises the
    # score.
    assert "leans toward the beginning" in part(primacy, "attribution").finding
    assert part(primacy, "relocation").finding.startswith(
        "MiniLM-primacy: the score drops by 0.0498 ["
    )
    assert value(primacy, "relocation", "last_minus_first") < 0


def test_each_part_is_read_once_and_is_ready_before_the_next(
    shipped: Compute, sample: datasets.DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def counted(question: PartQuestion) -> PartQuestion:
        def read(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
            order.append(question.key)
            return question.read(scope)

        return replace(question, read=read)

    questions = {key: counted(question) for key, question in passports.QUESTIONS.items()}
    monkeypatch.setattr(passports, "QUESTIONS", questions)
    card = passports.passport(shipped, resolve("MiniLM"), sample)
    assert order == []
    first = next(iter(card.parts))
    assert order == [first.key]
    assert tuple(card.parts)[:1] == card.parts[:1] == (first,) and order == list(questions)


def test_every_number_is_within_its_interval(primacy: ModelPassport) -> None:
    numbers = [number for one in primacy.parts for number in one.numbers]
    assert any(number.key == "distance" for number in numbers)
    for number in numbers:
        if (ends := number.estimate.interval) is not None:
            assert ends[0] <= number.estimate.value <= ends[1], number.key


def test_a_card_uses_its_own_documents_whatever_else_is_stored(
    shipped: Compute, sample: datasets.DataSet
) -> None:
    """MiniLM's shipped profile covers all 68 documents."""
    card = passports.passport(shipped, resolve("MiniLM"), sample, only=["null_control"])
    agreed = {one.key: one.estimate for one in card.parts[0].numbers}["controls_agree"]
    assert agreed.n == 30 and agreed.interval is None


def test_profile_and_segments_use_the_same_documents(
    primacy: ModelPassport,
) -> None:
    scope = primacy.scope
    assert [pair.document for pair in scope.of_each] == [pair.document for pair in scope.documents]
    assert all(pair.query for pair in scope.of_each)
    profile = part(primacy, "attribution").provenance[1]
    segments = part(primacy, "segments").provenance[0]
    assert (
        profile.selection == segments.selection == "30 documents, spread evenly over the data set"
    )
    assert profile.truncated == segments.truncated
    moved = part(primacy, "relocation").provenance[0]
    assert moved.selection == "30 pairs that have evidence, spread evenly over the data set"


def test_the_attribution_part_computes_no_profile(tmp_path: Path, sample: datasets.DataSet) -> None:
    """`check` reads only saliency; the profile belongs to the null control."""
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(f'{{"text": "Snow number {n} melts."}}\n' for n in range(12)))
    datasets.register("texts", file)

    def wanted(data: datasets.DataSet, key: str) -> set[str]:
        card = passports.passport(Compute(tmp_path), resolve("MiniLM"), data, only=[key])
        return {job.doing for job in card.parts[0].jobs}

    saliency, profile = METHODS["saliency"].title, METHODS["profile"].title
    assert wanted(sample, "attribution") == {saliency}
    control = f"{saliency}, unrelated query"
    assert wanted(sample, "null_control") == {saliency, control, profile}
    assert wanted(datasets.read("texts"), "attribution") == {profile}


@pytest.mark.parametrize("name", ["MiniLM", "MiniLM-primacy"])
def test_the_null_controls_finding_agrees_with_its_interval(
    name: str, shipped: Compute, sample: datasets.DataSet
) -> None:
    """A small difference whose interval excludes 0 must not be called no dependence."""
    (one,) = passports.passport(shipped, resolve(name), sample, only=["null_control"]).parts
    index = {n.key: n.estimate for n in one.numbers}["index_minus_control"]
    assert index.interval is not None
    low, high = index.interval
    assert low < 0.05 and high < 0.06
    assert ("nearer the end than" in one.finding) == (low > 0)
    equivalent = "Equivalent to the control: the 90% interval is within the margin of 0.05"
    assert (equivalent in one.finding) == (low <= 0 and high <= 0.05)
    assert index.text("+.3f") in one.finding and "does not depend" not in one.finding


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ((0.02, 0.04), "Attribution leans toward the end of the tokens read."),
        ((-0.01, 0.04), "Equivalent to 0 within the margin of 0.05."),
        ((-0.04, 0.1), "Too few documents to decide"),
        ((None, None), "Too few documents to decide"),
    ],
)
def test_findings_claim_no_more_than_their_intervals_allow(
    interval: tuple[float | None, float | None], message: str
) -> None:
    index = Estimate(0.03, *interval, n=20)
    sentence = index_sentence("Saliency", index)
    assert message in sentence and "+0.030" in sentence


@pytest.mark.parametrize(
    ("differences", "by_interval", "verdict"),
    [
        # Large compared with a cosine, small compared with these scores, of which 1 is a third of
        # a standard deviation.
        ([0.02, -0.02] * 6, "too few documents", "equivalent"),
        # No difference is negative, so the bootstrap interval is above 0, but p = 0.067.
        ([0.0] * 8 + [1.0, 2.0, 3.0, 1.0], "higher", "too few documents"),
    ],
)
def test_the_verdict_on_relocation_is_that_of_the_study(
    differences: list[float], by_interval: str, verdict: str, tmp_path: Path
) -> None:
    """Planted differences on which p and margin of the study decide otherwise than an interval of
    raw scores."""
    data = datasets.read_upload("mine.csv", ROWS.encode())
    compute, spec, method = Compute(tmp_path), resolve("BM25"), relocation_method()
    planted = [
        Relocation(
            spec.name,
            pair.pair_id,
            np.array([0.1, 0.9], np.float32),
            np.array([score, score + difference], np.float32),
            np.ones(2, np.float32),
            original=score,
            evidence=0.5,
            read_share=1.0,
            note="",
            seconds=0.0,
        )
        for score, (pair, difference) in enumerate(zip(data.pairs, differences, strict=True))
    ]
    key = compute.identify(spec).key
    causes(compute.root, method).put(key, method, list(zip(data.pairs, planted, strict=True)))
    settings = CAUSE.parameters.settings({"interventions": ("relocation",)})
    subjects = CAUSE.subjects(compute, spec, CAUSE.corpus(data, settings), settings)
    (summary,) = stored(CAUSE, compute, subjects)
    assert judged(summary.cause.last_minus_first, SCORE_MARGIN) == by_interval
    assert summary.test is not None and summary.test.verdict == verdict
    (one,) = passports.passport(compute, spec, data, only=["relocation"]).parts
    assert one.finding == CAUSE.verdict(summary)
    assert ("score higher with the evidence" in one.finding) == (verdict == "higher")
    moved = one.numbers[0]
    assert moved.estimate.value == pytest.approx(np.mean(differences), abs=1e-6)
    assert moved.measure is not None and [row[0] for row in moved.measure.rows.values()] == (
        pytest.approx(differences, abs=1e-6)
    )


def test_the_verdicts_on_segments_are_those_of_the_study(
    primacy: ModelPassport, shipped: Compute, sample: datasets.DataSet
) -> None:
    settings = SEGMENTS.parameters.settings({})
    corpus = SEGMENTS.corpus(sample, settings)
    subjects = SEGMENTS.subjects(shipped, resolve("MiniLM-primacy"), corpus, settings)
    verdicts = [SEGMENTS.verdict(summary) for summary in stored(SEGMENTS, shipped, subjects)]
    assert part(primacy, "segments").finding == " ".join(verdicts)
    assert verdicts[1].endswith(
        "(p < 0.001, Holm-adjusted over 2 tests). Content near the beginning of a text weighs more "
        "in its vector."
    )


def test_the_curve_of_a_signed_method_has_a_caveat(
    shipped: Compute, sample: datasets.DataSet
) -> None:
    signed = {name: entry.caveat for name, entry in METHODS.items() if entry.signed}
    assert all("content of a text alone can tilt this curve" in one for one in signed.values())
    assert not any(entry.caveat for name, entry in METHODS.items() if name not in signed)
    for name, caveat in (("BM25", signed["terms"]), ("MiniLM", "")):
        spec = with_corpus(resolve(name), "sample")
        card = passports.passport(shipped, spec, sample, only=["attribution"])
        if card.parts[0].numbers:
            assert card.parts[0].limits.endswith(caveat or "the evidence's position on the score.")


def test_every_part_states_its_sample_and_its_limits(
    primacy: ModelPassport,
) -> None:
    assert {one.key for one in primacy.parts} >= {"attribution", "relocation", "ranking"}
    for one in primacy.parts:
        assert one.limits.endswith(".")
        assert bool(one.numbers) != bool(one.absent)
        if one.numbers:
            assert one.finding and one.provenance
            assert all(number.estimate.n for number in one.numbers)
            entries = [each.entry() for each in one.provenance]
            assert all(e["model"] == "MiniLM-primacy" and e["weights"] for e in entries)


def test_parts_unavailable_for_a_model_have_one_sentence(
    shipped: Compute, sample: datasets.DataSet
) -> None:
    found = passports.passport(shipped, with_corpus(resolve("BM25"), "sample"), sample)
    assert "no single dense vector" in part(found, "segments").absent
    assert (
        "is not a dense model, so its attention can't be calibrated"
        in part(found, "calibration").absent
    )
    assert not part(found, "segments").jobs and part(found, "ranking").numbers
    lean = next(
        n for n in part(found, "relocation").numbers if n.key == "last_minus_first"
    ).estimate
    assert lean.value == 0, "word statistics cannot see order"


def test_a_reranker_has_no_ranking_for_one_reason(
    sample: datasets.DataSet, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_families.cross_encoder(tiny_folder("bert").parent / "raw", tmp_path / "cross")
    spec = register_folder("cross", folder)
    found = part(passports.passport(Compute(tmp_path), spec, sample, only=["ranking"]), "ranking")
    assert not found.jobs and found.absent == (
        "cross only reranks documents that another model retrieves, so its rankings depend on that "
        "model, too: Ranking measures them with a first stage."
    )


def test_a_run_computes_everything_missing_once(tmp_path: Path) -> None:
    data = datasets.read_upload("mine.csv", ROWS.encode())
    compute, spec = Compute(tmp_path), resolve("BM25")
    before = passports.passport(compute, spec, data)
    assert [one.key for one in before.missing] == [
        "attribution",
        "null_control",
        "relocation",
        "position_effect",
        "ranking",
        "misses",
        "needles",
        "audit",
    ]
    run = passports.job(compute, before).start()
    run.wait()
    assert run.error == ""
    after = passports.passport(compute, spec, data)
    assert not after.missing
    assert [n.estimate.n for n in part(after, "ranking").numbers] == [12, 12, 12, 12]
    runs = {one.key: one.jobs[0].run for one in after.parts if one.jobs}
    again = passports.job(compute, after).start()
    again.wait()
    assert again.error == ""
    assert all(one.jobs[0].run is runs[one.key] for one in after.parts if one.jobs)


def test_parts_share_encoded_texts(
    tmp_path: Path, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, spec = Compute(tmp_path), register_folder("tiny", tiny_folder("bert"))
    compute.retriever(compute.identify(spec))  # loading checks the model
    encoded: Counter[tuple[str, str]] = Counter()
    encode = DenseRetriever.encode_plain

    def counted(self: DenseRetriever, texts: Sequence[str], side: Side) -> Encoded:
        encoded.update((side, text) for text in texts)
        return encode(self, texts, side)

    monkeypatch.setattr(DenseRetriever, "encode_plain", counted)
    data = datasets.read_upload("mine.csv", ROWS.encode())
    only = ["relocation", "position_effect", "segments", "ranking", "misses"]
    run = passports.job(compute, passports.passport(compute, spec, data, only=only)).start()
    run.wait()
    assert run.error == ""
    card = passports.passport(compute, spec, data, only=only)
    assert all(each.numbers for each in card.parts)
    assert len(encoded) > 12 * 5 and [each for each, n in encoded.items() if n > 1] == []


def test_a_corpus_of_at_most_ten_documents_is_audited_with_top_1(tmp_path: Path) -> None:
    """The context limit doesn't depend on the corpus, so checking it needs no eleventh document."""
    texts = [{"text": f"{noun} is old. {noun} is rare."} for noun in NOUNS[:4]]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, texts)))
    data = datasets.formats.read(tmp_path / "docs.jsonl", "docs")
    compute, spec = Compute(tmp_path), resolve("MiniLM")
    run = passports.job(compute, passports.passport(compute, spec, data, only=["audit"])).start()
    run.wait()
    audit = part(passports.passport(compute, spec, data, only=["audit"]), "audit")
    assert "8 sentences of 4 documents" in audit.finding and "top 1;" in audit.finding
    numbers = {number.key: number for number in audit.numbers}
    measure = numbers["unretrieved"].measure
    assert numbers["longest_text_read"].estimate.n and measure and len(measure.rows) == 4


def test_documents_without_queries_have_the_parts_that_need_none(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "Ice melts."}\n{"text": "Stone stays."}\n')
    data = datasets.formats.read(tmp_path / "docs.jsonl", "docs")
    found = passports.passport(Compute(tmp_path), resolve("MiniLM"), data)
    assert [one.key for one in found.missing] == ["attribution", "segments", "needles", "audit"]
    assert [len(part(found, key).jobs) for key in ("attribution", "null_control")] == [1, 0]
    assert "no queries" in part(found, "null_control").absent


def test_segments_of_single_sentences_are_reported_as_such(tmp_path: Path) -> None:
    rows = [f"what is {noun},{noun} is old." for noun in NOUNS[:2]]
    (tmp_path / "short.csv").write_text("\n".join(["query,document", *rows]))
    data = datasets.formats.read(tmp_path / "short.csv", "short")
    compute, spec = Compute(tmp_path), resolve("MiniLM")
    passports.job(
        compute, passports.passport(compute, spec, data, only=["segments"])
    ).start().wait()
    segments = part(passports.passport(compute, spec, data, only=["segments"]), "segments")
    assert "segments failed for every item. The text is one sentence" in segments.absent


def test_without_evidence_ndcg_is_measured_over_all_queries(tmp_path: Path) -> None:
    rows = [f"what is {noun},{noun} is old." for noun in NOUNS[:12]]
    (tmp_path / "plain.csv").write_text("\n".join(["query,document", *rows]))
    datasets.register("plain", tmp_path / "plain.csv")
    data = datasets.read("plain")
    compute, spec = Compute(tmp_path), with_corpus(resolve("BM25"), "plain")
    passports.job(compute, passports.passport(compute, spec, data, only=["ranking"])).start().wait()
    ranking = part(passports.passport(compute, spec, data, only=["ranking"]), "ranking")
    (number,) = ranking.numbers
    assert (number.key, number.estimate.value, len(number.measure.rows)) == ("ndcg_at_10", 1.0, 12)
    assert ranking.finding.startswith("nDCG@10 is 1.000 [") and ranking.draw is None
    assert "positions" not in ranking.limits
    assert "no position bias can be measured" in ranking.finding


def test_with_evidence_ndcg_is_measured_over_the_queries_that_have_it(tmp_path: Path) -> None:
    rows = [
        {
            "query": f"what is {noun}",
            "document": f"{noun} is old. Nobody saw it. It rained.",
            **({"evidence": f"{noun} is old."} if number >= 3 else {}),
        }
        for number, noun in enumerate(NOUNS[:12])
    ]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.register("some", tmp_path / "some.jsonl")
    data = datasets.read("some")
    compute, spec = Compute(tmp_path), with_corpus(resolve("BM25"), "some")
    passports.job(compute, passports.passport(compute, spec, data, only=["ranking"])).start().wait()
    card = passports.passport(compute, spec, data, only=["ranking"])
    ranking = part(card, "ranking")
    number = next(each for each in ranking.numbers if each.key == "ndcg_at_10")
    assert len(number.measure.rows) == number.estimate.n == 9
    assert all(each.with_evidence for each in ranking.numbers)
    assert "(queries with evidence: 9" in number.text
    (source,) = ranking.provenance
    assert (source.n_queries, source.selection) == (9, "queries with evidence")
    (tmp_path / "baseline.json").write_bytes(document_bytes([card], "json"))
    baseline = read_baseline(tmp_path / "baseline.json", "BM25")
    check = MEASURES["ranking"].make(card, baseline, 0.02)
    assert "over 9 queries with evidence, of 9 documents." in check.line
    # What n counts is a text for readers, which may change.
    renamed = replace(ranking, numbers=[replace(each, unit="queries") for each in ranking.numbers])
    again = MEASURES["ranking"].make(replace(card, parts=(renamed,)), baseline, 0.02)
    assert again.line == check.line


def test_json_contains_every_number_with_its_interval(primacy: ModelPassport) -> None:
    (read,) = json.loads(document_bytes([primacy], "json"))
    assert read["model"] == "MiniLM-primacy" and read["limits"]
    for one in primacy.parts:
        written = read["parts"][one.key]["numbers"]
        assert {k: (v["value"], v["low"], v["n"]) for k, v in written.items()} == {
            n.key: (n.estimate.value, n.estimate.low, n.estimate.n) for n in one.numbers
        }


def test_yaml_is_the_metadata_of_a_model_card(primacy: ModelPassport) -> None:
    head = yaml.safe_load(document_bytes([primacy], "yaml"))
    (listed,) = head["model-index"]
    found = {m["type"]: m["value"] for r in listed["results"] for m in r["metrics"]}
    assert found["relocation.last_minus_first"] == pytest.approx(
        value(primacy, "relocation", "last_minus_first")
    )
    assert len(found) == sum(len(one.numbers) for one in primacy.parts)


def test_latex_has_titles_and_whole_tokens(primacy: ModelPassport) -> None:
    frame = passports.table([primacy])
    assert {"saliency_primacy_recency_index", "tokens_read"} <= set(frame["measure"])
    entries = [{"model": primacy.name, "dataset": primacy.dataset, "method": "passport"}]
    text = " ".join(latex(frame, entries, "card").decode().split())
    assert r"Attribution by position & \begin{tabular}[c]{@{}l@{}}Gradient saliency" in text
    assert r"recency\_index" not in text
    assert " & 512 & " in text and "512.000" not in text, "tokens are whole numbers"


def test_html_loads_nothing_and_escapes_text(primacy: ModelPassport) -> None:
    named = replace(primacy, title="<script>alert(1)</script>")
    page = document_bytes([named, primacy], "html").decode()
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert page.count("<article ") == 2
    assert page.count("Plotly.newPlot(") == 1 + 2 * sum(p.draw is not None for p in primacy.parts)
    for one in primacy.parts:
        for number in one.numbers:
            assert number.text.split(" (")[0] in page


def test_a_part_without_anything_to_draw_has_no_figure(primacy: ModelPassport) -> None:
    def draw(style: Style) -> go.Figure:
        raise UserError("No model misses a document, so there are no causes to draw.")

    first, *others = primacy.parts
    card = replace(primacy, parts=(replace(first, draw=draw), *others))
    n_drawn = sum(one.draw is not None for one in others)
    page = document_bytes([card], "html").decode()
    assert page.count("Plotly.newPlot(") == n_drawn and first.title in page
    root = ElementTree.fromstring(document_bytes([card], "svg"))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}g/{name}svg")) == n_drawn


def test_a_notebook_draws_every_figure_and_is_small(primacy: ModelPassport) -> None:
    """The library is included once, compressed, and figures wait until it is unpacked."""
    playwright = pytest.importorskip("playwright.sync_api")
    shown = results.Passport((primacy, primacy))._repr_html_()
    assert len(shown.encode()) < 2_500_000, "it was 5.6 MB with one card"
    wrong: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium())
        page = browser.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.set_content(shown)
        figures = page.frame_locator("iframe").locator(".js-plotly-plot .main-svg:first-child")
        drawn = 1 + 2 * sum(one.draw is not None for one in primacy.parts)
        playwright.expect(figures).to_have_count(drawn, timeout=60_000)
        browser.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("about:", "data:", "blob:"))] == []


def test_pictures_contain_the_provenance(primacy: ModelPassport) -> None:
    data = document_bytes([primacy], "png")
    assert data.startswith(b"\x89PNG") and b"iTXtprovenance" in data
    cards = [primacy, replace(primacy, parts=primacy.parts[:2])]  # each chart takes half a second
    root = ElementTree.fromstring(document_bytes(cards, "svg"))
    name = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{name}metadata[@id='provenance']") is not None
    drawn = root.findall(f"{name}g/{name}svg")
    assert len(drawn) == sum(one.draw is not None for card in cards for one in card.parts)
    assert float(root.attrib["height"]) > 1000


def test_a_pdf_has_a4_pages_that_split_no_part(primacy: ModelPassport) -> None:
    for cards in ([primacy], [primacy] * 2):
        data = document_bytes(cards, "pdf")
        assert data.startswith(b"%PDF") and b"Position passport" in data
        pages = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", data)
        assert len(pages) > len(cards), "several pages"
        for width, height in pages:
            assert (float(width), float(height)) == pytest.approx((595, 842), abs=1)
        source = printed_html(cards).decode()
        drawn = len(cards) * sum(one.draw is not None for one in primacy.parts)
        assert source.count('"staticPlot": true') == drawn, "no toolbar, nothing that reacts"

        async def tallest(page: Page, source: str = source) -> object:
            await page.show(source, 688, 1000)
            return await page.evaluate(
                "Math.max(...[...document.querySelectorAll('.cards > * > tr')]"
                ".map(row => row.getBoundingClientRect().height))"
            )

        # A row is not split if it fits on a page: 297 mm minus two margins of 14 mm.
        found = in_page(tallest)
        assert isinstance(found, int | float) and found < 269 / 25.4 * 96 - 50
        assert ".cards > * > tr { break-inside: avoid; }" in source


@pytest.mark.usefixtures("own_service")
def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    run = CliRunner()
    printed = run.invoke(
        app, ["passport", "--model", "BM25", "--model", "MiniLM-recency", "--stored"]
    )
    assert printed.exit_code == 0, printed.stderr
    assert [one["model"] for one in json.loads(printed.stdout)] == ["BM25", "MiniLM-recency"]
    file = tmp_path / "card.html"
    card = tmp_path / "card.yaml"
    files = ["--figure", str(file), "--out", str(card)]
    assert run.invoke(app, ["passport", "--model", "BM25", "--stored", *files]).exit_code == 0
    assert card.read_text(encoding="utf-8").startswith("model_name: BM25\n")
    some = run.invoke(app, ["passport", "--model", "BM25", "--stored", "--part", "ranking"])
    assert [list(one["parts"]) for one in json.loads(some.stdout)] == [["ranking"]]
    none = run.invoke(app, ["passport", "--model", "BM25", "--stored", "--part", "rank"])
    assert none.exit_code == 2 and "no part 'rank': choose from attribution" in none.stderr
    assert b"<h1>BM25</h1>" in file.read_bytes()
    bad = run.invoke(app, ["passport", "--model", "BM25", "--out", str(tmp_path / "card.doc")])
    assert bad.exit_code == 2 and "use .json, .csv, .yaml, .parquet or .tex" in bad.stderr


def test_the_page_shows_two_cards_and_computes_nothing() -> None:
    page = open_page("passport").run()
    assert not page.exception and not page.error
    said = [one.value.replace("\\", "") for one in page.markdown]
    assert [one for one in said if one.startswith("## ")] == [
        "## MiniLM-primacy",
        "## MiniLM-recency",
    ]
    assert page.info and all("Not computed yet" in one.value for one in page.info)
    assert [one.label for one in page.button if one.key == "passport.start"]
    assert not service().runs.active({service().root}, upkeep=True)


def test_all_models_can_be_opened_without_a_selected_model() -> None:
    page = open_page("passport").run()
    page.multiselect(key="models").set_value([]).run()
    assert not page.exception and not page.error
    assert [one.value for one in page.info] == ["Select a model in the sidebar."]
    assert [one.label for one in page.tabs] == ["Cards", "All models"]
    assert not page.button


def test_a_model_without_results_has_a_document_but_no_table(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text(ROWS, encoding="utf-8")
    datasets.register("empty", tmp_path / "empty.csv")
    page = open_page("passport", dataset="empty", models=["BM25"]).run()
    assert not page.exception and not page.error
    assert page.selectbox(key="passport.what").options == ["Passport"]
    for fmt in ("html", "yaml", "json"):
        page.button_group(key="passport.format.Passport").set_value(fmt).run()
        page.button(key="passport.prepare").click().run()
        assert not page.exception and not page.error, fmt
        assert page.get("download_button"), fmt
