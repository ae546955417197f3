"""The job of one point, which runs its missing stages (training, ranking, relocation and audit),
and the writing of a model to a folder with the results on its card."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from poslens.attribution.debiasing import folder as folders
from poslens.attribution.debiasing.export import CARD, copy_model, model_card
from poslens.attribution.debiasing.folder import Manifest, folder_of, read_manifest
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import TOP
from poslens.attribution.evaluation.chunks import WHOLE
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.model_folder import contents
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.rankings import fingerprint
from poslens.compute.compute import Compute
from poslens.compute.runs import Job, Report, Run, failures_of, interruptible
from poslens.compute.settings import DEVICE
from poslens.studies.audit.study import AUDIT
from poslens.studies.audit.summary import AuditIndex
from poslens.studies.cause import service as interventions
from poslens.studies.debias.points import DebiasPoint
from poslens.studies.debias.summary import DebiasSummary
from poslens.studies.positions.study import POSITIONS
from poslens.studies.positions.summary import Moved
from poslens.studies.ranking import service as rankings
from poslens.studies.ranking.service import RankingSetup
from poslens.study import Asked

RELOCATION = relocation_method()
SALIENCY = make_method("saliency")


def audit_index(point: DebiasPoint, spec: RetrieverSpec) -> AuditIndex:
    """The audited index of a point's model: whole documents of the training corpus."""
    return AuditIndex(spec, WHOLE, point.corpus.texts, TOP, "sentence")


def audits(point: DebiasPoint) -> bool:
    """Whether the point's unretrieved sentences are counted. That takes longer than all other
    stages, so calibrated models, and comparisons of calibration alone, are not audited."""
    trains = point.corpus.training is not None
    return trains and point.calibration is None and point.corpus.texts.survey.n > TOP


def positions_subject(point: DebiasPoint, spec: RetrieverSpec, setup: RankingSetup) -> Asked[Moved]:
    """The subject of the study `positions` for a point: its held-out pairs, ranked in the
    collection of `setup` with their evidence at each position."""
    corpus, collection = point.corpus, setup.collection
    moved = Moved(
        corpus.name, corpus.pairs, (), collection, fingerprint(collection), corpus.moved, ()
    )
    return Asked(spec, moved, POSITIONS.parameters.settings())


def stages(compute: Compute, point: DebiasPoint) -> list[tuple[str, Job | None]]:
    """The stages of a point's computation in order, each with its job, which is None until the
    model is trained."""
    corpus, setup, spec = point.corpus, point.corpus.setup, point.spec(compute)
    pairs, scope = corpus.pairs, f"{corpus.name}: {corpus.moved}"
    jobs: dict[str, Callable[[RetrieverSpec], Job]] = {}
    if setup is not None:
        jobs["Ranking"] = lambda spec: rankings.job(compute, spec, setup)
    if pairs:
        jobs["Relocating the evidence"] = lambda spec: interventions.job(
            compute, spec, RELOCATION, pairs, scope
        )
        jobs["Saliency"] = lambda spec: compute.attribution_job(spec, SALIENCY, pairs, scope)
    if pairs and setup is not None:
        jobs["Ranking relocated documents"] = lambda spec: POSITIONS.job(
            compute, positions_subject(point, spec, setup)
        )
    if audits(point):
        jobs["Searching for each sentence"] = lambda spec: AUDIT.job(
            compute, audit_index(point, spec)
        )
    training = [] if point.recipe is None else [("Training", training_job(compute, point))]
    return [*training, *((title, job(spec) if spec else None) for title, job in jobs.items())]


def is_done(job: Job | None) -> bool:
    """Whether a stage's results are stored."""
    return job is not None and not job.has_left()


def point_job(compute: Compute, point: DebiasPoint) -> Job:
    """A job that runs the missing stages of a point and, on a retry, those with failed items, one
    after the other; it ends if one fails or is stopped. Progress counts stages.

    Raises:
        UserError: the model's files are not on this machine.
    """
    model, total = compute.identify(point.base), len(stages(compute, point))

    def work(run: Run, report: Report) -> Progress:
        started, computed = time.perf_counter(), 0

        def progress(done: int, stopped: bool = False) -> Progress:
            return Progress(total, done, computed, 0, time.perf_counter() - started, stopped)

        for number in range(total):
            report(progress(number))
            if run.stopping:
                return progress(number, stopped=True)
            # Read again, because the training creates the jobs of later stages.
            title, job = stages(compute, point)[number]
            assert job is not None
            if not job.has_left(run.retry_failed):
                continue
            run.stage = title

            def show(_: Progress, number: int = number) -> None:
                report(progress(number))

            part = run.part = job.start(show, retry_failed=run.retry_failed, within=run)
            if run.stopping:
                part.stop()
            part.wait()
            run.part = None
            if part.error:
                raise UserError(part.error)
            if part.progress.stopped or run.stopping:
                return progress(number, stopped=True)
            computed += 1
        return progress(total)

    recipe = point.recipe.words if point.recipe else ""
    calibrated = point.calibration.words if point.calibration else ""
    training = point.corpus.training.digest if point.corpus.training else "whole"
    key = (
        point.base.name,
        model.key.fingerprint,
        f"debias {recipe} {calibrated}",
        f"{point.corpus.name} {training} {len(point.corpus.pairs)}",
        model.device,
    )
    return compute.job(
        key,
        point.label,
        total,
        work,
        n_done=lambda: sum(is_done(job) for _, job in stages(compute, point)),
        failures=lambda: failures_of(
            (title, job) for title, job in stages(compute, point) if job is not None
        ),
        counts_items=False,
        can_start=not model.stored_only,
        doing="debias",
    )


