"""The state of a page in its address, so that a copied link opens the same view.

Widgets bind themselves (`bind="query-params"`). This module handles state that isn't a widget's
(the pair, the heatmap's view, typed texts); it is also stored in the session, because changing
pages clears parameters that are not bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote_plus

import streamlit as st
from streamlit.errors import StreamlitAPIException

from poslens.figures.plain import plain

MAX_IN_LINK = 32_000
"""Maximum number of bytes of texts in an address: the server accepts 64 KiB for the address and all
headers together."""

DEFAULT = "{}.default"
"""The session's key of what the page selects by default in a list whose default changes: data set,
models, method and its settings."""

_STORED = "url."


def keys(name: str) -> tuple[str, str]:
    """The session's keys of a value and of its field (`whole_number`)."""
    return f"{_STORED}{name}", f"number.{name}"


def get(name: str, default: str = "") -> str:
    """The value in the address, else the stored one, which is then added to the address."""
    return get_all(name, [default])[-1]


def put(name: str, value: str, default: str = "") -> None:
    """Set a value in the address; the default is omitted."""
    put_all(name, [value], [default])


def whole_number(
    label: str, name: str, low: int, high: int, default: int | None, **details: Any
) -> int | None:
    """A whole-number field whose value is in the address; an invalid value there counts as the
    default. An empty field, possible only if the default is None, returns None. Not bound, because
    Streamlit raises an error for an infinite number in the address."""
    key, usual = keys(name)[1], "" if default is None else str(default)
    asked = get(name, usual)
    valid = asked.isascii() and asked.isdigit() and len(asked) < 19 and low <= int(asked) <= high
    value = int(asked) if valid else default
    if default is None:
        # A field with an initial number could not be emptied.
        st.session_state.setdefault(key, value)
        value = None
    chosen = st.number_input(
        plain(label),
        low,
        high,
        value,
        key=key,
        **details,
    )
    put(name, "" if chosen is None else str(chosen), usual)
    return None if chosen is None else int(chosen)


def follow_default(name: str, default: str | list[str]) -> None:
    """Call it before a list whose default depends on the page, its tab or the models. If the list
    has the former default, it gets the new one, unless the address names it: the address omits
    defaults, so opened again, it would show the new one."""
    key = DEFAULT.format(name)
    former = st.session_state.get(key, default)
    shown = st.session_state.get(name, "".join(stored(name)))
    if former != default and shown == former and name not in st.query_params:
        st.session_state[name] = default
        st.session_state.pop(keys(name)[0], None)
    st.session_state[key] = default


def option(
    label: str,
    name: str,
    options: Sequence[str],
    title: Callable[[str], str] = str,
    *,
    default: str = "",
    key: str = "",
    **details: Any,
) -> str:
    """One of `options`, at first `default` (by default the first one), from a list of their titles.
    Not bound, because the address would contain the title, and would keep an option that is no
    longer offered. The widget's key is `name` unless other `options` need another widget."""
    key, default = key or name, default or options[0]
    before, asked = stored(name), get(name, default)
    # A link to the current page requests another option than the selected one.
    if before not in ([], [asked]) and asked in options:
        st.session_state[key] = asked
    chosen = st.selectbox(
        plain(label),
        options,
        index=options.index(asked if asked in options and key not in st.session_state else default),
        key=key,
        format_func=title,
        **details,
    )
    chosen = chosen or default
    put(name, chosen, default)
    return chosen


def several(
    label: str,
    name: str,
    options: Sequence[str],
    default: Sequence[str],
    title: Callable[[str], str],
    **details: Any,
) -> list[str]:
    """Some of `options` from a list of their titles; like `option`."""
    asked = get_all(name, default)
    usable = [each for each in asked if each in options]
    chosen = st.multiselect(
        plain(label),
        options,
        default=usable if usable or not asked else default,
        key=name,
        format_func=title,
        **details,
    )
    put_all(name, chosen, default)
    return list(chosen)


def get_all(name: str, default: Sequence[str]) -> list[str]:
    """The values of a parameter that is repeated in the address, with the fallbacks of `get`."""
    if name in st.query_params:
        values = st.query_params.get_all(name)
        st.session_state[keys(name)[0]] = values
        return values
    values = stored(name, default)
    if values != list(default):
        st.query_params[name] = values
    return values


def stored(name: str, default: Sequence[str] = ()) -> list[str]:
    """The stored values, whatever the address contains."""
    return list(st.session_state.get(keys(name)[0], default))


def forget() -> None:
    """Forget all stored values, so that only those in the address remain."""
    for key in map(str, list(st.session_state)):
        if key.startswith(_STORED):
            del st.session_state[key]


def put_all(name: str, values: Sequence[str], default: Sequence[str]) -> None:
    """Set a parameter that is repeated in the address; the default is omitted."""
    st.session_state[keys(name)[0]] = list(values)
    if list(values) == list(default):
        if name in st.query_params:
            del st.query_params[name]
    elif st.query_params.get_all(name) != list(values):
        st.query_params[name] = list(values)


def choose(name: str, value: Any) -> None:
    """Set a widget that this run has not created yet, also in the address, so that it can be
    copied."""
    st.session_state[name] = value
    try:
        st.query_params[name] = str(value).lower() if isinstance(value, bool) else value
    except StreamlitAPIException as error:
        # After a link from a page to itself, the widget is bound and sets its parameter by itself.
        if error.error_id != "query-param-bound-cannot-set":
            raise


def reset(name: str, owner: Sequence[str]) -> None:
    """Forget a value that belongs to another `owner`, such as the former data set, unless a link
    gives it."""
    key = f"{_STORED}owner.{name}"
    in_address = st.query_params.get_all(name)
    if st.session_state.get(key, owner) != owner and in_address in ([], stored(name)):
        st.session_state.pop(keys(name)[0], None)
        st.query_params.pop(name, None)
    st.session_state[key] = owner


def in_link(*texts: str) -> bool:
    """Whether these texts fit into one address, where a byte other than an ASCII letter takes
    three."""
    return sum(len(quote_plus(text, errors="replace")) for text in texts) <= MAX_IN_LINK
