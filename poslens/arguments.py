"""Arguments of PosLens's Python functions: texts, methods, models, data sets and pairs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

from poslens.attribution import datasets as known_datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_evenly, spread_words
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.paths import is_folder
from poslens.attribution.retrievers import own_object
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import renamed
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import clean
from poslens.attribution.types import EvidenceSpan, Method, TextPair
from poslens.commands.command_output import watched
from poslens.compute.runs import Job
from poslens.names import distinct, resolve, with_rejections
from poslens.saved_data import Data, data_name
from poslens.saved_models import folder_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Option: TypeAlias = "str | int | float | bool"


def text_of(given: object, what: str) -> str:
    """The text, cleaned of characters that are not allowed in texts (`clean`).

    Raises:
        UserError: it is not a string, or is empty or too long; `what` names it in the message.
    """
    if not isinstance(given, str):
        raise UserError(f"The {what} must be a string, not {type(given).__name__}.")
    return clean(given, what)


def evidence_span(text: str, evidence: str | tuple[int, int] | None) -> EvidenceSpan | None:
    """Start and end of the evidence in `text`, in characters; None without evidence.

    Raises:
        UserError: the text does not contain it, or more than once.
    """
    if evidence is None:
        return None
    if isinstance(evidence, str):
        start = text.find(evidence) if evidence else -1
        if start < 0:
            raise UserError(
                "The evidence does not occur in the document: copy it character for character."
            )
        if text.find(evidence, start + 1) >= 0:
            raise UserError(
                "The evidence occurs more than once in the document: copy more of the passage, so "
                "that it is unambiguous."
            )
        return EvidenceSpan(start, start + len(evidence))
    try:
        start, end = map(operator.index, evidence)
    except (TypeError, ValueError):
        raise UserError(
            "The evidence must be a passage of the document, or its (start, end) in characters."
        ) from None
    if 0 <= end <= start <= len(text):
        raise UserError(f"The evidence, characters {start:,} to {end:,}, must end after it starts.")
    if not 0 <= start < end <= len(text):
        raise UserError(
            f"The evidence, characters {start:,} to {end:,}, is outside the document, which has "
            f"{len(text):,} characters."
        )
    return EvidenceSpan(start, end)


def option_words(options: Mapping[str, Option]) -> dict[str, str]:
    """A method's options in the notation of the commands: 50 and 50.0 are "50", True is "yes"."""
    return {name: _word(value) for name, value in options.items()}


def _word(value: Option) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def method_of(given: object, options: Mapping[str, Option]) -> Method:
    """The method of this name with these options.

    Raises:
        UserError: there is no such method, or it does not accept the options.
    """
    if not isinstance(given, str):
        raise UserError(
            f"The method must be a name, not {type(given).__name__}: choose from "
            f"{', '.join(METHODS)}."
        )
    return make_method(given, option_words(options))


class Encoder(Protocol):
    """A user-defined model that returns only vectors; see docs/python.md."""

    def encode(self, texts: list[str], /) -> Any:
        """One vector for each text [n, dimensions], as an array, a tensor or a list."""


Model: TypeAlias = "str | Path | SentenceTransformer | Encoder"
Models: TypeAlias = "list[Any] | tuple[Any, ...] | Mapping[str, Any]"
"""Several models, which a mapping names."""


def data_set(dataset: Data) -> DataSet:
    """The data set with a name, at a path, or in memory. Its rejected rows are reported on stderr.

    Raises:
        UserError: it does not exist, or it cannot be read.
    """
    return with_rejections(known_datasets.read(data_name(dataset)))


def spec_of(model: Model, data: DataSet) -> RetrieverSpec:
    """The retriever for a name, a folder or a model in memory, with the data set's word statistics
    if it uses any (BM25).

    Raises:
        UserError: there is no such model.
    """
    if isinstance(model, (str, Path)):
        spec = resolve(str(model))
    elif _of_library(model):
        spec = resolve(str(folder_of(model)))
    else:
        spec = own_object.remember(model)
    return with_corpus(spec, data.name)


def are_several(model: Model | Models) -> TypeGuard[Models]:
    """Whether the argument `model` gives several models."""
    return isinstance(model, list | tuple | Mapping)


def _named(name: str, model: Model, data: DataSet) -> RetrieverSpec:
    """The retriever for a model under a name that the user chose.

    Raises:
        UserError: as `spec_of`, or the name is invalid or that of another model.
    """
    if not isinstance(name, str) or not name or {"=", "@"} & {*name}:
        raise UserError(f"A model's name must be text without = and @, not {name!r}.")
    if _of_library(model):
        model = folder_of(model)
    if isinstance(model, str | Path) and is_folder(model):
        return resolve(f"{name}={model}")
    return renamed(spec_of(model, data), name)


def specs_of(model: Model | Models, data: DataSet) -> list[RetrieverSpec]:
    """The retrievers for one model or several, without duplicates.

    Raises:
        UserError: `spec_of` fails, no model is given, or two have one name.
    """
    if isinstance(model, Mapping):
        specs = distinct(_named(name, each, data) for name, each in model.items())
    else:
        models = model if isinstance(model, list | tuple) else [model]
        specs = distinct(spec_of(each, data) for each in models)
    if not specs:
        raise UserError("No model is given: name at least one.")
    return specs


def _of_library(model: Any) -> TypeGuard[SentenceTransformer]:
    """Whether the model is one of sentence-transformers, which can be saved and loaded with access
    to its tokens and layers."""
    modules = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    return "sentence_transformers" in modules and hasattr(model, "save")


def chosen_pairs(
    pairs: Sequence[TextPair], n: int, unit: str = "pairs"
) -> tuple[Sequence[TextPair], str]:
    """`n` pairs spread evenly over `pairs`, or all if `n` is 0, and the selection as text, which is
    empty for all pairs.

    Raises:
        UserError: `n` is not a whole number from 0 on.
    """
    if not isinstance(n, Integral) or n < 0:
        raise UserError(f"pairs must be a whole number from 0 (all pairs), not {n}.")
    chosen = spread_evenly(pairs, n or len(pairs))
    return chosen, "" if len(chosen) == len(pairs) else spread_words(len(chosen), unit)


def run_job(job: Job) -> None:
    """Compute the missing results of a job; Ctrl-C ends it without losing stored results."""
    if job.total and job.n_done() >= job.total:
        return
    watched(job.label, job, unit="item", own_process=False)