def training_job(compute: Compute, point: DebiasPoint) -> Job:
    """A job that trains a debiased model; progress counts steps. A stopped run can be resumed.

    Raises:
        UserError: the model's files are not on this machine.
    """
    model, corpus, recipe = compute.identify(point.base), point.corpus.training, point.recipe
    assert recipe is not None and corpus is not None
    training, checkpoint = point.training(compute), point.checkpoint(compute)

    def work(run: Run, report: Report) -> Progress:
        from poslens.attribution.debiasing.export import write_model
        from poslens.attribution.debiasing.training import Training
        from poslens.attribution.retrievers.dense import DenseRetriever
        from poslens.attribution.retrievers.load import load

        # Not the shared model from the pool, because training changes weights.
        retriever = load(point.base, DEVICE.get(), "float32")
        assert isinstance(retriever, DenseRetriever)
        session = Training(retriever, corpus, recipe, checkpoint, compute.device_slot(point.base))
        started, first = time.perf_counter(), list[int]()

        def on_step(step: int, steps: int) -> None:
            first.append(step)
            seconds = time.perf_counter() - started
            report(Progress(steps, step, step - first[0], 0, seconds))

        result = session.run(on_step)
        checks = tuple((check.step, check.loss, check.effect) for check in result.checks)
        manifest = Manifest(
            base=point.base.hub_id or point.base.name,
            training=training,
            recipe={name: float(value) for name, value in asdict(recipe).items()},
            corpus=corpus.name,
            corpus_digest=corpus.digest,
            n_documents=corpus.n_documents,
            n_sentences=len(corpus.train),
            steps=result.step,
            early=result.step < recipe.steps,
            checks=checks,
            license=point.base.license,
            query_max_length=point.base.query_max_length,
            max_length=retriever.max_length,
        )
        write_model(retriever, session.adapter, manifest, folders.new_folder(point.base.name))
        checkpoint.unlink(missing_ok=True)
        return Progress(result.step, result.step, 0, 0, time.perf_counter() - started)

    return compute.job(
        (point.base.name, model.key.fingerprint, "train", training, model.device),
        f"{point.base.name}, debiased on {corpus.name}",
        recipe.steps,
        interruptible(work),
        n_done=lambda: recipe.steps if folders.find(training) is not None else 0,
        doing="training",
    )


# -- the written model -----------------------------------------------------------------------------

_ON_CARD = {
    "effect": ("relocation difference (change in its size)", "+.4f"),
    "rank_effect": ("position effect on rank (change in its size)", "+.3f"),
    "quality": ("nDCG@10", ".3f"),
    "share": ("unretrieved sentences", ".3f"),
    "saliency_index": ("saliency index (its change)", "+.3f"),
}
"""Title and form of each measure on the card of a debiased model."""


def write_model(
    compute: Compute,
    summaries: Sequence[DebiasSummary],
    verdict: Callable[[DebiasSummary], str],
    folder: Path,
) -> str:
    """Write the debiased model, with the results on its card, or without training the recommended
    calibrated one, to a new folder, if there is one; returns as `Study.write_product`.

    Raises:
        UserError: the folder exists, or cannot be written.
    """
    from poslens.attribution.retrievers.calibrated_transformer import export

    trains = all(summary.trains for summary in summaries)
    chosen = [
        summary
        for summary in summaries
        if (summary.point.kind == "debiased" if trains else summary.recommended)
    ]
    if not chosen:
        why = "No model was debiased" if trains else "No calibrated model is recommended"
        return f"{why}, so nothing is written."
    (summary,) = chosen
    if trains:
        _write_card(summary, verdict(summary))
        copy_model(folder_of(summary.model.spec), folder)
    else:
        retriever = compute.retriever(summary.model)
        with retriever.lock:
            export(retriever, folder)
    return ""


def _write_card(summary: DebiasSummary, verdict: str) -> None:
    """Write the results on the held-out half to the card of a debiased model."""
    folder = folder_of(summary.model.spec)
    manifest, plain = read_manifest(folder), summary.plain
    if manifest is None or plain is None:
        return
    rows = []
    for name, (title, form) in _ON_CARD.items():
        before, after, change = (getattr(each, name) for each in (plain, summary, summary.changes))
        if before is not None and after is not None:
            change_text = change.text(form) if change else "–"
            rows.append((title, before.text(form), after.text(form), change_text))
    card = model_card(manifest, folder.name, contents(folder), rows, verdict)
    (folder / CARD).write_text(card, encoding="utf-8")
