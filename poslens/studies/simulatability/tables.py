"""Tables of predictions by method and by query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.simulatability import VIEWS
from poslens.attribution.methods import METHODS
from poslens.rows import Table, column
from poslens.studies.simulatability.summary import SimulatabilitySummary


@dataclass(frozen=True)
class MethodRow:
    """Predictions for one model and method."""

    model: str = column("Name of the model.")
    method: str = column("Attribution method that chooses the words.", shown=False)
    method_title: str = column("Title of the method.", title="method", in_files=False)
    queries: int = column("Queries whose two highest-ranked documents are compared.")
    words: int = column("Words that are read of each document.")
    explanation: Estimate | None = column(
        f"Share of correct predictions, 0 to 1, from {VIEWS['explanation']}.",
        title="method's words",
    )
    random: Estimate | None = column(f"The same from {VIEWS['random']}.")
    first: Estimate | None = column(f"The same from {VIEWS['first']}.")
    similar: Estimate | None = column(f"The same from {VIEWS['similar']}.")
    all: Estimate | None = column(f"The same from {VIEWS['all']}.", title="all words")
    gain: Comparison | None = column(
        "The method's words minus random words, paired by query.", form="+.3f"
    )
    over_similar: Comparison | None = column(
        "The method's words minus the words most similar to the query, paired by query.",
        title="minus similar words",
        form="+.3f",
    )


@dataclass(frozen=True)
class QueryRow:
    """Predictions for one query."""

    model: str = column("Name of the model.")
    method: str = column("Attribution method that chooses the words.")
    query: str = column("The query.")
    higher: str = column("The method's words of the document that the model ranks first.")
    lower: str = column("The method's words of the document that the model ranks second.")
    correct: float = column("1 if the prediction from these words is correct; 0.5 for a tie.")
    random: float = column("Share of correct predictions from random words.")


def _method_rows(summary: SimulatabilitySummary) -> Iterator[MethodRow]:
    asked = summary.asked
    yield MethodRow(
        asked.spec.name,
        asked.method.name,
        METHODS[asked.method.name].title,
        len(summary.choices),
        asked.words,
        **summary.views,
        gain=summary.gain,
        over_similar=summary.over_similar,
    )


def _query_rows(summary: SimulatabilitySummary) -> Iterator[QueryRow]:
    asked = summary.asked
    for number, choice in enumerate(summary.choices):
        higher, lower = (
            side.text(side.largest(asked.words)) for side in (choice.higher, choice.lower)
        )
        yield QueryRow(
            asked.spec.name,
            asked.method.name,
            choice.query,
            higher,
            lower,
            float(summary.rows["explanation"][number]),
            float(summary.rows["random"][number]),
        )


TABLES = {
    "methods": Table(MethodRow, _method_rows),
    "queries": Table(QueryRow, _query_rows, "Queries", on_page=False),
}
