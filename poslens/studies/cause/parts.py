"""Parts of a passport about interventions: evidence that moves, and segments in random order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import SCORE_MARGIN
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.interventions.segments import (
    N_SEGMENTS,
    documents_of,
    require_vector,
    segments_method,
)
from poslens.cache.kinds.interventions import cause_key
from poslens.compute.runs import Job
from poslens.figures.curves import mean_curves
from poslens.studies.cause import service as interventions
from poslens.studies.cause.figures import COSINE, causal_curves
from poslens.studies.curves.words import too_few
from poslens.study_part import (
    MOVABLE,
    Item,
    PartAnswer,
    PartQuestion,
    Scope,
    number,
    shift_sentence,
)

RELOCATE = relocation_method()
SEGMENTS_IN = {"order": segments_method("segments"), "random order": segments_method("shuffled")}


def _relocation(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """The score by the position to which the evidence is moved."""
    compute, spec, moved = scope.compute, scope.spec, scope.moved
    if len(moved) < 2:
        raise UserError("Fewer than two pairs of this data set have evidence that can be moved.")
    jobs = [interventions.job(compute, spec, RELOCATE, moved, scope.name)]
    if too_few(spec.name, jobs[0].n_done(), len(moved)):
        return jobs, None
    selection = scope.selection(moved, len(movable(scope.data.pairs)[0]), MOVABLE)
    cause = interventions.data_set_cause(compute, spec, RELOCATE, moved, scope.data.name, selection)
    change = "score with the evidence in the last third minus first third (negative: primacy)"
    lost = "mean score with the evidence read whole, minus mean score with it truncated"
    items = tuple(_differences(scope))
    return jobs, PartAnswer(
        shift_sentence(
            "The score",
            cause.last_minus_first,
            "when the evidence moves from the first to the last third",
            "Documents score higher with the evidence near the {}.",
            SCORE_MARGIN,
            ".4f",
        ),
        [
            *number("last_minus_first", change, cause.last_minus_first, "+.4f", items=items),
            *number("lost", lost, cause.lost, "+.4f"),
        ],
        lambda style: causal_curves([cause], style),
        (cause.provenance(),),
    )


def _differences(scope: Scope) -> Iterator[Item]:
    """Last minus first third of each pair that has positions in both."""
    results = interventions.stored(scope.compute, scope.spec, RELOCATE, scope.moved).results
    for pair in scope.moved:
        relocation = results.get(pair.pair_id)
        if relocation is not None and (difference := relocation.last_minus_first) is not None:
            yield Item(pair.pair_id, cause_key(pair).fingerprint, pair.document, difference)


def _segments(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """Cosines of segments with the whole text, in order and in random order."""
    compute, spec, documents = scope.compute, scope.spec, scope.documents
    require_vector(spec)
    jobs = [
        interventions.job(compute, spec, method, documents, scope.name)
        for method in SEGMENTS_IN.values()
    ]
    if any(too_few(spec.name, job.n_done(), len(documents)) for job in jobs):
        return jobs, None
    selection = scope.selection(documents, len(documents_of(scope.data.pairs)), "documents")
    causes = {
        order: interventions.data_set_cause(
            compute, spec, method, documents, scope.data.name, selection
        )
        for order, method in SEGMENTS_IN.items()
    }
    provenance = tuple(cause.provenance() for cause in causes.values())
    curves = [
        replace(cause.summary.curve, model=f"segments in {order}")
        for order, cause in causes.items()
    ]
    return jobs, PartAnswer(
        shift_sentence(
            "With a text's segments in random order, a segment's similarity to the shuffled text",
            causes["random order"].last_minus_first,
            "from the first to the last third of that text",
            "Content near the {} of a text weighs more in its vector.",
            SCORE_MARGIN,
        ),
        [
            part
            for order, cause in causes.items()
            for part in number(
                "segments" if order == "order" else "shuffled",
                f"cosine, last minus first third, segments in {order} (negative: primacy)",
                cause.last_minus_first,
            )
        ],
        lambda style: mean_curves(curves, style, y_title=COSINE, provenance=provenance),
        provenance,
    )


RELOCATION = PartQuestion(
    "relocation",
    "Effect of the evidence's position on the score",
    "Moving evidence removes it from its context. The first and last third include only positions "
    "where the model reads the evidence whole; pairs without such a position in each of the two "
    "thirds are left out.",
    "pairs",
    _relocation,
)
SEGMENTS = PartQuestion(
    "segments",
    "Weight of each position in the document vector",
    f"Each text is split into up to {N_SEGMENTS} consecutive segments of similar length. Only "
    "vectors are compared; no documents are ranked.",
    "documents",
    _segments,
)
