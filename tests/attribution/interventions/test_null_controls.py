"""Null controls, agreement and displacement: hand-made cases and laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.curves.positions import resample
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.interventions import displacement
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.agreement import (
    agreement,
    averaged,
    causal_correlation,
    cells,
)
from poslens.attribution.interventions.displacement import (
    behind_prefix,
    displacement_method,
    position_table,
    shifted_positions,
)
from poslens.attribution.interventions.null_controls import (
    CONTROLS,
    control,
    controlled_id,
    controls_for,
    curves_agree,
    minus_null,
    null_method,
)
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.detect import FAMILIES
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.scoring import score_texts
from poslens.attribution.types import EvidenceSpan, TextPair

RNG = np.random.default_rng(5)
RISING = np.linspace(0.2, 1.0, 100)
PAIR = TextPair("p", "the tide", "The tide rises. Lazy dogs. Twice a day.", EvidenceSpan(16, 26))


def moved(positions: list[float], scores: list[float], **fields: Any) -> Relocation:
    given = {
        "model": "m",
        "pair_id": "p",
        "positions": np.array(positions),
        "scores": np.array(scores),
        "read": np.ones(len(scores)),
        "original": 0.0,
        "evidence": 0.5,
        "read_share": 1.0,
        "note": "",
        "seconds": 0.0,
    }
    return Relocation(**{**given, **fields})  # type: ignore[arg-type]


# -- controls --------------------------------------------------------------------------------------


def test_an_unrelated_query_belongs_to_another_document_in_the_same_language(
    sample: DataSet,
) -> None:
    queries = {pair.query: pair for pair in sample.pairs}
    for pair in sample.pairs[::17]:
        null = control("unrelated", pair, sample.pairs)
        other = queries[null.query]
        assert other.document != pair.document and other.language == pair.language
        assert (null.document, null.evidence) == (pair.document, pair.evidence)
        assert null.pair_id.rpartition("#")[0] == pair.pair_id and null.pair_id != pair.pair_id
        assert control("unrelated", pair, sample.pairs) == null, "by the seed alone"
    drawn = {control("unrelated", sample.pairs[0], sample.pairs, seed).query for seed in range(5)}
    assert len(drawn) > 1


def test_a_missing_unrelated_query_is_reported() -> None:
    with pytest.raises(UserError, match="is about another document"):
        control("unrelated", PAIR, Pairs([PAIR, TextPair("o", "other", PAIR.document)]))


def test_an_unrelated_query_is_in_the_querys_own_language() -> None:
    """Posts in two languages and their claims in others, as in MultiClaim."""
    pair = TextPair("p", "mgła", "Fog lifts.", language="eng", query_language="pol")
    slovak = TextPair("s", "para", "Steam rises.", language="eng", query_language="slk")
    polish = TextPair("q", "lód", "Eis ist hart.", language="deu", query_language="pol")
    pairs = Pairs([pair, *[slovak] * 50, polish])
    assert {control("unrelated", pair, pairs, seed).query for seed in range(9)} == {"lód"}
    # A query whose language is not stated has its document's.
    german = TextPair("g", "hart", "Eis ist hart.", language="deu")
    assert (
        control("unrelated", german, Pairs([polish, german, slovak, other("x", "deu")])).query
        == "x"
    )


def test_an_unrelated_query_is_not_relevant_to_the_document() -> None:
    """One claim is the document of two posts, one of which also has another claim."""
    pair = TextPair("p", "does fog lift", "Fog lifts.")
    both = TextPair("b", "fog and ice", pair.document), TextPair("i", "fog and ice", "Ice is hard.")
    pairs = Pairs([pair, *both, *[both[1]] * 50, other("x", None)])
    assert {control("unrelated", pair, pairs, seed).query for seed in range(9)} == {"x"}


def other(query: str, language: str | None) -> TextPair:
    return TextPair(query, query, f"About {query}.", language=language)


def test_shuffling_keeps_sentences_and_follows_the_evidence(sample: DataSet) -> None:
    with pytest.raises(UserError, match="in Thai script, which PosLens cannot split"):
        control("shuffled", next(p for p in sample.pairs if p.language == "tha"), Pairs())
    for pair in (PAIR, *(p for p in sample.pairs[::29] if p.language != "tha")):
        null = control("shuffled", pair, Pairs())
        assert null.document != pair.document
        assert Counter(null.document) == Counter(pair.document)
        if null.evidence is not None and pair.evidence is not None:
            before = pair.document[pair.evidence.start : pair.evidence.end]
            assert null.document[null.evidence.start : null.evidence.end] == before
    with pytest.raises(UserError, match="one sentence"):
        control("shuffled", TextPair("p", "q", "One sentence is here."), Pairs())


def test_filler_is_as_long_as_the_document(sample: DataSet) -> None:
    for pair in sample.pairs[::29]:
        null = control("filler", pair, Pairs())
        assert len(null.document) == len(pair.document) and null.evidence is None
    assert set(CONTROLS) == {"unrelated", "shuffled", "filler", "profile"}


def test_a_curve_equal_to_its_control_is_equivalent() -> None:
    noise = RNG.normal(0, 0.001, (2, 40, 100))
    same = minus_null("unrelated", RISING + noise[0], RISING + noise[1], range(40))
    assert same.verdict == "equivalent" and same.sentence.endswith("within the margin of 0.05.")
    assert "(unrelated query)" in same.sentence and "40 documents" in same.sentence
    assert np.abs(same.mean).max() < 0.01 and (same.n, same.n_documents) == (40, 40)
    # As many pairs from few documents allow no verdict, however small their spread.
    few = minus_null("unrelated", RISING + noise[0], RISING + noise[1], [i % 9 for i in range(40)])
    assert few.verdict == "too few documents" and few.ci_low is None
    assert few.sentence.endswith("Too few documents to decide: an interval needs 10.")


def test_a_curve_with_another_index_than_its_control_is_lower_or_higher() -> None:
    noise = RNG.normal(0, 0.05, (2, 40, 100))
    found = minus_null("shuffled", RISING + noise[0], RISING[::-1] + noise[1], range(40))
    assert found.verdict == "higher" and found.sentence.endswith(
        "Attribution is nearer the end than under the control (p < 0.001)."
    )
    turned = minus_null("shuffled", RISING[::-1] + noise[1], RISING + noise[0], range(40))
    assert turned.verdict == "lower" and "nearer the beginning than" in turned.sentence
    expected = 2 * float(primacy_recency_index(RISING))
    assert found.index is not None and found.index.interval is not None
    assert found.index.value == pytest.approx(expected, abs=0.02)
    assert found.index.interval[0] < expected < found.index.interval[1]
    np.testing.assert_allclose(found.mean, RISING - RISING[::-1], atol=0.06)


def test_few_noisy_documents_give_no_verdict() -> None:
    wild = RNG.uniform(0, 1, (2, 12, 100)) * RNG.uniform(0, 1, (2, 12, 1)) + RISING[None]
    assert minus_null("filler", wild[0], wild[1], range(12)).verdict == "too few documents"
    few = minus_null("filler", np.tile(RISING, (3, 1)), np.tile(RISING, (3, 1)), range(3))
    assert few.verdict == "too few documents"


def test_pairs_are_compared_with_themselves() -> None:
    """Variance between pairs that both conditions share cancels in the difference."""
    level = RNG.uniform(0, 10, (30, 1))
    found = minus_null("unrelated", level + RISING, level + np.ones(100), range(30))
    assert found.ci_low is not None and found.ci_high is not None
    np.testing.assert_allclose(found.ci_low, found.ci_high, atol=1e-5)
    with pytest.raises(UserError, match="No pair"):
        minus_null("unrelated", np.empty((0, 100)), np.empty((0, 100)), [])
    with pytest.raises(ValueError, match="curves"):
        minus_null("unrelated", np.ones((2, 100)), np.ones((3, 100)), range(2))


def test_pairs_of_one_document_widen_the_verdicts_intervals() -> None:
    """Five near-copies per document add nothing to one of them."""
    own = np.repeat(RISING + RNG.normal(0, 0.05, (12, 1)) * RISING[::-1], 5, axis=0)
    null = np.ones((60, 100))
    by_pair = minus_null("unrelated", own, null, range(60)).index
    by_document = minus_null("unrelated", own, null, np.arange(60) // 5).index
    assert by_pair and by_document and by_pair.interval and by_document.interval
    widths = [np.ptp(one.interval) for one in (by_pair, by_document)]
    assert widths[1] == pytest.approx(np.sqrt(5) * widths[0], rel=0.2)
    assert (by_document.n, by_document.n_resampled) == (60, 12)


def test_pairs_of_one_document_do_not_narrow_the_intervals() -> None:
    """Repeating each document's pair adds no information, for controls and for agreement."""
    ids, lot = range(15), np.random.default_rng(11)
    own = np.stack([RISING + lot.normal(0, 0.3, 100) for _ in ids])
    null = np.stack([RISING[::-1] + lot.normal(0, 0.3, 100) for _ in ids])
    once = minus_null("unrelated", own, null, ids)
    twice = minus_null("unrelated", np.tile(own, (2, 1)), np.tile(null, (2, 1)), [*ids, *ids])
    for name in ("index", "distance"):
        of_once, of_twice = getattr(once, name).interval, getattr(twice, name).interval
        assert of_once is not None and of_twice == pytest.approx(of_once), name
    places = np.linspace(0.02, 0.98, 11).tolist()
    causal = [moved(places, (np.arange(11) + lot.normal(0, 4, 11)).tolist()) for _ in ids]
    alone = agreement("m", list(own), causal, ids)
    both = agreement("m", [*own, *own], [*causal, *causal], [*ids, *ids])
    for name in ("each", "means"):
        of_once, of_twice = getattr(alone, name).interval, getattr(both, name).interval
        assert of_once is not None and of_twice == pytest.approx(of_once), name


