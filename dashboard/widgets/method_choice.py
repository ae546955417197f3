"""Selection of attribution methods: listed by display name, identified in the address by
identifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import streamlit as st

from poslens.attribution.errors import UserError
from poslens.attribution.methods import CURVE_PARAMETERS, METHODS, POSIR_CURVE, make_method
from poslens.attribution.methods.base import MethodParameter
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers import resolve
from poslens.attribution.text import listed
from poslens.attribution.types import Method
from poslens.compute.compute import service
from poslens.dashboard.widgets import say, url_state
from poslens.figures.plain import plain


def title(name: str) -> str:
    """A method's display name."""
    return METHODS[name].title


def identifiers(names: Sequence[str]) -> str:
    """Help for a list of methods: their identifiers in addresses, captions and the command line."""
    return "Names in links and on the command line: " + ", ".join(
        f"{name} ({title(name)})" for name in names
    )


def method(
    models: Sequence[str], *, posir: bool = False, sentences_for_endpoints: bool = False
) -> Method:
    """Choose a method that fits all of `models`, and its parameters; `posir` fixes those of the
    curve. With `sentences_for_endpoints`, the default units to remove are sentences if a model is
    an endpoint, because one text is sent for each unit. An expander lists why other methods don't
    fit."""
    unfit = unfit_methods(models)
    fitting = [name for name in METHODS if name not in unfit]
    if not fitting:
        raise UserError("No method works with all of these models. Select fewer models.")
    url_state.follow_default("method", fitting[0])
    name = url_state.option("Method", "method", fitting, title, help=plain(identifiers(fitting)))
    st.caption(METHODS[name].help)
    offered = [parameter for parameter in METHODS[name].parameters if len(parameter.choices) > 1]
    options: dict[str, str] = {}
    if offered or not posir:
        with st.expander("Method settings"):
            for parameter in (*offered, *(() if posir else CURVE_PARAMETERS)):
                begins = parameter.choices[0]
                if sentences_for_endpoints and parameter.name == "level" and _any_remote(models):
                    begins = "sentence"
                options[parameter.name] = _parameter(parameter, begins)
    _say_unfit(unfit)
    return make_method(name, {**options, **(POSIR_CURVE if posir else {})})


def methods(models: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Choose several of the methods that fit all of `models`; the default is those in `usual`. An
    expander lists why other methods don't fit."""
    unfit = unfit_methods(models)
    fitting = [name for name in METHODS if name not in unfit]
    usual = [name for name in usual if name in fitting]
    slow = "Integrated gradients and occlusion take seconds to minutes per pair on a CPU. "
    about = plain(slow + identifiers(fitting))
    names = url_state.several("Methods", "methods", fitting, usual, title, help=about)
    _say_unfit(unfit)
    return names


def unfit_methods(models: Sequence[str]) -> dict[str, str]:
    """Methods that don't fit all of `models`, each with the models that it doesn't fit and why."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for name in models:
        # A model that can't be resolved is reported where it is used.
        with suppress(UserError):
            model = service().identify(resolve.resolve(name))
            for method, reason in service().unfit(model).items():
                reasons.setdefault(method, {}).setdefault(reason.rstrip("."), []).append(name)
    return {
        method: "; ".join(f"{listed(names)}: {reason}" for reason, names in by_reason.items())
        for method, by_reason in reasons.items()
    }


def _say_unfit(unfit: Mapping[str, str]) -> None:
    """An expander with the reasons why some methods are not offered."""
    if not unfit:
        return
    with st.expander(f"{counted(len(unfit), 'method')} unavailable for the selected models"):
        for name, reason in unfit.items():
            say.caption(f"{title(name)} cannot be computed for {reason}.")


def _any_remote(models: Sequence[str]) -> bool:
    specs = resolve.known()
    return any(name in specs and specs[name].remote for name in models)


def _parameter(parameter: MethodParameter, begins: str) -> str:
    label = parameter.name.replace("_", " ").capitalize()
    if titles := parameter.titles:
        title, about = titles.__getitem__, plain(parameter.help)
        return url_state.option(label, parameter.name, parameter.choices, title, help=about)
    url_state.follow_default(parameter.name, begins)
    # Streamlit doesn't add to the address what was chosen on another page (`links.carry`).
    chosen = st.session_state.get(parameter.name, begins)
    if chosen in parameter.choices and chosen != begins and parameter.name not in st.query_params:
        url_state.choose(parameter.name, chosen)
    chosen = st.selectbox(
        plain(label),
        parameter.choices,
        index=parameter.choices.index(begins),
        key=parameter.name,
        bind="query-params",
        help=plain(parameter.help),
    )
    return chosen or begins
