"""Options that commands share, with their help, their conversion to methods and pairs, and the
stream for errors, which is stderr even with --quiet."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TextIO, TypeVar, get_args

import typer

from poslens.attribution.errors import UserError
from poslens.commands.completion import dataset_names, method_names, model_names
from poslens.names import data_name, register_data, sources, with_rejections

if TYPE_CHECKING:
    from poslens.attribution.datasets import DataSet
    from poslens.attribution.pairs import Pairs
    from poslens.attribution.retrievers.specs import RetrieverSpec
    from poslens.attribution.types import Method, TextPair

P = ParamSpec("P")
R = TypeVar("R")

Model = Annotated[
    str,
    typer.Option(
        "--model",
        autocompletion=model_names,
        help="Preset, Hugging Face id, folder, or NAME=FOLDER; @cls, @mean, @weightedmean, @last "
        "or @max after it changes the pooling, @64d truncates its vectors to 64 dimensions, "
        "@configured truncates texts where its own "
        "configuration does, @calibrated or @calibrated(strength=0.5, block=128, "
        "layers=3) calibrates its attention.",
    ),
]


def several_models(default: str) -> Any:
    """The repeatable option --model; `default` is a sentence on its default."""
    return typer.Option(
        "--model",
        autocompletion=model_names,
        help=f"Preset, Hugging Face id, folder, or NAME=FOLDER; repeatable. {default}",
    )


Models = Annotated[list[str] | None, several_models("MiniLM by default.")]
MethodName = Annotated[
    str, typer.Option("--method", autocompletion=method_names, help="See `methods`.")
]
Normalization = Annotated[str, typer.Option(help="p99, max or none.")]
Resampling = Annotated[str, typer.Option(help="bin_mean or point.")]
Posir = Annotated[bool, typer.Option("--posir", help="Use the PosIR paper's protocol exactly.")]
Readable = Annotated[
    bool,
    typer.Option(
        "--readable",
        help="Exclude pairs whose evidence is past the model's context limit, and pairs with "
        "more than 10% unknown tokens.",
    ),
]
_DATASET_HELP = (
    "Data set or documents, by name or path; also hf:ORGANIZATION/NAME, ir_datasets:ID or "
    "mteb:TASK."
)


def _refuse(sentence: object) -> typer.Exit:
    print_error(sentence)
    return typer.Exit(2)


def _registering(register: Callable[[list[str]], object]) -> Callable[..., list[str] | None]:
    """A callback that registers names while options are parsed, so that every command can use
    them."""

    def callback(context: typer.Context, values: list[str] | None) -> list[str] | None:
        if not context.resilient_parsing:  # a shell asks for completions
            try:
                register(values or [])
            except UserError as error:
                raise _refuse(error) from None
        return values

    return callback


def _chosen_dataset(context: typer.Context, value: str) -> str:
    """The data set given by --dataset, or the only one that --data names."""
    if context.get_parameter_source("dataset").name != "DEFAULT":  # type: ignore[union-attr]
        return value
    names = list(sources(context.params.get("data")))
    if len(names) > 1:
        raise _refuse(f"--data names {' and '.join(names)}: select one with --dataset.")
    if not (names or value):
        raise _refuse("This command needs a data set: give --data NAME=PATH or --dataset.")
    return names[0] if names else value


def choice_of_data(*names: str, help: str = _DATASET_HELP) -> Any:
    """The option --dataset, also under other names."""
    return typer.Option(
        "--dataset", *names, autocompletion=dataset_names, callback=_chosen_dataset, help=help
    )


Dataset = Annotated[str, choice_of_data("--corpus")]
DATA_HELP = (
    "NAME=PATH of a data set (a folder or file in a format of docs/data.md), or "
    "NAME=hf:ORGANIZATION/NAME, NAME=ir_datasets:ID or NAME=mteb:TASK; repeatable. A single one is "
    "the default of --dataset."
)
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        callback=_registering(lambda values: register_data(sources(values))),
        is_eager=True,  # before --dataset, which may choose one of these
        help=DATA_HELP,
    ),
]


def _register_endpoints(values: list[str]) -> None:
    from poslens.attribution.retrievers.resolve import register_endpoint

    for value in values:
        register_endpoint(value)


Endpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        callback=_registering(_register_endpoints),
        help="NAME=URL of an embedding or rerank endpoint, which becomes a model of this name; "
        "its key is in POSLENS_KEY_NAME (docs/endpoints.md); repeatable.",
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE of a method parameter; see `methods`."),
]


def with_shared_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add --endpoint to a command that names models, and --data to one that selects a data set.
    Both register names while options are parsed, so the command itself does not receive them."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    added: list[str] = []
    for parameter in signature.parameters.values():
        parameters.append(parameter)
        for name, completed, option in (
            ("endpoint", model_names, Endpoints),
            ("data", dataset_names, Data),
        ):
            if (
                parameter.name in ("model", "dataset")
                and name not in signature.parameters
                and _completion_of(parameter) is completed
            ):
                parameters.append(parameter.replace(name=name, default=None, annotation=option))
                added.append(name)

    @wraps(command)
    def without_shared(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in added:
            kwargs.pop(name, None)
        return command(*args, **kwargs)

    without_shared.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return without_shared


def _completion_of(parameter: inspect.Parameter) -> object:
    """The function that completes an option's values; None if it has none."""
    options = get_args(parameter.annotation)[1:]
    return next((getattr(option, "autocompletion", None) for option in options), None)


