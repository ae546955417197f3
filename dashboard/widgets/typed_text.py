"""The user's own query and document: the form, and their presence in the address."""

from __future__ import annotations

import hashlib
from operator import ne
from typing import NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from poslens.arguments import evidence_span
from poslens.attribution.errors import UserError
from poslens.attribution.text import clean
from poslens.attribution.types import TextPair
from poslens.dashboard.widgets import say, url_state
from poslens.dashboard.widgets.choices import uploader

OWN = "Own text"
"""The name of typed texts in the address."""

IN_ADDRESS = ("q", "d", "e")
"""The names of query, document and evidence in the address."""
_FIELDS, _SHOWN, _IN_LINK, _INCOMPLETE = "pair.own", "own.texts", "own.in_link", "own.incomplete"


class Texts(NamedTuple):
    """The contents of the form when its button was last pressed."""

    query: str = ""
    document: str = ""
    evidence: str = ""

    @property
    def complete(self) -> bool:
        """Whether both query and document are present."""
        return bool(self.query.strip() and self.document.strip())


def typed_text(place: DeltaGenerator) -> tuple[TextPair | None, bool]:
    """The pair that the user typed, if it is complete, and whether the page should show it.

    The address contains the texts only if the user wants a link to them, or followed one.
    """
    asked = url_state.get("text") == OWN
    _take_from_address()
    _put_into_address(asked)
    shown = _shown()
    if asked and not shown.complete:
        st.session_state.setdefault(_FIELDS, True)
    with place:
        popover = st.popover(
            OWN,
            key=_FIELDS,
            on_change="rerun",
            help="Enter a query and a document, or upload a file of pairs",
        )
    if not asked and not popover.open:
        return None, False
    with popover, st.container(key="pair_own"):
        above_form = st.container()
        _form()
        uploader()
    if not asked:
        return None, False
    if not shown.complete:
        # On a phone, the open form covers the page.
        with above_form if popover.open else st.container():
            st.info(
                f"Enter a query and a document{'' if popover.open else ' under Own text'}. Texts "
                "that the address doesn't include are lost when the page is reloaded."
            )
        return None, True
    return _pair(shown), True


def _shown() -> Texts:
    shown: Texts = st.session_state.get(_SHOWN, Texts())
    return shown


def _take_from_address() -> None:
    """Show the texts of the link that was followed."""
    linked = Texts(*(st.query_params.get(name, "") for name in IN_ADDRESS))
    if linked != Texts() and linked[:2] != _shown()[:2]:
        st.session_state[_SHOWN] = linked
        st.session_state[_IN_LINK] = True
        for name, text in linked._asdict().items():
            st.session_state[f"typed.{name}"] = text


def _put_into_address(asked: bool) -> None:
    """Add the shown texts to the address if the user wants that and all of them fit, and remove any
    others."""
    texts = _shown() if asked and st.session_state.get(_IN_LINK) else Texts()
    texts = texts if url_state.in_link(*texts) else Texts()
    for name, text in zip(IN_ADDRESS, texts, strict=True):
        url_state.put(name, text)


def _form() -> None:
    """The fields, the button that shows the texts, and a note on who can read them."""

    def show() -> None:
        written = Texts(*(st.session_state.get(f"typed.{n}") or "" for n in Texts._fields))
        st.session_state[_INCOMPLETE] = not written.complete
        if written.complete:
            st.session_state[_SHOWN] = written
            st.session_state[_FIELDS] = False  # closed, because it covers the result
            url_state.put("text", OWN)
            _put_into_address(True)

    # Enter would submit a query before its document is typed.
    with st.form("own.form", enter_to_submit=False, border=False):
        st.text_input("Query", key="typed.query", persist_state="session")
        st.text_area("Document", key="typed.document", height=180, persist_state="session")
        st.text_input(
            "Evidence (optional)",
            key="typed.evidence",
            persist_state="session",
            help="A passage of the document, character for character, that answers the query.",
        )
        st.form_submit_button("Show these texts", key="own.show", on_click=show, type="primary")
    if st.session_state.pop(_INCOMPLETE, False):
        st.warning("Enter both a query and a document.")
    in_link = st.toggle(
        "Include the texts in the link",
        key=_IN_LINK,
        persist_state="session",
        on_change=lambda: _put_into_address(url_state.get("text") == OWN),
        help="Creates a link that opens with these texts.",
    )
    if not in_link:
        st.caption("The link doesn't include your texts: reloading the page clears them.")
    elif url_state.in_link(*_shown()):
        st.caption(
            "The link includes your texts. They can be read in your browser's history, in "
            "server logs and by anyone who gets the link."
        )
    else:
        st.caption("These texts are too long for a link, so the link doesn't include them.")


def _pair(texts: Texts) -> TextPair | None:
    try:
        query, document = clean(texts.query, "query"), clean(texts.document, "document")
    except UserError as error:
        say.warning(error)
        return None
    replaced = sum(map(ne, texts.query + texts.document, query + document))
    if replaced:
        st.caption(f"{replaced:,} invalid characters were replaced with �.")
    span = None
    try:
        span = evidence_span(document, texts.evidence.strip() or None)
    except UserError as error:
        say.warning(error)
    digest = hashlib.sha256(f"{query}\0{document}".encode()).hexdigest()[:12]
    return TextPair(f"typed-{digest}", query, document, span)
