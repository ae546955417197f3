"""Paired differences of synthetic models: values of both, Holm over all, and common items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from poslens.attribution.curves.bootstrap import ratio, ratio_difference, ratios
from poslens.attribution.evaluation.bias_tests import PairScores, paired_test
from poslens.attribution.evaluation.comparison import holm, paired_by_document
from poslens.cache.storage.store import StoredCurves
from poslens.export.latex import latex
from poslens.paired import (
    DifferenceRow,
    ItemMeasure,
    MeasuredModel,
    difference_sentences,
    index_measure,
    item_rows,
    paired_differences,
)
from poslens.rows import entries, frame_of, shown

ITEMS = [f"item {n}" for n in range(40)]
RNG = np.random.default_rng(7)


def measure(title: str, values: np.ndarray, items: list[str] = ITEMS) -> ItemMeasure:
    rows = dict(zip(items, values.reshape(len(items), -1), strict=True))
    return ItemMeasure(title, "pairs", 0.1, rows, {item: item for item in items})


def test_the_mean_is_compared_item_by_item() -> None:
    """p equals that of scipy's paired t-test."""
    hard = RNG.normal(0, 5, 40)
    first, second = hard + RNG.normal(0, 1, 40), hard + RNG.normal(0.8, 1, 40)
    models = [
        MeasuredModel("A", [measure("score", first)]),
        MeasuredModel("B", [measure("score", second), measure("other", second)]),
    ]
    (each,) = paired_differences(models)
    assert (each.model, each.against, each.measure) == ("B", "A", "score")
    assert (each.value, each.other_value) == pytest.approx((second.mean(), first.mean()))
    assert each.difference.p == pytest.approx(stats.ttest_rel(second, first).pvalue)
    assert each.difference.verdict == "higher"
    start = "B compared with A over 40 pairs: score is higher by 0."
    assert difference_sentences([each])[0].startswith(start)


def test_values_by_item_give_the_value_that_is_compared() -> None:
    shares = replace(
        measure("share", np.stack([RNG.uniform(0, 3, 40), RNG.uniform(3, 9, 40)], axis=1)),
        statistic=ratio,
        documents={item: f"document {n // 4}" for n, item in enumerate(ITEMS)},
        label=lambda item: item.removeprefix("item "),
    )
    model = MeasuredModel("B", [measure("score", RNG.normal(0, 1, 40)), shares])
    others = [replace(each, rows={**each.rows}) for each in model.measures]
    rows = list(item_rows(model))
    for difference in paired_differences([MeasuredModel("A", others), model]):
        of_measure = [row for row in rows if row.measure == difference.measure]
        values, weights = np.array([(row.value, row.weight) for row in of_measure]).T
        assert np.average(values, weights=weights) == pytest.approx(difference.value)
    assert [row.item for row in rows] == [*ITEMS, *map(str, range(40))]
    assert [row.document for row in rows[40:]] == [1 + n // 4 for n in range(40)]


def test_items_without_a_value_of_their_own_are_empty_or_left_out() -> None:
    """Each needle is in the first or in the last third of a text, but not in both."""
    change = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]] * 20)
    needles = replace(measure("change", change), statistic=ratio_difference)
    shares = replace(measure("share", np.array([[1.0, 2], [0, 0]] * 20)), statistic=ratio)
    without = replace(shares, title="none", rows={})
    rows = list(item_rows(MeasuredModel("A", [needles, shares, without])))
    assert [(row.measure, row.value, row.weight) for row in rows] == [
        ("share", 0.5, 2),
        ("share", None, 0),
    ] * 20
    assert not list(item_rows(None))


def test_shares_differ_in_percentage_points() -> None:
    low, high = np.tile([0.0, 0.0, 0.0, 1.0], 10), np.tile([0.0, 1.0, 1.0, 1.0], 10)
    models = [
        MeasuredModel(name, [replace(measure("missed", values), share=True)])
        for name, values in (("A", low), ("B", high), ("C", high))
    ]
    for difference, start in zip(
        paired_differences(models),
        (
            "B compared with A over 40 pairs: missed is higher by 50.0 [",
            "C compared with A over 40 pairs: missed is higher by 50.0 [",
            "C compared with B over 40 pairs: missed differs by +0.0 [-8.8, +8.8] percentage "
            "points, equivalent.",
        ),
        strict=True,
    ):
        (sentence,) = difference_sentences([difference])
        assert sentence.startswith(start) and "] percentage points" in sentence


