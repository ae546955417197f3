"""Downloads of selected models that are not on this machine, below the model selection."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.hub import Size
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute import fetching
from poslens.compute.compute import service
from poslens.dashboard.server import rights
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import on_board
from poslens.figures.plain import plain
from poslens.storage.service import size


def fetch_panel(names: Sequence[str]) -> None:
    """Offer to download those of `names` that are not on this machine. There is no network access
    before a click, because anyone can create a link that names a model."""
    specs = {spec.base: spec for name in names if (spec := fetching.absent(name)) is not None}
    for spec in specs.values():
        try:
            allowed = rights.may_change()
        except UserError as error:
            st.error(plain(str(error)))
            return
        if not allowed:
            st.caption(plain(f"{spec.base} is not on this machine. {rights.REFUSED}"))
        else:
            _offer(spec)


def _offer(spec: RetrieverSpec) -> None:
    run = fetching.job(service(), spec).run
    if run is not None and run.active:
        _watched(spec)
        return
    st.caption(plain(f"{spec.base} is not on this machine."))
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
        st.error(plain(asked))
    elif run is not None and run.error:
        st.error(plain(run.error))


def _start(spec: RetrieverSpec) -> None:
    if not rights.may_change():
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
    st.button("Stop", key=f"fetch.stop.{spec.base}", on_click=run.stop, width="stretch")
