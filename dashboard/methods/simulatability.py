"""The Methods page's fourth tab: predictions of a ranking from a few words, by a program and by the
user."""

from __future__ import annotations

import secrets
from dataclasses import asdict

import pandas as pd
import streamlit as st

from poslens.attribution.evaluation.comparison_words import POINTS, share_change
from poslens.attribution.nouns import counted
from poslens.dashboard.server import own_texts
from poslens.dashboard.widgets import panels, say
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.study_page import Opened, study_page
from poslens.studies.simulatability.answers import (
    Answer,
    AnswerFile,
    Condition,
    Question,
    answer,
    of_summary,
    questions,
    tally,
)
from poslens.studies.simulatability.study import SIMULATABILITY
from poslens.studies.simulatability.summary import SimulatabilitySummary

_READER = "simulatability.reader"
_WORDS: dict[Condition, str] = {"explanation": "the method's words", "random": "random words"}


def section() -> None:
    """The study's page without its heading, followed by the same questions for the user."""
    opened = study_page(SIMULATABILITY)
    if opened is not None and opened.summaries:
        _predict(opened)


@fragment()
def _predict(opened: Opened) -> None:
    """One question at a time for a selected model and method, and the share of correct answers."""
    st.markdown("**Predict it yourself**")
    summaries: dict[str, SimulatabilitySummary] = {
        summary.asked.title: summary for summary in opened.summaries
    }
    label = st.selectbox("Model and method", list(summaries), key="simulatability.asked")
    summary = summaries[label]
    file = AnswerFile(opened.compute.root)
    records = (
        "without names or texts and deletes them with your file when your session ends"
        if own_texts.private(opened.data.name)
        else "in the cache folder on this machine, without names or texts"
    )
    st.caption(
        "You see the query and a few words of the two documents that the model ranks first and "
        "second, in random order. Half of the questions have the method's words, half random "
        f"words. PosLens records your answers {records}."
    )
    reader = st.session_state.setdefault(_READER, secrets.token_hex(8))

    def record(question: Question, first: bool) -> None:
        """Record the answer; a callback, so that the page then shows the next question."""
        with panels.guarded():
            file.add(answer(summary, question, first, reader))

    recorded = of_summary(file.read(), summary)
    answered = {given.question for given in recorded if given.reader == reader}
    left = [
        question
        for question in questions(summary, int(reader, 16))
        if question.choice.choice_id not in answered
    ]
    if left:
        question = left[0]
        say.sentence(f"Query: {question.choice.query}")
        for column, text, first in zip(st.columns(2), question.texts, (True, False), strict=True):
            with column, st.container(border=True):
                say.sentence(text)
                name = "first" if first else "second"
                st.button(
                    f"The {name} document ranks higher",
                    key=f"simulatability.{name}",
                    on_click=record,
                    args=(question, first),
                )
        st.caption(f"{len(answered):,} answered, {len(left):,} left")
    else:
        st.info("All questions are answered. Select another model or method.")
    _tally(recorded, summary)


def _tally(recorded: list[Answer], summary: SimulatabilitySummary) -> None:
    """The shares of correct answers of all users of this machine."""
    tallied = tally(recorded)
    if not tallied.n:
        return
    shares = [
        f"{share.value:.0%} with {_WORDS[condition]} ({counted(share.n, 'answer')})"
        for condition, share in tallied.shares.items()
    ]
    sentence = f"Correct answers: {', '.join(shares)}."
    if tallied.gain is not None:
        sentence += (
            f" With the method's words the share {share_change(tallied.gain)}. "
            f"{tallied.gain.in_words(100, POINTS)}"
        )
    say.sentence(sentence)
    panels.downloads(
        "simulatability.answers",
        [summary.asked.corpus.name, "answers"],
        SIMULATABILITY.provenances([summary]),
        tables={"Numbers": lambda: pd.DataFrame([asdict(given) for given in recorded])},
    )
