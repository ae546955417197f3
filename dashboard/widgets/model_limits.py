"""The line below selected models whose PosLens context limit exceeds their configured one, and the
button that switches to the configured limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import streamlit as st

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import calibration, limits, resolve
from poslens.attribution.retrievers.specs import CONFIGURED
from poslens.attribution.text import listed
from poslens.figures.plain import plain


def model_limits(names: Sequence[str], choose: Callable[[list[str]], None], key: str) -> None:
    """Show both context limits of each model whose configuration truncates elsewhere than PosLens.
    `choose` is called with the names in which these models use their configured limit."""
    apart: dict[tuple[int, int], list[str]] = {}
    for name in names:
        with suppress(UserError):
            spec = resolve.resolve(name)
            if spec.max_length and (configured := limits.configured_apart(spec)):
                apart.setdefault((spec.max_length, configured), []).append(name)
    for (reads, configured), some in apart.items():
        read, own, truncate = (
            ("reads", "its", "configuration truncates")
            if len(some) == 1
            else ("read", "their", "configurations truncate")
        )
        st.caption(
            plain(
                f"{listed(some)} {read} {reads:,} tokens here, {own} context limit; {own} own "
                f"{truncate} at {configured:,}."
            )
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
