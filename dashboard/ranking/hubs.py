"""The Ranking page's tab on hubs: in-degrees, the words of a hub, and links to Explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.dashboard.widgets import links, panels, say
from poslens.dashboard.widgets.study_page import chosen_result, study_section
from poslens.dashboard.widgets.tables import chosen_row, column_settings, show_table
from poslens.parameters import Settings
from poslens.studies.hubs.study import HUBS
from poslens.studies.hubs.summary import HubSummary


def section(
    data: DataSet,
    names: Sequence[str],
    settings: Settings,
    spec_of: Callable[[str, str], RetrieverSpec],
) -> None:
    """In-degrees under these models, and the hubs of one of them. `spec_of` as in `study_section`.

    Raises:
        UserError: the data set cannot be read, or is too small.
    """
    st.markdown(f"**{panels.plain(HUBS.question)}** {panels.plain(HUBS.reads)}")
    opened = study_section(HUBS, data, names, settings, spec_of=spec_of)
    if opened is not None and opened.summaries:
        _hubs(data.name, opened.summaries)


def _hubs(dataset: str, summaries: Sequence[HubSummary]) -> None:
    """The hubs of a model, largest in-degree first."""
    with st.columns([1, 2])[0]:
        summary = chosen_result(summaries, "Hubs of", "hubs.of")
    table = HUBS.tables["hubs"]
    frame = table.text_frame([summary])
    if frame.empty:
        st.caption("No document is retrieved by a query that it does not answer.")
        return
    st.caption(f"Select a hub to see its words and queries; the first {len(frame):,} are listed.")
    row = chosen_row(
        frame.drop(columns="model"),
        f"hubs.documents.{summary.name}",
        "document",
        height=280,
        column_config=column_settings(table),
    )
    if row is not None:
        _hub(dataset, summary, summary.hubs[row], [each.name for each in summaries])


def _hub(dataset: str, summary: HubSummary, number: int, models: Sequence[str]) -> None:
    """The words of a hub and the queries that retrieve it, with a link that explains one of
    them."""
    key = summary.ids[number]
    _words(summary, key)
    collection = summary.asked.corpus
    say.heading(f"Queries that retrieve {key}")
    frame = _of_hub("queries", summary, key)
    row = chosen_row(
        frame,
        f"hubs.queries.{summary.name}.{key}",
        "id",
        height=280,
        column_config={"query": st.column_config.TextColumn(width="large")},
    )
    query = str(frame["query"].iloc[row or 0])
    st.caption(f"Explain it with: {panels.plain(query)}")
    # Models that every method supports, if there are any.
    opened = [name for name in models if name != "BM25"] or list(models)
    text = collection.texts([key]).get(key, "")
    links.text_link("Explain the chosen document", query, text, dataset, opened)


def _words(summary: HubSummary, key: str) -> None:
    """The words that contribute most to the hub's scores."""
    method = summary.words_method
    if method is None or key not in summary.words:
        return
    say.heading(f"Words of {key}: {METHODS[method.name].title}")
    show_table(
        _of_hub("words", summary, key),
        key=f"hubs.words.{summary.name}",
        column_config=column_settings(HUBS.tables["words"]),
    )


def _of_hub(table: str, summary: HubSummary, key: str) -> pd.DataFrame:
    """The rows of a table that concern one hub."""
    frame = HUBS.tables[table].text_frame([summary])
    rows = frame[frame["document"] == key].drop(columns=["model", "document"])
    return rows.reset_index(drop=True)
