"""The tab Simulatability of the Methods page: the study, and questions for the reader."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import poslens
from poslens.attribution import datasets
from poslens.compute.compute import service
from poslens.dashboard.widgets import choices
from poslens.studies.simulatability.answers import (
    CONDITIONS,
    Answer,
    AnswerFile,
    answer,
    of_summary,
    questions,
    tally,
)
from poslens.studies.simulatability.study import SIMULATABILITY
from poslens.study_plan import plan
from tests.support.nouns import NOUNS
from tests.support.pages import open_page

NAME = "simulated"


@pytest.fixture
def summary(own_service: None, tmp_path: Path) -> Any:
    path = tmp_path / "simulated.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "pair_id": f"d{n}",
                    "query": f"which {noun} in the evening",
                    "document": f"In the evening people speak about the {noun} and many things.",
                }
            )
            + "\n"
            for n, noun in enumerate(NOUNS[:12])
        )
    )
    datasets.register(NAME, path)
    return poslens.simulatability("BM25", NAME, words=3).summaries[0]


def shown(page: AppTest) -> str:
    return " ".join(str(element.value) for element in [*page.markdown, *page.caption])


def test_questions_are_balanced_and_keep_their_order(summary: Any) -> None:
    asked = questions(summary, 7)
    assert asked == questions(summary, 7) != questions(summary, 8)
    assert [q.condition for q in asked] == ["explanation", "random"] * 6
    assert len({q.choice.choice_id for q in asked}) == len(summary.choices) == 12
    for question in asked:
        higher, lower = question.texts if question.higher_first else question.texts[::-1]
        assert set(higher.split()) <= set(question.choice.higher.words)
        assert set(lower.split()) <= set(question.choice.lower.words)
        if question.condition == "explanation":
            assert higher == question.choice.higher.text(question.choice.higher.largest(3))


def test_answers_are_recorded_and_counted(summary: Any, tmp_path: Path) -> None:
    file = AnswerFile(tmp_path)
    assert file.read() == [] and tally([]).n == 0
    for question in questions(summary, 7):
        # Right with the method's words, wrong with random ones.
        first = question.higher_first == (question.condition == "explanation")
        file.add(answer(summary, question, first, "r"))
    with file.path.open("a") as stream:
        stream.write('nonsense\n{"time": 1}\n[]\n')
    read = file.read()
    assert len(read) == 12 and of_summary(read, summary) == read
    counted = tally(read)
    assert {name: share.value for name, share in counted.shares.items()} == {
        "explanation": 1,
        "random": 0,
    }
    assert counted.gain is not None and counted.gain.difference.value == 1
    text = file.path.read_text()
    assert "evening" not in text  # no text of the data set


def test_readers_who_differ_widen_the_interval() -> None:
    """Ten readers, of whom the method's words help half and mislead the others: an interval over
    documents alone would take the many answers for certainty. By hand: each reader answers 20
    questions with each kind of words, so the gain is the mean of the readers' gains."""
    gains = (0.4, 0.4, 0.4, 0.4, 0.4, -0.2, -0.2, -0.2, -0.2, -0.2)
    answers = [
        Answer("t", f"r{reader}", "m", "f", "x", "d", f"q{n}", f"d{n}", condition, correct)
        for reader, gain in enumerate(gains)
        for condition, share in (("explanation", 0.5 + gain), ("random", 0.5))
        for n in range(20)
        for correct in [(n + 2 * reader) % 20 < 20 * share]
    ]
    several = tally(answers).gain
    assert several is not None and several.difference.value == pytest.approx(np.mean(gains))
    error = np.std(gains, ddof=1) / np.sqrt(10)
    assert several.error is not None and 0.9 * error < several.error < 1.2 * error
    assert several.verdict == "too few documents"
    _, high = several.difference.interval or (0, 0)
    assert high - several.difference.value == pytest.approx(2.262 * several.error, rel=0.001)
    alone = tally([replace(each, reader="r") for each in answers]).gain
    assert alone is not None and alone.error is not None and alone.error < 0.5 * error
    few = tally([each for each in answers if each.document in ("d0", "d1")]).gain
    assert few is not None and few.difference.interval is None


@pytest.mark.parametrize("better", ["explanation", "random"])
def test_the_interval_of_few_answers_stays_within_100_percentage_points(better: str) -> None:
    """By hand: with 5 of 6 right against 1 of 6, Student's t alone gives 0.667 ± 0.544."""
    answers = [
        Answer("t", "r", "m", "f", "x", "d", f"q{n}", f"{condition}{n}", condition, correct)
        for condition in CONDITIONS
        for n in range(6)
        for correct in [n < (5 if condition == better else 1)]
    ]
    gain, sign = tally(answers).gain, 1 if better == "explanation" else -1
    assert gain is not None and gain.difference.value == pytest.approx(sign * 2 / 3)
    inner, outer = sorted(gain.difference.interval or (0, 0), key=abs)
    assert outer == sign and inner == pytest.approx(sign * 0.123, abs=0.001)


def test_questions_can_be_answered_on_the_page(summary: Any) -> None:
    page = open_page("methods", tab="Simulatability", dataset=NAME, models="BM25", words="3").run()
    assert not page.exception and not page.error, page.error
    assert "the share of correct predictions rises by" in shown(page)
    assert "0 answered, 12 left" in shown(page)
    page.button(key="simulatability.first").click().run()
    assert "1 answered, 11 left" in shown(page) and "Correct answers" in shown(page)
    assert "1 answer" in shown(page) and "1 answers" not in shown(page)
    (recorded,) = AnswerFile(service().root).read()
    assert recorded.model == "BM25" and recorded.dataset == NAME


def test_answers_count_only_for_the_same_question(summary: Any) -> None:
    page = open_page("methods", tab="Simulatability", dataset=NAME, models="BM25", words="3").run()
    page.button(key="simulatability.first").click().run()
    assert "1 answered, 11 left" in shown(page) and "in the cache folder" in shown(page)
    poslens.simulatability("BM25", NAME, words=2)
    page.number_input(key="number.words").set_value(2).run()
    assert "0 answered, 12 left" in shown(page)
    page.number_input(key="number.words").set_value(3).run()
    assert "1 answered, 11 left" in shown(page)


def test_answers_on_an_uploaded_file_are_private(summary: Any, tmp_path: Path) -> None:
    content = (tmp_path / "simulated.jsonl").read_bytes()
    page = open_page("methods", tab="Simulatability", models="BM25", words="3").run()
    page.file_uploader(key="upload").upload("own.jsonl", content).run()
    (uploaded,) = page.session_state["own texts"].uploads.values()
    compute = page.session_state["own texts"].compute
    settings = SIMULATABILITY.parameters.settings({"words": 3})
    corpus = SIMULATABILITY.corpus(uploaded, settings)
    specs = [choices.spec("BM25", uploaded.name)]
    for job in plan(SIMULATABILITY, compute, specs, corpus, settings).jobs:
        job.start().wait()
    page.run()
    assert "deletes them with your file when your session ends" in shown(page)
