"""What commands share: options with their help, and names turned into models, methods and pairs."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from contextvars import ContextVar
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TextIO, TypeVar

import typer

from attribution.errors import UserError
from attribution.paths import exists, expanded, is_folder
from dashboard.core.answers import File, print_json
from dashboard.core.completion import dataset_names, method_names, model_names

if TYPE_CHECKING:
    from attribution.datasets import DataSet
    from attribution.retrievers.specs import RetrieverSpec
    from attribution.types import Method, TextPair
    from dashboard.core.runs import Job

P = ParamSpec("P")
R = TypeVar("R")


Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress and no notes; errors are still said.")
]


class TextFormat(StrEnum):
    """Formats of results on stdout."""

    json = "json"
    csv = "csv"


class LineFormat(StrEnum):
    """Formats of lists and verdicts on stdout."""

    text = "text"
    json = "json"


FileFormat = Annotated[
    LineFormat, typer.Option(help="How the file is named on stdout: text (its path) or json.")
]


_errors: ContextVar[TextIO | None] = ContextVar("_errors", default=None)


def spoken(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose bad input ends in one sentence on stderr and exit code 2, and which takes
    --quiet: then nothing else reaches stderr."""
    inner = one_sentence(command)

    @wraps(command)
    def with_quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.pop("quiet", False):
            return inner(*args, **kwargs)
        # Progress bars and notes look stderr up when they write.
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            _errors_to(sys.stderr),
            redirect_stderr(nowhere),
        ):
            return inner(*args, **kwargs)

    own = inspect.signature(command, eval_str=True)
    added = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False)
    parameters = [*own.parameters.values(), added.replace(annotation=Quiet)]
    with_quiet.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_quiet


@contextmanager
def _errors_to(stream: TextIO) -> Iterator[None]:
    before = _errors.set(stream)
    try:
        yield
    finally:
        _errors.reset(before)


def is_quiet() -> bool:
    """Whether the command at work was told --quiet."""
    return _errors.get() is not None


def complain(sentence: object) -> None:
    """Say on stderr what went wrong, --quiet or not."""
    print(sentence, file=_errors.get() or sys.stderr)