def test_sentences_leave_out_measures_that_are_zero_for_both() -> None:
    values = RNG.normal(1, 1, 40)
    models = [
        MeasuredModel(name, [measure("position", 0 * values), measure("brevity", values)])
        for name in "AB"
    ]
    (sentence,) = difference_sentences(paired_differences(models))
    assert "brevity" in sentence and "position" not in sentence
    only_zeros = [replace(model, measures=model.measures[:1]) for model in models]
    (sentence,) = difference_sentences(paired_differences(only_zeros))
    assert "position differs by +0.000" in sentence


def test_measures_without_a_difference_are_listed_if_there_are_many() -> None:
    changes = {"first": 0.0, "second": 0.01 * RNG.normal(0, 1, 40), "third": 2.0}
    changes["fourth"] = RNG.normal(0, 9, 40)
    models = [
        MeasuredModel(name, [measure(title, 1 + by * change) for title, change in changes.items()])
        for name, by in (("A", np.zeros(40)), ("B", np.ones(40)))
    ]
    (sentence,) = difference_sentences(paired_differences(models))
    decided, *others = sentence.split("; ")
    assert decided.startswith(
        "B compared with A over 40 pairs: third is higher by 2.000 [2.000, 2.000] (p < "
    )
    assert others == ["equivalent: first, second", "too few documents to decide: fourth."]
    three = [replace(model, measures=model.measures[1:]) for model in models]
    (sentence,) = difference_sentences(paired_differences(three))
    assert "second differs by " in sentence and "fourth differs by " in sentence


def test_what_all_measures_share_is_said_once() -> None:
    values = RNG.normal(0, 1, 40)
    models = [
        MeasuredModel(name, [measure(f"{title} (d1 − d2)", values + add) for title in ("a", "b")])
        for name, add in (("A", 0), ("B", 3))
    ]
    (sentence,) = difference_sentences(paired_differences(models))
    assert sentence == (
        "B compared with A over 40 pairs (d1 − d2): a is higher by 3.000 [3.000, 3.000] "
        "(p < 0.001); b is higher by 3.000 [3.000, 3.000] (p < 0.001). p is Holm-adjusted over 2 "
        "tests."
    )


@pytest.mark.parametrize(
    ("share", "largest", "needed"),
    [
        (False, None, None),
        (False, 1.0, 149),
        (False, 2.0, 299),
        (True, None, 149),
        (True, 2.0, 299),
    ],
)
def test_the_documents_that_rule_out_a_rare_difference_depend_on_how_large_it_can_be(
    share: bool, largest: float | None, needed: int | None
) -> None:
    equal = replace(measure("score", np.zeros(40)), margin=0.02, share=share, largest=largest)
    (each,) = paired_differences([MeasuredModel(name, [equal]) for name in "AB"])
    assert each.difference.needed == needed


def test_items_that_only_one_model_has_are_ignored() -> None:
    values = RNG.normal(0, 1, 40)
    models = [
        MeasuredModel("A", [measure("score", values)]),
        MeasuredModel("B", [measure("score", values[:25] + 1, ITEMS[:25])]),
        MeasuredModel("C", [measure("score", values[:1], ["another item"])]),
    ]
    (each,) = paired_differences(models)
    assert each.difference.difference.n == 25
    assert each.difference.difference.value == pytest.approx(1)
    assert paired_differences(models[:1]) == []


def test_a_ratio_is_computed_from_sums_and_an_index_from_the_mean_curve() -> None:
    def share(means: np.ndarray) -> np.ndarray:
        return ratios(means)[:, 0]

    sides = [np.stack([RNG.integers(0, 4, 40), RNG.integers(4, 9, 40)], axis=1) for _ in range(2)]
    models = [
        MeasuredModel(
            name,
            [
                ItemMeasure(
                    "share",
                    "documents",
                    0.02,
                    dict(zip(ITEMS, counts.astype(float), strict=True)),
                    {item: item for item in ITEMS},
                    share,
                )
            ],
        )
        for name, counts in zip("AB", sides, strict=True)
    ]
    (each,) = paired_differences(models)
    totals = [counts.sum(0) for counts in sides]
    assert each.difference.difference.value == pytest.approx(
        totals[1][0] / totals[1][1] - totals[0][0] / totals[0][1]
    )
    early = np.zeros((12, 100))
    early[:, :30] = 1
    curves = StoredCurves(
        tuple(ITEMS[:12]), early, early, np.zeros(12), np.zeros(12), np.zeros(100), {}
    )
    index = index_measure(curves, {item: item for item in ITEMS})
    mean = np.mean(list(index.rows.values()), axis=0)
    assert index.statistic(mean[None])[0] == pytest.approx(-1)


