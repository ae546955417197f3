"""The functions of `import poslens`. Each calls the services of studies and returns a result that
notebooks display (`poslens.results`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, overload

import pandas as pd

from poslens.arguments import (
    Model,
    Models,
    Option,
    are_several,
    chosen_pairs,
    data_set,
    evidence_span,
    method_of,
    run_job,
    specs_of,
    text_of,
)
from poslens.attribution import datasets as known_datasets
from poslens.attribution.datasets import SAMPLE
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.detect import families_with
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.compute.compute import service
from poslens.names import with_rejections
from poslens.quietly import quietly
from poslens.results import Explanation, Passport, StudyResult
from poslens.saved_data import Data, data_name
from poslens.studies import declared
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.check import service as checking
from poslens.studies.check.baseline import read_baseline
from poslens.studies.check.measures import NAMES, Check
from poslens.studies.curves.result import Curves, averaged
from poslens.studies.explain import service as explaining
from poslens.studies.passport import service as passports
from poslens.study_part import MAX_PAIRS
from poslens.study_plan import complete, plan


@quietly()
def explain(
    model: Model | Models,
    query: str,
    document: str,
    *,
    method: str = "saliency",
    evidence: str | tuple[int, int] | None = None,
    language: str | None = None,
    dataset: Data = SAMPLE,
    **options: Option,
) -> Explanation:
    """Attribute the score of a query and a document to their tokens with one method, which
    determines the meaning and the unit of the numbers (docs/methods.md).

    Args:
        model: a preset, a Hugging Face id, a folder, a SentenceTransformer, or an object whose
            `encode(list of texts)` returns vectors [n, dimensions]. Such an object supports only
            methods that need nothing but vectors, such as method="occlusion". Several models, in
            a list or as {name: model}, are shown side by side.
        method: name of a method, see `methods`; `options` are its parameters by name.
        evidence: the passage that answers the query, or its (start, end) in characters of the
            document.
        language: language of the texts, as an ISO 639 code, which decides how they are split
            into sentences.
        dataset: name or path of a data set, or its rows: a pandas DataFrame or a list of
            dictionaries (docs/data.md), or {name: path} or {name: rows}. It provides the mean
            curve that is shown with the document, if that is stored, and the word statistics of
            BM25.

    Raises:
        UserError: a text, a name or an option is invalid; the message names it.
    """
    text = text_of(document, "document")
    if language is not None:
        language = iso_639_3(text_of(language, "language"))
    pair = TextPair(
        # Results are stored by the two texts, but the sentences depend on the language.
        f"typed-{language}" if language else "typed",
        text_of(query, "query"),
        text,
        evidence=evidence_span(text, evidence),
        language=language,
    )
    data, how, compute = data_set(dataset), method_of(method, options), service()
    results = [compute.explain(pair, spec, how) for spec in specs_of(model, data)]
    rails = [explaining.rail_of(compute, result, data) for result in results]
    return Explanation(tuple(results), tuple(rails))


@quietly()
def curve(
    model: Model | Models,
    dataset: Data = SAMPLE,
    *,
    method: str = "saliency",
    pairs: int = 0,
    **options: Option,
) -> Curves:
    """A method's mean curve over a data set, for one model or several. Missing results are computed
    and stored, with a progress bar on stderr. Repeat an interrupted call to resume.

    Args:
        model: as in `explain`.
        pairs: number of pairs, spread evenly over the data set; 0 means all.

    Raises:
        UserError: an argument is invalid as in `explain`, or nothing could be computed.
    """
    data, how, compute = data_set(dataset), method_of(method, options), service()
    chosen, words = chosen_pairs(data.pairs, pairs)

    averages, failures, reasons = averaged(
        compute, specs_of(model, data), how, data.name, lambda spec: (chosen, words), run_job
    )
    if not averages:
        raise UserError(reasons[0])
    for reason in reasons:
        print(reason, file=sys.stderr)
    return Curves(averages, chosen, failures)


@quietly()
def passport(
    model: Model | Models,
    dataset: Data = SAMPLE,
    *,
    compute: bool = True,
    pairs: int = MAX_PAIRS,
    moved: int = DEFAULT_PAIRS,
    part: Sequence[str] | None = None,
) -> Passport:
    """The results of all studies of a model's position bias on a data set, as one card per model.

    Missing results are computed; with `compute=False` the card shows only stored ones.

    Args:
        pairs: maximum number of pairs to attribute, at least 2.
        moved: maximum number of pairs whose evidence is moved, at least 2.
        part: the parts of the card, such as ["ranking"]; all by default (docs/passport.md).

    Raises:
        UserError: as for `explain`, or a passport has no such part.
    """
    for name, number in (("pairs", pairs), ("moved", moved)):
        if not isinstance(number, Integral) or number < 2:
            raise UserError(f"{name} must be a whole number from 2, not {number}.")
    _require_names("part", part, passports.QUESTIONS)
    passports.checked_parts(part or ())
    data, here = data_set(dataset), service()
    cards = []
    for spec in specs_of(model, data):
        card = passports.passport(here, spec, data, int(pairs), part, int(moved))
        if compute and card.missing:
            run_job(passports.job(here, card))
            card = passports.passport(here, spec, data, int(pairs), part, int(moved))
        cards.append(card)
    return Passport(tuple(cards))


def _require_names(argument: str, given: object, names: Iterable[str]) -> None:
    """Check that an argument is a list that is not empty, or None.

    Raises:
        UserError: it is something else.
    """
    if given is not None and not isinstance(given, list | tuple):
        shown = repr(given[:80]) if isinstance(given, str) else f"one {type(given).__name__}"
        raise UserError(
            f"{argument} takes a list of names, such as [{next(iter(names))!r}], not {shown}."
        )
    if given is not None and not given:
        raise UserError(f"{argument} is empty: choose from {', '.join(names)}.")


@overload
def check(
    model: Model,
    baseline: str | Path,
    dataset: Data = SAMPLE,
    *,
    only: Sequence[str] | None = None,
    **tolerances: float,
) -> list[Check]: ...
@overload
def check(
    model: Models,
    baseline: str | Path,
    dataset: Data = SAMPLE,
    *,
    only: Sequence[str] | None = None,
    **tolerances: float,
) -> dict[str, list[Check]]: ...
@quietly()
def check(
    model: Model | Models,
    baseline: str | Path,
    dataset: Data = SAMPLE,
    *,
    only: Sequence[str] | None = None,
    **tolerances: float,
) -> list[Check] | dict[str, list[Check]]:
    """Compare a model with a stored passport, on the passport's pairs, queries and documents.

    Each check has an outcome (pass, fail, too few documents or not checked), its paired comparison
    and the line that `poslens check` prints. For several models, the result is a dictionary of
    their checks by model name. PosLens computes missing results and stores them.

    Args:
        baseline: the JSON file that `passport(...).save("x.json")` wrote.
        only: the checks to make, out of relocation, position_effect, ranking, audit, misses,
            truncation and drift; by default all that the baseline has results for, except drift.
        tolerances: the tolerance of each check, by the same names; see
            `poslens.studies.check.service.Tolerances`.

    Raises:
        UserError: as for `explain`, or the file is not a passport.
    """
    _require_names("only", only, NAMES)
    for what, given in (("check", only or ()), ("tolerance", tolerances)):
        if unknown := [name for name in given if name not in NAMES]:
            raise UserError(f"There is no {what} {unknown[0]!r}: choose from {', '.join(NAMES)}.")
    if not isinstance(baseline, str | Path):
        raise UserError(
            f"The baseline must be a path, not {type(baseline).__name__}: give the file that "
            'passport(...).save("x.json") wrote.'
        )
    limits = checking.Tolerances(**tolerances)
    data, here = data_set(dataset), service()

    def checked(spec: RetrieverSpec) -> list[Check]:
        try:
            earlier = read_baseline(Path(baseline), spec.name)
        except OSError as error:
            raise UserError(f"{baseline} can't be read: {error.strerror}.") from error
        names = checking.chosen(earlier, only)
        card = checking.passport(here, spec, data, earlier, names)
        if card.missing:
            run_job(passports.job(here, card))
            card = checking.passport(here, spec, data, earlier, names)
        return checking.checks(card, earlier, limits, names)

    results = {spec.name: checked(spec) for spec in specs_of(model, data)}
    return results if are_several(model) else next(iter(results.values()))


def run_study(
    name: str,
    model: Model | Models,
    dataset: Data | None = None,
    *,
    out: str | Path | None = None,
    **parameters: Any,
) -> StudyResult:
    """Run a study on one model or several. Stored results are not computed again; repeat an
    interrupted call to resume. `poslens.needles(...)` is short for `run_study("needles", ...)`.

    Args:
        name: the study's name, such as "needles".
        dataset: a data set as in `explain`; by default the study's own.
        out: a new folder for what a study writes in addition to its results, such as the debiased
            model of `poslens.debias(model, corpus, out="folder")`. If the results have nothing to
            write, such as no recommended model, the last of `notes` says so.
        parameters: the study's parameters by name; `poslens NAME --help` lists them.

    Raises:
        UserError: an argument is invalid as in `explain`, the study does not fit the model, or the
            data set lacks what the study needs.
    """
    if name not in declared():
        raise UserError(
            f"There is no study {str(name)[:80]!r}: choose from {', '.join(declared())}."
        )
    study = declared()[name].load()
    if out is not None and not study.product:
        raise UserError(f"{study.title} writes no model or folder: remove `out`.")
    with quietly():
        data = with_rejections(study.read(data_name(study.dataset if dataset is None else dataset)))
        compute = service()
        settings = study.parameters.settings(parameters)
        corpus = study.corpus(data, settings)
        specs = specs_of(model, data)
        if out is not None:
            study.require_product(Path(out), len(specs))
        corpus = study.narrowed(compute, specs, corpus, settings)
        planned = plan(study, compute, specs, corpus, settings, load=True)
        others = study.without_models(corpus)
        for reason in planned.misfits:
            print(reason, file=sys.stderr)
        completed = complete(
            study, compute, planned, lambda subject, job: run_job(job), without_models=others
        )
        if not completed.summaries:
            raise UserError([*completed.reasons, *planned.misfits][0])
        for reason in completed.reasons:
            print(reason, file=sys.stderr)
        notes = study.notes(data, corpus)
        result = StudyResult(study, completed.summaries, completed.failures, notes)
        if out is not None and (
            unwritten := study.write_product(compute, result.summaries, Path(out))
        ):
            print(unwritten, file=sys.stderr)
            result = replace(result, notes=[*notes, unwritten])
        return result


def __getattr__(name: str) -> Any:
    # Each study is a call of its own name.
    if name in declared():
        call = partial(run_study, name)
        call.__doc__ = f"{declared()[name].question} See `run_study` for the arguments."
        return call
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# -- what is known by name -------------------------------------------------------------------------


def models() -> pd.DataFrame:
    """A table of the models known by name: installed or not, family, pooling, context limit,
    license."""
    return pd.DataFrame(
        [
            {
                "name": spec.name,
                "installed": resolve.installed(spec),
                "family": spec.family,
                "pooling": spec.pooling or "",
                "max_length": spec.max_length,
                "license": spec.terms,
                "title": spec.title,
            }
            for spec in resolve.known().values()
        ]
    )


def methods() -> pd.DataFrame:
    """A table of the attribution methods, the model families they support, and their parameters."""
    return pd.DataFrame(
        [
            {
                "name": entry.name,
                "title": entry.title,
                "families": ", ".join(family.name for family in families_with(entry.needs)),
                "parameters": {option.name: option.choices for option in entry.parameters},
                "help": entry.help,
                "caveat": entry.caveat,
            }
            for entry in METHODS.values()
        ]
    )


def datasets() -> pd.DataFrame:
    """A table of the data sets known by name; if one cannot be read, its title is the reason."""
    rows = []
    for name in known_datasets.names():
        known_datasets.reload_if_changed(name)
        try:
            data = known_datasets.read(name)
            rows.append({"name": name, "title": data.title, "pairs": len(data.pairs)})
        except UserError as reason:
            rows.append({"name": name, "title": str(reason), "pairs": 0})
    return pd.DataFrame(rows)
