"""Truncated text is counted, stated next to the numbers, and excluded on demand."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.coverage import Coverage, coverage, of_attribution
from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.compute import coverage as core_coverage
from poslens.compute.compute import Compute, service
from poslens.compute.coverage import (
    at_hand,
    count,
    known,
    pair_sentence,
    readable,
    sentence,
)
from poslens.dashboard.__main__ import app
from poslens.studies.bias.study import UNREADABLE
from tests.support.pages import open_page
from tests.support.tiny_families import cross_encoder

LONG = "ice melts " * 600

SUBTRACT = "to see how much of a curve depends on the query"


pytestmark = pytest.mark.usefixtures("own_service")


def of(retriever, *pairs: TextPair) -> list[Coverage]:
    return [one for batch in coverage(retriever, pairs) for one in batch]


def test_tokens_and_evidence_counted_by_hand(minilm) -> None:
    first, last = EvidenceSpan(0, 3), EvidenceSpan(len(LONG) - 10, len(LONG) - 1)
    short = TextPair("a", "q", "ice 模 melts", EvidenceSpan(0, 5))
    strange = TextPair("b", "q", "🜁 🜂 ice")
    found = of(
        minilm,
        short,
        strange,
        TextPair("c", "q", LONG, first),
        TextPair("d", "q", LONG, last),
        TextPair("e", "q", LONG),
    )
    assert found[1] == Coverage(3, 2, None) and not found[1].readable
    assert [one.evidence for one in found] == [1.0, None, 1.0, 0.0, None]
    assert [one.readable for one in found[2:]] == [True, False, True]
    assert found[2].tokens == 510
    half = EvidenceSpan(0, len(LONG))
    (one,) = of(minilm, TextPair("f", "q", LONG, half))
    # "ice melt ##s" is three tokens and ten characters; the last space is after the last token.
    assert one.evidence == pytest.approx((510 / 3 * 10 - 1) / 6000) and one.evidence_cut
    assert of(minilm, TextPair("g", "q", "\u200b", None)) == [Coverage(0, 0, None)]


def test_counting_does_not_wait_while_a_run_uses_the_model(
    minilm, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """A page that waited for each batch of a run would take seconds to open."""
    folder = cross_encoder(tiny_folder("bert"), tmp_path / "reranker")
    spec = RetrieverSpec("reranker", "reranker", "cross_encoder", f"folder:{folder}")
    for retriever in (minilm, load(spec, device="cpu")):
        with ThreadPoolExecutor(1) as page, retriever.lock:
            counted = page.submit(of, retriever, TextPair("a", "ice", "The ice melts."))
            assert counted.result(60)[0].tokens > 0


def test_counts_of_the_sample_equal_the_tokenizers(minilm, sample: DataSet) -> None:
    """An independent oracle: ids and offsets of the whole text, from the tokenizer alone."""
    tokenizer = minilm.of("document").model.tokenizer
    pairs = [p for p in sample.pairs if p.language in ("tha", "zho", "eng")][::7]
    found = of(minilm, *pairs)
    for pair, one in zip(pairs, found, strict=True):
        whole = tokenizer(
            pair.document, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = whole["input_ids"][:510]
        assert one.tokens == len(ids)
        assert one.unknown == ids.count(tokenizer.unk_token_id)
        assert pair.evidence is not None
        if len(whole["input_ids"]) > 510:
            end = whole["offset_mapping"][509][1]
            assert one.evidence_cut == (end < pair.evidence.end)
        else:
            assert one.evidence == 1.0
    thai = [one for p, one in zip(pairs, found, strict=True) if p.language == "tha"]
    assert thai and all(one.unknown_share > 0.5 for one in thai)


def test_a_stored_result_gives_the_same_counts(minilm, sample: DataSet, tmp_path: Path) -> None:
    compute = Compute(tmp_path)
    pair = next(p for p in sample.pairs if p.language == "tha")
    result = compute.explain(pair, resolve("MiniLM"), make_method("saliency"))
    (one,) = of(minilm, pair)
    assert of_attribution(result.attribution, pair.evidence) == one
    assert "of these tokens are unknown" in pair_sentence(one)


def test_pairs_are_counted_once_and_left_out(
    sample: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, spec = Compute(tmp_path), resolve("MiniLM")
    pairs = [replace(p, query=f"{p.query} once") for p in sample.pairs[::9]]
    assert known(compute, spec, pairs) == {} == at_hand(compute, spec, pairs), "nothing is loaded"
    found = count(compute, spec, pairs)
    kept = readable(compute, [spec], pairs)
    assert list(kept) == [p for p in pairs if found[p.pair_id].readable]
    assert 0 < len(kept) < len(pairs)
    cut = sum(one.evidence_cut for one in found.values())
    assert f"in {cut} of {len(pairs)} pairs" in sentence(found)
    monkeypatch.setattr(Compute, "retriever", None)  # counted pairs need no model
    assert count(compute, spec, pairs) == found == known(compute, spec, pairs)


def test_counting_reports_progress_and_can_be_stopped_between_batches(tmp_path: Path) -> None:
    compute, spec = Compute(tmp_path), resolve("MiniLM")
    pairs = [TextPair(f"p{n}", "ice", f"Ice number {n} melts.") for n in range(70)]
    told: list[tuple[int, int]] = []

    class TabClosed(BaseException):
        """Raised like Streamlit's exception that stops a script."""

    def closing(done: int, total: int) -> None:
        told.append((done, total))
        raise TabClosed

    with pytest.raises(TabClosed):
        readable(compute, [spec], pairs, closing)
    assert len(known(compute, spec, pairs)) == 32, "kept"
    count(compute, spec, pairs, lambda done, total: told.append((done, total)))
    assert told == [(32, 70), (64, 70), (70, 70)]


