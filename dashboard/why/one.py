"""The Why page's first tab: the ranking of a query, the rank of one document after each change, and
the documents above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

import pandas as pd
import streamlit as st

from poslens.attribution.datasets import TYPED, Collection
from poslens.attribution.datasets.corpus import Query
from poslens.attribution.evaluation.why_causes import MOST_ABOVE, Cause
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.compute.compute import Compute
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, panels, say, url_state
from poslens.dashboard.widgets.contrast import contrast_view
from poslens.dashboard.widgets.run_board import any_active, run_board, start_once, watched
from poslens.dashboard.widgets.study_page import Chosen, Opened, chosen_result, study_section
from poslens.dashboard.widgets.tables import chosen_row, show_table
from poslens.studies.chunks.study import CHUNKS
from poslens.studies.debias.points import require_trainable
from poslens.studies.hubs.summary import known_in_degrees
from poslens.studies.ranking.service import searched
from poslens.studies.why.search import QueryRanking, known_ranking, ranking, search_job
from poslens.studies.why.study import WHY
from poslens.studies.why.summary import SOURCES, WhySummary, fits

SHOWN = 10
"""Maximum number of listed documents of a ranking."""
MAX_EVIDENCE = 3_000
"""Maximum number of characters of typed evidence, so that it fits into an address in any script."""


def section(chosen: Chosen) -> None:
    """A query, its ranking, one of its documents, and the document's rank after each change.

    Raises:
        UserError: the data set or a model can't be read.
    """
    data = chosen.data
    collection = searched(data)
    if not chosen.models:
        st.info("Select a model.")
        return
    judged = any(query.pairs for query in collection.queries)
    text, query = _query(collection, _first_missed(chosen) if judged else "")
    if not text:
        return
    top = int(chosen.settings.top)
    left, right = st.columns([3, 2])
    with left:
        name = chosen.models[0]
        if len(chosen.models) > 1:
            name = choices.one_of("Ranking of", chosen.models, "why.ranking_of", bind=None)
        wanted = tuple(query.pairs) if query else ()
        ranked = _ranked(choices.spec(name, data.name), chosen, collection, text, query)
        if ranked is None:
            return
        document = _document(ranked, wanted, top)
    with right:
        document, evidence = _own_choice(document, (collection.name, text))
        used = st.container()
    if not document:
        st.info("Select a document of the ranking, or type the id of another one.")
        return
    settings = WHY.parameters.settings(
        {
            **chosen.settings,
            "query": query.query_id if query else text,
            "document": document,
            "evidence": evidence or None,
        }
    )
    compute = _service(data.name, query)
    opened = study_section(WHY, data, chosen.models, settings, start=True, compute=compute)
    if opened is not None and opened.summaries:
        (first, *_) = opened.summaries[0].explained.values()
        whole = collection.texts([first.document_id]).get(first.document_id, "")
        with used:
            _evidence(opened.summaries, whole)
        _behind(opened, collection, text, query, document, whole)


def _first_missed(chosen: Chosen) -> str:
    """The id of the query whose document ranks worst, which the page selects at first; empty unless
    all misses of the first model are stored. It does not change within a session."""
    key = f"why.first.{chosen.data.name}"
    if key not in st.session_state:
        compute = service_for(chosen.data.name)
        corpus = WHY.corpus(chosen.data, chosen.settings)
        spec = choices.spec(chosen.models[0], chosen.data.name)
        (asked,) = WHY.subjects(compute, spec, corpus, chosen.settings)
        summary = WHY.summarize(compute, asked)
        misses = summary.misses if summary else []
        st.session_state[key] = misses[0][0].query_id if misses else ""
    return str(st.session_state[key])


def _labels(collection: Collection) -> dict[str, str]:
    """The text of each query by id; with its id if several queries have this text, because the
    address contains the label."""
    counts = Counter(query.text for query in collection.queries)
    return {
        query.query_id: query.text
        if counts[query.text] == 1
        else f"{query.text} ({query.query_id})"
        for query in collection.queries
    }


def _query(collection: Collection, first: str) -> tuple[str, Query | None]:
    """The text of the selected query, and the query of the data set if it is one; `first` is the id
    of the query that is selected at first."""
    queries = {query.query_id: query for query in collection.queries}
    labels = _labels(collection)
    begins = labels.get(first, next(iter(labels.values()), ""))

    def take() -> None:
        chosen = st.session_state["query"] or ""
        url_state.put("query", labels.get(chosen, chosen), begins)

    url_state.reset("query", (collection.name,))
    linked = url_state.get("query", begins)
    ids = {label: query_id for query_id, label in labels.items()}
    st.session_state["query"] = ids.get(linked, linked) or None
    # Not bound, because a bound list keeps the text of the former data set's query as a typed one.
    asked: str | None = st.selectbox(
        "Query",
        list(queries),
        index=0 if queries else None,
        format_func=lambda option: labels.get(option, option),
        key="query",
        on_change=take,
        accept_new_options=True,
        placeholder="Type a query",
        help="Select a query from the data set, or type your own.",
    )
    if not asked:
        st.info("Type a query.")
        return "", None
    query = queries.get(asked)
    url_state.reset("document", (collection.name, asked))
    return (query.text if query else asked.strip()), query


def _service(dataset: str, query: Query | None) -> Compute:
    """The service that stores results of a query of the data set, or of a typed one."""
    return service_for(dataset if query else TYPED)


def _ranked(
    spec: RetrieverSpec, chosen: Chosen, collection: Collection, text: str, query: Query | None
) -> QueryRanking | None:
    """The stored ranking of the query. If the query is not ranked yet, this starts a search, shows
    its progress on the page, and returns None."""
    compute, document = _service(chosen.data.name, query), url_state.get("document")
    query_id, wanted = (query.query_id, query.pairs) if query else ("", {})
    if query and wanted:
        settings = WHY.parameters.settings({**chosen.settings, "query": query_id})
        corpus = WHY.corpus(chosen.data, settings)
        (asked,) = WHY.subjects(compute, spec, corpus, settings)
        stored = known_ranking(compute, asked, query, SHOWN, document)
        if stored is not None:
            return stored
    job = search_job(compute, spec, collection, text, query_id)
    start_once([job])
    searched = ranking(compute, spec, collection, text, SHOWN, wanted, query_id, document)
    if searched is not None:
        return searched

    def board() -> None:
        run_board([job], "why.search.", unit="documents", verb="Search")
        if job.n_done() >= job.total:
            st.rerun()

    watched(lambda: any_active([job]), board, seconds=1.0)
    return None


def _document(ranked: QueryRanking, wanted: Sequence[str], top: int) -> str:
    """The id of the selected document of the ranking; at first, the target document with the worst
    rank."""
    frame = pd.DataFrame(
        [
            {
                "rank": document.rank,
                "wanted": document.wanted,
                "id": document.document_id,
                "score": document.score,
                "document": document.text[:300],
            }
            for document in ranked.documents
        ]
    )
    if frame.empty:
        st.caption("No document has a term of the query.")
    else:
        row = chosen_row(
            frame,
            "why.ranking",
            "id",
            height=min(500, 37 + 35 * len(frame)),  # all rows if few documents are wanted
            column_config={
                "wanted": st.column_config.CheckboxColumn("relevant"),
                "score": st.column_config.NumberColumn(format="%.4f"),
                "document": st.column_config.TextColumn(width="large"),
            },
        )
        if row is not None:
            url_state.put("document", str(frame["id"].iloc[row]))
    ranks = {document.document_id: document.rank for document in ranked.documents}
    missed = [name for name in wanted if ranks.get(name, ranked.total + 1) > top]
    st.caption(
        f"{len(frame):,} of {ranked.total:,} documents shown; "
        + (
            f"{len(missed):,} of {len(wanted):,} relevant documents missing from the top {top:,}."
            if wanted
            else "the data set has no judgments for this query."
        )
    )
    first = max(wanted, key=lambda name: ranks.get(name, ranked.total + 1)) if wanted else ""
    return url_state.get("document") or first


def _own_choice(document: str, owner: Sequence[str]) -> tuple[str, str]:
    """The document's id and its evidence, which the user can type; `owner` are the data set and the
    query."""

    def take(name: str) -> None:
        url_state.put(name, str(st.session_state[f"why.{name}"]).strip())

    st.session_state["why.document"] = document
    st.text_input(
        "Document",
        key="why.document",
        on_change=take,
        args=("document",),
        help="Id of the target document in the corpus. Select one in the ranking, or enter an id.",
    )
    url_state.reset("evidence", (*owner, document))
    evidence = st.session_state["why.evidence"] = url_state.get("evidence")
    st.text_area(
        "Evidence",
        key="why.evidence",
        on_change=take,
        args=("evidence",),
        max_chars=MAX_EVIDENCE,
        placeholder="Default: the data set's evidence, or the sentence that scores highest on its "
        "own",
        help="The passage of the document that answers the query, verbatim.",
    )
    return document, evidence


def _evidence(summaries: Sequence[WhySummary], whole: str) -> None:
    """The evidence that the changes were made with, and who marked it: PosLens may have proposed
    another sentence for each model."""
    models: dict[str, list[str]] = {}
    for summary in summaries:
        for why in summary.explained.values():
            if why.cause != "found" and (passage := whole[why.start : why.end]):
                models.setdefault(f"“{passage}”, {SOURCES[why.source]}", []).append(summary.name)
    for passage, names in models.items():
        under = f" ({', '.join(names)})" if len(models) > 1 else ""
        say.caption(f"Evidence{under}: {passage}.")


def _behind(
    opened: Opened,
    collection: Collection,
    text: str,
    query: Query | None,
    document: str,
    whole: str,
) -> None:
    """The ranks after each change, the documents above, and the contrast with one of them."""
    summaries: tuple[WhySummary, ...] = opened.summaries
    names = [summary.name for summary in summaries]
    steps = WHY.tables["steps"].text_frame(summaries)
    show_table(steps if len(names) > 1 else steps.drop(columns="model"), key="why.steps")
    causes = {why.cause for summary in summaries for why in summary.explained.values()}
    remedy_links(causes, opened)
    pair = query.pairs.get(document) if query else None
    if pair:
        links.other_views("why", opened.data, pair, names)
    else:
        _text_links(opened.data.name, summaries[0], text, whole, names)
    st.markdown("**Documents ranked above the target**")
    several = len(names) > 1
    under = chosen_result(summaries, "Model", "why.above") if several else summaries[0]
    (explanation,) = under.explained.values()
    if not explanation.above:
        say.caption(
            "No document ranks above the target."
            if explanation.rank == 1
            else f"Only a document that is not in the top {explanation.top:,} is compared with the "
            "documents above it."
        )
        return
    st.caption(
        f"Documents above it that were compared: {min(explanation.rank - 1, MOST_ABOVE):,}. Judged "
        f"relevant: {explanation.relevant_above:,}. Near-duplicates, or containing the evidence: "
        f"{explanation.duplicates_above:,}. Shorter than the target document "
        f"({counted(explanation.n_words, 'word')}): {explanation.shorter_above:,}. Select a row to "
        "see it next to the target document."
    )
    frame = pd.DataFrame(
        {
            "rank": [competitor.rank for competitor in explanation.above],
            "document": [competitor.document_id for competitor in explanation.above],
            "relevant": [competitor.relevant for competitor in explanation.above],
            "near-duplicate": [competitor.duplicate for competitor in explanation.above],
            "words": [competitor.n_words for competitor in explanation.above],
        }
    )
    spec, shared = under.asked.spec, service_for(opened.data.name)
    in_degrees = known_in_degrees(shared, spec, collection, explanation.top)
    if in_degrees:  # the data set is ranked
        frame["in-degree"] = [
            in_degrees[competitor.document_id] for competitor in explanation.above
        ]
    row = chosen_row(
        frame,
        f"why.above.{under.name}",
        "document",
        column_config={
            "in-degree": st.column_config.NumberColumn(
                help="Queries of the data set that the document does not answer and that have it "
                f"in their top {explanation.top:,}. Hubs, on the Ranking page, compares all "
                "documents."
            )
        },
    )
    if row is None:  # computed only on request
        return
    other = explanation.above[row].document_id
    texts = collection.texts([document, other])
    if len(texts) < 2:
        return
    st.markdown(
        f"**d1: {panels.plain(other)}. d2: {panels.plain(document)}, the target document.**"
    )
    first, second = (
        TextPair(TYPED, text, texts[name], language=query.language if query else None)
        for name in (other, document)
    )
    contrast_view("why", service_for(first.dataset), spec, first, second, document)


def remedy_links(causes: Set[Cause], opened: Opened) -> None:
    """Links to the pages that test what may help against these causes, with the models that these
    pages accept."""
    specs = [summary.asked.spec for summary in opened.summaries]
    chunked = [spec.name for spec in specs if fits(CHUNKS.require_fit, spec)]
    trainable = [spec.name for spec in specs if fits(require_trainable, spec)]
    offered: list[tuple[str, str, Sequence[str], dict[str, str]]] = []
    if chunked and causes & {"not read", "position", "dilution"}:
        offered.append(("audit/page.py", "Compare chunk sizes", chunked, {"tab": "Chunk planner"}))
    if trainable and "position" in causes:
        offered.append(("debias/page.py", "Debias the model", trainable, {}))
    if "no match" in causes:
        offered.append(("ranking/page.py", "Compare models", [spec.name for spec in specs], {}))
    if not offered:
        return
    with st.container(
        horizontal=True, gap="xsmall", vertical_alignment="center", key="why.remedies"
    ):
        st.caption("May help:", width="content")
        for page, label, models, more in offered:
            asked = {"dataset": opened.data.name, "models": models, **more}
            links.page_link(page, label, "", asked)


def _text_links(
    dataset: str, summary: WhySummary, text: str, whole: str, names: Sequence[str]
) -> None:
    """Links to Explain and Cause for texts that are not a pair of the data set."""
    (explanation,) = summary.explained.values()
    evidence = whole[explanation.start : explanation.end]
    with st.container(horizontal=True, key="why.text_links"):
        links.text_link("Explain", text, whole, dataset, names, evidence=evidence)
        icon = ":material/science:"
        links.text_link(
            "Cause", text, whole, dataset, names, evidence=evidence, page="cause", icon=icon
        )
