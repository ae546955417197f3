"""The question before a pair's texts go to an endpoint: how many, and a button."""

from __future__ import annotations

import streamlit as st

from attribution.retrievers.specs import RetrieverSpec
from attribution.types import Method, TextPair
from dashboard.core.compute import Compute
from dashboard.drawing.plain import plain


def agreed(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pair: TextPair,
    what: str = "this pair",
) -> bool:
    """Whether a pair may be attributed: it is stored, or nothing is sent for it, or the reader has
    seen how much and said so. Occlusion sends a text of thousands of words thousands of times.
    `what` is the pair's name in the question.

    Raises:
        UserError: the endpoint does not answer, or the method does not fit.
    """
    if not spec.remote:
        return True
    model = compute.identify(spec)
    compute.require_fit(model, method)
    job = compute.attribution_job(spec, method, [pair], f"pair {pair.pair_id}")
    key = f"send.{spec.name}.{method.core}.{hash(pair)}"
    if model.stored_only or job.n_done() or key in st.session_state:
        return True
    cost = job.cost()
    said = "an unknown number of texts" if cost is None else cost.words
    with st.container(horizontal=True, vertical_alignment="center"):
        told = f"{spec.name} is an endpoint. For {what} it would be sent {said}."
        st.caption(plain(told), width="content")
        st.button(
            plain(f"Send to {spec.name}"),
            key=f"{key}.button",
            on_click=st.session_state.__setitem__,
            args=(key, True),
        )
    return False