# -- agreement -------------------------------------------------------------------------------------


def test_the_profile_is_another_method_on_the_same_pair() -> None:
    method = make_method("saliency", {"normalization": "max", "resampling": "point"})
    assert control("profile", PAIR, Pairs()) == PAIR
    null = null_method("profile", method)
    assert (null.name, null.curve_params) == ("profile", method.curve_params)
    assert null_method("unrelated", method) == method
    assert controlled_id("profile", "row#2") == "row#2"
    assert controlled_id("unrelated", control("unrelated", PAIR, others()).pair_id) == "p"


def others() -> Pairs:
    return Pairs([TextPair("o", "another question", "Something else.")])


def test_only_controls_that_can_change_a_curve_are_offered() -> None:
    saliency, dense = make_method("saliency"), [FAMILIES["dense"]]
    assert controls_for(make_method("profile"), dense) == ("shuffled", "filler")
    assert controls_for(saliency, dense) == tuple(CONTROLS)
    unscaled = make_method("saliency", {"normalization": "none"})
    assert "profile" not in controls_for(unscaled, dense)
    assert "profile" not in controls_for(make_method("decomposition"), dense)
    for name in ("late_interaction", "sparse", "cross_encoder"):  # have no profile
        assert "profile" not in controls_for(saliency, [*dense, FAMILIES[name]])