def method_of(
    name: str, normalization: str, resampling: str, posir: bool, options: list[str] | None
) -> Method:
    """The method that the options describe."""
    from poslens.attribution.methods import POSIR_CURVE, make_method

    parameters = {}
    for option in options or []:
        key, separator, value = option.partition("=")
        if not separator:
            raise UserError(f"--option must be NAME=VALUE, not {option!r}.")
        parameters[key] = value
    curve = {"normalization": normalization, "resampling": resampling}
    return make_method(name, {**parameters, **(POSIR_CURVE if posir else curve)})


def pairs_of(dataset: str, posir: bool) -> tuple[DataSet, Pairs]:
    """A data set by name or path, and its pairs; with `posir` only those that the paper's protocol
    selects.

    Raises:
        UserError: the data set cannot be read, or no pair is selected.
    """
    from poslens.attribution import datasets

    data = with_rejections(datasets.read(data_name(dataset)))
    pairs = datasets.posir_selection(data.pairs) if posir else data.pairs
    if not pairs:
        raise UserError(
            f"No pair of {data.name} remains: the PosIR protocol selects English documents of "
            "1,024 tokens or more with evidence in the middle."
        )
    return data, pairs


def readable_of(
    specs: Sequence[RetrieverSpec], pairs: Sequence[TextPair], only: bool
) -> tuple[Sequence[TextPair], str]:
    """The pairs and an empty description; with `only`, the pairs that every model can read, and
    a description of that selection. Prints on stderr how many were excluded.

    Raises:
        UserError: none is left.
    """
    if not only:
        return pairs, ""
    from poslens.compute import coverage
    from poslens.compute.compute import service

    chosen_pairs = coverage.readable(service(), specs, pairs)
    names = " or ".join(spec.name for spec in specs)
    print(
        f"{len(pairs) - len(chosen_pairs)} of {len(pairs)} pairs excluded, because {names} can't "
        "read them in full.",
        file=sys.stderr,
    )
    if not chosen_pairs:
        raise UserError(f"{names} can't read any pair in full: select another model or data set.")
    return chosen_pairs, coverage.LEFT_OUT


# -- errors ----------------------------------------------------------------------------------------

_errors: ContextVar[TextIO | None] = ContextVar("_errors", default=None)


@contextmanager
def errors_to(stream: TextIO) -> Iterator[None]:
    """Write errors to this stream, even if stderr is redirected meanwhile."""
    before = _errors.set(stream)
    try:
        yield
    finally:
        _errors.reset(before)


def is_quiet() -> bool:
    """Whether the running command was given --quiet."""
    return _errors.get() is not None


def print_error(sentence: object) -> None:
    """Print an error on stderr, even with --quiet."""
    print(sentence, file=_errors.get() or sys.stderr)
