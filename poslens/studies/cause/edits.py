"""Effect of inserting or removing text on documents' vectors, averaged over a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.curves.curve_summary import nothing_stored
from poslens.attribution.interventions.segments import POSITIONS, SHARES, EditCurves, EditPosition
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.cache.columns import columns_of
from poslens.compute import provenance
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.studies.cause import service as interventions


@dataclass(frozen=True, slots=True)
class MeanEdits:
    """Cosines to the vector of the unchanged text, averaged over documents. `means` has, for each
    position of the edit, one estimate for each of `shares` (of the text)."""

    model: ModelIdentity
    method: Method
    dataset: str
    shares: tuple[float, ...]
    means: Mapping[EditPosition, tuple[Estimate, ...]]
    n: int
    n_failed: int
    n_shortened: int
    notes: tuple[str, ...]
    selection: str

    def provenance(self) -> Provenance:
        """Everything needed to reproduce these means."""
        return provenance.of_documents(
            self.model, self.method, self.dataset, self.n, self.n_shortened, self.selection
        )


def mean_edits(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    documents: Sequence[TextPair],
    dataset: str,
    selection: str = "",
) -> MeanEdits:
    """The average of the stored results of insertion or removal on `documents`; computes no
    intervention.

    Raises:
        UserError: no results of these documents are stored.
    """
    stored = interventions.stored(compute, spec, method, documents)
    curves: list[EditCurves] = list(stored.results.values())
    if not curves:
        raise nothing_stored(spec.name, dataset)
    cosines = np.array([edits.cosines for edits in curves], dtype=np.float64)
    groups = columns_of(documents).documents_of(list(stored.results))

    def means(position: int) -> tuple[Estimate, ...]:
        estimates = (estimate(cosines[:, position, [k]], groups) for k in range(cosines.shape[2]))
        return tuple(value for value in estimates if value is not None)

    return MeanEdits(
        compute.identify(spec),
        method,
        dataset,
        SHARES[curves[0].by],
        {position: means(row) for row, position in enumerate(POSITIONS)},
        len(curves),
        len(stored.failed),
        sum(edits.read_share < 1 for edits in curves),
        tuple(sorted({edits.note for edits in curves if edits.note})),
        selection,
    )


def edits_frame(means: Sequence[MeanEdits]) -> pd.DataFrame:
    """A table of mean cosines with their intervals: one row per model, position and share."""
    rows = [
        {
            "model": edits.model.spec.name,
            "edit": edits.method.name,
            "position": position,
            "share": share,
            "cosine": value.value,
            "ci_low": value.low,
            "ci_high": value.high,
            "documents": value.n_resampled,
        }
        for edits in means
        for position, values in edits.means.items()
        for share, value in zip(edits.shares, values, strict=True)
    ]
    return pd.DataFrame(rows)