def test_agreement_with_controls_is_pearson_of_the_means() -> None:
    first, second = RNG.random((40, 100)) + RISING, RNG.random((40, 100)) + RISING**2
    found = curves_agree(first, second)
    assert found is not None and found.interval is None
    expected = np.corrcoef(first.mean(0), second.mean(0))[0, 1]
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.n == 40
    assert curves_agree(first, np.ones((40, 100))) is None


def test_cells_and_their_means_computed_by_hand() -> None:
    np.testing.assert_allclose(cells(np.array([0.1, 0.5, 0.7])), [0, 0.3, 0.6, 1])
    steps = np.repeat([1.0, 2.0, 3.0, 4.0], 25)
    np.testing.assert_allclose(averaged(steps, np.array([0, 0.25, 0.5, 1])), [1, 2, 3.5])
    # The curve covers the first half: its quarters are eighths of the document.
    half = averaged(steps, np.array([0, 0.25, 0.5, 0.75, 1]), 0.5)
    np.testing.assert_allclose(half[:2], [1.5, 3.5])
    assert np.isnan(half[2:]).all()


def test_agreement_is_spearman_over_the_positions_that_were_read() -> None:
    places = [0.05, 0.3, 0.5, 0.8, 0.95]
    assert causal_correlation(RISING, moved(places, [1, 2, 3, 4, 5])) == pytest.approx(1)
    assert causal_correlation(RISING[::-1], moved(places, [1, 2, 3, 4, 5])) == pytest.approx(-1)
    scores = [3.0, 1.0, 2.0, 9.0, -9.0]
    expected = spearmanr(range(4), scores[:4]).statistic
    cut = moved(places, scores, read=np.array([1, 1, 1, 1, 0]))
    assert causal_correlation(RISING, cut) == pytest.approx(expected)
    assert causal_correlation(RISING, moved(places, [1] * 5)) is None


