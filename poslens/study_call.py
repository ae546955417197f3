"""The Python function that runs a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poslens.attribution.errors import UserError
from poslens.compute.compute import service
from poslens.quietly import quietly
from poslens.studies import declared
from poslens.study import plan, stored
from poslens.study_result import StudyResult
from poslens.subjects import Model, Models, data_name, run_job, specs_of


def run_study(
    name: str,
    model: Model | Models,
    dataset: str | Path | None = None,
    *,
    out: str | Path | None = None,
    **parameters: Any,
) -> StudyResult:
    """Run a study on one model or several. Stored results are not computed again; repeat an
    interrupted call to resume. `poslens.needles(...)` is short for `run_study("needles", ...)`.

    Args:
        name: the study's name, such as "needles".
        dataset: a data set's name or path; by default the study's own.
        out: a new folder for what a study writes in addition to its results, such as the debiased
            model of `poslens.debias(model, corpus, out="folder")`.
        parameters: the study's parameters by name; `poslens NAME --help` lists them.

    Raises:
        UserError: an argument is invalid as in `explain`, the study does not fit the model, or the
            data set lacks what the study needs.
    """
    study = declared()[name].load()
    if out is not None:
        if not study.product:
            raise UserError(f"{study.title} makes nothing but its results: leave out `out`.")
        study.require_product(Path(out))
    with quietly():
        data = study.read(data_name(study.dataset if dataset is None else dataset))
        compute = service()
        settings = study.parameters.settings(parameters)
        corpus = study.corpus(data, settings)
        specs = specs_of(model, data)
        corpus = study.narrowed(compute, specs, corpus, settings)
        planned = plan(study, compute, specs, corpus, settings)
        others = study.without_models(corpus)
        if not planned.subjects and not others:
            raise UserError(planned.refused[0])
        for job in planned.jobs:
            run_job(job)
        result = StudyResult(study, stored(study, compute, planned.subjects, without_models=others))
        if out is not None:
            study.write_product(result.summaries, Path(out))
        return result
