"""Parts of the pair view that compare models: differences for this pair and over the data set, the
rank correlation of words, and the pairs in which two models differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import streamlit as st

from poslens.attribution.curves.positions import positions, rank_correlation
from poslens.attribution.curves.text_axis import curve_over_text
from poslens.attribution.methods import METHODS
from poslens.attribution.nouns import counted
from poslens.attribution.text import words
from poslens.dashboard.explain.subject import BOTH, DATA_SET, PAIR, ExplainedSubject
from poslens.dashboard.widgets import panels, say
from poslens.dashboard.widgets.pair_picker import open_pair
from poslens.dashboard.widgets.tables import on_row
from poslens.figures.curves import difference
from poslens.figures.figure_base import quantity
from poslens.figures.scatter import rank_scatter
from poslens.heatmap.data import Fact, Head, Pane, Rail, View
from poslens.studies.curves.words import MIN_PAIRS
from poslens.studies.explain.minus import minus_panes
from poslens.studies.explain.service import Difference, read_alike, word_scores

_OPENED = "just opened of the furthest"


def minus(
    subject: ExplainedSubject, rails: Sequence[Rail], gap: Difference | None
) -> Sequence[Pane]:
    """The heatmap panes of A minus B, with the difference as rail and in the header."""
    a, b = subject.results
    scores = word_scores(subject.results, METHODS[subject.method.name].aggregate)
    correlation = rank_correlation(scores[0], scores[1])
    facts = [] if correlation is None else [Fact(f"rank correlation of words {correlation:z.3f}")]
    rail = None
    if read_alike(a, b):
        rail = _rail(subject, rails, gap)
    else:
        why = "Relative positions are not comparable if the models read different parts of a text."
        facts.append(Fact("no curve: the models read different parts", why))
    head = Head(f"{a.attribution.score - b.attribution.score:+z.4f}", tuple(facts))
    return minus_panes(a, b, rail, head)


def _rail(subject: ExplainedSubject, rails: Sequence[Rail], gap: Difference | None) -> Rail:
    bins = tuple(x - y for x, y in zip(rails[0].bins, rails[1].bins, strict=True))
    if gap is None or gap.mean is None or subject.kind is not None:
        return Rail(bins)
    low, high = gap.interval or ((), ())
    a, b = subject.results
    return Rail(
        bins,
        tuple(map(float, gap.mean)),
        tuple(map(float, low)),
        tuple(map(float, high)),
        _note(gap, (a.attribution.model, b.attribution.model)),
    )


def differences(subject: ExplainedSubject, which: str, key: str) -> dict[str, panels.Draw]:
    """Draw and return the figures of one model's curve minus another's: for the pair, and for the
    data set with its interval."""
    comparable = [
        (i, j)
        for i, j in combinations(range(len(subject.results)), 2)
        if subject.results[i].pair == subject.results[j].pair
    ]
    if not comparable:
        return {}
    chosen = comparable[0]
    if len(comparable) > 1:
        chosen = st.selectbox(
            "Difference",
            comparable,
            format_func=lambda two: f"{subject.labels[two[0]]} − {subject.labels[two[1]]}",
            key=f"{key}.difference_of",
        )
    a, b = (subject.results[i] for i in chosen)
    names = (subject.labels[chosen[0]], subject.labels[chosen[1]])
    first, second = (curve_over_text(r.attribution, len(r.pair.document)) for r in (a, b))
    gap = subject.gap(*chosen)
    provenance = [a.provenance(), b.provenance()]
    title = quantity(subject.method)
    of_pair = partial(difference, first, second, names, y_title=title, provenance=provenance)
    figures: dict[str, panels.Draw] = {}
    mean = None if gap is None else gap.mean
    both = mean is not None and which == BOTH
    columns = panels.side_by_side(f"{key}.differences") if both else [st.container()] * 2
    if which != DATA_SET or mean is None:
        with columns[0]:
            panels.show(
                of_pair(panels.screen_style(height_px=280)),
                f"{key}.difference",
                "Attribution of this pair by A minus by B, over the whole text",
            )
            say.caption(f"Curve of {names[0]} minus {names[1]}, this pair.")
        figures["Difference"] = of_pair
    if gap is not None and mean is not None and which != PAIR:
        of_set = partial(
            difference,
            mean,
            0 * mean,
            names,
            at=positions(subject.method.curve_params["resampling"]),
            interval=gap.interval,
            y_title=title,
            provenance=gap.provenance,
        )
        with columns[1]:
            panels.show(
                of_set(panels.screen_style(height_px=280)),
                f"{key}.mean_difference",
                "Mean curve of A minus mean curve of B, with its interval",
            )
            sentences = [f"Mean curve{_note(gap, names).removeprefix('mean')}.", gap.left_out]
            say.caption(" ".join(filter(None, sentences)))
        figures["Mean difference"] = of_set
    elif gap is not None and mean is None and which != PAIR:
        say.caption(f"No mean difference: it takes {MIN_PAIRS} pairs. {gap.left_out}")
    if subject.kind is not None:
        st.caption("Controls aren't subtracted from differences between models.")
    return figures


def word_by_word(subject: ExplainedSubject, view: View) -> dict[str, panels.Draw]:
    """Show the rank correlation of the words' attributions by A and B, and draw and return the
    figure with each word."""
    document = subject.results[0].pair.document
    spans, scores = words(document), word_scores(subject.results, view.aggregate)
    correlation = rank_correlation(scores[0], scores[1])
    how = panels.plain(view.aggregate)
    if correlation is None:
        st.caption("No rank correlation: too few words are within both models' context limits.")
    else:
        st.markdown(
            f"Spearman correlation of word attributions between the models: **{correlation:z.3f}**",
            help=(
                f"A word's attribution is the {how} over its tokens, as in the heatmap. 1 means "
                "the same order. Only words within both context limits count."
            ),
        )
    both = np.flatnonzero(np.isfinite(scores[0]) & np.isfinite(scores[1])).tolist()
    names = (subject.labels[0], subject.labels[1])
    joined = f"words, the {how} of their tokens"
    draw = partial(
        rank_scatter,
        scores[0][both],
        scores[1][both],
        [document[slice(*spans[i])] for i in both],
        names,
        y_title=f"{METHODS[subject.method.name].title} of words ({view.aggregate} of tokens)",
        provenance=[replace(result.provenance(), units=joined) for result in subject.results],
    )
    # Labels that fit a narrow figure don't overlap on a phone either.
    style = panels.screen_style(width_px=panels.BESIDE_PX)
    with st.expander("Compare word by word"):
        panels.show(draw(style), "compare.words", "Attribution of each word by A and by B")
    return {"Words": draw}


def furthest(subject: ExplainedSubject, gap: Difference | None) -> None:
    """The pairs in which the two models differ most; selecting a row opens that pair."""
    data = subject.columns[0].data
    if gap is None or data is None or not gap.furthest:
        return
    ids = [pair_id for pair_id, _ in gap.furthest]

    def choose(pair_id: str) -> None:
        open_pair(pair_id)
        st.session_state[_OPENED] = True

    with st.expander("Pairs with the largest differences between models"):
        on_row(
            pd.DataFrame(
                {
                    "apart": [value for _, value in gap.furthest],
                    "query": [data.pair(pair_id).query for pair_id in ids],
                    "pair": ids,
                }
            ),
            "compare.furthest",
            ids,
            choose,
            height=240,
            column_config={
                "apart": st.column_config.NumberColumn(
                    "Distance of curves",
                    format="%.3f",
                    help=(
                        "Total variation distance of the two models' normalized curves: 0 if "
                        "they are equal, 1 if they don't overlap."
                    ),
                )
            },
        )
        if gap.left_out:
            say.caption(gap.left_out)
    if st.session_state.pop(_OPENED, False):
        # The pair picker is outside this fragment.
        st.rerun()


def _note(gap: Difference, names: tuple[str, str]) -> str:
    documents = counted(gap.n_documents, "document")
    band = "; the band is a 95% interval over documents" if gap.interval else ""
    return f"mean of {names[0]} minus {names[1]} over {gap.n:,} pairs of {documents}{band}"
