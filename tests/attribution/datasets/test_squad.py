"""SQuAD's JSON: pairs, passages to search, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poslens.attribution.datasets import detect, formats
from poslens.attribution.errors import UserError

FOG = "Fog forms over cold water. It lifts at noon, when the air is warm."
TIDE = "The tide rises twice a day."


def question(name: str, text: str = "", at: int = 0, **more: Any) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": at}] if text else []
    return {"id": name, "question": f"What of {name}?", "answers": answers, **more}


def article(*paragraphs: tuple[str, list[Any]]) -> dict[str, Any]:
    listed = [{"context": context, "qas": questions} for context, questions in paragraphs]
    return {"title": "Weather", "paragraphs": listed}


def written(path: Path, *articles: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"version": "v2.0", "data": list(articles)}), encoding="utf-8")
    return path


def test_plausible_answers_of_impossible_questions_are_not_evidence(tmp_path: Path) -> None:
    """Impossible questions as in SQuAD 2.0 and in other sets of its format."""
    noon = {"text": "noon", "answer_start": FOG.index("noon")}
    path = written(
        tmp_path / "train-v2.0.json",
        article(
            (
                FOG,
                [
                    question("q1", is_impossible=True, plausible_answers=[noon]),
                    question("q2", "noon", FOG.index("noon"), is_impossible=True),
                    question("q3", "noon", FOG.index("noon"), is_impossible=False),
                ],
            )
        ),
    )
    found = formats.read(path, "mine")
    assert [pair.pair_id for pair in found.pairs] == ["q3"]
    assert {one.reason for one in found.rejected} == {"its passage does not answer the question"}


def test_every_passage_is_searched_once(tmp_path: Path) -> None:
    written(tmp_path / "a.json", article((FOG, [question("q1", "Fog", 0)]), (TIDE, [])))
    written(tmp_path / "b.json", article((FOG, [question("q2", "cold", FOG.index("cold"))])))
    found = formats.collection(tmp_path, "mine")
    documents = list(found.documents())
    assert sorted(one.text for one in documents) == sorted([FOG, TIDE])
    fog = next(one.key for one in documents if one.text == FOG)
    assert {query.query_id: dict(query.relevant) for query in found.queries} == {
        "q1": {fog: 1},
        "q2": {fog: 1},
    }
    assert found.queries[0].evidence == pytest.approx(1.5 / len(FOG))


def test_damaged_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "x.json", article((FOG, [question("q1", "Fog", 0)])))
    text = path.read_text()
    path.write_text(text[:-3])
    with pytest.raises(UserError, match="not JSON"):
        formats.read(path, "mine")
    path.write_text(json.dumps({"data": [{"title": "x", "paragraphs": [{"context": FOG}]}]}))
    with pytest.raises(UserError, match="list of qas"):
        formats.read(path, "mine")
    path.write_text('{"other": 1}')
    with pytest.raises(UserError):
        detect(path)


# -- Parquet ---------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        (
            "answers",
            pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))]),
        ),
    ]
)


def row(name: str, context: str, *starts: int) -> dict[str, Any]:
    texts = [context[start : start + 3] for start in starts]
    return {
        "id": name,
        "title": "Weather",
        "context": context,
        "question": f"What of {name}?",
        "answers": {"text": texts, "answer_start": list(starts)},
    }


def parquet(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), path)
    return path


def test_the_hubs_parquet_gives_the_same_data_as_the_json(tmp_path: Path) -> None:
    noon = FOG.index("noon")
    rows = [row("q1", FOG, noon, 0), row("q2", FOG), row("q3", TIDE, 4)]
    parquet(tmp_path / "hub" / "squad_v2" / "train-00000-of-00001.parquet", *rows[:2])
    parquet(tmp_path / "hub" / "squad_v2" / "validation-00000-of-00001.parquet", rows[2])
    written(
        tmp_path / "own.json",
        article(
            (FOG, [question("q1", "noo", noon), question("q2")]), (TIDE, [question("q3", "tid", 4)])
        ),
    )
    assert detect(tmp_path / "hub") == "squad"
    one, other = formats.read(tmp_path / "hub", "x"), formats.read(tmp_path / "own.json", "x")
    assert one.pairs == other.pairs and [r.reason for r in one.rejected] == [
        r.reason for r in other.rejected
    ]
    actual, expected = (formats.collection(tmp_path / at, "x") for at in ("hub", "own.json"))
    assert (
        [d.text for d in actual.documents()]
        == [FOG, TIDE]
        == [d.text for d in expected.documents()]
    )
    assert [q.groups for q in actual.queries] == [q.groups for q in expected.queries]


def test_queries_are_grouped_by_the_answers_first_character(tmp_path: Path) -> None:
    """Compared with an independent count that includes the boundaries of each group."""
    context = "".join(chr(ord("a") + n * n % 26) for n in range(4000))
    starts = [0, 99, 100, 199, 200, 299, 300, 399, 400, 499, 500, 3120, 3121, *range(7, 900, 31)]
    path = parquet(
        tmp_path / "x.parquet", *(row(f"q{n}", context, s) for n, s in enumerate(starts))
    )
    found = formats.collection(path, "x")
    counts: dict[str, int] = {}
    for query in found.queries:
        for name in query.groups:
            counts[name] = counts.get(name, 0) + 1
    expected = {
        "[0,100)": sum(s < 100 for s in starts),
        "[100,200)": sum(100 <= s < 200 for s in starts),
        "[200,300)": sum(200 <= s < 300 for s in starts),
        "[300,400)": sum(300 <= s < 400 for s in starts),
        "[400,500)": sum(400 <= s < 500 for s in starts),
        "[500,3120]": sum(500 <= s <= 3120 for s in starts),
    }
    assert counts == expected and sum(counts.values()) == len(starts) - 1
    assert found.groups is not None and found.groups.names == tuple(expected)


def test_damaged_rows_of_parquet_are_left_out_and_counted(tmp_path: Path) -> None:
    broken: list[dict[str, Any]] = [
        row("q2", FOG, 0) | {"context": None},
        row("q3", FOG, 0) | {"answers": None},
        row("q4", FOG, 0) | {"answers": {"text": ["Rain"], "answer_start": [0]}},
        row("q5", FOG, 0) | {"answers": {"text": ["Fog"], "answer_start": [None]}},
        row("q1", FOG, 0),
    ]
    found = formats.read(parquet(tmp_path / "x.parquet", row("q1", FOG, 0), *broken), "x")
    assert [pair.pair_id for pair in found.pairs] == ["q1"]
    assert [one.row for one in found.rejected] == [2, 3, 4, 5, 6]
    assert [r.reason.split(":")[0] for r in found.rejected] == [
        "the context is missing",
        "its passage does not answer the question",
        "the answer is not at character 0 of its passage",
        "the answer_start is missing",
        "question q1 occurs twice",
    ]


def test_parquet_with_other_columns_is_not_detected_as_squad(tmp_path: Path) -> None:
    pq.write_table(pa.table({"query": ["q"], "document": ["d"]}), tmp_path / "x.parquet")
    assert detect(tmp_path / "x.parquet") == "own"
    (tmp_path / "y.parquet").write_bytes(b"PAR1 and nothing else")
    assert detect(tmp_path / "y.parquet") == "own"


def test_a_sampled_run_draws_queries_of_each_group(tmp_path: Path) -> None:
    context = "abcdefghij" * 30
    path = parquet(tmp_path / "x.parquet", *(row(f"q{n}", context, n) for n in range(250)))
    whole = formats.collection(path, "x")
    one, again, other = whole.sampled(20, 1), whole.sampled(20, 1), whole.sampled(20, 2)
    assert [q.query_id for q in one.queries] == [q.query_id for q in again.queries]
    assert {q.query_id for q in one.queries} != {q.query_id for q in other.queries}
    groups = [q.groups[0] for q in one.queries]
    assert {name: groups.count(name) for name in set(groups)} == {
        "[0,100)": 20,
        "[100,200)": 20,
        "[200,300)": 20,
    }
    assert one.survey.n == whole.survey.n == 1 and one.queries_digest != other.queries_digest
    assert one.drawn == "up to 20 queries of each group, drawn with seed 1" and not whole.drawn
    with pytest.raises(UserError, match="at least 1"):
        whole.sampled(0, 1)
