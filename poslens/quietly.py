"""Libraries kept quiet for as long as a call lasts: afterwards the program that made it, a notebook
above all, finds them as it had set them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_PARALLELISM = "TOKENIZERS_PARALLELISM"

_lock = threading.Lock()
_calls = 0
_undo = ExitStack()


@contextmanager
def quietly() -> Iterator[None]:
    """No bars and remarks of libraries, and nothing logged of what a sentence says. Of calls that
    overlap, the first in sets it and the last out undoes it."""
    global _calls
    with _lock:
        if not _calls:
            _silence(_undo)
        _calls += 1
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if not _calls:
                _undo.close()


def _silence(undo: ExitStack) -> None:
    # Imported here: before the first call nothing heavy is.
    from transformers.utils import logging as transformers_logging

    undo.callback(transformers_logging.set_verbosity, transformers_logging.get_verbosity())
    transformers_logging.set_verbosity_error()
    if transformers_logging.is_progress_bar_enabled():
        undo.callback(transformers_logging.enable_progress_bar)
        transformers_logging.disable_progress_bar()
    logger = logging.getLogger("poslens.attribution.retrievers")
    undo.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.CRITICAL)
    if _PARALLELISM not in os.environ:
        # The tokenizers' own warning at a fork.
        undo.callback(os.environ.pop, _PARALLELISM, None)
        os.environ[_PARALLELISM] = "false"
