"""Silence libraries during a call, and restore the caller's settings afterwards."""

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
    """Turn off libraries' progress bars and warnings, and log nothing that an error message already
    states. Of overlapping calls, the first one changes the settings and the last one restores
    them."""
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
    # Imported here, so that importing this module stays fast.
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
        # Set, because tokenizers otherwise warn when the process forks.
        undo.callback(os.environ.pop, _PARALLELISM, None)
        os.environ[_PARALLELISM] = "true"
