"""Confirmation before a pair's texts are sent to an endpoint: the number of texts, and a button."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import streamlit as st

from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute.compute import Compute
from poslens.compute.runs import cost_of
from poslens.dashboard.widgets import say
from poslens.figures.plain import plain
from poslens.studies.cause import service as interventions

LEVEL = "level"
"""The parameter for the unit that occlusion removes, which is also its widget's key."""

MANY_TOKENS = 100_000
"""Number of tokens above which the page proposes sending fewer texts."""


def agreed(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method | None,
    pair: TextPair,
    what: str = "this pair",
    applied: Sequence[Method] = (),
) -> bool:
    """Whether a pair may be attributed by `method`, if given, and the interventions `applied` to
    it: the results are stored, nothing has to be sent, or the user has confirmed the amount, all at
    once. Occlusion sends a text of thousands of words thousands of times. `what` names the
    computation in the question.

    Raises:
        UserError: the endpoint doesn't answer, or the method doesn't fit the model.
    """
    if not spec.remote:
        return True
    model, scope = compute.identify(spec), f"pair {pair.pair_id}"
    if method is not None:
        compute.require_fit(model, method)
    if model.stored_only or not spec.remote:
        return True
    jobs = [interventions.job(compute, spec, each, [pair], scope) for each in applied]
    if method is not None:
        jobs.append(compute.attribution_job(spec, method, [pair], scope))
    left = [job for job in jobs if job.sends and job.n_done() < job.total]

    def amount() -> str:
        cost = cost_of(left)
        return "an unknown number of texts" if cost is None else cost.words

    # Another pair is another question.
    if not left or confirmed(spec, (method and method.core, *applied, pair), what, amount):
        return True
    if method is not None:
        _propose_sentences(compute, spec, method, pair, scope)
    return False


def _propose_sentences(
    compute: Compute, spec: RetrieverSpec, method: Method, pair: TextPair, scope: str
) -> None:
    """If a method would send many tokens to an endpoint because it removes tokens or words, show
    how many it would send for sentences."""
    level = method.params.get(LEVEL, "sentence")
    if level == "sentence":
        return
    now = compute.attribution_job(spec, method, [pair], scope).cost()
    if now is None or now.tokens < MANY_TOKENS:
        return
    by_sentence = replace(method, params={**method.params, LEVEL: "sentence"})
    less = compute.attribution_job(spec, by_sentence, [pair], scope).cost()
    title = METHODS[method.name].title
    say.caption(
        f"{title} at the level of {level}s sends {spec.name} {now.words}; at the level of "
        f"sentences, {'nothing more' if less is None else less.words}. To change it, set the "
        "level to sentence under Method settings."
    )


def confirmed(spec: RetrieverSpec, of: Hashable, what: str, sentence: Callable[[], str]) -> bool:
    """Whether the user has confirmed sending the texts that `sentence` describes; if not, asks."""
    key = f"send.{spec.name}.{hash(of)}"
    if key in st.session_state:
        return True
    with st.container(horizontal=True, vertical_alignment="center"):
        told = f"{spec.name} is an endpoint. For {what}, PosLens would send it {sentence()}."
        say.caption(told, width="content")
        st.button(
            plain(f"Send to {spec.name}"),
            key=f"{key}.button",
            on_click=st.session_state.__setitem__,
            args=(key, True),
        )
    return False
