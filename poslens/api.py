"""What `import poslens` offers: each call composes services of the dashboard, and returns a result
that shows itself (`poslens.results`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import pandas as pd

from poslens.attribution import datasets as known_datasets
from poslens.attribution.datasets import SAMPLE, DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers import own_object, resolve
from poslens.attribution.retrievers.detect import families_with, family_of
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.compute.compute import service
from poslens.compute.runs import Job
from poslens.inputs import Option, evidence_span, listed, method_of, text_of
from poslens.quietly import quietly
from poslens.results import Curve, Explanation, MeasuredRanking, Passport
from poslens.saved_models import folder_of
from poslens.studies import declared
from poslens.studies.cause import service as interventions
from poslens.studies.check import service as checking
from poslens.studies.check.baseline import read_baseline
from poslens.studies.check.service import Check
from poslens.studies.explain import service as explaining
from poslens.studies.passport import service as passports
from poslens.studies.passport.subject import MAX_PAIRS
from poslens.studies.ranking import service as rankings
from poslens.study import plan, stored
from poslens.study_result import StudyResult

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Encoder(Protocol):
    """A model of one's own: only its vectors are known, see docs/python.md."""

    def encode(self, texts: list[str], /) -> Any:
        """One vector for each text [n, dimensions]: an array, a tensor or a list."""
        ...


Model: TypeAlias = "str | Path | SentenceTransformer | Encoder"


@quietly()
def explain(
    model: Model,
    query: str,
    document: str,
    *,
    method: str = "saliency",
    evidence: str | tuple[int, int] | None = None,
    language: str | None = None,
    dataset: str | Path = SAMPLE,
    **options: Option,
) -> Explanation:
    """How each token of the query and of the document bears on the score; what a number means is
    the method's (docs/methods.md).

    Args:
        model: a preset, a Hugging Face id, a folder, a SentenceTransformer, or an object with
            `encode(list of texts)` that gives vectors [n, dimensions]; on the last, only what needs
            no more than vectors works, such as method="occlusion".
        method: a method's name, see `methods`; `options` are its parameters by name.
        evidence: the passage that answers the query, or where it stands (start, end) in
            characters.
        language: of the texts, as ISO 639-3, where sentences are told by its rules.
        dataset: a data set's name or path: the mean curve that stands beside the document is over
            it, as far as it is stored, and so are the word statistics of BM25.

    Raises:
        UserError: a text, a name or an option is not as it should be; the sentence says which.
    """
    return compare(
        [model],
        query,
        document,
        method=method,
        evidence=evidence,
        language=language,
        dataset=dataset,
        **options,
    )


@quietly()
def compare(
    models: Sequence[Model],
    query: str,
    document: str,
    *,
    method: str = "saliency",
    evidence: str | tuple[int, int] | None = None,
    language: str | None = None,
    dataset: str | Path = SAMPLE,
    **options: Option,
) -> Explanation:
    """The same of several models side by side; arguments and errors as in `explain`."""
    text = text_of(document, "document")
    pair = TextPair(
        "typed",
        text_of(query, "query"),
        text,
        evidence=evidence_span(text, evidence),
        language=None if language is None else text_of(language, "language"),
    )
    data, how, compute = _data(dataset), method_of(method, options), service()
    specs = [_spec(model, data) for model in listed(models, "models", "compare", "MiniLM")]
    if not specs:
        raise UserError("There is no model to explain: name at least one.")
    names = [spec.name for spec in specs]
    if again := {name for name in names if names.count(name) > 1}:
        raise UserError(f"{min(again)} is compared with itself: name each model once.")
    results, rails = [], []
    for spec in specs:
        result = compute.explain(pair, spec, how)
        against = explaining.average(compute, spec, how, data, None)
        results.append(result)
        rails.append(explaining.rail(result, against, None))
    return Explanation(tuple(results), tuple(rails))


@quietly()
def curve(
    model: Model,
    dataset: str | Path = SAMPLE,
    *,
    method: str = "saliency",
    pairs: int = 0,
    **options: Option,
) -> Curve:
    """A method's mean curve over a data set; what is not stored is computed, with a progress bar on
    stderr, and kept. Interrupted, it goes on where it was.

    Args:
        pairs: how many, spread evenly; 0 is all of them.

    Raises:
        UserError: as `explain`, or nothing could be computed.
    """
    data, how, compute = _data(dataset), method_of(method, options), service()
    spec = _spec(model, data)
    chosen, words = _chosen(data.pairs, pairs)
    _run(compute.attribution_job(spec, how, chosen, f"{data.name}: {words}"))
    found = compute.curve(spec, how, chosen, data.name, words)
    summary = found.summary
    return Curve(
        summary.curve,
        {
            "primacy_recency_index": summary.primacy_recency_index,
            "center_of_mass": summary.center_of_mass,
        },
        found.provenance(),
    )


