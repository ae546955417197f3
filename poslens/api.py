"""What `import poslens` offers: each call composes services of studies, and returns a result that
displays itself (`poslens.results`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, overload

from poslens.attribution.datasets import SAMPLE
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.averages import cause as cause
from poslens.averages import curve as curve
from poslens.averages import rank as rank
from poslens.averages import relocate as relocate
from poslens.compute.compute import service
from poslens.inputs import Option, evidence_span, listed, method_of, text_of
from poslens.listings import datasets as datasets
from poslens.listings import methods as methods
from poslens.listings import models as models
from poslens.quietly import quietly
from poslens.results import (
    Explanation,
    Passport,
)
from poslens.studies import declared
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.check import service as checking
from poslens.studies.check.baseline import read_baseline
from poslens.studies.check.measures import NAMES, Check
from poslens.studies.explain import service as explaining
from poslens.studies.passport import service as passports
from poslens.study_call import run_study as run_study
from poslens.subjects import (
    Model,
    Models,
    data_set,
    run_job,
    spec_of,
    specs_of,
)


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
    data, how, compute = data_set(dataset), method_of(method, options), service()
    specs = [spec_of(model, data) for model in listed(models, "models", "compare", "MiniLM")]
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
def passport(
    model: Model | Models,
    dataset: str | Path = SAMPLE,
    *,
    compute: bool = True,
    moved: int = DEFAULT_PAIRS,
) -> Passport:
    """What is known of a model's position bias over a data set, on one card; of several models, a
    card for each. Without `compute`, only what is stored. `moved` is the maximum number of pairs
    whose evidence is moved, from 2 on.

    Raises:
        UserError: as `explain`.
    """
    if not isinstance(moved, Integral) or moved < 2:
        raise UserError(f"A passport moves the evidence of 2 pairs or more, not of {moved}.")
    data, here = data_set(dataset), service()
    cards = []
    for spec in specs_of(model, data):
        card = passports.passport(here, spec, data, moved=moved)
        if compute and card.missing:
            run_job(passports.job(here, card))
            card = passports.passport(here, spec, data, moved=moved)
        cards.append(card)
    return Passport(tuple(cards))


@overload
def check(
    model: Model,
    baseline: str | Path,
    dataset: str | Path = SAMPLE,
    *,
    only: Sequence[str] | None = None,
    **tolerances: float,
) -> list[Check]: ...
@overload
def check(
    model: Models,
    baseline: str | Path,
    dataset: str | Path = SAMPLE,
    *,
    only: Sequence[str] | None = None,
    **tolerances: float,
) -> dict[str, list[Check]]: ...
@quietly()
def check(
    model: Model | Models,
    baseline: str | Path,
    dataset: str | Path = SAMPLE,
    *,
    only: Sequence[str] | None = None,
    **tolerances: float,
) -> list[Check] | dict[str, list[Check]]:
    """Check a model against a stored passport, over its pairs, queries and documents: each check
    with its outcome (pass, fail, too few documents or not checked), its paired comparison and a
    line of words (`poslens check` on the command line); of several models, the checks of each by
    its name. PosLens computes what is not stored and keeps it.

    Args:
        baseline: the JSON file that `passport(...).save("x.json")` wrote.
        only: of relocation, position_effect, ranking, audit, misses, truncation and drift; by
            default all that the baseline has a part for, but not drift.
        tolerances: by the same names, see `poslens.studies.check.service.Tolerances`.

    Raises:
        UserError: as `explain`, or the file is no passport.
    """
    if only is not None and not (only := listed(only, "checks", "only", NAMES[0])):
        raise UserError(f"There is no check to make: choose of {', '.join(NAMES)}.")
    if unknown := [name for name in [*(only or ()), *tolerances] if name not in NAMES]:
        raise UserError(f"There is no check {unknown[0]!r}: choose of {', '.join(NAMES)}.")
    if not isinstance(baseline, str | Path):
        raise UserError(
            f"The baseline is no path but of type {type(baseline).__name__}: give the file that "
            'passport(...).save("x.json") wrote.'
        )
    limits = checking.Tolerances(**tolerances)
    data, here = data_set(dataset), service()

    def checked(spec: RetrieverSpec) -> list[Check]:
        try:
            earlier = read_baseline(Path(baseline), spec.name)
        except OSError as error:
            raise UserError(f"{baseline} cannot be read: {error.strerror}.") from error
        names = checking.chosen(earlier, only)
        card = checking.passport(here, spec, data, earlier, names)
        if card.missing:
            run_job(checking.job(here, card))
            card = checking.passport(here, spec, data, earlier, names)
        return checking.checks(card, earlier, limits, names)

    results = {spec.name: checked(spec) for spec in specs_of(model, data)}
    return results if isinstance(model, list | tuple) else next(iter(results.values()))


def __getattr__(name: str) -> Any:
    # Each study is a call of its own name.
    if name in declared():
        call = partial(run_study, name)
        call.__doc__ = f"{declared()[name].question} See `run_study` for the arguments."
        return call
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
