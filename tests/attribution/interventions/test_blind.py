"""An order-blind model is unbiased, whatever its context limit truncates: a control for every
measure of position bias.

MiniLM with its position embeddings set to zero reads a bag of words. Here it reads 128 tokens of
longer documents, so late evidence is truncated. Sentences are in random order and in the reverse of
it, so content is independent of position, and any bias comes from the measure itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution.curves.bootstrap import estimate
from poslens.attribution.curves.curve_summary import summarize
from poslens.attribution.curves.positions import document_curve
from poslens.attribution.curves.text_axis import average, curves_of, over_text
from poslens.attribution.datasets import DataSet, from_pairs
from poslens.attribution.evaluation.bias_pairs import pairs_for
from poslens.attribution.evaluation.bias_tests import paired_test
from poslens.attribution.evaluation.ranking_measures import evaluate
from poslens.attribution.evaluation.scorers import scorer
from poslens.attribution.evaluation.search import rankings, search
from poslens.attribution.interventions.ablation import ablation
from poslens.attribution.interventions.agreement import agreement
from poslens.attribution.interventions.displacement import position_table
from poslens.attribution.interventions.null_controls import control, minus_null
from poslens.attribution.interventions.relocation import Relocation, relocation
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.text import sentences
from poslens.attribution.types import Array, Attribution, EvidenceSpan, TextPair
from poslens.cache.kinds import bias as bias_scores
from poslens.cache.kinds.rankings import RankingStore
from poslens.cache.storage.store import ModelKey

LIMIT = 128
SALIENCY = make_method("saliency")


@pytest.fixture(scope="module")
def blind(one_thread: None) -> DenseRetriever:
    """The first layer of MiniLM without position embeddings and with a short context
    limit."""
    retriever = load(replace(resolve("MiniLM"), max_length=LIMIT), "cpu")
    assert isinstance(retriever, DenseRetriever)
    position_table(retriever).weight.data.zero_()
    layers = retriever.backbone.encoder
    layers.layer = layers.layer[:1]
    return retriever


@pytest.fixture(scope="module")
def pairs(sample: DataSet) -> list[TextPair]:
    """Two texts from each of twelve articles: the evidence and eight more sentences in random
    order, and in the reverse order. Ids are `<article>/<number>`."""
    found: list[TextPair] = []
    lot = np.random.default_rng(11)
    by_article: dict[str, list[TextPair]] = {}
    for pair in sample.pairs:
        span = pair.evidence
        whole = span and (span.start, span.end) in sentences(pair.document, pair.language)
        if pair.language == "eng" and whole:
            by_article.setdefault(pair.document, []).append(pair)
    for article, (document, asked) in enumerate(list(by_article.items())[:12]):
        assert asked[0].evidence is not None
        home = (asked[0].evidence.start, asked[0].evidence.end)
        spans = [home, *[span for span in sentences(document, "eng") if span != home][:8]]
        by_lot = lot.permutation(len(spans)).tolist()
        for number, order in enumerate((by_lot, by_lot[::-1])):
            texts = [document[slice(*spans[i])] for i in order]
            start = sum(len(text) + 1 for text in texts[: order.index(0)])
            evidence = EvidenceSpan(start, start + home[1] - home[0])
            name = f"{article}/{number}"
            found.append(
                TextPair(name, asked[0].query, " ".join(texts), evidence, "eng", dataset="blind")
            )
    assert len(found) == 24
    return found


@pytest.fixture(scope="module")
def moved(blind: DenseRetriever, pairs: list[TextPair]) -> list[Relocation]:
    return [relocation(blind, pair, 9) for pair in pairs]


@pytest.fixture(scope="module")
def explained(blind: DenseRetriever, pairs: list[TextPair]) -> list[Attribution]:
    """Saliency of the pairs."""
    return METHODS["saliency"].compute(blind, SALIENCY, pairs)


def documents(pairs: Sequence[TextPair]) -> list[str]:
    """The article's name, which both of its texts share."""
    return [pair.pair_id.partition("/")[0] for pair in pairs]


def curves(explained: Sequence[Attribution]) -> list[Array]:
    return [document_curve(one, SALIENCY) for one in explained]


def test_much_text_is_past_the_context_limit(moved: list[Relocation]) -> None:
    """The control is about truncation, so much of the text must be truncated."""
    assert all(one.read_share < 0.9 and not one.whole.all() for one in moved)
    lost = [one.lost for one in moved if one.lost is not None]
    assert len(lost) > 20 and np.mean(lost) > 0.005, "what is not read is missed"


def test_relocation_finds_no_bias(moved: list[Relocation], pairs: list[TextPair]) -> None:
    leans = [one.last_minus_first for one in moved if one.last_minus_first is not None]
    assert len(leans) > 10 and not np.any(leans)
    for one in moved:
        curve = one.curve(100)
        assert curve is None or not curve.any()
    # Counted by thirds of the whole document, as before, it would seem to have primacy.
    once = []
    for one in moved:
        first, last = one.positions < 1 / 3, one.positions > 2 / 3
        once.append([float(one.scores[last].mean() - one.scores[first].mean())])
    found = estimate(np.array(once), documents(pairs))
    assert found is not None and found.interval is not None and found.interval[1] < 0


def test_no_agreement_is_reported(
    explained: list[Attribution], moved: list[Relocation], pairs: list[TextPair]
) -> None:
    found = agreement("blind", curves(explained), moved, documents(pairs))
    assert found.n > 10 and found.each is None and found.means is None


