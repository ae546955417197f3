"""Figures of the query x document matrix contain the given numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from poslens.attribution.curves.interactions import Interactions
from poslens.figures.matrix import interaction_matrix, signed_root, unit_rails
from poslens.figures.palettes import Style

STYLE = Style()


def units(matrix: Any, rows: Sequence[str], columns: Sequence[str], *evidence: int) -> Interactions:
    return Interactions(np.asarray(matrix), tuple(rows), tuple(columns), evidence, 0.0, 0.0)


def test_rows_are_the_query_and_columns_the_document() -> None:
    matrix = np.zeros((2, 3))
    matrix[1, 2] = -0.5
    figure: Any = interaction_matrix(units(matrix, ["q0", "q1"], ["d0", "d1", "d2"], 0, 2), STYLE)
    (cells,) = figure.data
    assert cells.customdata[1][2] == -0.5 and cells.text[1][2] == "q1 × d2"
    assert (cells.zmin, cells.zmax, cells.z[1][2]) == (-1, 1, -1)
    assert cells.colorbar.ticktext[0] == "-0.5"
    assert figure.layout.yaxis.autorange == "reversed"
    assert {(shape.x0, shape.x1) for shape in figure.layout.shapes} == {(0.5, 1.5), (2.5, 3.5)}
    assert not np.any(interaction_matrix(units(0 * matrix, "ab", "abc"), STYLE).data[0].z)


def test_colors_follow_the_square_root_so_that_small_shares_are_visible() -> None:
    np.testing.assert_allclose(signed_root([0.01, -0.25, 0, 1]), [0.1, -0.5, 0, 1])


def test_repeated_words_stay_separate_columns() -> None:
    figure: Any = interaction_matrix(units(np.ones((1, 2)), "a", ["the", "the"]), STYLE)
    assert list(figure.layout.xaxis.ticktext) == ["the", "the"]
    assert list(figure.layout.xaxis.tickvals) == [1, 2]


def test_labels_that_would_overlap_become_numbers() -> None:
    figure: Any = interaction_matrix(units(np.ones((1, 300)), "a", ["word"] * 300), STYLE)
    assert figure.layout.xaxis.tickvals is None
    assert figure.data[0].text[0][7] == "a × word"


def test_each_query_word_has_its_own_rail() -> None:
    matrix = np.array([[0.0, 2.0], [-1.0, 0.5]])
    figure: Any = unit_rails(units(matrix, ["ice", "<b>"], "ab"), (0.5, 0.75), STYLE)
    (bars,) = figure.data
    np.testing.assert_array_equal(bars.customdata, [0, 2, -1, 0.5])
    np.testing.assert_array_equal(bars.base, [0, 0, -1, -1])
    np.testing.assert_allclose(bars.y / bars.y[1], [0, 1, -0.5, 0.25])
    np.testing.assert_array_equal(bars.x, [25, 75, 25, 75])
    assert bars.marker.color[1] != bars.marker.color[2]
    assert list(figure.layout.yaxis.ticktext) == ["ice", "&lt;b&gt;"]
    assert (50, 75) in {(shape.x0, shape.x1) for shape in figure.layout.shapes}


@pytest.mark.parametrize("rows", [1, 20, 151, 400])
def test_a_query_of_hundreds_of_words_is_drawn_with_readable_labels(rows: int) -> None:
    drawn = units(np.ones((rows, 4)), [f"word{n}" for n in range(rows)], "abcd")
    rails: Any = unit_rails(drawn, None, STYLE)
    whole: Any = interaction_matrix(drawn, STYLE)
    for figure in (rails, whole):
        labels = figure.layout.yaxis.ticktext
        assert labels[0] == "word0" and len(labels) * 1.2 * STYLE.font_size <= figure.layout.height
        assert len(labels) == len(figure.layout.yaxis.tickvals)
        assert len(labels) == rows or rows == 400