def test_by_document_the_difference_from_a_model_of_zeros_equals_the_bias_test() -> None:
    """Compared with scipy's t-test on the means of documents with one to four pairs each."""
    documents = np.repeat(np.arange(16), np.tile([1, 2, 3, 4], 4))
    items = [f"pair {n}" for n in range(len(documents))]
    values = RNG.normal(0.4, 1, len(documents))
    sides = [
        MeasuredModel(
            name,
            [
                ItemMeasure(
                    "position",
                    "pairs",
                    0.05,
                    {item: np.array([value]) for item, value in zip(items, own, strict=True)},
                    dict(zip(items, documents.tolist(), strict=True)),
                    by_document=True,
                )
            ],
        )
        for name, own in (("BM25", 0 * values), ("A", values))
    ]
    (each,) = paired_differences(sides)
    alone = paired_test(
        "position", [PairScores(value, 0.0) for value in values], groups=documents.tolist()
    )
    means = [values[documents == document].mean() for document in range(16)]
    t_test = stats.ttest_1samp(means, 0)
    comparison = each.difference
    assert (each.value, each.other_value) == pytest.approx((np.mean(means), 0))
    assert comparison.difference.interval == pytest.approx((alone.low, alone.high))
    assert comparison.difference.interval == pytest.approx(tuple(t_test.confidence_interval()))
    assert comparison.narrow == pytest.approx(tuple(t_test.confidence_interval(0.9)))
    assert comparison.p == pytest.approx(alone.p) == pytest.approx(t_test.pvalue)
    assert comparison.by_error
    assert (comparison.difference.n, comparison.difference.n_resampled) == (40, 16)


@pytest.mark.parametrize(("change", "verdict"), [(0.0, "equivalent"), (1.0, "higher")])
def test_by_document_a_constant_difference_is_certain(change: float, verdict: str) -> None:
    scores = RNG.normal(0, 1, 40)
    documents = [n // 2 for n in range(40)]
    comparison = paired_by_document(scores, scores + change, documents, 0.05)
    assert comparison is not None and comparison.verdict == verdict
    one = paired_by_document(scores, scores + change, ["the only"] * 40, 0.05)
    assert one is not None and one.verdict == "too few documents" and one.p is None
    assert paired_by_document([], [], [], 0.05) is None


def test_p_is_adjusted_over_every_comparison_shown() -> None:
    models = [
        MeasuredModel(name, [measure(title, RNG.normal(0, 1, 40)) for title in ("one", "two")])
        for name in "ABC"
    ]
    found = paired_differences(models)
    assert len(found) == 6 and len(difference_sentences(found)) == 3
    p = [each.difference.p for each in found]
    assert None not in p
    assert [each.difference.p_holm for each in found] == pytest.approx(holm(p).tolist())  # type: ignore[arg-type]
    row = entries(found[0])
    assert row["difference"] == pytest.approx(row["value"] - row["other_value"])
    assert (row["n"], row["documents"]) == (40, 40)


def test_pages_and_latex_show_shares_in_percent_and_other_files_fractions() -> None:
    low, high = np.tile([0.0, 0.0, 0.0, 1.0], 10), np.tile([0.0, 1.0, 1.0, 1.0], 10)
    models = [
        MeasuredModel(
            name, [replace(measure("missed", values), share=True), measure("score", values)]
        )
        for name, values in (("A", low), ("B", high))
    ]
    found = paired_differences(models)
    share, score = (shown(row) for row in found)
    assert (share["value"], share["value of the other"]) == ("75.0%", "25.0%")
    assert share["difference"].startswith("+50.0 [+") and share["difference"].endswith("] points")
    assert (score["value"], score["difference"][:7]) == ("0.750", "+0.500 ")
    frame = frame_of(DifferenceRow, found)
    assert frame["difference"].tolist() == [0.5, 0.5] and "share" not in frame
    text = latex(frame, [{"model": name, "dataset": "d", "method": "m"} for name in "AB"], "t")
    of_share, of_score = (line for line in text.decode().split("\n") if "& higher &" in line)
    assert r"75.0\% & 25.0\% &" in of_share and "+50.0" in of_share and "] points" in of_share
    assert "0.750 & 0.250 &" in of_score and "points" not in of_score
