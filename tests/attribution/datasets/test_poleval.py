"""The format of PolEval 2022: questions, passages and pairs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from poslens.attribution.datasets import formats
from poslens.attribution.errors import UserError

QUESTIONS = [
    {"id": "1", "text": "Gdzie topi się lód?"},
    {"id": "2", "text": "Co rozpuszcza się w wodzie?"},
]
PASSAGES = [
    {"id": "7-0", "title": "Lód", "text": "Lód topi się w słońcu.", "meta": {"article_id": 7}},
    {"id": "8-0", "text": "Sól rozpuszcza się w wodzie."},
    {"id": "9-0", "title": "Mgła", "text": "Mgła opada w południe."},
    {"id": "10-0", "text": 5},
]
PAIRS = "question-id\tpassage-id\tscore\n1\t7-0\t1\n2\t8-0\t1\n2\t99-0\t1\n2\t7-0\t0\n"


def write(folder: Path, packed: bool = False) -> Path:
    for name, rows in (("questions.jl", QUESTIONS), ("passages.jl", PASSAGES)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text)
    (folder / "pairs.tsv").write_text(PAIRS)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_pairs_have_the_title_and_the_language(tmp_path: Path, packed: bool) -> None:
    data = formats.read(write(tmp_path, packed), "trivia")
    assert [(p.pair_id, p.query, p.document, p.language) for p in data.pairs] == [
        ("1/7-0", "Gdzie topi się lód?", "Lód Lód topi się w słońcu.", "pol"),
        ("2/8-0", "Co rozpuszcza się w wodzie?", "Sól rozpuszcza się w wodzie.", "pol"),
    ]
    (rejected,) = data.rejected  # a row that is judged not relevant is valid
    assert "passage 99-0 does not exist" in rejected.reason


def test_every_passage_is_searched(tmp_path: Path) -> None:
    found = formats.collection(write(tmp_path), "trivia")
    assert [document.key for document in found.documents()] == ["7-0", "8-0", "9-0"]
    assert [query.relevant for query in found.queries] == [{"7-0": 1}, {"8-0": 1, "99-0": 1}]
    assert found.n_lost == 1 and len(found.survey.rejected) == 1
    assert {document.language for document in found.documents()} == {"pol"}


def test_missing_columns_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "pairs.tsv").write_text("question\tpassage-id\tscore\n1\t7-0\t1\n")
    with pytest.raises(UserError, match="lacks the column question-id"):
        formats.read(tmp_path, "trivia")
