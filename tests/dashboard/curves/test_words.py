"""Captions and legends of mean curves."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.curves.curve_summary import CurveSummary, summarize
from poslens.attribution.curves.text_axis import average, over_text
from poslens.attribution.methods import make_method
from poslens.studies.curves.words import (
    averaged,
    over_what,
    read_unlike,
    small,
    too_few,
    why_no_number,
)


def summary(model: str, cut: int, level: float = 1.0) -> CurveSummary:
    curves = np.full((1200, 100), level)
    return summarize(
        curves,
        [k // 4 for k in range(1200)],
        magnitudes=curves,
        model=model,
        dataset="d",
        method=make_method("saliency"),
        n_truncated=cut,
        n_failed=0,
    )


def test_captions_state_that_models_truncate_differently() -> None:
    none, some, more = (summary(n, cut).curve for n, cut in (("BM25", 0), ("A", 184), ("B", 184)))
    assert "truncate" not in over_what([none], [None])
    assert "A and B each truncate the document in 184 of 1,200 pairs" in over_what(
        [some, more], [512, 512]
    )
    assert "a different position in the text" not in over_what([some, more], [512, 512])
    assert "a different position in the text" in over_what([none, some], [None, 512])
    assert "BM25" not in over_what([none, some], [None, 512])


def test_the_caption_counts_the_pairs_that_have_results() -> None:
    a, b = (summary(name, 0).curve for name in "AB")
    assert averaged([(a, 1200), (b, 1200)]) == "Mean over all 1,200 pairs, from 300 documents."
    assert averaged([(a, 1200), (b, 2000)]) == (
        "Means: A, over all 1,200 pairs, from 300 documents; B, over 1,200 of 2,000 pairs, from "
        "300 documents."
    )


@pytest.mark.parametrize(
    ("cut", "limits", "unlike"),
    [
        ((0, 0), (512, 8192), False),
        ((7, 7), (512, 512), False),
        ((7, 0), (512, None), True),
        # Both truncate all documents, the second at half the length.
        ((1200, 1200), (512, 256), True),
    ],
)
def test_models_that_read_different_parts_are_detected(cut, limits, unlike: bool) -> None:
    curves = [summary(f"m{k}", n).curve for k, n in enumerate(cut)]
    assert read_unlike(curves, limits) is unlike


def test_over_whole_texts_the_caption_states_who_is_averaged() -> None:
    rows = np.ones((40, 100))
    rows[20:, 50:] = np.nan
    whole = average(
        rows,
        list(range(40)),
        model="A",
        dataset="d",
        method=over_text(make_method("saliency")),
        n_truncated=20,
        n_failed=0,
    )
    said = over_what([whole], [512])
    assert (
        "whole text" in said
        and "A truncates the document in 20 of 40 pairs" in said
        and "fewer than 10" in said
    )
    assert "index are relative to the tokens that each model read" in said
    assert "a different position in the text" not in said


def test_a_missing_number_has_its_reason() -> None:
    assert why_no_number([summary("a", 0)]) == ""
    assert why_no_number([summary("a", 0), summary("b", 0, 0.0)]).startswith("b: No center of mass")


def test_a_mean_of_few_pairs_is_not_shown_as_the_data_sets() -> None:
    assert "1 of 304 pairs" in too_few("M", 1, 304) and too_few("M", 9, 304)
    assert too_few("M", 10, 304) == too_few("M", 304, 304) == ""
    # A small set is shown in full, with a note about its size.
    assert too_few("M", 3, 4) and too_few("M", 4, 4) == ""
    assert "4 pairs" in small(4) and small(10) == ""
