"""Audit: which passages of a corpus its own index cannot find, by place."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import PROBES, TOP, Reach
from poslens.attribution.evaluation.chunks import Chunks, chunks_of
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, panels, url_state
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.dashboard.widgets.tables import chosen_row, show_table
from poslens.figures.palettes import Style
from poslens.studies.audit import service as audits
from poslens.studies.audit import tables
from poslens.studies.audit.figures import dark_curves
from poslens.studies.audit.service import Audit, Index, Setup

CHUNKS = ["whole", "windows:64:16", "windows:128:32", "windows:256:64", "late:64", "late:128"]

setup: Setup | None = None
ways: list[Chunks] = []
names: list[str] = []
with st.sidebar, panels.guarded():
    data = choices.data_set()
    names = choices.models(["MiniLM-primacy", "MiniLM", "MiniLM-recency", "BM25"])
    top = url_state.whole_number(
        "Top",
        "top",
        1,
        1000,
        TOP,
        help="A sentence is dark when its own document is not among so many.",
    )
    chunks = st.multiselect(
        "Documents in the index",
        CHUNKS,
        default=["whole"],
        accept_new_options=True,
        key="chunks",
        bind="query-params",
        help="whole; windows:128:32, of 128 tokens that share 32 with the next; or late:128, one "
        "pass over the text, then windows of its token vectors. Each is compared with the first of "
        "its model, calibrated or not.",
    )
    probe = st.segmented_control(
        "Searched for", PROBES, default="sentence", key="probe", bind="query-params", required=True
    )
    ways = [chunks_of(one) for one in chunks]
    documents = url_state.whole_number(
        "Documents",
        "documents",
        0,
        10_000_000,
        0,
        help="Audit a sample of so many documents, drawn at random with seed 0; 0 is all. "
        "Sentences are searched for in the sample alone.",
    )
    setup = Setup(audits.corpus(data, documents), top, probe or "sentence")

st.markdown(
    "# Audit: which passages can the index not find?\n"
    "Each sentence of the corpus is searched for. It is dark when its own document does not come "
    "up; thin lines are of documents with their sentences shuffled, where place is all that "
    "counts."
)
if setup is None:
    st.stop()
if setup.collection.drawn:
    st.caption(panels.plain(f"Sample: {setup.collection.drawn}."))
if not names or not ways:
    st.info("Choose a model and how its documents stand in the index.")
    st.stop()
the_setup = setup
compute = service_for(data.name)


def jobs_of(setup: Setup) -> tuple[list[Index], list[Job], list[str]]:
    """What can be audited, and why the rest cannot."""
    indexes: list[Index] = []
    jobs: list[Job] = []
    reasons: list[str] = []
    for name in names:
        for way in ways:
            try:
                index = Index(choices.spec(name, data.name), way)
                jobs.append(audits.job(compute, index, setup))
                indexes.append(index)
            except UserError as reason:
                reasons.append(str(reason))
    return indexes, jobs, list(dict.fromkeys(reasons))


def audited(indexes: Sequence[Index]) -> list[Audit]:
    """What is stored of them; each is compared with the first one of its model."""
    found: list[Audit] = []
    for index in indexes:
        one = audits.audit(compute, index, the_setup, audits.base_of(found, index))
        if one is not None:
            found.append(one)
    return found


def curves_section(found: Sequence[Audit]) -> None:
    """Dark sentences by place, and the numbers of each index."""
    known = [one.provenance() for one in found]

    def draw(style: Style) -> go.Figure:
        """Share of dark sentences by place."""
        return dark_curves(found, style, provenance=known)

    panels.show(draw(panels.screen_style(height_px=380)), "audit.curves", "Dark sentences by place")
    for one in found:
        said = f"{audits.sentence(one)} {audits.limit_sentence(one)}".rstrip()
        st.markdown(panels.plain(said))
    show_table(tables.summary_text(found))
    st.caption(
        "Intervals resample documents; below ten documents there is none. Last third less first: "
        "the share of dark sentences there less that at the beginning. Won back: the share of the "
        "model's first row less this one's, over the same sentences."
    )
    panels.caption(known)
    panels.downloads(
        "audit.curves",
        [data.name, "audit"],
        known,
        figures={"Dark sentences by place": draw},
        tables={
            "Summary": lambda: tables.summary_frame(found),
            "By place": lambda: tables.positions_frame(found),
            "By language and length": lambda: tables.groups_frame(found),
            "Documents": lambda: tables.worst_frame(found, None),
            "Where it stops reading": lambda: tables.truncation_frame(found),
        },
    )


indexes, _, unfit = jobs_of(the_setup)
for reason in unfit:
    st.caption(panels.plain(reason))
if not indexes:
    st.stop()
ticking = any_active(jobs_of(the_setup)[1])


@fragment(run_every=2.0 if ticking else None)
def board() -> None:
    """Progress and the curves; refreshed by itself while something is audited."""
    with panels.guarded():
        jobs = jobs_of(the_setup)[1]
        figure = st.container()
        run_board(jobs, "audit.", unit="documents")
        if any_active(jobs) != ticking:
            st.rerun()
        for index in indexes if not any_active(jobs) else ():
            with panels.guarded():
                if audits.audit(compute, index, the_setup) is None and (
                    said := audits.estimate_words(compute, index, the_setup)
                ):
                    st.caption(panels.plain(f"{index.name}: {said}"))
        with figure, panels.guarded():
            if found := audited(indexes):
                curves_section(found)
            else:
                st.info("Nothing is stored of this corpus yet: press Compute.")
        # Of an index that no document is in, too.
        for job in jobs:
            if not job.active:
                failed_items(job, job.failures(), "audit.", unit="document")


def pair_of(data: DataSet, document: str) -> str:
    """A pair of the data set that holds the document; nothing where there is none."""
    for query in the_setup.collection.queries:
        if document in query.pairs:
            return query.pairs[document]
    return document if document in data.by_id and data.by_id[document].query else ""


def document_section(one: Audit, reach: Reach) -> None:
    """A document's sentences with the rank at which each finds it."""
    text = the_setup.collection.texts([reach.document_id]).get(reach.document_id, "")
    ranks = reach.ranks
    frame = pd.DataFrame(
        {
            "place": 100 * reach.places[0],
            "sentence": [text[a:b] for a, b in reach.spans],
            "rank": ranks[0, 0],
            "rank of its question": ranks[0, 1],
            "rank, shuffled": ranks[1, 0],
            "read": 100 * reach.read[0],
        }
    )
    largest = len(one.found) + len(one.failed)
    for name in ("rank", "rank of its question", "rank, shuffled"):
        # Nothing was searched for, or nothing that the document has.
        known = frame[name].between(1, largest)
        frame[name] = frame[name].astype("Int64").where(known)
    percent = st.column_config.NumberColumn(format="%.0f%%")
    show_table(
        frame,
        height=280,
        column_config={
            "place": percent,
            "read": percent,
            "sentence": st.column_config.TextColumn(width="large"),
        },
    )
    if pair := pair_of(data, reach.document_id):
        links.explain_link(
            "Explain a pair of this document", data.name, pair, [one.index.spec.name]
        )


def worst_section(found: Sequence[Audit]) -> None:
    """Documents with most dark sentences, and the sentences of the one that is chosen."""
    by_name = {one.name: one for one in found}
    left, _ = st.columns([1, 2])
    name = left.selectbox("Documents that are found least, by", list(by_name), key="audit.worst")
    one = by_name[name or found[0].name]
    frame = tables.worst_frame([one]).drop(columns=["model", "chunks"])
    if frame.empty:
        st.caption("Every sentence finds its own document.")
        return
    row = chosen_row(frame, f"audit.documents.{one.name}", "document", height=280)
    if row is not None:
        document_section(one, one.worst[row][0])


def groups_section(found: Sequence[Audit]) -> None:
    """Languages and lengths, and where models stop reading."""
    show_table(tables.groups_text(found), height=280)
    tried = tables.truncation_frame(found)
    if len(tried):
        st.markdown("**Where models stop reading**, by bisection on the corpus's longest texts")
        show_table(tried)


board()
with panels.guarded():
    if stored := audited(indexes):
        worst_section(stored)
        st.markdown("**By language and length**")
        groups_section(stored)