@quietly()
def relocate(
    model: Model,
    dataset: str | Path = SAMPLE,
    *,
    pairs: int = interventions.DEFAULT_PAIRS,
) -> Curve:
    """The score against the place of the evidence, which is moved through its own text: whether
    position itself causes the score to move. Its `lean` is the mean score with the evidence in the
    last third less that in the first. `pairs` and errors as in `curve`; pairs need evidence."""
    data, how, compute = _data(dataset), relocation_method(), service()
    spec = _spec(model, data)
    usable, reason = movable(data.pairs)
    if not usable:
        raise UserError(reason or f"No pair of {data.name} has evidence that could be moved.")
    chosen, words = _chosen(usable, pairs)
    _run(interventions.job(compute, spec, how, chosen, f"{data.name}: {words}"))
    found = interventions.data_set_cause(compute, spec, how, chosen, data.name, words)
    numbers = {"lean": found.lean, "lost": found.lost}
    return Curve(found.summary.curve, numbers, found.provenance(), "Score by place, less its mean")


@quietly()
def rank(model: Model, dataset: str | Path = SAMPLE) -> MeasuredRanking:
    """Search a data set's whole corpus for each query, and measure: nDCG@10 and others, by the
    evidence's place, PSI beside chance. Kept like all else.

    Raises:
        UserError: as `explain`, or the data set judges no relevance.
    """
    data, compute = _data(dataset), service()
    spec, setup = _spec(model, data), rankings.RankingSetup(rankings.collection_of(data))
    found = rankings.ranked(compute, spec, setup)
    if found is None:
        _run(rankings.job(compute, spec, setup))
        found = rankings.ranked(compute, spec, setup)
    if found is None:
        raise UserError(f"{spec.name} could not rank {data.name}: try again.")
    return MeasuredRanking(found)


@quietly()
def passport(model: Model, dataset: str | Path = SAMPLE, *, compute: bool = True) -> Passport:
    """What is known of a model's position bias over a data set, on one card. Without `compute` as
    far as it is stored.

    Raises:
        UserError: as `explain`.
    """
    data, here = _data(dataset), service()
    spec = _spec(model, data)
    found = passports.passport(here, spec, data)
    if compute and found.missing:
        _run(passports.job(here, found))
        found = passports.passport(here, spec, data)
    return Passport((found,))


@quietly()
def check(
    model: Model,
    baseline: str | Path,
    dataset: str | Path = SAMPLE,
    *,
    only: Sequence[str] = checking.NAMES,
    pairs: int = MAX_PAIRS,
    **tolerances: float,
) -> list[Check]:
    """Check a model against a stored passport: each check with its outcome (pass, fail or not
    checked) and a line of words (`poslens check` on the command line). What is not stored is
    computed and kept.

    Args:
        baseline: the JSON file that `passport(...).save("x.json")` wrote.
        only: of lean, curve, psi, truncation and drift.
        pairs: that are attributed, at most, from 2 on.
        tolerances: by the same names, see `poslens.studies.check.service.Tolerances`.

    Raises:
        UserError: as `explain`, or the file is no passport.
    """
    only = listed(only, "checks", "only", checking.NAMES[0])
    if not only:
        raise UserError(f"There is no check to make: choose of {', '.join(checking.NAMES)}.")
    if unknown := [name for name in [*only, *tolerances] if name not in checking.NAMES]:
        raise UserError(f"There is no check {unknown[0]!r}: choose of {', '.join(checking.NAMES)}.")
    if not isinstance(pairs, Integral) or pairs < 2:
        raise UserError(f"check attributes from 2 pairs on, not {pairs}.")
    if not isinstance(baseline, str | Path):
        raise UserError(
            f"The baseline is no path but of type {type(baseline).__name__}: give the file that "
            'passport(...).save("x.json") wrote.'
        )
    limits = checking.Tolerances(**tolerances)
    data, here = _data(dataset), service()
    spec = _spec(model, data)
    try:
        known = read_baseline(Path(baseline), spec.name)
    except OSError as error:
        raise UserError(f"{baseline} cannot be read: {error.strerror}.") from error
    found = checking.passport(here, spec, data, only, pairs)
    if found.missing:
        _run(checking.job(here, found))
        found = checking.passport(here, spec, data, only, pairs)
    return checking.checks(found, known, limits, only)