def test_agreement_with_ablation_uses_the_edges_of_the_parts() -> None:
    effects = np.array([1.0, 3.0, 2.0])
    found = Ablation(
        "m",
        "p",
        "delete",
        ((0, 50), (50, 60), (60, 100)),
        np.array([0, 0.5, 0.6, 1]),
        effects,
        1,
        1,
        "",
        0,
    )
    curve = np.concatenate([np.full(50, 1.0), np.full(10, 5.0), np.full(40, 2.0)])
    assert causal_correlation(curve, found) == pytest.approx(1)


def test_agreement_over_a_data_set() -> None:
    places = np.linspace(0.02, 0.98, 11).tolist()
    curves = [RISING + RNG.normal(0, 0.05, 100) for _ in range(20)]
    causal = [moved(places, (np.arange(11) + RNG.normal(0, 1, 11)).tolist()) for _ in curves]
    found = agreement("m", curves, causal, range(20))
    assert found.n == 20 and found.each is not None and found.means is not None
    assert found.means.value == pytest.approx(1) and (found.means.low or 0) > 0.8
    by_hand = [causal_correlation(c, r) for c, r in zip(curves, causal, strict=True)]
    assert found.each.value == pytest.approx(np.mean(by_hand))
    low, high = found.each.interval or (0, 0)
    assert low < found.each.value < high
    flat = agreement("m", curves[:3], [moved(places, [1.0] * 11)] * 3, range(3))
    assert flat.each is None and flat.means is None
    few = agreement("m", curves, causal, [i % 9 for i in range(20)])
    assert (few.n, few.n_documents) == (20, 9) and few.each is not None
    assert few.each.value == found.each.value and few.each.interval is None
    unread = moved(places, [1.0] * 11, read=np.array([1.0] + [0.0] * 10), read_share=0.1)
    left = agreement("m", curves[:3], [*causal[:2], unread], range(3))
    assert (left.n, left.n_left_out) == (2, 1)


def test_a_causal_curve_is_centered_and_keeps_its_slope() -> None:
    found = moved([0.1, 0.5, 0.9], [1.0, 2.0, 3.0])
    curve = found.curve(100)
    assert curve.mean() == pytest.approx(0, abs=1e-6) and found.last_minus_first == pytest.approx(2)
    assert curve is not None and np.ptp(curve) == pytest.approx(2) and curve[0] == curve[5]
    first, last = resample(curve, "bin_mean", 2)
    assert first == pytest.approx(-last, abs=1e-5) and last > 0.5


def test_only_positions_read_in_full_count_for_position_effects() -> None:
    """Half of the document is read. The score rises there and falls past the limit."""
    places, scores = [0.05, 0.2, 0.4, 0.5, 0.7, 0.95], [1.0, 2.0, 3.0, 2.5, 0.2, 0.0]
    found = moved(places, scores, read=np.array([1, 1, 1, 0.6, 0, 0]), read_share=0.5)
    np.testing.assert_allclose(found.within, [0.1, 0.4, 0.8], atol=1e-6)
    assert found.last_minus_first == pytest.approx(3 - 1) and found.lost == pytest.approx(2 - 0.9)
    curve = found.curve(100)
    assert curve is not None and (np.diff(curve) >= -1e-6).all()
    assert curve[-1] - curve[0] == pytest.approx(2, abs=1e-5)
    whole = moved(places, scores)
    assert whole.lost is None and (whole.last_minus_first or 0) < 0
    # A single position that is read in full can't be compared with another.
    only = moved(places, scores, read=np.array([1, 0, 0, 0, 0, 0]), read_share=0.1)
    assert only.last_minus_first is None and only.curve(100) is None and (only.lost or 0) < 0
    near = moved([0.05, 0.3], [1.0, 2.0], read_share=0.9)
    assert near.last_minus_first is None, "no place in the last third"


# -- displacement ----------------------------------------------------------------------------------