def one_sentence(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose bad input ends in one sentence on stderr and exit code 2."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            complain(error)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            complain("Interrupted; what was computed is kept.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # whoever read the result has had enough
        except OSError as error:
            complain(_failed(error))
            raise typer.Exit(2) from None

    return guarded


def _failed(error: OSError) -> str:
    """What the operating system refused, in one sentence."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}: check the path, its rights and the free space."


Model = Annotated[
    str,
    typer.Option(
        "--model",
        autocompletion=model_names,
        help="Preset, Hugging Face id, or folder; @cls, @mean, @weightedmean, @last or @max "
        "after it changes the pooling, @calibrated or @calibrated(strength=0.5, basket=128, "
        "layers=3) calibrates its attention.",
    ),
]
MethodName = Annotated[
    str, typer.Option("--method", autocompletion=method_names, help="See `methods`.")
]
Normalization = Annotated[str, typer.Option(help="p99, max or none.")]
Resampling = Annotated[str, typer.Option(help="bin_mean or point.")]
Posir = Annotated[bool, typer.Option("--posir", help="The PosIR paper's protocol, bit for bit.")]
Readable = Annotated[
    bool,
    typer.Option(
        "--readable",
        help="Leave out pairs whose evidence lies behind the model's limit, or of whose tokens "
        "more than 10% are unknown to it.",
    ),
]
Dataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        "--corpus",
        autocompletion=dataset_names,
        help="Name, or path, of a data set or of documents alone; also hf:ORGANISATION/NAME, "
        "ir_datasets:ID or mteb:TASK.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="NAME=PATH of a data set (a folder or file of any format that docs/data.md lists), or "
        "NAME=hf:ORGANISATION/NAME, NAME=ir_datasets:ID or NAME=mteb:TASK; repeatable.",
    ),
]


def _endpoints(values: list[str] | None) -> list[str] | None:
    """Make the endpoints known as the options are read: whatever command it is, they are models."""
    from attribution.retrievers.resolve import register_endpoint

    for value in values or []:
        try:
            register_endpoint(value)
        except UserError as error:
            complain(error)
            raise typer.Exit(2) from None
    return values


Endpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        callback=_endpoints,
        help="NAME=URL of an endpoint that embeds texts or reranks them, which is then a model of "
        "this name; its key is in POSLENS_KEY_NAME (docs/endpoints.md); repeatable.",
    ),
]

Options = Annotated[
    list[str] | None, typer.Option("--option", help="NAME=VALUE of the method; see `methods`.")
]


def hush() -> None:
    """Keep libraries from writing progress and remarks of their own, without importing one: that
    takes long and may not be needed."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if "transformers" in sys.modules:  # it has read them already
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()


def quiet() -> None:
    """As `hush`, and keep what a sentence says from being logged before it."""
    hush()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Why a model could not be loaded is logged where a server runs; here it is said.
    logging.getLogger("attribution.retrievers").setLevel(logging.CRITICAL)


def resolve(name: str, posir: bool = False) -> RetrieverSpec:
    """The retriever of a name or of a folder."""
    from attribution.retrievers import resolve, specs
    from dashboard.core.protocols import posir_spec

    folder, behind = name, ""
    # A folder's own name may hold an @: the longest that is a folder is meant.
    while folder and not is_folder(folder):
        folder, at, part = folder.rpartition("@")
        behind = at + part + behind
    if name not in resolve.known() and folder and is_folder(folder):
        if folder not in resolve.known():
            resolve.register_folder(Path(folder).resolve().name, Path(folder))
        name = Path(folder).resolve().name + behind
    if name not in resolve.known():
        from cache.storage.store import Store
        from dashboard.core.stored_models import remember

        remember(Store(specs.data_folder() / "cache"))
    spec = resolve.resolve(name)
    return posir_spec(spec) if posir else spec


def for_data(spec: RetrieverSpec, dataset: str) -> RetrieverSpec:
    """The same retriever with the data set's word statistics, where it uses any."""
    from attribution.retrievers.lexical import with_corpus

    return with_corpus(spec, dataset)


def method_of(
    name: str, normalization: str, resampling: str, posir: bool, options: list[str] | None
) -> Method:
    """The method that the options describe."""
    from attribution.methods import POSIR_CURVE, make_method

    given = {}
    for option in options or []:
        key, separator, value = option.partition("=")
        if not separator:
            raise UserError(f"--option takes NAME=VALUE, not {option!r}.")
        given[key] = value
    curve = {"normalization": normalization, "resampling": resampling}
    return make_method(name, {**given, **(POSIR_CURVE if posir else curve)})


def pairs_of(dataset: str, posir: bool) -> tuple[DataSet, list[TextPair]]:
    """A data set by name or path, and the pairs that the protocol keeps."""
    from attribution import datasets

    dataset = data_name(dataset)
    data = datasets.read(dataset)
    pairs = [pair for pair in data.pairs if not posir or datasets.posir_selection(pair)]
    if data.rejected:
        print(
            f"{len(data.rejected)} rows are not pairs, the first: {data.rejected[0].file} row "
            f"{data.rejected[0].row}: {data.rejected[0].reason}",
            file=sys.stderr,
        )
    if not pairs:
        raise UserError(
            f"No pair of {dataset} is left: the PosIR protocol keeps English documents of 1,024 "
            "tokens or more with evidence in the middle."
        )
    return data, pairs


def readable_of(
    specs: Sequence[RetrieverSpec], pairs: list[TextPair], only: bool
) -> tuple[list[TextPair], str]:
    """The pairs, without those that a model cannot read where `only` asks for that, and what was
    left out, in words; says on stderr how many went.

    Raises:
        UserError: none is left.
    """
    if not only:
        return pairs, ""
    from dashboard.core import readings
    from dashboard.core.compute import service

    kept = readings.readable(service(), specs, pairs)
    names = " or ".join(spec.name for spec in specs)
    print(
        f"{len(pairs) - len(kept)} of {len(pairs)} pairs left out: {names} cannot read them whole.",
        file=sys.stderr,
    )
    if not kept:
        raise UserError(f"{names} can read no pair whole: choose another model or data set.")
    return kept, readings.LEFT_OUT


def data_name(dataset: str) -> str:
    """The name that a data set goes by: its own, or that of its path, which is made known."""
    from attribution import datasets

    if dataset not in datasets.names() and (name := _name_of(dataset)):
        datasets.register(name, dataset)
        return name
    return dataset


def _name_of(source: str) -> str:
    """The name that a data set's path gives it; nothing where there is none at that path."""
    from attribution.datasets import formats, sources

    path, variant = formats.split_variant(source)
    known = sources.source_of(path)
    if not known and not exists(path):
        return ""
    name = known.short(path) if known else Path(path).resolve().name
    return f"{name}@{variant}" if variant else name


def named(value: str, what: str, kind: str = "FOLDER") -> tuple[str, Path]:
    """Split NAME=FOLDER, or of another kind, into its two parts."""
    name, folder = _parted(value, f"{what} takes NAME={kind}, not {value!r}.")
    return name, expanded(folder)


def sources(values: list[str] | None) -> dict[str, str]:
    """`--data` options: names and where their data sets are, `~` resolved."""
    parted = (
        _parted(
            value,
            f"--data takes NAME=FOLDER, NAME=FILE or NAME=hf:ORGANISATION/NAME, not {value!r}.",
        )
        for value in values or []
    )
    return {name: str(expanded(source)) for name, source in parted}


def _parted(value: str, message: str) -> tuple[str, str]:
    name, separator, source = value.partition("=")
    if not separator or not name or not source:
        raise UserError(message)
    return name, source


def watched(name: str, job: Job, unit: str = "pair", *, retry_failed: bool = False) -> None:
    """Start a job and wait for its run, with a bar on stderr; Ctrl-C ends it and keeps what is
    there. What it would send to an endpoint is said before.

    Raises:
        UserError: the run ended with a sentence.
    """
    from tqdm import tqdm

    say_cost(job)
    with tqdm(unit=unit, desc=name, file=sys.stderr) as bar:

        def show(progress: Any) -> None:
            bar.total, bar.n = progress.total, progress.done
            bar.refresh()

        running = job.start(show, retry_failed=retry_failed)
        wait(running)
    if running.error:
        raise UserError(running.error)


def say_cost(job: Job) -> None:
    """Say on stderr what a job would send to an endpoint, where it would."""
    if job.sends:
        cost = job.cost()
        said = "what it sends is known once it runs" if cost is None else cost.words
        print(f"To be sent to {job.label}: {said}.", file=sys.stderr, flush=True)


def wait(running: Any) -> None:
    """Wait for a run; Ctrl-C, or SIGTERM of a process manager, ends it after the batch at hand.

    Raises:
        KeyboardInterrupt: once it has ended so.
    """
    try:
        running.wait()
    except KeyboardInterrupt:
        # Some process managers signal more than once; a second Ctrl-C means now.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("\nStopping after the batch at hand ...", file=sys.stderr, flush=True)
        running.stop()
        try:
            running.wait()
        except KeyboardInterrupt:
            os._exit(130)  # the batch is lost, what is stored is whole
        raise


def suffix_of(output: Path, formats: Sequence[str]) -> str:
    """The format that a file's name asks for.

    Raises:
        UserError: none of `formats`.
    """
    found = output.suffix.lstrip(".").lower()
    if found not in formats:
        *most, last = (f".{name}" for name in formats)
        raise UserError(
            f"{output.name} has no suffix that can be written: use {', '.join(most)} or {last}."
        )
    return found


def write(output: Path, data: bytes, format: LineFormat = LineFormat.text) -> None:
    """Write a result's file and say where it is; one of that name stays until this one is whole.

    Raises:
        UserError: it cannot be written.
    """
    from cache.exchange.atomic_file import replacing

    with replacing(output) as file:
        file.write(data)
    if format is LineFormat.json:
        written: File = {"file": str(output), "bytes": len(data)}
        print_json(written)
    else:
        print(output)
