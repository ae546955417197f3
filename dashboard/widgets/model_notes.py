"""Notes below a selection of models: downloads of those that are not on this machine, and both
context limits of those whose PosLens limit exceeds their configured one, with a button that
switches to the configured limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import streamlit as st

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import calibration, limits, resolve
from poslens.attribution.retrievers.hub import Size
from poslens.attribution.retrievers.specs import CONFIGURED, RetrieverSpec
from poslens.attribution.text import listed
from poslens.compute import fetching
from poslens.compute.compute import service
from poslens.dashboard.server import people
from poslens.dashboard.widgets import say
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import on_board, stop_button
from poslens.figures.plain import plain
from poslens.storage.service import size


def model_notes(names: Sequence[str], choose: Callable[[list[str]], None], key: str) -> None:
    """The notes on models of these names. `choose` is called with other names for the same models,
    and `key` is the prefix of widget keys."""
    _fetch(names)
    _limits(names, choose, key)


def _fetch(names: Sequence[str]) -> None:
    """Offer to download those of `names` that are not on this machine. There is no network access
    before a click, because anyone can create a link that names a model."""
    specs = {spec.base: spec for name in names if (spec := fetching.absent(name)) is not None}
    for spec in specs.values():
        try:
            allowed = people.may_change()
        except UserError as error:
            say.error(error)
            return
        if not allowed:
            say.caption(f"{spec.base} is not on this machine. {people.REFUSED}")
        else:
            _offer(spec)


def _offer(spec: RetrieverSpec) -> None:
    run = fetching.job(service(), spec).run
    if run is not None and run.active:
        _watched(spec)
        return
    say.caption(f"{spec.base} is not on this machine.")
    sizes: dict[str, Size | str] = st.session_state.setdefault("fetch sizes", {})
    asked = sizes.get(spec.base)
    if isinstance(asked, Size):
        st.button(
            plain(f"Download {size(asked.bytes)} ({size(asked.free_bytes)} free)"),
            type="primary",
            key=f"fetch.{spec.base}",
            on_click=_start,
            args=(spec,),
            width="stretch",
        )
    elif st.button(
        "Check the size",
        key=f"fetch.size.{spec.base}",
        width="stretch",
        help="Asks the Hugging Face hub or the Python package index for the size. Downloads "
        "nothing.",
    ):
        try:
            with st.spinner("Checking"):
                sizes[spec.base] = fetching.size_of(spec)
        except UserError as error:
            sizes[spec.base] = str(error)
        st.rerun()
    if isinstance(asked, str):
        say.error(asked)
    elif run is not None and run.error:
        say.error(run.error)


def _start(spec: RetrieverSpec) -> None:
    if not people.may_change():
        return
    try:
        on_board(fetching.job(service(), spec).start())
    except UserError as error:
        st.session_state["fetch sizes"][spec.base] = str(error)


@fragment(run_every=1.0)
def _watched(spec: RetrieverSpec) -> None:
    run = fetching.job(service(), spec).run
    if run is None or not run.active:
        st.rerun()
    on_board(run)
    done, total = run.progress.done, run.progress.total
    text = plain(f"{spec.base}: {run.stage.lower() or 'starting'}")
    text += plain(f" · {size(done)} of {size(total)}") if total else ""
    st.progress(min(1.0, done / total) if total else 0.0, text=text)
    stop_button(st.container(), [run], f"fetch.stop.{spec.base}")


def _limits(names: Sequence[str], choose: Callable[[list[str]], None], key: str) -> None:
    """Show both context limits of each model whose configuration truncates elsewhere than PosLens.
    `choose` is called with the names in which these models use their configured limit."""
    apart: dict[tuple[int, int], list[str]] = {}
    for name in names:
        with suppress(UserError):
            spec = resolve.resolve(name)
            if spec.max_length and (configured := limits.configured_apart(spec)):
                apart.setdefault((spec.max_length, configured), []).append(name)
    for (reads, configured), some in apart.items():
        read, whose, truncate = (
            ("reads", "its", "configuration truncates")
            if len(some) == 1
            else ("read", "their", "configurations truncate")
        )
        say.caption(
            f"{listed(some)} {read} {reads:,} tokens here with special tokens, {whose} context "
            f"limit; {whose} own {truncate} at {configured:,}."
        )
        as_configured = [_configured(name) if name in some else name for name in names]
        st.button(
            f"Truncate at {configured:,}",
            key=f"{key}.configured.{configured}",
            on_click=choose,
            args=(as_configured,),
            help="Use the configured limit, as sentence-transformers does. PosLens stores these "
            "results separately from those at the context limit.",
        )


def _configured(name: str) -> str:
    """The model's name with @configured, which precedes its calibration if it has one."""
    base, how = calibration.split(name) or (name, None)
    return f"{base}@{CONFIGURED}{how.suffix if how else ''}"
