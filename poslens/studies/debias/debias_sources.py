"""The provenance of the measurements of the study `debias`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poslens.attribution.evaluation.audit import TOP, audit_method
from poslens.attribution.types import Method, Provenance
from poslens.compute.provenance import of_documents, of_model, with_interval
from poslens.studies.debias.debias_job import RELOCATION
from poslens.studies.debias.summary import DebiasSummary
from poslens.studies.positions.study import POSITIONS


def sources(summary: DebiasSummary) -> dict[str, Provenance]:
    """The provenance of each measurement of a point, by name; never empty."""
    corpus, entries = summary.point.corpus, dict[str, Provenance]()
    if summary.ranked is not None and summary.quality is not None:
        entries["ranking"] = with_interval(summary.ranked.provenance(), summary.quality)
    if summary.cause is not None:
        # Its interval is that of the difference, which fewer pairs have than the curve.
        source = replace(summary.cause.provenance(), interval="")
        effect = summary.effect
        entries["relocation"] = source if effect is None else with_interval(source, effect)
    if summary.positions is not None:
        effect = summary.positions.effect.effect.difference
        entries["positions"] = with_interval(POSITIONS.provenance(summary.positions), effect)
    if summary.share is not None:
        entries["audit"] = of_model(
            summary.model,
            audit_method(),
            corpus.name,
            n_documents=len(summary.unretrieved),
            selection=(
                f"sentences as queries, top {TOP}",
                f"held-out documents, searched among {corpus.texts.survey.n:,}",
            ),
            interval=summary.share,
        )
    if summary.saliency is not None:
        entries["saliency"] = summary.saliency.provenance()
    if not entries:
        n = len(corpus.held_out)
        entries["relocation"] = of_documents(
            summary.model, RELOCATION, corpus.name, n, 0, "held-out documents"
        )
    return entries


def training_source(summary: DebiasSummary) -> Provenance | None:
    """The provenance of the position effect during a point's training; None for a point without
    checks of its own."""
    manifest = summary.manifest
    if manifest is None or summary.point.calibration is not None:
        return None
    recipe = manifest.recipe
    options = {name: int(recipe[name]) for name in ("validation_texts", "tokens_per_step", "seed")}
    return of_model(
        summary.model,
        Method("validation_effect", options),
        manifest.corpus,
        selection="validation texts, from documents of the training half that are not trained on",
        interval=manifest.checks[-1][2],
    )


def selection_sources(summaries: Sequence[DebiasSummary]) -> list[Provenance]:
    """The provenance of the test of each model's selected setting: the rankings of the model and
    of that setting."""
    entries = []
    for summary in summaries:
        test, ranked = summary.test, summary.ranked
        if test is None or ranked is None or not (summary.plain is None or summary.tested):
            continue
        source = ranked.provenance()
        half = "queries of documents not used to select the setting"
        entries.append(
            replace(
                with_interval(source, test.before.mean),
                n_queries=test.before.n,
                selection=", ".join(filter(None, (source.selection, half))),
            )
        )
    return entries
