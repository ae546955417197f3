"""The bundled data set is what its sources and its data card say."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from poslens.attribution.datasets import DataSet
from tools.sample import build


@pytest.fixture(scope="module")
def sources() -> list[build.SourceDocument]:
    return build.read_all()


def test_the_sources_have_no_problems(sources: list[build.SourceDocument]) -> None:
    assert build.problems(sources) == []


def test_no_two_articles_tell_the_same_things(sources: list[build.SourceDocument]) -> None:
    """Two on canal locks answered the same six queries, of which one each was judged."""
    assert build.same_subject(sources) == []
    # Half of one article inside another is enough to be told.
    first, second = (d for d in sources if d.doc_id in ("history-canal-locks", "zoology-honeybee"))
    mixed = replace(second, text=second.text + first.text[: len(first.text) // 2])
    rest = [d for d in sources if d is not second]
    (told,) = build.same_subject([*rest, mixed])
    assert told.startswith("history-canal-locks and zoology-honeybee share")


def test_what_is_read_is_what_was_written(
    sources: list[build.SourceDocument], tmp_path: Path
) -> None:
    build.write(sources, tmp_path)
    here = {path.relative_to(build.POSIR) for path in build.POSIR.rglob("*.parquet")}
    fresh = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet")}
    assert here == fresh
    for path in sorted(fresh):
        one, other = pq.read_table(build.POSIR / path), pq.read_table(tmp_path / path)
        assert one.schema.equals(other.schema) and one.equals(other), path


def test_every_query_of_the_sources_is_a_pair(
    sources: list[build.SourceDocument], sample: DataSet
) -> None:
    assert sample.rejected == ()
    assert len(sample.by_id) == len(sample.pairs) == sum(len(d.queries) for d in sources)
    documents = {d.doc_id: d for d in sources}
    for pair in sample.pairs:
        doc_id, _, number = pair.pair_id.rpartition("-q")
        source = documents[doc_id]
        wanted = source.queries[int(number) - 1]
        assert (pair.query, pair.document) == (wanted.text, source.text)
        assert (pair.language, pair.domain) == (source.language, source.domain)
        assert pair.document_tokens == source.tokens and pair.dataset == "sample"
        assert pair.evidence is not None
        assert (pair.evidence.start, pair.evidence.end) == (wanted.start, wanted.end)
        assert source.text.count(source.text[wanted.start : wanted.end]) == 1


def test_the_sample_fills_languages_lengths_and_positions(
    sources: list[build.SourceDocument],
) -> None:
    assert {d.language for d in sources} == set(build.LANGUAGES)
    assert set(Counter(build.bucket(d.tokens) for d in sources)) == {0, 1, 2, 3}
    assert all(build.bins(sources)[b] >= 6 for b in range(20))


def test_tokens_are_counted_without_special_ones() -> None:
    # [UNK] of 7 characters counts three: one for every three characters begun.
    assert build.count_tokens("fog lifts") == 2
    assert build.count_tokens("🚀" * 7) == 3
    assert [build.bucket(n) for n in (512, 513, 1024, 1025, 1536, 1537)] == [0, 1, 1, 2, 2, 3]


def test_a_set_that_lacks_something_is_told_so(sources: list[build.SourceDocument]) -> None:
    fewer = build.problems([d for d in sources if d.language != "tha"][:50])
    assert "fewer than 2 documents in tha" in fewer
    assert any(s.startswith("50 documents") for s in fewer)
    twice = [*sources, replace(sources[0], doc_id="copy")]
    assert "a query occurs twice" in build.problems(twice)
    assert f"{sources[0].doc_id} and copy share" in " ".join(build.problems(twice))
    short = build.problems([d for d in sources if d.tokens < 1024])
    assert "0 documents of 1,024 tokens or more, fewer than 15" in short


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('language = "eng"', 'language = "xxx"', "language must be one of"),
        ('language = "eng"', 'langage = "eng"', "unknown keys"),
        ("[[query]]", "[[query", "not valid TOML"),
    ],
)
def test_a_wrong_source_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "geology-obsidian.toml"
    shutil.copy(build.SOURCE / path.name, path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=f"^geology-obsidian.toml: .*{reason}"):
        build.read(path)


def test_evidence_must_occur_once(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    sentence = "The lava cools fast."
    body = " ".join(["Obsidian is a glass of volcanic origin."] * 30)
    for text, times in ((body, 0), (f"{sentence} {body} {sentence}", 2)):
        path.write_text(
            f'language = "eng"\ndomain = "geology"\ntext = "{text}"\n'
            f'[[query]]\ntext = "why"\nevidence = "{sentence}"\n',
            encoding="utf-8",
        )
        with pytest.raises(ValueError, match=f"occurs {times} times, not once"):
            build.read(path)
