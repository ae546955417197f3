"""The interactions of query and document units: a row of bars for each query unit, and the whole
matrix."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from poslens.attribution.curves.interactions import Interactions, interactions
from poslens.attribution.retrievers.detect import family_of
from poslens.compute.compute import Explained
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, panels, say
from poslens.figures.matrix import interaction_matrix, unit_rails
from poslens.figures.plain import plain
from poslens.studies.explain.service import evidence_range

_PAGE_PX = 360  # width of a figure on a phone, in which labels must fit


def matrix_view(result: Explained, key: str, label: str) -> None:
    """The interactions of query and document units, if the attribution has a matrix."""
    attribution, pair = result.attribution, result.pair
    if attribution.matrix is None:
        return
    say.heading(f"Score of each query word by document position · {label}")
    provenance = [result.provenance()]
    along = interactions(attribution, pair, "word", "bin")
    rails = partial(unit_rails, along, evidence_range(result), provenance=provenance)
    panels.show(
        rails(panels.screen_style()),
        f"{key}.rails",
        "Share of the score of each query word over the position in the document",
    )
    _sums(result, along)
    with st.expander("Full interaction matrix"):
        chosen = _chosen(result, key)
        units = f"Index of the document {st.session_state[f'{key}.columns']}"
        whole = partial(interaction_matrix, chosen, x_title=units, provenance=provenance)
        panels.show(
            whole(panels.screen_style(width_px=_PAGE_PX)),
            f"{key}.figure",
            "Share of the score of each query unit with each document unit",
        )
        st.caption(
            "Color shows the square root of a share. Drag to zoom in, double-click to reset."
        )
    numbers = (
        pd.DataFrame(chosen.matrix, index=chosen.rows, columns=range(len(chosen.columns)))
        .rename_axis("query")
        .reset_index()
        .set_axis(["query", *(f"{i} {name}" for i, name in enumerate(chosen.columns))], axis=1)
    )
    panels.downloads(
        key,
        [pair.pair_id, result.model.spec.name, "matrix"],
        provenance,
        figures={"Rails": rails, "Matrix": whole},
        tables={"Numbers": lambda: numbers},
    )


def _chosen(result: Explained, key: str) -> Interactions:
    """The matrix aggregated to the levels that the user selects."""
    left, right = st.columns([2, 3])
    with left:
        rows = choices.one_of("Rows", ["word", "token"], f"{key}.rows", bind=None)
    with right:
        levels = ["bin", "sentence", "word", "token"]
        columns = choices.one_of("Columns", levels, f"{key}.columns", bind=None)
    return interactions(result.attribution, result.pair, rows, columns)  # type: ignore[arg-type]


def _sums(result: Explained, sums: Interactions) -> None:
    attribution = result.attribution
    if attribution.method.params.get("matrix") == "similarities":
        st.caption(
            "All similarities, summed within words. Only the largest similarity of each query "
            "token enters the score."
        )
        return
    share = attribution.bias_share or 0.0
    rest = attribution.score - sums.total
    st.caption(
        f"The score of {attribution.score:.4f} is the sum of text tokens "
        f"({sums.total - sums.special:+z.4f}), special tokens ({sums.special:+z.4f}) and "
        f"what belongs to no pair of tokens ({rest:+z.4f}, of which the bias share is "
        f"{share:+z.4f})."
    )


def terms_view(result: Explained, key: str, label: str) -> None:
    """The terms that a sparse encoder gives weight to in both texts; computed on request."""
    if family_of(result.model.spec).search != "term_weights":
        return
    if not st.toggle(plain(f"Shared terms · {label}"), key=f"{key}.shown"):
        return
    attribution = result.attribution
    place = service_for(result.pair.dataset).ask_terms(result.pair, result.model.spec)
    frame = pd.DataFrame(
        [
            (
                term.text,
                term.share,
                term.query_weight,
                term.document_weight,
                attribution.query.texts[term.query_token],
                attribution.document.texts[term.document_token],
            )
            for term in wait(place)
        ],
        columns=[
            "term",
            "share",
            "query weight",
            "document weight",
            "query token",
            "document token",
        ],
    )
    st.dataframe(frame, hide_index=True)
    st.caption("A share is the product of the two weights. The shares add up to the score.")
    panels.downloads(
        key,
        [result.pair.pair_id, result.model.spec.name, "terms"],
        [result.provenance()],
        tables={"Numbers": lambda: frame},
    )
