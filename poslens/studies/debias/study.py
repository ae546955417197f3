"""The declaration of the study `debias`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from poslens.attribution.datasets import DataSet
from poslens.attribution.debiasing.export import require_new
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import adjusted_fields
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.evaluation.recommendation import on_quality_front
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.calibration import BLOCK, MAX_BLOCK
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.parameters import Integer, Numbers, Parameters, Settings, Several
from poslens.studies.audit.study import AUDIT
from poslens.studies.cause import service as interventions
from poslens.studies.cause.tables import cause_measure
from poslens.studies.debias.debias_job import (
    RELOCATION,
    SALIENCY,
    audit_index,
    audits,
    is_done,
    point_job,
    positions_subject,
    stages,
    write_model,
)
from poslens.studies.debias.debias_rows import TABLES
from poslens.studies.debias.debias_sources import selection_sources, sources, training_source
from poslens.studies.debias.front import (
    drawn,
    mean_front,
    quality_front,
    relocation_curves,
    saliency_curves,
)
from poslens.studies.debias.points import (
    ALL,
    HALF,
    DebiasCorpus,
    DebiasPoint,
    debias_corpus,
    grid,
    layers_of,
    points,
    require_trainable,
)
from poslens.studies.debias.summary import CHANGED, NO_CHANGES, DebiasSummary, held_out_test
from poslens.studies.positions.study import POSITIONS
from poslens.studies.ranking import service as rankings
from poslens.study import Figure, Study, register

DEFAULT = TrainingRecipe()
NO_CHANGE = "No change recommended"

FRONT, MEAN_FRONT = "Quality against position bias", "Mean nDCG@10 against PSI"
RELOCATION_CURVES, SALIENCY_CURVES = "Score by position of the evidence", "Saliency by position"

_SHOWN = {
    "queries": ("ranking",),
    FRONT: ("ranking", "relocation"),
    MEAN_FRONT: ("ranking",),
    SALIENCY_CURVES: ("saliency",),
}
"""The measurements in a table or figure, if these are not all."""

_PREFERENCE = ("debiased", "debiased and calibrated", "calibrated")
"""Kinds of changed models in order of preference. The debiased model comes first, because it runs
without PosLens."""


_OF_FRONT = (
    "In the first chart, models further left have less position bias, and models further up rank "
    "better. A marker is hollow if another model has a higher nDCG@10 and less position bias."
)


class Debias(Study[DebiasCorpus, DebiasPoint, DebiasSummary]):
    """Debiases a dense model by self-distillation on half of a corpus, and compares it with
    attention calibration on the other half."""

    name = "debias"
    question = "How much position bias can be removed, and what does it cost?"
    unit = "stage"
    reads = (
        "A low-rank adapter is trained without labels on half of the documents. The unchanged "
        "model embeds each sentence alone; the adapter learns to map a text to the mean of its "
        "sentences' vectors, weighted by token count. Debiasing results are measured on the other "
        "half. With 0 steps, nothing is trained, and only settings of attention calibration "
        "are compared: calibration spreads a model's attention more evenly over blocks of tokens."
    )
    limits = (
        f"{_OF_FRONT} Brackets are 95% bootstrap intervals over documents; changes are paired, and "
        "verdicts on them use p, Holm-adjusted over all changes shown. With training, a model is "
        "recommended if the size of its relocation difference (score with the evidence in the "
        "last third minus first third) or of its position effect on rank (nDCG@10 with the "
        "evidence first minus last) is lower, neither size is higher, nDCG@10 is not lower, and a "
        "loss of 0.01 in it is ruled out. If several qualify, only the first of these is "
        "recommended: debiased, debiased and calibrated, calibrated. Without training, the "
        "calibration setting with the highest harmonic mean of nDCG@10 over evidence positions on "
        "half of the documents is tested on the other half, by that mean, PSI and nDCG@10. With "
        "few queries per position, PSI is large even without a bias: compare it with PSI under "
        "permutation. A debiased model is less able to distinguish texts that differ only in the "
        "order of their sentences: if that order matters to you, measure this on your own "
        "queries."
    )
    parameters = Parameters(
        steps=Integer(
            title="Maximum steps",
            default=DEFAULT.steps,
            low=0,
            high=5000,
            step=20,
            help="With 0, nothing is trained, and only calibration settings are compared, each "
            "over all queries. In addition, the setting that does best on one half of the "
            "documents is tested on the other half. Training looks at the position effect in "
            "validation texts of the training half: a text's mean cosine with the sentences "
            "of its last third, minus its mean cosine with those of its first third "
            "(negative: primacy). It stops early if the effect's whole interval is within "
            f"{DEFAULT.margin:g} of 0, if the effect shrinks to {DEFAULT.tolerance:.0%} of "
            "its initial size, or if it stops shrinking. If the interval is within "
            f"{DEFAULT.margin:g} of 0 before training, the model is not trained.",
        ),
        seed=Integer(
            default=DEFAULT.seed,
            low=0,
            high=1 << 31,
            help="Random seed of the training.",
        ),
        pairs=Integer(
            default=30,
            low=0,
            high=100_000,
            help="Number of pairs whose evidence is moved. They are spread evenly over the "
            "held-out half; without training, over the data set. With 0, no evidence is moved, "
            "and three measures are missing: the relocation difference (the score with the "
            "evidence in the last third minus that in the first), the effect of the evidence's "
            "position on rank, and saliency.",
        ),
        strengths=Numbers(
            title="Calibration strengths",
            default=(0.5, 1.0),
            low=0.0,
            high=1.0,
            help="Attention calibration strengths to compare, each 0 to 1. The debiased model is "
            "also tested with calibration, using the first value in each of the three fields "
            "(strengths, blocks, layers).",
        ),
        blocks=Numbers(
            title="Calibration blocks",
            default=(BLOCK,),
            low=1,
            high=MAX_BLOCK,
            whole=True,
            help="Number of tokens per block. Calibration draws every block toward the same share "
            "of the attention.",
        ),
        layers=Several(
            title="Calibrated layers",
            default=(HALF,),
            options=(HALF, ALL),
            check=layers_of,
            help="half (the last half of the layers), all, or how many of the last layers.",
        ),
    )
    models = ("MiniLM-primacy",)
    tables: ClassVar = TABLES
    figures = (
        Figure(FRONT, quality_front),
        Figure(MEAN_FRONT, mean_front),
        Figure(RELOCATION_CURVES, relocation_curves),
        Figure(SALIENCY_CURVES, saliency_curves),
    )
    product = (
        "the debiased model, or with --steps 0 the recommended calibrated model, a "
        "sentence-transformers folder"
    )

    def corpus(self, data: DataSet, settings: Settings) -> DebiasCorpus:
        """The data set, split by document if a model is trained.

        Raises:
            UserError: the data set has too little for the study, or the settings leave the table
                empty.
        """
        if settings.table == "selection" and settings.steps:
            raise UserError("With training, no calibration setting is selected: use --steps 0.")
        if settings.table == "checks" and not settings.steps:
            raise UserError("With --steps 0, nothing is trained that could be checked.")
        return debias_corpus(data, settings.pairs, trains=settings.steps > 0)

    def notes(self, data: DataSet, corpus: DebiasCorpus) -> list[str]:
        notes = []
        if (training := corpus.training) is not None:
            n_trained = corpus.texts.survey.n - len(corpus.held_out)
            notes.append(
                f"Training half: {n_trained:,} documents "
                f"({len(training.train):,} sentences to train on, {len(training.validate):,} to "
                f"validate on); held out: {len(corpus.held_out):,} documents."
            )
        if corpus.setup is None:
            notes.append("No held-out queries with judgments, so nDCG@10 is not measured.")
        if not data.pairs.n_with_evidence:
            notes.append(
                "This data set has no evidence spans, so the effect of moving the evidence is not "
                "measured, and no change can be recommended."
            )
        elif not corpus.pairs:
            notes.append("No evidence is moved, so the effect of moving it is not measured.")
        return notes

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: DebiasCorpus, settings: Settings
    ) -> list[DebiasPoint]:
        """The plain model and its debiased and calibrated versions (`points`)."""
        recipe = TrainingRecipe(seed=settings.seed, steps=settings.steps or DEFAULT.steps)
        if corpus.training is not None:
            require_trainable(spec)
        calibrations = grid(spec, settings.strengths, settings.blocks, settings.layers)
        return points(spec, corpus, recipe, calibrations)

    def job(self, compute: Compute, subject: DebiasPoint) -> Job:
        """A job that trains if necessary, ranks, relocates and audits; progress counts stages."""
        return point_job(compute, subject)

    def summarize(self, compute: Compute, subject: DebiasPoint) -> DebiasSummary | None:
        """The stored results of a point; None while a stage is missing."""
        spec = subject.spec(compute)
        if spec is None or not all(is_done(job) for _, job in stages(compute, subject)):
            return None
        corpus = subject.corpus
        cause = saliency = None
        if corpus.pairs:
            if interventions.stored(compute, spec, RELOCATION, corpus.pairs).results:
                cause = interventions.data_set_cause(
                    compute, spec, RELOCATION, corpus.pairs, corpus.name, corpus.moved
                )
            with suppress(UserError):  # every attribution failed
                saliency = compute.curve(spec, SALIENCY, corpus.pairs, corpus.name, corpus.moved)
        ranked = rankings.ranked(compute, spec, corpus.setup) if corpus.setup else None
        audited = AUDIT.summarize(compute, audit_index(subject, spec)) if audits(subject) else None
        documents_read = audited.documents if audited else ()
        positions = None
        if corpus.pairs and corpus.setup is not None:
            with suppress(UserError):  # no evidence is read in full at two positions
                positions = POSITIONS.summarize(
                    compute, positions_subject(subject, spec, corpus.setup)
                )
        return DebiasSummary(
            subject,
            compute.identify(spec),
            subject.manifest(compute),
            ranked,
            cause,
            cause_measure(compute, spec, RELOCATION, corpus.pairs, scaled=False),
            tuple(ranks for ranks in documents_read if ranks.document_id in corpus.held_out),
            positions,
            saliency,
        )

    def together(self, summaries: Sequence[DebiasSummary]) -> list[DebiasSummary]:
        """The versions compared with the plain one, with the best of each model marked."""
        plain = {each.point.base: each for each in summaries if each.point.kind == "plain"}
        before = [
            None if each.point.kind == "plain" else plain.get(each.point.base) for each in summaries
        ]
        changes = adjusted_fields(
            [
                NO_CHANGES if old is None else each.against(old)
                for each, old in zip(summaries, before, strict=True)
            ],
            CHANGED,
        )
        summaries = [
            replace(each, plain=old, changes=change)
            for each, old, change in zip(summaries, before, changes, strict=True)
        ]
        marked: list[DebiasSummary] = []
        for base in dict.fromkeys(summary.point.base for summary in summaries):
            versions = [summary for summary in summaries if summary.point.base == base]
            front = on_quality_front([summary.bias_and_quality for summary in versions])
            if not versions[0].trains:
                test = held_out_test(versions)
                versions = [replace(summary, test=test) for summary in versions]
            chosen = next(
                (
                    summary
                    for kind in _PREFERENCE
                    for summary in versions
                    if summary.point.kind == kind
                    and summary.recommendation
                    and summary.recommendation.recommended
                ),
                None,
            )
            marked += [
                replace(summary, on_front=is_on, recommended=summary is chosen)
                for summary, is_on in zip(versions, front, strict=True)
            ]
        return marked

    def limits_of(self, summaries: Sequence[DebiasSummary]) -> str:
        """The limitations, and how to read the first chart if a model has a point in it."""
        if any(None not in summary.bias_and_quality for summary in summaries):
            return self.limits
        return self.limits.removeprefix(_OF_FRONT).lstrip()

    def verdict(self, summary: DebiasSummary) -> str:
        advice, effect, quality = summary.recommendation, summary.effect, summary.quality
        parts = []
        if effect is not None:
            parts.append(f"relocation difference {effect.text('+.4f')}")
        if (rank := summary.rank_effect) is not None:
            parts.append(f"nDCG@10 with the evidence first minus last {rank.text('+.3f')}")
        if quality is not None:
            change = summary.changes.quality
            by = f" (change {change.text()})" if change else ""
            parts.append(f"nDCG@10 {quality.value:.3f} over {counted(quality.n, 'query')}{by}")
        if (ranking := summary.ranking) is not None:
            psi = "" if ranking.psi is None else f", PSI {ranking.psi:.3f}"
            parts.append(
                f"its harmonic mean over evidence positions {ranking.harmonic.value:.3f}{psi}"
            )
        if (share := summary.share) is not None:
            parts.append(f"{100 * share.value:.1f}% of sentences unretrieved")
        setting = summary.point.calibration
        name = f"{summary.name} ({setting.words})" if setting else summary.name
        sentence = f"{name}: {', '.join(parts) or 'nothing could be measured'}."
        before, now = summary.plain and summary.plain.differences, summary.differences
        if setting and setting.strength and before and before.rows and now.rows == before.rows:
            sentence += (
                " Calibration changes no score of these pairs: it acts only on texts longer than a "
                f"block ({setting.block:,} tokens)."
            )
        if not summary.trains:
            return sentence if summary.plain else f"{sentence} {selection_sentence(summary)}"
        if advice is None:
            return sentence
        if summary.point.recipe is not None and summary.manifest and not summary.manifest.steps:
            (_, _, untrained), margin = summary.manifest.checks[0], summary.point.recipe.margin
            effect_text = untrained.text("+.4f") if untrained else "unknown"
            sentence += (
                f" Not trained: its position effect on validation texts, {effect_text}, is within "
                f"{margin:g} of 0."
            )
        head = "Recommended" if summary.recommended else NO_CHANGE
        if advice.recommended and not summary.recommended:
            head = "Better than the plain model, but not the first choice"
        reason = f"{advice.reason[0].lower()}{advice.reason[1:]}"
        return " ".join(filter(None, (f"{sentence} {head}: {reason}", summary.why_fewer)))

    def provenance(self, summary: DebiasSummary) -> Provenance:
        """Everything needed to reproduce the first measurement; see `provenances` for all."""
        return next(iter(sources(summary).values()))

    def provenances(self, summaries: Sequence[DebiasSummary], shown: str = "") -> list[Provenance]:
        """The provenance of each measurement in a table or figure; by default of all of them."""
        if shown == "selection":
            return selection_sources(summaries)
        if shown == "checks":
            return [source for summary in summaries if (source := training_source(summary))]
        if shown == RELOCATION_CURVES:
            causes = [summary.cause for summary in drawn(summaries)]
            return [cause.provenance() for cause in causes if cause is not None]
        if shown == SALIENCY_CURVES:
            summaries = drawn(summaries)
        measured = [sources(summary) for summary in summaries]
        names = _SHOWN.get(shown) or list(dict.fromkeys(name for each in measured for name in each))
        return [each[name] for each in measured for name in names if name in each]

    def require_product(self, folder: Path, n_models: int) -> None:
        if n_models > 1:
            raise UserError("A folder can contain only one model: debias one at a time.")
        require_new(folder)

    def write_product(
        self, compute: Compute, summaries: Sequence[DebiasSummary], folder: Path
    ) -> str:
        """Write the debiased model, or without training the recommended calibrated one."""
        return write_model(compute, summaries, self.verdict, folder)


def selection_sentence(plain: DebiasSummary) -> str:
    """The test of the selected calibration setting, in sentences."""
    test = plain.test
    if test is None:
        return "No recommendation yet: some settings are not ranked."
    if test.recommendation is None:
        return (
            f"{NO_CHANGE}: on the {len(test.selected_on):,} queries used for selection, no setting "
            f"has a higher harmonic mean of {NDCG} over positions than {plain.name}."
        )
    before, changes = test.before, test.changes
    parts = [
        f"{name} {change.difference.text('+.3f')}, from {old:.3f} ({change.decision})"
        for name, old, change in (
            (NDCG, before.mean.value, changes.quality),
            (
                f"the harmonic mean of {NDCG} over positions",
                before.harmonic.value,
                changes.harmonic,
            ),
            ("PSI", before.psi, changes.psi),
        )
        if change is not None
    ]
    head = f"Recommended: {test.name}" if test.recommendation.recommended else NO_CHANGE
    return (
        f"{head}. {test.recommendation.reason} Of all settings, {test.name} ({test.setting}) has "
        f"the highest harmonic mean of {NDCG} over positions on the {len(test.selected_on):,} "
        f"queries used for selection. Changes on the {before.n:,} held-out queries "
        f"({before.mean.n_resampled:,} documents): {'; '.join(parts)}."
    )


DEBIAS = register(Debias())
