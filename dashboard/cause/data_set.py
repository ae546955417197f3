"""The Cause page's second tab: interventions on a data set's evidence, or on its documents alone,
for several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poslens.attribution.datasets import DataSet
from poslens.dashboard.widgets import choices
from poslens.dashboard.widgets.study_page import study_with
from poslens.studies.cause.edits import EDIT_STUDY
from poslens.studies.cause.segments import SEGMENTS
from poslens.studies.cause.study import CAUSE
from poslens.study import Study

Asked = tuple[Study[Any, Any, Any], Mapping[str, str]]
"""A study with its fixed settings."""

OF_DOCUMENTS: Mapping[str, Asked] = {
    "segments": (SEGMENTS, {"parts": "segments"}),
    "thirds": (SEGMENTS, {"parts": "thirds"}),
    "insertion": (EDIT_STUDY, {"edit": "insertion"}),
    "removal": (EDIT_STUDY, {"edit": "removal"}),
}
"""Interventions without a query, by their names in the URL."""

STUDIES: Mapping[str, Asked] = {"evidence": (CAUSE, {}), **OF_DOCUMENTS}


def section(data: DataSet, models: Sequence[str]) -> None:
    """The choice of an intervention, and its results over the data set."""
    what = choices.one_of(
        "Intervention",
        list(STUDIES),
        "corpus",
        help="evidence: move it to other positions, and remove each part of the document. The "
        "others compare document embeddings: they need a dense model, but no queries or evidence.",
    )
    study, fixed = STUDIES[what]
    study_with(study, data, models, fixed, study is CAUSE)
