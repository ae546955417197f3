"""The Audit page, with tabs for unretrieved sentences and the documents that contain them, and for
the chunk planner."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.evaluation.audit import SentenceRanks
from poslens.dashboard.widgets import links, panels
from poslens.dashboard.widgets.study_page import chosen_result, study_page
from poslens.dashboard.widgets.tables import chosen_row, column_settings, show_table
from poslens.studies.audit.study import AUDIT
from poslens.studies.audit.summary import AuditSummary
from poslens.studies.chunks.study import CHUNKS

TABS = ("Unretrieved sentences", "Chunk planner")
MOST_ROWS = 200
"""Maximum number of documents listed."""


def pair_of(data: DataSet, collection: Collection, document: str) -> str:
    """The id of a pair of the data set that contains the document; empty if there is none."""
    for query in collection.queries:
        if document in query.pairs:
            return query.pairs[document]
    pair = data.pairs.get(document)
    return document if pair is not None and pair.query else ""


def documents_section(summaries: Sequence[AuditSummary], data: DataSet) -> None:
    """The documents with the most unretrieved sentences, and the sentences of the selected
    document."""
    with st.columns([1, 2])[0]:
        summary = chosen_result(summaries, "Least retrievable documents for", "audit.worst")
    worst = AUDIT.tables["worst"]
    table = worst.text_frame([summary])
    if table.empty:
        st.caption("Every sentence retrieves its own document.")
        return
    table = table.drop(columns=["model", "chunks"]).head(MOST_ROWS)
    count = "unretrieved sentences"
    table.insert(0, count, table.pop(count))  # a phone shows only the first columns
    row = chosen_row(
        table,
        f"audit.documents.{summary.name}",
        "document",
        height=280,
        column_config=column_settings(worst),
    )
    if row is not None:
        document_section(summary, summary.worst[row][0], data)


def document_section(summary: AuditSummary, document: SentenceRanks, data: DataSet) -> None:
    """The sentences of a document, each with the rank at which it retrieves the document."""
    collection, key = summary.index.collection, document.document_id
    text = collection.texts([key]).get(key, "")
    ranks = document.ranks
    table = pd.DataFrame(
        {
            "position": 100 * document.positions[0],
            "sentence": [text[a:b] for a, b in document.spans],
            "rank": ranks[0, 0],
            "rank of its question": ranks[0, 1],
            "rank, shuffled": ranks[1, 0],
            "read": 100 * document.read[0],
        }
    )
    if summary.n_truncated is None:
        del table["read"]
    largest = len(summary.documents) + len(summary.failed)
    for name in ("rank", "rank of its question", "rank, shuffled"):
        # Rank 0 means an empty query; a rank past the last one means a document that shares no word
        # with the query.
        ranked = table[name].between(1, largest)
        table[name] = table[name].astype("Int64").where(ranked)
    percent = st.column_config.NumberColumn(format="%.0f%%")
    show_table(
        table,
        height=280,
        column_config={
            "position": percent,
            "read": percent,
            "sentence": st.column_config.TextColumn(width="large"),
        },
    )
    if pair := pair_of(data, collection, key):
        models = [summary.index.spec.name]
        links.explain_link("Explain a pair of this document", data.name, pair, models)


def sentences_section() -> None:
    """The study's page without its heading, followed by documents with their sentences."""
    opened = study_page(AUDIT)
    if opened is not None and opened.summaries:
        with panels.guarded():
            documents_section(opened.summaries, opened.data)


st.markdown("# Audit: what can't an index retrieve?")
sentences_tab, chunks_tab = st.tabs(TABS, key="tab", bind="query-params")
if chunks_tab.open:
    with chunks_tab:
        study_page(CHUNKS)
else:
    with sentences_tab:
        sentences_section()
