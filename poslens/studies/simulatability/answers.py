"""Simulatability with people: a person predicts from a few words of each of two documents which one
the model ranks first.

Answers are stored in a file on this machine with ids, parameters and whether they are correct, but
without texts or names.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import scipy  # loads scipy.special at its first use
from filelock import FileLock

from poslens.attribution.curves.bootstrap import (
    MIN_DOCUMENTS,
    Estimate,
    Values,
    effective_size,
    numbered,
    ratio_difference,
    standard_error,
)
from poslens.attribution.curves.proportions import mean_share
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import (
    SHARE_MARGIN,
    Comparison,
    by_standard_error,
)
from poslens.attribution.evaluation.simulatability import ForcedChoice
from poslens.studies.simulatability.summary import SimulatabilitySummary

Condition = Literal["explanation", "random"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)


@dataclass(frozen=True, slots=True)
class Question:
    """One query with words of two documents. `texts` are the words in the order in which they are
    shown, and `higher_first` means that the first ones are of the document that the model ranks
    first."""

    choice: ForcedChoice
    document: str
    condition: Condition
    texts: tuple[str, str]
    higher_first: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; `document` is the document that intervals resample."""

    time: str
    reader: str
    model: str
    fingerprint: str
    measure: str
    dataset: str
    question: str
    document: str
    condition: Condition
    correct: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """Share of correct answers by condition, and the difference of the two shares. The conditions
    have different questions, so the difference is not paired. Its interval is about other
    documents, and about other readers if there are several."""

    n: int
    shares: dict[Condition, Estimate]
    gain: Comparison | None


def questions(summary: SimulatabilitySummary, seed: int) -> list[Question]:
    """All questions of a model and method. Their order, words and sides depend only on `seed`.
    Every second question has the method's words, the others random words."""
    generator = random.Random(seed)
    order = list(range(len(summary.choices)))
    generator.shuffle(order)
    n, asked = summary.asked.settings.words, []
    for row, number in enumerate(order):
        choice, condition = summary.choices[number], CONDITIONS[row % 2]
        words = [
            side.largest(n) if condition == "explanation" else side.drawn(n, generator)
            for side in (choice.higher, choice.lower)
        ]
        texts = choice.higher.text(words[0]), choice.lower.text(words[1])
        first = generator.random() < 0.5
        asked.append(
            Question(
                choice,
                summary.documents[number],
                condition,
                texts if first else (texts[1], texts[0]),
                first,
            )
        )
    return asked


def answer(
    summary: SimulatabilitySummary, question: Question, chose_first: bool, reader: str
) -> Answer:
    """The record of an answer to a question."""
    asked = summary.asked
    return Answer(
        datetime.now(UTC).isoformat(timespec="seconds"),
        reader,
        asked.spec.name,
        summary.model.key.fingerprint,
        repr(asked.measure),
        asked.corpus.name,
        question.choice.choice_id,
        question.document,
        question.condition,
        chose_first == question.higher_first,
    )


def of_summary(answers: Sequence[Answer], summary: SimulatabilitySummary) -> list[Answer]:
    """The answers to questions of this model, method and data set."""
    asked = summary.asked
    key = (summary.model.key.fingerprint, repr(asked.measure), asked.corpus.name)
    return [a for a in answers if (a.fingerprint, a.measure, a.dataset) == key]


def tally(answers: Sequence[Answer]) -> Tally:
    """Shares of correct answers, and their difference."""
    documents = [a.document for a in answers]
    correct = np.array([a.correct for a in answers], dtype=np.float64)
    shares: dict[Condition, Estimate] = {}
    right: list[Values] = []
    given: list[Values] = []
    for condition in CONDITIONS:
        asked = np.array([a.condition == condition for a in answers], dtype=np.bool_)
        right.append(correct * asked)
        given.append(asked.astype(np.float64))
        share = mean_share(correct[asked], list(compress(documents, asked)))
        if share is not None:
            shares[condition] = share
    gain = None
    if len(shares) == len(CONDITIONS):
        gain = _gain(np.array([*right, *given]).T, documents, [a.reader for a in answers])
    return Tally(len(answers), shares, gain)


def _gain(rows: Values, documents: Sequence[str], readers: Sequence[str]) -> Comparison:
    """The difference of the two shares, by Student's t, with its interval kept within [-1, 1].
    Answers depend on their document and on their reader, so variances over both are added, less
    that over answers (Cameron, Gelbach and Miller 2011). `rows` [n, 4] are correct answers and
    answers, by condition."""
    groupings = [documents, *([readers] if len(set(readers)) > 1 else [])]
    errors = [standard_error(rows, groups, ratio_difference) for groups in (*groupings, None)]
    value, n = float(ratio_difference(rows.mean(0)[None])[0]), len(set(documents))
    variances = [error**2 for error in errors if error is not None]
    if n < MIN_DOCUMENTS or len(variances) < len(errors):
        return by_standard_error(Estimate(value, n=len(rows), n_resampled=n), None, 0, SHARE_MARGIN)
    *over_groups, over_answers = variances
    total = sum(over_groups) - over_answers * (len(groupings) - 1)
    error = math.sqrt(max(total, *over_groups))
    sizes = (np.bincount(numbered(groups)) for groups in groupings)
    degrees = min(map(effective_size, sizes)) - 1
    reach = float(scipy.special.stdtrit(degrees, 0.975)) * error
    ends = max(-1.0, value - reach), min(1.0, value + reach)
    difference = Estimate(value, *ends, len(rows), n, formula="t interval")
    return by_standard_error(difference, error, degrees, SHARE_MARGIN)


class AnswerFile:
    """Answers below a cache folder, one JSON object per line."""

    def __init__(self, root: Path) -> None:
        self.path = root / "answers" / "simulatability.jsonl"

    def add(self, new: Answer) -> None:
        """Record an answer.

        Raises:
            UserError: the file can't be written.
        """
        line = json.dumps(asdict(new), ensure_ascii=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with (
                FileLock(self.path.with_suffix(".lock"), timeout=10),
                self.path.open("a", encoding="utf-8") as file,
            ):
                file.write(line)
        except OSError as error:
            raise UserError(f"The answer can't be recorded ({error.strerror}).") from error

    def read(self) -> list[Answer]:
        """All answers; invalid lines are skipped.

        Raises:
            UserError: the file can't be read.
        """
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"The answers can't be read ({error.strerror}).") from error
        return [parsed for line in lines if (parsed := _parsed(line)) is not None]


def _parsed(line: str) -> Answer | None:
    try:
        row = json.loads(line)
        parsed = Answer(**row)
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (getattr(parsed, field.name) for field in fields(Answer) if field.name != "correct")
    valid = isinstance(parsed.correct, bool) and all(isinstance(text, str) for text in texts)
    return parsed if valid and parsed.condition in CONDITIONS else None
