"""The Map page: texts or curves of a data set as points; a click or a lasso selects some of
them."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.curves.projection import METRICS, Layout, require_points
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.attribution.nouns import counted
from poslens.attribution.types import Provenance, TextPair
from poslens.cache.shipped.preferences import verdict
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job
from poslens.compute.selection import evidence_position
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, panels, say
from poslens.dashboard.widgets.run_board import run_board, watched
from poslens.studies import map as map_service
from poslens.studies.map import MANY, CurveMap, StoredMap, TextMap, point_map

OF = {"documents": "document", "queries": "query", "curves": ""}
BY_METHOD = ("score", "primacy-recency index")
"""Colors that are results of a method."""
COLORS = (
    "domain",
    "language",
    "query type",
    "tokens",
    "evidence position",
    *BY_METHOD,
)

COLOR_TITLES = {"evidence position": "evidence position (%)"}
NEARBY = {
    "cosine": "Nearby points have a high cosine similarity, even if the model itself uses the dot "
    "product.",
    "correlation": "Nearby points have highly correlated curves.",
}

st.markdown("# Map: which documents, queries or curves are alike?")
chosen_data = picked = method = None
with st.sidebar:
    with panels.guarded():
        chosen_data = choices.data_set()
    name = choices.model("Model", "model", "MiniLM")
    with st.expander("What the map shows"):
        of = (
            st.selectbox(
                "Items",
                list(OF),
                key="of",
                bind="query-params",
                help="Documents or queries by their embeddings, or pairs by the shape of their "
                "position curves.",
            )
            or "documents"
        )
        color = st.selectbox("Color", COLORS, key="color", bind="query-params") or COLORS[0]
    if chosen_data is not None:
        with panels.guarded(), st.expander("Filter pairs"):
            picked = choices.filters(chosen_data)
    if by_method := of == "curves" or color in BY_METHOD:
        with panels.guarded():
            method = choices.method([name])
if chosen_data is None or picked is None or (by_method and method is None):
    st.stop()
data, selection = chosen_data, picked
pairs = selection.pairs
groups: dict[str, list[TextPair]] = defaultdict(list)
for pair in pairs:
    item_of = {"documents": pair.document, "queries": pair.query}
    groups[item_of.get(of, pair.pair_id)].append(pair)
if of == "curves" and method is not None:
    source: TextMap | CurveMap = CurveMap(method, pairs)
    layout = Layout(metric=METRICS["curves"])
else:
    source = TextMap("document" if of == "documents" else "query", list(groups))
    layout = Layout(metric=METRICS["embeddings"])

st.markdown(
    f"{panels.plain(data.title)}: one point for each of {len(source):,} {panels.plain(of)} from "
    f"{len(pairs):,} pairs"
    + (f" ({panels.plain(selection.words)})." if selection.words else ".")
    + " Click a point, or lasso several, to list their pairs."
)
try:
    require_points(len(source))
except UserError as reason:
    say.info(reason)
    st.stop()


def job() -> Job:
    """The job that computes this map."""
    return map_service.job(service_for(data.name), choices.spec(name, data.name), source, layout)


def values(items: tuple[str, ...]) -> list[str] | np.ndarray:
    """The values [n] by which items are colored. An item with several pairs gets the mean of their
    numbers, or the first of their words."""
    if color in ("domain", "language", "query type"):
        field = color.replace(" ", "_")
        return [str(getattr(groups[item][0], field) or "unknown") for item in items]
    if color == "tokens":
        value_of = {p.pair_id: float(p.document_tokens or np.nan) for p in pairs}
    elif color == "evidence position":
        value_of = {
            p.pair_id: np.nan if (at := evidence_position(p)) is None else 100 * at for p in pairs
        }
    else:
        assert method is not None  # the color is one of BY_METHOD
        model = service_for(data.name).identify(choices.spec(name, data.name))
        stored = service_for(data.name).store.curves(model.key, method, pairs)
        values = stored.scores if color == "score" else primacy_recency_index(stored.magnitudes)
        value_of = dict(zip(stored.pair_ids, values.tolist(), strict=True))
    means = []
    for item in items:
        finite = [v for p in groups[item] if np.isfinite(v := value_of.get(p.pair_id, np.nan))]
        means.append(float(np.mean(finite)) if finite else np.nan)
    return np.array(means)


def provenance(stored_map: StoredMap) -> Provenance:
    """Everything needed to reproduce this map."""
    counts = {"documents": "n_documents", "queries": "n_queries", "curves": "n_pairs"}
    n: dict[str, Any] = {counts[of]: len(stored_map.items)}
    return of_model(
        stored_map.model,
        repr(layout) if of != "curves" else f"{layout!r} of {method!r}",
        data.name,
        truncated=stored_map.n_truncated,  # stored with curves, not with vectors
        selection=(of, selection.words),
        **n,
    )


def status(stored_map: StoredMap) -> None:
    """The number of excluded items, and the job's progress and button."""
    map_job = job()
    missing = len(source) - len(stored_map.items) - stored_map.n_flat
    if stored_map.n_flat and not map_job.active:
        say.caption(
            f"{stored_map.n_flat:,} of {len(source):,} {of} are not shown, because their vector is "
            "zero or constant and has no nearest neighbor."
        )
    if map_job.active or missing or stored_map.points is None:
        idle = (
            f"{missing:,} of {len(source):,} {of} are not computed yet."
            if missing
            else "All vectors are computed; the layout isn't."
        )
        run_board([map_job], "map.", idle=idle)