def test_an_empty_prefix_gives_the_document_itself(tiny: Callable[..., Any]) -> None:
    found = behind_prefix(tiny("bert", max_length=48), PAIR, (0, 8, 60))
    assert found.tokens == (0, 8, 60) and found.read[0] == 1
    assert found.read[2] < 0.1, "a prefix ends with a word: at most punctuation's room is left"
    assert "after 1 of the prefixes" in found.note


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_shifting_positions_equals_passing_other_position_ids(
    name: str, tiny: Callable[..., Any]
) -> None:
    retriever = tiny(name)
    found = shifted_positions(retriever, PAIR, (0, 5, 9999))
    assert found.tokens == (0, 5) and "1 shift exceeds the model's " in found.note
    assert abs(found.scores[0] - found.scores[1]) > 1e-5
    encoded = retriever.encode_texts([PAIR.document], "document")
    table = position_table(retriever)
    seen: list[torch.Tensor] = []
    hook = table.register_forward_hook(lambda _m, args, _o: seen.append(args[0].clone()))
    with torch.no_grad():
        retriever.embed(encoded)
    hook.remove()
    # The same, computed by moving rows of the table instead of the ids.
    ids, first = seen[0][0], 1
    moved_rows = table.weight.clone()
    moved_rows[ids[first:]] = table.weight[ids[first:] + 5]
    with torch.no_grad():
        query = retriever.embed(retriever.encode_texts([PAIR.query], "query"))
        kept = table.weight.clone()
        table.weight.copy_(moved_rows)
        document = retriever.embed(encoded)
        table.weight.copy_(kept)
    assert float(retriever.similarity(query, document)) == pytest.approx(
        float(found.scores[1]), abs=1e-5
    )
    assert not table._forward_pre_hooks
    with stoppable(lambda: True), pytest.raises(Stopped):
        shifted_positions(retriever, PAIR)


def test_a_chinese_prefix_is_not_separated_by_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = TextPair("p", "潮汐", "2014年，《潮汐》出版。", language="cmn")
    scored: list[str] = []

    def scores(retriever: Any, texts: Any, **_: Any) -> Any:
        scored.extend(document for _, document in texts)
        return score_texts(retriever, texts)

    monkeypatch.setattr(displacement, "score_texts", scores)
    found = behind_prefix(load(resolve("BM25")), pair, (0, 12))
    assert scored == [pair.document, f"这一部分放在这里只是为了{pair.document}"]
    assert found.read.tolist() == [1, 1]


def test_models_without_position_embeddings_cannot_be_shifted(tiny: Callable[..., Any]) -> None:
    for retriever in (tiny("qwen3-right"), load(resolve("BM25"))):
        with pytest.raises(UserError, match="adds no position embeddings"):
            shifted_positions(retriever, PAIR)
    assert repr(displacement_method("prefix", (0, 4))) == (
        "displacement(by=prefix, tokens=0/4, version=2)"
    )


# -- graded adapters -------------------------------------------------------------------------------


def test_a_scaled_adapter_is_another_model_in_between() -> None:
    half, whole = resolve("MiniLM-recency@0.5"), resolve("MiniLM-recency")
    assert half.name == "MiniLM-recency@0.5" and half.settings != whole.settings
    assert "strength=0.5" in half.settings and "strength" not in whole.settings
    assert resolve("MiniLM-recency@1") is whole and "0.5 of an adapter" in half.origin
    for wrong in ("MiniLM-recency@1.5", "MiniLM-recency@-1", "MiniLM@0.5", "a/b@0.5"):
        with pytest.raises(UserError, match=r"strength|scale"):
            resolve(wrong)
    models = {n: load(resolve(n), "cpu") for n in ("MiniLM", "MiniLM-recency@0", half.name)}
    vectors = {
        name: model.embed(model.encode_texts([PAIR.document], "document"))[0].detach()
        for name, model in models.items()
    }
    torch.testing.assert_close(vectors["MiniLM-recency@0"], vectors["MiniLM"], atol=1e-5, rtol=0)
    assert not torch.allclose(vectors[half.name], vectors["MiniLM"], atol=1e-3)


def test_the_tables_in_the_docs_equal_those_of_the_benchmark() -> None:
    from bench.planted import METHODS, indices

    text = (Path(__file__).parents[3] / "docs" / "causality.md").read_text(encoding="utf-8")
    table = text.partition("<!-- planted: begin -->")[2].partition("<!-- planted: end -->")[0]
    assert "| relocation, last minus first | " in table
    for method in METHODS:
        assert f"| {method}, index | {indices(method)} |" in table and f"\n| {method} | " in table
