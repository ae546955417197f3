"""Sections of a page that fail alone: one sentence in their place says what went wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec

import streamlit as st

from poslens.attribution.errors import UserError
from poslens.figures.plain import plain

P = ParamSpec("P")


@contextmanager
def guarded(shown: set[str] | None = None) -> Iterator[None]:
    """Show what goes wrong inside as one sentence; the rest of the page stays up. Sections that
    pass one set as `shown` show a sentence once, whichever of them it comes from."""
    shown = set() if shown is None else shown
    try:
        yield
    except UserError as error:
        if str(error) not in shown:
            shown.add(str(error))
            st.error(plain(error), icon=":material/error:")
    except BaseException as error:
        # Streamlit steers reruns and page changes with exceptions of its own. What a library raises
        # to end the program, SystemExit above all, ends this section alone.
        if type(error).__module__.startswith("streamlit.runtime.scriptrunner"):
            raise
        logging.getLogger(__name__).exception("a section of a page failed")
        st.error("An unexpected error occurred. The server's log has the details.")


def fragment(
    run_every: float | None = None,
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A guarded part of a page that runs by itself, every `run_every` seconds if given.

    The guard is inside: Streamlit shows what a fragment raises, with its traceback, before any
    guard around the call sees it, and runs it again without what stands around it.
    """

    def decorate(section: Callable[P, None]) -> Callable[P, None]:
        @wraps(section)
        def whole(*args: P.args, **kwargs: P.kwargs) -> None:
            with guarded():
                section(*args, **kwargs)

        return st.fragment(whole, run_every=run_every)

    return decorate