def opened(chosen: list[TextPair]) -> None:
    """The pairs of the selected points, with links to Explain."""
    frame = pd.DataFrame(
        {
            "query": [p.query for p in chosen],
            "domain": [p.domain for p in chosen],
            "language": [p.language for p in chosen],
            "pair": [p.pair_id for p in chosen],
        }
    )
    links.open_pairs(frame, data.name, [name], "map.opened", method)


def is_active() -> bool:
    """Whether this map is being computed."""
    try:
        return job().active
    except UserError:
        return False


def board() -> None:
    """Progress, map and pairs."""
    stored_map = map_service.stored_map(
        service_for(data.name), choices.spec(name, data.name), source, layout
    )
    status(stored_map)
    if stored_map.points is None:
        return
    items, points = stored_map.items, stored_map.points
    colors = values(items)
    labels = [groups[item][0].query if of == "curves" else item for item in items]
    color_title = COLOR_TITLES.get(color, color)
    origin = provenance(stored_map)
    draw = partial(
        point_map,
        points,
        colors,
        labels,
        color_title[0].upper() + color_title[1:],
        diverging=color == "primacy-recency index",
        provenance=[origin],
    )
    event = panels.show(
        draw(panels.screen_style(height_px=560), webgl=len(items) >= MANY),
        f"map.figure.{of}.{name}",
        f"Map of {of}, one point each, colored by {color}",
        on_select="rerun",
        selection_mode=("points", "box", "lasso"),
    )
    st.caption(
        f"{NEARBY[layout.metric]} Identical items coincide. The axes and the distances between "
        "distant groups have no meaning."
    )
    if color == "primacy-recency index" and method is not None:
        preference = verdict(method, [choices.spec(name, data.name)])
        say.caption(f"{preference} {METHODS[method.name].caveat}".strip())
    if isinstance(colors, np.ndarray) and (unknown := int(np.isnan(colors).sum())):
        st.caption(
            f"Gray: {counted(unknown, 'point')} of unknown {panels.plain(color)}."
            + (
                " Compute this model's curves on the Curves page first."
                if color in BY_METHOD
                else ""
            )
        )
    chosen = [int(p["customdata"]) for p in event.selection.points if "customdata" in p]
    if chosen:
        opened([p for i in chosen if i < len(items) for p in groups[items[i]]])
    panels.caption(origin)
    frame = pd.DataFrame(
        {
            "item": labels,
            "x": points[:, 0],
            "y": points[:, 1],
            color_title: colors,
            "pairs": [" ".join(p.pair_id for p in groups[item]) for item in items],
        }
    )
    panels.downloads(
        "map",
        [data.name, name, of, "map"],
        [origin],
        figures={"Map": draw},
        tables={"Numbers": lambda: frame},
    )


watched(is_active, board, seconds=1.0)
