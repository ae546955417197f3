"""The Ranking page: how well models rank a data set's corpus, by evidence position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.methods import POSIR_CURVE, make_method
from poslens.attribution.nouns import counted
from poslens.compute.compute import DataSetCurve
from poslens.dashboard.ranking import hubs as ranking_hubs
from poslens.dashboard.ranking import queries as ranking_queries
from poslens.dashboard.widgets import choices, links, panels, published_files, say
from poslens.dashboard.widgets.reading_panel import what_is_read
from poslens.dashboard.widgets.study_page import Opened, study_section, study_settings
from poslens.dashboard.widgets.tables import rejected_rows, show_table
from poslens.figures.curves import mean_curves
from poslens.parameters import Settings
from poslens.studies.curves.words import too_few
from poslens.studies.hubs.study import HUBS as HUBS_STUDY
from poslens.studies.positions.study import POSITIONS
from poslens.studies.published import measures_frame
from poslens.studies.ranking import service as ranking_service
from poslens.studies.ranking import tables as ranking_tables
from poslens.studies.ranking.service import Measured, Ranked
from poslens.studies.ranking.study import RANKING

MOVED, UNMODIFIED, HUBS = "Position effect", "Rankings", "Hubs"


def rankings_section(data: DataSet, names: Sequence[str], settings: Settings) -> None:
    """Measures of the rankings of the unmodified corpus, the same pairs' saliency, single queries
    and published results."""
    say.sentence(RANKING.reads)
    opened = study_section(RANKING, data, names, settings)
    if opened is None:
        return
    collection = opened.corpus.setups[0].collection
    rejected = [*collection.rejected, *collection.survey.rejected]
    rejected_rows(rejected, f"{counted(len(rejected), 'rejected row')} of judgments and corpus")
    if not opened.summaries:
        return
    if any(query.evidence is not None for query in opened.corpus.setups[0].queries):
        with panels.guarded():
            _saliency(opened)
    with panels.guarded():
        note = "Explain uses each model's own prompt and context limit." if settings.posir else ""
        ranking_queries.section(opened.summaries, data.name, names, note)
    with panels.guarded():
        published_section(opened.summaries, data.name)


def published_section(rankings: Sequence[Measured], dataset: str) -> None:
    """Published measures next to those computed here."""
    with st.expander("Published results", key="published.beside"):
        rows = published_files.measures()
        if not rows:
            return
        settings = sorted({row.setting for row in rows})
        default = settings.index("eng-eng") if "eng-eng" in settings else 0
        setting = st.selectbox(
            "Setting",
            settings,
            index=default,
            key="published.setting",
            help="Languages of queries and documents.",
        )
        published = measures_frame([row for row in rows if row.setting == setting])
        computed = ranking_tables.TABLES["psi"].frame(rankings).assign(setting=dataset)
        both = pd.concat([computed[published.columns], published], ignore_index=True)
        lengths = list(dict.fromkeys(both["length"]))
        length = choices.one_of("Length", lengths, "published.length", bind=None)
        show_table(both[both["length"] == length])
        st.caption(
            "Published figures are for PosIR's own corpora. For length buckets, PosIR publishes "
            "the mean over evidence bins, not over queries."
        )


def _saliency(opened: Opened) -> None:
    """Stored saliency curves of the pairs, the models that have none, and what models read."""
    st.markdown("**Saliency of the data set's pairs**")
    data, posir, pairs = opened.data, opened.settings.posir, opened.corpus.pairs
    setup = opened.corpus.setups[0]
    saliency = make_method("saliency", POSIR_CURVE if posir else None)
    models = [summary for summary in opened.summaries if isinstance(summary, Ranked)]
    if not models:
        st.caption("Runs have no saliency. Select a model to compare with.")
    curves: list[DataSetCurve] = []
    without = []
    for name in [model.name for model in models]:
        try:
            spec = choices.spec(name, data.name, posir=posir)
            if saliency.name in opened.compute.unfit(opened.compute.identify(spec)):
                continue
            curve = opened.compute.curve(spec, saliency, pairs, data.name, setup.selection)
            n_possible = curve.total - len(curve.failed)
            if too_few(name, curve.summary.curve.n, n_possible):
                without.append(name)
            else:
                curves.append(curve)
        except UserError:
            without.append(name)
    if curves:
        figure = mean_curves(
            [curve.summary.curve for curve in curves],
            panels.screen_style(height_px=380),
            provenance=[curve.provenance() for curve in curves],
        )
        alt = "Mean saliency of the data set's pairs by position"
        panels.show(figure, "ranking.saliency", alt)
    if without:
        say.caption(f"Too few pairs with saliency: {', '.join(without)}.")
        links.page_link(
            "curves/page.py",
            "Compute it on the Curves page",
            ":material/show_chart:",
            {
                "dataset": data.name,
                "models": without,
                **({"posir": "true"} if posir else {}),
                **({"readable": "true"} if setup.selection else {}),
            },
        )
    what_is_read([model.model.spec for model in models], pairs, "ranking")


st.markdown("# Ranking: do rankings depend on where the evidence is?")
hubs_settings = ranking_settings = None
judged = False
moved: Settings = POSITIONS.parameters.settings()
with st.sidebar, panels.guarded():
    data = choices.data_set()
    names = choices.models(RANKING.compared)
    with st.expander("Hub settings"):
        hubs_settings = study_settings(HUBS_STUDY, data)
    judged = ranking_service.is_judged(data)
if hubs_settings is None:
    st.stop()
if not judged:  # without judgments only searching is possible
    with panels.guarded():
        ranking_service.searched(data)  # raises for a format without a corpus
        try:
            ranking_service.collection_of(data)
        except UserError as error:
            say.info(error)
        ranking_hubs.section(data, names, hubs_settings, choices.spec)
    st.stop()
with_evidence = data.pairs.n_with_evidence > 0
with st.sidebar, panels.guarded():
    with st.expander("Search settings"):
        ranking_settings = study_settings(RANKING, data)
    if with_evidence:
        with st.expander("Position effect settings"):
            moved = study_settings(POSITIONS, data)
if ranking_settings is None:
    st.stop()
spec_of = partial(choices.ranking_spec, posir=ranking_settings.posir)
if not with_evidence:
    st.info(
        "This data set has no evidence spans, so it can't show whether rankings depend on where "
        "the evidence is. Its rankings can be measured."
    )
shown = [MOVED, UNMODIFIED, HUBS] if with_evidence else [UNMODIFIED, HUBS]
for title, tab in zip(shown, st.tabs(shown, key="tab", bind="query-params"), strict=True):
    if not tab.open:
        continue
    with tab, panels.guarded():
        if title == MOVED:
            say.sentence(POSITIONS.reads)
            study_section(POSITIONS, data, names, moved, spec_of=spec_of)
        elif title == UNMODIFIED:
            rankings_section(data, names, ranking_settings)
        else:
            ranking_hubs.section(data, names, hubs_settings, spec_of)
