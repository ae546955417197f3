"""The Ranking page's section on runs: which of the TREC runs given at startup are compared with the
models."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from poslens.attribution.datasets import Collection
from poslens.attribution.evaluation import trec_runs
from poslens.attribution.evaluation.trec_runs import TrecRun
from poslens.dashboard.widgets import panels
from poslens.studies.ranking.runs import RankedRun, ranked_run
from poslens.studies.ranking.service import RankingSetup

MOST = 4
"""Maximum number of runs compared with the models."""


def run_choice(collection: Collection) -> list[TrecRun]:
    """Choose among the runs with queries of the collection; draws nothing if there are none."""
    offered = {name: run for name, run in trec_runs.known().items() if run.fits(collection)}
    if not offered:
        return []
    names = st.multiselect(
        "Runs",
        list(offered),
        default=list(offered)[:MOST],
        max_selections=MOST,
        key="runs",
        bind="query-params",
        help="Rankings from other programs, given by --run when PosLens was started.",
    )
    return [offered[name] for name in names]


def ranked_runs(runs: Sequence[TrecRun], setup: RankingSetup) -> list[RankedRun]:
    """The runs with their measures; a run that can't be measured shows the reason instead."""
    ranked_runs = []
    for run in runs:
        with panels.guarded():
            ranked_runs.append(ranked_run(run, setup))
    return ranked_runs


def notes(ranked_runs: Sequence[RankedRun]) -> None:
    """Notes on the parts of the runs that are ignored."""
    for ranked in ranked_runs:
        for note in ranked.notes:
            st.caption(panels.plain(note))
