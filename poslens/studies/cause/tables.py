"""Results of interventions as tables, and models compared by the last-minus-first differences, for
pages, commands and exports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

import numpy as np
import pandas as pd

from poslens.attribution.evaluation.comparison import DEVIATIONS_MARGIN, SCORE_MARGIN
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.displacement import Displacement
from poslens.attribution.interventions.relocation import Relocation, rank_among
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Method, TextPair
from poslens.cache.kinds.interventions import cause_key
from poslens.compute.compute import Compute
from poslens.paired import ItemMeasure, in_deviations
from poslens.studies.cause.service import last_minus_first, stored

Numbers = Mapping[str, Array]


def relocation_frame(
    results: Mapping[str, Relocation], others: Numbers | None = None, unknown: Collection[str] = ()
) -> pd.DataFrame:
    """One row per model and position of the evidence, with the rank among the scores of `others` if
    given. The evidence read is missing for models in `unknown`."""
    rows = [
        {
            "model": name,
            "slot": slot,
            "position": float(relocation.positions[slot]),
            "score": float(relocation.scores[slot]),
            "evidence read": None if name in unknown else float(relocation.read[slot]),
            **(
                {"rank": rank_among(float(relocation.scores[slot]), others[name])}
                if others and name in others
                else {}
            ),
        }
        for name, relocation in results.items()
        for slot in range(len(relocation.positions))
    ]
    return pd.DataFrame(rows)


def ablation_frame(results: Mapping[str, Ablation]) -> pd.DataFrame:
    """One row per model and part of the document: its characters, and the decrease of the score
    without it."""
    rows = [
        (name, ablation.by, part, *ablation.spans[part], float(ablation.effects[part]))
        for name, ablation in results.items()
        for part in range(len(ablation.spans))
    ]
    return pd.DataFrame(rows, columns=["model", "replaced by", "part", "start", "end", "effect"])


def displacement_frame(results: Mapping[str, Displacement]) -> pd.DataFrame:
    """One row per label and distance: score, and share of the text that was read."""
    rows = [
        (label, tokens, float(displacement.scores[k]), float(displacement.read[k]))
        for label, displacement in results.items()
        for k, tokens in enumerate(displacement.tokens)
    ]
    return pd.DataFrame(rows, columns=["moved", "tokens", "score", "text read"])


# -- models compared -------------------------------------------------------------------------------

TITLES = {
    "relocation": "relocation difference (standard deviations)",
    "ablation": "ablation difference (standard deviations)",
}


def cause_measure(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    *,
    scaled: bool = True,
) -> ItemMeasure:
    """The last-minus-first difference of one intervention by item (id and fingerprint), from stored
    results. With `scaled`, differences of scores are in standard deviations of the model's scores
    of the unchanged documents, because models have different scales; if all are equal, there are no
    rows. Cosines are not scaled."""
    results = stored(compute, spec, method, pairs).results
    by_id = {pair.pair_id: pair for pair in pairs}
    differences = {
        (pair_id, cause_key(by_id[pair_id]).fingerprint): value
        for pair_id, result in results.items()
        if (value := last_minus_first(result)) is not None
    }
    parts = "random order" if "order" in method.params else method.name
    title, margin = f"last-minus-first difference ({parts})", SCORE_MARGIN
    rows = {item: np.array([value]) for item, value in differences.items()}
    if scaled and method.name in TITLES:
        title, margin = TITLES[method.name], DEVIATIONS_MARGIN
        scores = [
            result.original if isinstance(result, Relocation) else result.score
            for result in results.values()
        ]
        rows = in_deviations(differences, scores)
    units = "pairs" if method.name in TITLES else "documents"
    documents = {item: by_id[item[0]].document for item in rows}
    return ItemMeasure(title, units, margin, rows, documents, label=itemgetter(0))
