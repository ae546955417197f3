"""Texts of users, files and models on the page: no part of them is interpreted as markup."""

from __future__ import annotations

from typing import Any

import streamlit as st

from poslens.figures.plain import plain, with_code


def sentence(text: object) -> None:
    """A paragraph."""
    st.markdown(plain(text))


def heading(text: object) -> None:
    """A paragraph in bold."""
    st.markdown(f"**{plain(text)}**")


def caption(text: object, **details: Any) -> None:
    """A paragraph in small, gray letters; `details` as for `st.caption`."""
    st.caption(plain(text), **details)


def info(text: object) -> None:
    """A message in a box."""
    st.info(with_code(text))


def warning(text: object, icon: str | None = None) -> None:
    """A warning in a box."""
    st.warning(with_code(text), icon=icon)


def error(text: object, icon: str | None = None) -> None:
    """An error in a box."""
    st.error(with_code(text), icon=icon)


def success(text: object, icon: str | None = None) -> None:
    """The outcome of an action in a box."""
    st.success(plain(text), icon=icon)