def test_a_selection_of_a_data_set_is_made_once(
    tmp_path: Path, sample: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, both = Compute(tmp_path), [resolve("MiniLM"), resolve("MiniLM-recency")]
    pairs = Pairs(replace(p, query=f"{p.query} chosen") for p in sample.pairs[::9])
    monkeypatch.setattr(core_coverage, "_coverages", LRUCache(len(pairs)))  # too few for two models
    kept = readable(compute, both, pairs)
    assert 0 < len(kept) < len(pairs)
    monkeypatch.setattr(Compute, "retriever", None)
    assert readable(compute, both, pairs) is kept


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    rows = [
        {"query": "ice", "document": "Ice melts. Stone stays.", "evidence": "Ice melts."},
        {"query": "ice", "document": LONG + "Fog rises.", "evidence": "Fog rises."},
        {"query": "ice", "document": "冰川融化成水" * 20, "evidence": "冰川融化成水"},
    ]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("mixed", tmp_path / "mixed.jsonl")
    return "mixed"


def test_the_command_excludes_truncated_pairs(mixed: str) -> None:
    run = CliRunner().invoke(app, ["precompute", "--dataset", mixed, "--readable"])
    assert run.exit_code == 0, run.output
    said = json.loads(run.stdout.strip().splitlines()[-1])
    assert said["total"] == 1
    run = CliRunner().invoke(app, ["curve", "--dataset", mixed, "--readable", "--format", "json"])
    assert run.exit_code == 0, run.output
    (entry,) = json.loads(run.stdout.strip().splitlines()[-1])["provenance"]
    assert entry["n_pairs"] == 1 and "no model truncates" in entry["selection"]


def opened(view: str, **parameters: object) -> AppTest:
    page = open_page(view, **parameters).run()
    assert not page.exception
    return page


def captions(page: AppTest) -> str:
    return "\n".join(one.value.replace("\\", "") for one in page.caption)


def test_curves_state_truncation_and_exclude_truncated_pairs_with_a_click(mixed: str) -> None:
    spec, method = resolve("MiniLM"), make_method("saliency")
    service().attribution_job(spec, method, datasets.read(mixed).pairs, "x").start().wait()
    page = opened("curves", dataset=mixed, models=["MiniLM"])
    said = captions(page)
    assert "in 1 of 3 pairs the evidence is past its context limit" in said
    assert "of the tokens are unknown to it" in said
    page.toggle(key="readable").set_value(True).run()
    assert not page.exception
    assert "1 of 3 pairs" in page.markdown[1].value and "evidence is past" not in captions(page)


@pytest.fixture
def queried(tmp_path: Path) -> str:
    """Like `mixed`, with a separate query for each document."""
    rows = [
        {"query": "ice", "document": "Ice melts. Stone stays.", "evidence": "Ice melts."},
        {"query": "stone", "document": "Stone stays. Ice melts.", "evidence": "Stone stays."},
        {"query": "fog", "document": "Ice melts. " * 300 + "Fog rises.", "evidence": "Fog rises."},
        {"query": "冰", "document": "冰川融化成水" * 20, "evidence": "冰川融化成水"},
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("queried", tmp_path / "own.jsonl")
    return "queried"


@pytest.mark.parametrize("method", ["saliency", "decomposition"])
def test_curves_claim_only_a_measured_dependence_on_the_query(mixed: str, method: str) -> None:
    pairs = datasets.read(mixed).pairs
    job = service().attribution_job(resolve("MiniLM"), make_method(method), pairs, "x")
    job.start().wait()
    page = opened("curves", dataset=mixed, models=["MiniLM"], method=method)
    assert "depends on the query:" not in captions(page)
    assert ("content of a text alone can tilt" in captions(page)) == (method != "saliency")
    assert (SUBTRACT in captions(page)) == (method == "saliency")
    page.button(key="null.subtract").click().run()
    assert not page.exception
    null = "unrelated query" if method == "saliency" else "shuffled sentences"
    assert page.segmented_control(key="control").value == null
    said = captions(page)
    assert "content alone" not in said and "is measured only" not in said, "it is subtracted"
    run = CliRunner().invoke(app, ["curve", "--dataset", mixed, "--method", method])
    assert run.exit_code == 0, run.output
    assert ("content of a text alone" in run.stderr) == (method != "saliency")


def test_explain_suggests_a_control_for_pairs_of_a_data_set_alone(mixed: str) -> None:
    page = opened("explain", dataset=mixed, models=["MiniLM"])
    assert SUBTRACT in captions(page)
    page.button(key="null.subtract").click().run()
    assert not page.exception and "is measured only" not in captions(page)
    typed = {"text": "Own text", "q": "ice", "d": "Ice melts. Stone stays."}
    page = opened("explain", models=["MiniLM"], **typed)
    assert SUBTRACT not in captions(page)
    assert not [one for one in page.button if one.key == "null.subtract"]


def rows(*arguments: str) -> tuple[list[dict[str, object]], dict[str, object], str]:
    run = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout.strip().splitlines()[-1])
    return found["rows"], found["provenance"][0], run.stderr


def test_rank_measures_only_queries_whose_pairs_are_read_in_full(queried: str) -> None:
    table = ("rank", "--dataset", queried, "--table", "queries")
    every, known, _ = rows(*table)
    assert len(every) == 4 and "selection" not in known
    kept, known, said = rows(*table, "--readable")
    assert [one["query"] for one in kept] == ["ice", "stone"]
    assert kept == every[:2], "the search is the same, over the whole corpus"
    assert known["n_queries"] == 2 and known["n_documents"] == 4
    assert "no model truncates" in str(known["selection"]) and "2 of 4 pairs excluded" in said


def test_a_ranking_without_fully_read_pairs_is_refused(mixed: str) -> None:
    run = CliRunner().invoke(app, ["rank", "--dataset", mixed, "--readable"])
    assert run.exit_code == 2 and "No query remains" in run.stderr


def test_bias_tests_use_pairs_with_both_documents_read_in_full(queried: str) -> None:
    asked = ("bias", "--dataset", queried, "--test", "position")
    (every,), _, _ = rows(*asked)
    (kept,), known, _ = rows(*asked, "--readable")
    # Fog's evidence is past the context limit once it is moved to the end. Nothing is known about
    # ice (Chinese), but it has one sentence and so gives no pair.
    assert (every["n"], every["evidence_not_read_whole"]) == (2, 1)
    assert (kept["n"], kept["evidence_not_read_whole"]) == (2, 0)
    assert kept["t"] == every["t"] and "no model truncates" in str(known["selection"])


def test_ranking_excludes_truncated_pairs_with_a_click(queried: str) -> None:
    rows("rank", "--dataset", queried)
    page = opened("ranking", tab="Rankings", dataset=queried, models=["MiniLM"])
    assert "in 1 of 4 pairs the evidence is past its context limit" in captions(page)
    page.toggle(key="readable").set_value(True).run()
    assert not page.exception
    measured = "measured over 2 queries: only pairs whose evidence no model truncates"
    assert measured in captions(page)
    assert "pairs the evidence is past" not in captions(page)
    assert "only pairs whose evidence no model truncates" in captions(page)
    page = opened("ranking", tab="Rankings", dataset=queried, models=["MiniLM"], readable="true")
    assert page.toggle(key="readable").value


def test_bias_tests_exclude_truncated_pairs_with_a_click(queried: str) -> None:
    rows("bias", "--dataset", queried, "--test", "position")
    page = opened("cause", tab="Bias tests", dataset=queried, models=["MiniLM"], tests=["position"])
    assert UNREADABLE not in captions(page)
    page.toggle(key="readable").set_value(True).run()
    assert not page.exception
    assert f"1 pair left out. {UNREADABLE}" in captions(page)
    assert "only pairs whose evidence no model truncates" in captions(page)


@pytest.mark.parametrize("view", ["explain", "compare"])
def test_the_list_of_pairs_excludes_truncated_pairs_with_a_click(queried: str, view: str) -> None:
    models = {"models": ["MiniLM"]} if view == "explain" else {"first": "MiniLM"}
    page = opened(view, dataset=queried, **models)
    assert "pair 1 of 4" in captions(page)
    assert "readable" not in [one.key for one in page.toggle], "made though it is folded away"
    page.session_state["pair.filters"] = True
    page.run()
    page.toggle(key="readable").set_value(True).run()
    assert not page.exception and "pair 1 of 2 (4 without filters)" in captions(page)
    page.session_state["pair.filters"] = False
    page.run()
    assert "pair 1 of 2 (4 without filters)" in captions(page)
    (listed,) = (box for box in page.selectbox if box.label.startswith("Pair"))
    assert list(listed.options) == ["ice", "stone"]
    page = opened(view, dataset=queried, pair="row-4", readable="true", **models)
    assert "doesn't match the filters" in captions(page)


def test_cause_and_methods_share_a_switch(queried: str) -> None:
    for view in ("cause", "methods"):
        page = opened(view, tab="Data set", dataset=queried, models=["MiniLM"])
        assert len([one for one in page.toggle if one.key == "readable"]) == 1
