"""The Passport page: the stored results on a model's position bias on one card, several models side
by side, and all models in a chart and a table."""

from __future__ import annotations

from contextlib import suppress

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, panels, say
from poslens.dashboard.widgets.run_board import any_active, run_board, watched
from poslens.dashboard.widgets.tables import column_settings, show_table
from poslens.figures.figure_base import same_range
from poslens.studies.passport import cohort
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import FORMATS, document_bytes
from poslens.studies.passport.service import ModelPassport
from poslens.study_part import Part

WIDTH = 480


def all_models(compute: Compute, data: DataSet) -> None:
    """Chart and table of every model that is installed or has stored results.

    Raises:
        UserError: none of them has a number on this data set.
    """
    names = cohort.names(compute)
    specs = [choices.spec(name, data.name) for name in names]
    cards = cohort.by_current_name([passports.passport(compute, spec, data) for spec in specs])
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
    settings = column_settings(cohort.TABLE, cohort.FORMS)
    show_table(cohort.page_frame(cards), column_config=settings)
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


names: list[str] = []
chosen: DataSet | None = None
with st.sidebar, panels.guarded():
    chosen = choices.data_set()
    names = choices.models(["MiniLM-primacy", "MiniLM-recency"])
st.markdown(
    "# Passport: how strong is a model's position bias?\nA model's passport is one card: each "
    "measure of position bias with its limitations, and with an interval where one can be computed."
)
if chosen is None:
    st.stop()
data = chosen
cards_tab, all_tab = st.tabs(("Cards", "All models"), key="tab", bind="query-params")
if all_tab.open:
    with all_tab, panels.guarded():
        all_models(service_for(data.name), data)
    st.stop()
compute = service_for(data.name)
specs: list[RetrieverSpec] = []
for name in names:
    with panels.guarded():
        specs.append(choices.spec(name, data.name))


def part_section(name: str, part: Part, figure: go.Figure | None) -> None:
    """One question about the model of this name: the answer, its numbers and their limitations."""
    say.heading(part.title)
    if part.absent:
        say.info(part.absent)
        return
    say.sentence(part.finding)
    if figure is not None:
        panels.show(figure, f"passport.{name}.{part.key}", part.title)
    # A list instead of a table, because its lines wrap.
    st.markdown("\n".join(f"- {panels.plain(f'{n.name}: {n.text}')}" for n in part.numbers))
    say.caption(f"Limitation: {part.limits}")
    panels.caption(part.provenance)


def is_active() -> bool:
    """Whether any of the passports is being computed."""
    active = False
    for spec in specs:
        with suppress(UserError):  # reported above the cards
            active |= passports.active(compute, spec, data.name)
    return active


def board() -> None:
    """Progress and cards."""
    above = st.container()
    row = st.container(horizontal=True, key="side_by_side.passport")
    cards: list[ModelPassport] = []
    for spec in specs:
        with above, panels.guarded():
            cards.append(passports.passport(compute, spec, data))
    places = []
    for model_card in cards:
        with row.container():
            st.markdown(f"## {panels.plain(model_card.name)}")
            say.caption(model_card.heading)
            places.append(st.container(horizontal=True, gap="large"))  # as many columns as fit
    style = panels.screen_style(width_px=WIDTH, height_px=280, font_size=12, line_width=1.6)
    # Part by part: reading a passport for the first time takes a while.
    for parts in zip(*(model_card.parts for model_card in cards), strict=True):
        figures = [part.figure(style) for part in parts]
        same_range([figure for figure in figures if figure is not None])
        for model_card, place, part, figure in zip(cards, places, parts, figures, strict=True):
            with place.container(width=WIDTH), panels.guarded():
                part_section(model_card.name, part, figure)
    jobs = [passports.job(compute, passport) for passport in cards]
    with above:
        if any(passport.missing for passport in cards) or any_active(jobs):
            run_board(jobs, "passport.", unit="computations")
        if not cards:
            return
        origin = [provenance for each in cards for provenance in each.provenance]
        panels.downloads(
            "passport",
            [data.name, "passport", *(passport.name for passport in cards)],
            origin,
            documents={"Passport": (FORMATS, lambda fmt: document_bytes(cards, fmt))},
            # Without any number, a table would have no provenance.
            tables={"Numbers": lambda: passports.table(cards)} if origin else {},
        )
    say.caption(passports.LIMITS)


with cards_tab:
    if names:
        watched(is_active, board)
    else:
        st.info("Select a model in the sidebar.")
