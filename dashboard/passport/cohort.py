"""The Passport page's view of all models: position effect against quality, and a table."""

from __future__ import annotations

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.compute.compute import Compute
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.tables import NOTHING, column_settings, with_values
from poslens.studies.passport import cohort
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import document_bytes


def section(compute: Compute, data: DataSet) -> None:
    """Chart and table of every model that is installed or has stored results.

    Raises:
        UserError: none of them has a number on this data set.
    """
    names = cohort.names(compute)
    specs = [choices.spec(name, data.name) for name in names]
    cards = [passports.passport(compute, spec, data) for spec in specs]
    cards = [card for card in cards if any(part.numbers for part in card.parts)]
    if not cards:
        st.info("No model has a passport for this data set yet: compute one on the tab Cards.")
        return
    left, right = st.columns(2)
    words = left.text_input("Filter by model or family", key="passport.filter").lower().split()
    effect = right.selectbox(
        "Position effect",
        cohort.EFFECTS,
        format_func=cohort.TITLES.__getitem__,
        key="passport.effect",
    )
    labels = {card.name: f"{card.name} {card.model.spec.family}".lower() for card in cards}
    cards = [card for card in cards if all(word in labels[card.name] for word in words)]
    if not cards:
        st.info("No model matches the filter.")
        return
    style, origin = panels.screen_style(), cohort.provenance(cards)
    panels.show(
        cohort.chart(cards, style, effect), "passport.cohort", "Position effect against quality"
    )
    frame = with_values(cohort.page_frame(cards))
    formats = dict.fromkeys(cohort.TITLES.values(), ".3f")
    settings = column_settings(cohort.TABLE.meanings(), formats)
    st.dataframe(frame, hide_index=True, placeholder=NOTHING, column_config=settings)
    st.caption("Click a heading to sort.")
    panels.caption(origin)
    panels.downloads(
        "passport.cohort",
        [data.name, "passports"],
        origin,
        documents={"All passports": (("html", "json", "yaml"), lambda f: document_bytes(cards, f))},
        figures={"Chart": lambda look: cohort.chart(cards, look, effect)},
        tables={"Table": lambda: cohort.TABLE.frame(cards)},
    )
