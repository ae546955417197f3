"""Guarded sections of a page: an error in a section is shown as one sentence in its place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec

import streamlit as st

from poslens.attribution.errors import UserError
from poslens.dashboard.widgets import say

P = ParamSpec("P")


@contextmanager
def guarded(shown: set[str] | None = None) -> Iterator[None]:
    """Show an error raised inside as one sentence; the rest of the page is still drawn. Sections
    that share a set `shown` show the same sentence only once."""
    shown = set() if shown is None else shown
    try:
        yield
    except UserError as error:
        if str(error) not in shown:
            shown.add(str(error))
            say.error(error, icon=":material/error:")
    except BaseException as error:
        # Streamlit controls reruns and page changes by exceptions, which must pass. An exception
        # that a library raises to end the program, such as SystemExit, ends only this section.
        if type(error).__module__.startswith("streamlit.runtime.scriptrunner"):
            raise
        logging.getLogger(__name__).exception("a section of a page failed")
        st.error("An unexpected error occurred. The server's log has the details.")


def fragment(run_every: float | None = None) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A decorator for a guarded Streamlit fragment, which reruns every `run_every` seconds if
    given.

    The guard is inside the fragment: Streamlit shows an exception of a fragment with its traceback
    before a guard around the call sees it, and reruns the fragment without the code around it.
    """

    def decorate(section: Callable[P, None]) -> Callable[P, None]:
        @wraps(section)
        def whole(*args: P.args, **kwargs: P.kwargs) -> None:
            with guarded():
                section(*args, **kwargs)

        return st.fragment(whole, run_every=run_every)

    return decorate