def run_study(
    name: str,
    model: Model | Sequence[Model],
    dataset: str | Path | None = None,
    **parameters: Any,
) -> StudyResult:
    """Run a study on one model or several; what is stored is not computed again, and an interrupted
    call goes on where it was. `poslens.needles(...)` is `run_study("needles", ...)`.

    Args:
        name: of a study: `poslens.needles`, and so on.
        dataset: a data set's name or path; by default the study's own.
        parameters: of the study, by name; the command `poslens NAME --help` lists them.

    Raises:
        UserError: as `explain`; the study does not fit the model, or the data set lacks what it
            needs.
    """
    study = declared()[name].load()
    with quietly():
        data = study.read(_data_name(study.dataset if dataset is None else dataset))
        compute = service()
        given: Sequence[Any] = (
            listed(model, "models", name, "MiniLM") if isinstance(model, list | tuple) else [model]
        )
        settings = study.parameters.settings(parameters)
        corpus = study.corpus(data, settings)
        specs = [_spec(one, data) for one in given]
        corpus = study.narrowed(compute, specs, corpus, settings)
        planned = plan(study, compute, specs, corpus, settings)
        if not planned.subjects:
            raise UserError((planned.refused or ("There is no model: name at least one.",))[0])
        for job in planned.jobs:
            _run(job)
        return StudyResult(study, stored(study, compute, planned.subjects))


def __getattr__(name: str) -> Any:
    # Each study is a call of its own name.
    if name in declared():
        call = partial(run_study, name)
        call.__doc__ = f"{declared()[name].question} See `run_study` for the arguments."
        return call
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def models() -> pd.DataFrame:
    """The models known by name."""
    return pd.DataFrame(
        [
            {
                "name": spec.name,
                "installed": resolve.installed(spec),
                "family": spec.family,
                "pooling": spec.pooling or "",
                "max_length": spec.max_length,
                "license": spec.license,
                "title": spec.title,
            }
            for spec in resolve.known().values()
        ]
    )


def methods() -> pd.DataFrame:
    """The attribution methods, the families of models that they are for, and their parameters."""
    return pd.DataFrame(
        [
            {
                "name": entry.name,
                "title": entry.title,
                "families": ", ".join(family.name for family in families_with(entry.needs)),
                "parameters": {one.name: one.choices for one in entry.parameters},
                "help": entry.help,
                "caveat": entry.caveat,
            }
            for entry in METHODS.values()
        ]
    )


def datasets() -> pd.DataFrame:
    """The data sets known by name; of one that cannot be read the title says why."""
    rows = []
    for name in known_datasets.names():
        known_datasets.reload_if_changed(name)
        try:
            found = known_datasets.read(name)
            rows.append({"name": name, "title": found.title, "pairs": len(found.pairs)})
        except UserError as reason:
            rows.append({"name": name, "title": str(reason), "pairs": 0})
    return pd.DataFrame(rows)


# -- names into what they mean ---------------------------------------------------------------------


def _data(dataset: str | Path) -> DataSet:
    return known_datasets.read(_data_name(dataset))


def _data_name(dataset: str | Path) -> str:
    from poslens.commands.command_options import data_name

    return data_name(str(dataset))


def _spec(model: Model, data: DataSet) -> RetrieverSpec:
    from poslens.commands.command_options import resolve as resolved

    if isinstance(model, (str, Path)):
        found = resolved(str(model))
    elif _of_library(model):
        found = resolved(str(folder_of(model)))
    else:
        found = own_object.remember(model)
    return with_corpus(found, data.name) if family_of(found).has_statistics else found


def _of_library(model: Any) -> TypeGuard[SentenceTransformer]:
    """Whether sentence-transformers can write the model: then its inside is known too."""
    modules = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    return "sentence_transformers" in modules and hasattr(model, "save")


def _chosen(pairs: Sequence[TextPair], n: int) -> tuple[list[TextPair], str]:
    """`n` pairs, or all where it is 0, and the choice in words."""
    if not isinstance(n, Integral) or n < 0:
        raise UserError(f"There are no {n} pairs: give 0 for all, or a number from 1 on.")
    chosen = list(spread_evenly(pairs, min(n or len(pairs), len(pairs))))
    return chosen, "" if len(chosen) == len(pairs) else f"{len(chosen)} pairs spread evenly"


def _run(job: Job) -> None:
    """Compute what a job lacks; Ctrl-C ends it after the batch at hand and keeps what is there."""
    from poslens.commands.command_output import watched

    if job.total and job.n_done() >= job.total:
        return
    watched(job.label, job, unit="item", own_process=False)
