"""The Passport page: the stored results on a model's position bias on one card, several models side
by side."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.dashboard.passport import cohort
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import any_active, run_board
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import FORMATS, document_bytes
from poslens.studies.passport.service import ModelPassport
from poslens.study_part import Part

WIDTH = 480

names: list[str] = []
chosen: DataSet | None = None
with st.sidebar, panels.guarded():
    chosen = choices.data_set()
    names = choices.models(["MiniLM-primacy", "MiniLM-recency"])
st.markdown(
    "# Passport: how strong is a model's position bias?\nA model's passport is one card: each "
    "measure of position bias with its limitations, and with an interval where one can be computed."
)
if chosen is None or not names:
    st.stop()
data = chosen
cards_tab, all_tab = st.tabs(("Cards", "All models"), key="tab", bind="query-params")
if all_tab.open:
    with all_tab, panels.guarded():
        cohort.section(service_for(data.name), data)
    st.stop()
compute = service_for(data.name)
specs: list[RetrieverSpec] = []
for name in names:
    with panels.guarded():
        specs.append(choices.spec(name, data.name))


def read(spec: RetrieverSpec) -> ModelPassport | None:
    """A model's passport from its stored results; None, with the reason on the page, if there is
    none."""
    try:
        return passports.passport(compute, spec, data)
    except UserError as reason:
        st.error(panels.plain(str(reason)))
        return None


def card(passport: ModelPassport, *, alone: bool) -> None:
    """A model's card: one column, or as many as fit the window if it is the only card (`alone`)."""
    st.markdown(f"## {panels.plain(passport.name)}")
    st.caption(panels.plain(passport.heading))
    parts = st.container(horizontal=alone, gap="large")
    for part in passport.parts:
        with parts.container(width=WIDTH), panels.guarded():
            part_section(passport, part)


def part_section(passport: ModelPassport, part: Part) -> None:
    """One question with its answer, its numbers and their limitations."""
    st.markdown(f"**{panels.plain(part.title)}**")
    if part.absent:
        st.info(panels.plain(part.absent))
        return
    st.markdown(panels.plain(part.finding))
    if part.draw is not None:
        style = panels.screen_style(width_px=WIDTH, height_px=280, font_size=12, line_width=1.6)
        panels.show(part.draw(style), f"passport.{passport.name}.{part.key}", part.title)
    # A list instead of a table, because its lines wrap.
    st.markdown("\n".join(f"- {panels.plain(f'{n.name}: {n.text}')}" for n in part.numbers))
    st.caption(panels.plain(f"Limitation: {part.limits}"))
    panels.caption(part.provenance)


ticking = False
for spec in specs:
    with suppress(UserError):  # reported above the cards
        ticking |= passports.active(compute, spec, data.name)


@fragment(run_every=2.0 if ticking else None)
def board() -> None:
    """Progress and cards, refreshed automatically while a run is active."""
    above = st.container()
    row = st.container(horizontal=True, gap="large")
    cards: list[ModelPassport] = []
    for spec in specs:
        with above:
            model_card = read(spec)
        if model_card is not None:
            cards.append(model_card)
            # Part by part: reading a passport for the first time takes a while.
            alone = len(specs) == 1
            with row.container(width="stretch" if alone else WIDTH):
                card(model_card, alone=alone)
    jobs = [passports.job(compute, passport) for passport in cards]
    active = any_active(jobs)
    with above:
        if any(passport.missing for passport in cards) or active:
            run_board(jobs, "passport.", unit="computations")
        if active != ticking:
            st.rerun()
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
    st.caption(panels.plain(passports.LIMITS))


with cards_tab:
    board()