def test_the_position_test_finds_ties(blind: DenseRetriever, pairs: list[TextPair]) -> None:
    data = DataSet("blind", "blind", Pairs(pairs))
    for place in ("middle", "end"):
        items = pairs_for(data, "position", place).pairs
        scores = bias_scores.score(blind, items)
        found = paired_test("position", scores, groups=[item.source for item in items])
        assert found.n_unread > 0 and (found.lost or 0) > 0
        assert not found.n or (found.t is None and found.difference == 0)
        once = paired_test("position", [replace(one, read=1.0) for one in scores])
        if place == "end":
            assert (once.t or 0) > 2, "once, what was not read was taken for primacy"
    assert (
        paired_test(
            "position", bias_scores.score(blind, pairs_for(data, "position", "own").pairs)
        ).n
        > 5
    )


@pytest.mark.parametrize("by", ["delete", "mask"])
def test_ablation_finds_no_bias(by, blind: DenseRetriever, pairs: list[TextPair]) -> None:
    """True on average for texts in random order, and exactly if all parts are equal."""
    rows = [ablation(blind, pair, by, 6).curve(9) for pair in pairs]
    lean = np.array([[row[-3:].mean() - row[:3].mean()] for row in rows])
    found = estimate(lean, documents(pairs))
    assert found is not None and found.interval is not None
    assert found.interval[0] <= 0 <= found.interval[1]
    same = "The tide rises twice a day. " * 25
    rest = "Why does the tide rise? The tide rises because the Moon pulls the tide. " * 5
    text = TextPair("p", "why does the tide rise", same + rest, language="eng")
    parts = ablation(blind, text, by, 4)
    assert parts.read_share < 1
    alone = ablation(blind, replace(text, document=text.document[: parts.spans[-1][1]]), by, 4)
    np.testing.assert_allclose(parts.effects, alone.effects, atol=2e-6)


def test_index_and_null_controls_find_no_bias(
    blind: DenseRetriever, explained: list[Attribution], pairs: list[TextPair]
) -> None:
    own = np.array(curves(explained))
    summary = summarize(
        own,
        documents(pairs),
        model="blind",
        dataset="blind",
        method=SALIENCY,
        n_truncated=len(own),
        n_failed=0,
        magnitudes=own,
    )
    index = summary.primacy_recency_index
    assert index is not None and index.interval is not None
    assert index.interval[0] <= 0 <= index.interval[1]
    for kind in ("shuffled", "unrelated"):
        nulls = [control(kind, pair, Pairs(pairs)) for pair in pairs]
        null = np.array(curves(METHODS["saliency"].compute(blind, SALIENCY, nulls)))
        found = minus_null(kind, own, null, documents(pairs))
        assert found.index is not None and found.index.interval is not None
        assert found.verdict not in ("higher", "lower"), found.sentence


def test_whole_texts_have_no_slope(explained: list[Attribution], pairs: list[TextPair]) -> None:
    """Texts are truncated at different positions, so later bins average fewer of them."""
    method = over_text(SALIENCY)
    rows = np.array(
        [
            curves_of(one, method, len(pair.document))[0]
            for one, pair in zip(explained, pairs, strict=True)
        ]
    )
    mean = average(
        rows,
        documents(pairs),
        model="blind",
        dataset="blind",
        method=method,
        n_truncated=sum(one.document.truncated for one in explained),
        n_failed=0,
    )
    assert mean.n_read is not None and mean.n_read[-1] < mean.n == mean.n_read[0]
    assert mean.ci_low is not None and mean.ci_high is not None
    # Later minus earlier half of what was read, per row.
    halves = []
    for row in rows:
        read = row[np.isfinite(row)]
        halves.append(read[len(read) // 2 :].mean() - read[: len(read) // 2].mean())
    slope = estimate(np.array(halves)[:, None], documents(pairs))
    assert slope is not None and slope.interval is not None
    assert slope.interval[0] <= 0 <= slope.interval[1]
    drawn = np.isfinite(mean.mean)
    level = float(mean.mean[drawn].mean())
    inside = (mean.ci_low[drawn] <= level) & (level <= mean.ci_high[drawn])
    assert inside.mean() > 0.8


def test_psi_is_reported_with_the_share_read(
    blind: DenseRetriever, pairs: list[TextPair], tmp_path: Path
) -> None:
    collection = from_pairs(DataSet("blind", "blind", Pairs(pairs)))
    store, key = RankingStore(tmp_path, collection), ModelKey("blind", "0" * 16)
    assert store.evidence_missing(key)
    store.read_evidence(blind, key)
    read = store.evidence_read(key)
    assert not store.evidence_missing(key) and len(read) == len(collection.queries)
    assert 0 < sum(share >= 1 for share in read.values()) < len(read)
    best = search(collection, scorer(blind, [one.text for one in collection.queries]))
    found = evaluate("blind", rankings(collection, best), collection, read=read)
    profile, whole = found.profile, found.read_whole
    assert profile is not None and whole is not None
    assert whole.n == sum(share >= 1 for share in read.values())
    by_place = [(one.evidence or 0.0, read[one.query_id]) for one in collection.queries]
    for b, share in enumerate(profile.read):
        inside = [r for place, r in by_place if b / 20 < place <= (b + 1) / 20]
        assert share is None if not inside else share == pytest.approx(np.mean(inside))
    assert whole.p is None or whole.p > 0.05
    assert set(whole.read) <= {1.0, None}
