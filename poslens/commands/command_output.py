"""Output of commands: one sentence for an error, a progress bar for a run, and --quiet."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar

import typer

from poslens.attribution.errors import UserError
from poslens.commands.command_options import errors_to, print_error, with_shared_options
from poslens.commands.result_files import with_figure, with_out

if TYPE_CHECKING:
    from poslens.attribution.retrievers.specs import RetrieverSpec
    from poslens.attribution.types import Method
    from poslens.compute.runs import Job, Run

P = ParamSpec("P")
R = TypeVar("R")
LOG_EVERY_S = 10.0  # a log file, unlike a terminal, keeps every state of a progress bar
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Print no progress and no notes, only errors.")
]


TextFormat: TypeAlias = Literal["json", "csv"]
"""Formats of results on stdout."""
LineFormat: TypeAlias = Literal["text", "json"]
"""Formats of lists and verdicts on stdout."""


def cli_command(shape: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare what a command prints as JSON: one shape, or several by the options that select them.
    Add to it: errors as one sentence on stderr with exit code 2, the shared options
    (`with_shared_options`), --out, --figure if it draws a chart (`result_files`), and --quiet,
    which suppresses everything else on stderr."""

    def extended(command: Callable[P, R]) -> Callable[P, R]:
        inner = one_sentence(with_out(with_figure(with_shared_options(command))))

        @wraps(command)
        def with_quiet(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs.pop("quiet", False):
                return inner(*args, **kwargs)
            # Progress bars and notes look up sys.stderr when they write.
            with (
                Path(os.devnull).open("w", encoding="utf-8") as nowhere,
                errors_to(sys.stderr),
                redirect_stderr(nowhere),
            ):
                return inner(*args, **kwargs)

        signature = inspect.signature(inner, eval_str=True)
        added = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False)
        parameters = [*signature.parameters.values(), added.replace(annotation=Quiet)]
        with_quiet.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_quiet.__dict__["answers"] = shape if isinstance(shape, Mapping) else {"": shape}
        return with_quiet

    return extended


def one_sentence(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command report errors as one sentence on stderr, with exit code 2."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            print_error(error)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print_error("Interrupted. All computed results are stored.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # the reader closed the pipe; `poslens.cli.main` sets the exit code
        except OSError as error:
            print_error(_failed(error))
            raise typer.Exit(2) from None

    return guarded


def _failed(error: OSError) -> str:
    """An error of the operating system as one sentence."""
    path = f"{error.filename}: " if error.filename else ""
    what = "the path, its permissions and the free space"
    if isinstance(error, FileNotFoundError):
        what = "the path"
    return f"{path}{error.strerror or error}: check {what}."


def silence_libraries() -> None:
    """Turn off progress bars and warnings of libraries without importing them, because imports are
    slow and may not be needed."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Both read the variables only when they are imported.
    if "huggingface_hub" in sys.modules:
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()


def quiet() -> None:
    """Silence libraries, and the log of problems that error messages state anyway."""
    silence_libraries()
    # Set, because tokenizers otherwise warn when the process forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Servers log why a model could not be loaded; commands print it as an error.
    logging.getLogger("poslens.attribution.retrievers").setLevel(logging.CRITICAL)


def watched(
    name: str,
    job: Job,
    unit: str = "pair",
    *,
    retry_failed: bool = False,
    own_process: bool = True,
) -> Run:
    """Start a job and wait for its run, with a progress bar on stderr. Returns the run.

    The number of texts that the job sends to an endpoint is printed first; if it depends on another
    job, that runs before. Ctrl-C stops the run; computed results remain stored. `own_process` is
    that of `wait`.

    Raises:
        UserError: the run ended with an error.
    """
    from tqdm import tqdm

    if job.first is not None:
        watched(job.first.label, job.first, unit, own_process=own_process)
    say_cost(job, retry_failed)
    pause = 0.2 if sys.stderr.isatty() else LOG_EVERY_S
    # A job with parts counts these, and its text says how long the current one takes.
    counted = {"bar_format": "{l_bar}{bar}| {n}/{total} [{elapsed}{postfix}]"} if job.parts else {}
    with tqdm(
        total=len(job.parts) or job.total,
        unit=unit,
        desc=name,
        file=sys.stderr,
        mininterval=pause,
        miniters=0,
        **counted,
    ) as bar:

        def show(progress: Any) -> None:
            if bar.disable:  # by TQDM_DISABLE
                return
            bar.total = progress.total
            before = progress.done - progress.computed
            if bar.initial != before:
                # Results stored before, or by another process, don't count for the rate.
                bar.initial = before
                bar.n = max(bar.n, before)
            run = job.run
            text = "" if run is None else run.counts if run.part is not None else run.stage
            failed = f"failed={progress.failed}" if progress.failed else ""
            bar.set_postfix_str(", ".join(filter(None, (text, failed))), refresh=False)
            bar.update(progress.done - bar.n)

        running = job.start(show, retry_failed=retry_failed)
        wait(running, own_process=own_process)
        bar.refresh()
    if running.error:
        raise UserError(running.error)
    return running


@contextmanager
def share_shown(name: str) -> Iterator[None]:
    """Show a progress bar on stderr for one slow pair, once it reports progress."""
    from tqdm import tqdm

    from poslens.attribution.checkpoints import reporting

    layout = "{l_bar}{bar}| {elapsed}<{remaining}"
    with tqdm(total=1.0, desc=name, file=sys.stderr, bar_format=layout, delay=1.0) as bar:

        def show(share: float, doing: str, before: bool) -> None:
            bar.set_description(doing or name, refresh=False)
            bar.update(share - bar.n)

        with reporting(show):
            yield


def say_preference(method: Method, specs: Sequence[RetrieverSpec]) -> None:
    """Print on stderr which position the attribution method itself prefers, if that was measured on
    models with a known position bias."""
    from poslens.cache.shipped.preferences import verdict

    if sentence := verdict(method, specs):
        print(sentence, file=sys.stderr)


def say_caveat(method: Method, specs: Sequence[RetrieverSpec]) -> None:
    """Print on stderr which position the method itself prefers, and what its curve does not
    show."""
    from poslens.attribution.methods import METHODS

    say_preference(method, specs)
    if caveat := METHODS[method.name].caveat:
        print(caveat, file=sys.stderr)


def say_cost(job: Job, retry_failed: bool = False) -> None:
    """Print on stderr how much text a job would send to an endpoint, if any."""
    if quote := job.quote(retry_failed):
        print(quote, file=sys.stderr, flush=True)


def wait(running: Any, *, own_process: bool = True) -> None:
    """Wait for a run. Ctrl-C, or SIGTERM from a process manager, stops it; a second one ends the
    process. Without `own_process`, as in a notebook, a second one only ends the wait.

    Raises:
        KeyboardInterrupt: the run was stopped in this way.
    """
    try:
        running.wait()
    except KeyboardInterrupt:
        # Some process managers send SIGTERM repeatedly; only a second Ctrl-C ends the process.
        if own_process:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        again = " Press Ctrl-C again to end at once." if own_process else ""
        print(f"\nStopping ...{again}", file=sys.stderr, flush=True)
        running.stop()
        try:
            running.wait()
        except KeyboardInterrupt:
            if own_process:
                os._exit(130)  # stored results are complete
        raise
