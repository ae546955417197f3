"""Studies: parameters, rows, and what is derived from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison, paired
from poslens.dashboard.widgets.tables import column_settings
from poslens.parameters import Choice, Integer, Numbers, Parameters, Several, Switch
from poslens.rows import Table, answer_of, column, entries, shown
from poslens.studies import declared
from poslens.study import STUDIES

PARAMETERS = Parameters(
    top=Integer(title="Top", default=10, low=1, high=1000, help="k."),
    query=Choice(title="Query", default="sentence", options=("sentence", "question"), help="q."),
    chunks=Several(
        title="Chunks", default=("whole",), options=("whole", "late:64"), help="c.", closed=True
    ),
    depths=Numbers(title="Depths", default=(0, 100), low=0, high=100, help="d."),
    readable=Switch(title="Readable only", help="r."),
)


def test_omitted_parameters_have_their_defaults() -> None:
    found = PARAMETERS.settings({"top": "5", "chunks": None, "depths": "50,0,50"})
    assert (found.top, found.query, found.chunks, found.depths) == (
        5,
        "sentence",
        ("whole",),
        (0, 50),
    )
    assert str(found) == "top=5, query=sentence, chunks=whole, depths=0.0+50.0, readable=False"
    assert found == PARAMETERS.settings({"top": 5, "depths": [0, 50]})
    assert hash(found) == hash(PARAMETERS.settings({"top": 5, "depths": [0, 50]}))
    with pytest.raises(AttributeError):
        _ = found.bottom


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"top": 0}, "Top must be a whole number from 1 to 1,000, not '0'."),
        ({"top": "1.5"}, "Top must be a whole number from 1 to 1,000, not '1.5'."),
        ({"query": "x"}, "Query: choose from sentence, question, not 'x'."),
        ({"chunks": ["whole", "x"]}, "Chunks: choose from whole, late:64, not 'x'."),
        ({"depths": "nan"}, "Depths must be numbers from 0 to 100, separated by commas"),
        ({"depths": ""}, "must be numbers from 0 to 100"),
        ({"readable": "yes"}, "Readable only must be True or False, not 'yes'."),
        ({"bottom": 1}, "There is no parameter 'bottom': choose from top, query, chunks, depths,"),
    ],
)
def test_invalid_values_are_refused_in_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        PARAMETERS.settings(given)
    assert sentence in str(error.value)


@dataclass(frozen=True)
class Row:
    """A row."""

    model: str = column("Name of the model.")
    share: Estimate | None = column("Share, 0 to 1.", title="unretrieved", form=".1f")
    hidden: int = column("Not on pages.", shown=False)
    p: float | None = column("Its p value.", title="p value", form=".2g")


def test_an_estimate_has_three_columns_in_files_and_one_on_pages() -> None:
    known, unknown = Row("a", Estimate(0.25, 0.1, 0.4), 3, 0.5), Row("b", None, 4, None)
    assert entries(known) == {
        "model": "a",
        "share": 0.25,
        "share_low": 0.1,
        "share_high": 0.4,
        "hidden": 3,
        "p": 0.5,
    }
    assert entries(unknown)["share_low"] is None
    assert shown(known) == {"model": "a", "unretrieved": "0.3 [0.1, 0.4]", "p value": 0.5}
    assert Table(Row, lambda rows: rows).formats() == {"p value": ".2g"}
    assert shown(unknown)["unretrieved"] == ""
    frame = Table(Row, lambda rows: rows).frame([[known], [unknown]])
    assert list(frame) == list(entries(known)) and len(frame) == 2
    assert list(Table(Row, lambda rows: rows).frame([])) == list(entries(known))


@pytest.mark.parametrize("name", declared())
def test_columns_of_a_page_have_distinct_headings(name: str) -> None:
    for table in declared()[name].load().tables.values():
        on_page = [item for item in fields(table.row) if item.metadata["shown"]]
        headings = [
            heading
            for item in on_page
            for heading in (item.metadata["keys"] or [item.metadata.get("title") or item.name])
        ]
        assert len(headings) == len(set(headings)), table.row


@pytest.mark.parametrize("name", ["rank", "positions", "audit"])
def test_captions_state_the_intervals_of_values_that_are_all_equal(name: str) -> None:
    """There, every resample is the same, and a formula replaces the bootstrap."""
    assert "Agresti-Coull" in declared()[name].load().limits


@dataclass(frozen=True)
class ShareRow:
    """A row with a share in percent."""

    model: str = column("Name of the model.")
    read: float | None = column("Share read, 0 to 1.", form=".0%")


def test_a_share_in_percent_is_multiplied_by_100_on_pages_only() -> None:
    table = Table(ShareRow, lambda rows: rows)
    rows = [[ShareRow("a", 0.9167)], [ShareRow("b", None)]]
    assert table.text_frame(rows)["read"][0] == pytest.approx(91.67)
    assert pd.isna(table.text_frame(rows)["read"][1])
    assert table.frame(rows)["read"][0] == 0.9167
    settings = column_settings(table)
    assert settings["read"]["type_config"]["format"] == "%.0f%%"


@dataclass(frozen=True)
class ComparedRow:
    """A row with a comparison."""

    model: str = column("Name of the model.")
    measure: str = column("What was measured.", first=2, words={"Q1": "short texts"})
    change: Comparison | None = column("Change of the share.", form="+.2f", first=1)


def test_pages_show_a_comparison_first_and_its_verdict_in_a_column() -> None:
    comparison = paired(np.zeros(12), np.full(12, 0.5), None, 0.1)
    row, table = ComparedRow("a", "Q1", comparison), Table(ComparedRow, lambda rows: rows)
    assert comparison is not None and entries(row) == {
        "model": "a",
        "measure": "Q1",
        "change": 0.5,
        "change_low": 0.5,
        "change_high": 0.5,
        "change_verdict": "higher",
        "change_p_holm": comparison.p,
        "change_margin": 0.1,
        "change_documents_needed": None,
    }
    assert shown(row) == {
        "model": "a",
        "measure": "short texts",
        "change": "+0.50 [+0.50, +0.50]",
        "verdict": "higher",
        "p (Holm)": "< 0.001",
    }
    other = ComparedRow("a", "Q2", comparison)
    columns = [list(table.text_frame([rows]))[:3] for rows in ([row, other], [row])]
    assert columns[0] == ["change", "measure", "model"], "a phone shows these"
    assert columns[1] == ["change", "model", "measure"], "one measure distinguishes no rows"
    assert set(shown(row)) == set(table.meanings())
    rng = np.random.default_rng(2)
    open_ = ComparedRow("c", "", paired(np.zeros(12), rng.normal(0, 1, 12), None, 0.1))
    assert open_.change is not None and open_.change.needed is not None
    assert shown(open_)["verdict"] == (f"too few documents, about {open_.change.needed:,} needed")
    unknown = ComparedRow("b", "x", None)
    assert set(list(entries(unknown).values())[2:]) == {None} and shown(unknown)["change"] == ""
    assert list(table.frame([[row], [unknown]])) == list(entries(row))
    assert list(get_type_hints(answer_of(ComparedRow))) == list(entries(row))


def test_the_json_schema_is_derived_from_the_row() -> None:
    hints = get_type_hints(answer_of(Row), include_extras=True)
    assert list(hints) == ["model", "share", "share_low", "share_high", "hidden", "p"]
    assert hints["share"].__metadata__ == ("Share, 0 to 1.",)
    assert hints["hidden"].__origin__ is int


def test_every_study_is_found_without_importing_it_and_is_declared_once() -> None:
    for name, one in declared().items():
        study = one.load()
        assert STUDIES[name] is study
        assert (study.name, study.question) == (name, one.question)
        assert study.all_tables and study.reads and study.limits and study.unit
    assert set(declared()) == set(STUDIES)
