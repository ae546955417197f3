"""The bundled data sets agree with their sources and data card."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from poslens.attribution import datasets
from tools.sample import build


@pytest.fixture(scope="module")
def sources() -> list[build.SourceDocument]:
    return build.read_all()


@pytest.fixture(scope="module", params=list(build.SETS))
def bundled(
    request: pytest.FixtureRequest,
) -> tuple[str, build.SampleSet, list[build.SourceDocument]]:
    built = build.SETS[request.param]
    return request.param, built, build.read_all(built)


Bundled = tuple[str, build.SampleSet, list[build.SourceDocument]]


def test_the_sources_have_no_problems(bundled: Bundled) -> None:
    _, built, documents = bundled
    assert build.problems(documents, built) == []


def test_two_articles_on_one_subject_are_reported(sources: list[build.SourceDocument]) -> None:
    """Two on canal locks answered the same six queries, but only one was judged relevant."""
    # Half of an article inside another is enough.
    first, second = (d for d in sources if d.doc_id in ("history-canal-locks", "zoology-honeybee"))
    mixed = replace(second, text=second.text + first.text[: len(first.text) // 2])
    rest = [d for d in sources if d is not second]
    (sentence,) = build.same_subject([*rest, mixed], build.SAMPLE.shared_words)
    assert sentence.startswith("history-canal-locks and zoology-honeybee share")


def test_the_files_equal_those_built_from_the_sources(bundled: Bundled, tmp_path: Path) -> None:
    _, built, documents = bundled
    build.write(documents, tmp_path)
    here = {path.relative_to(built.output) for path in built.output.rglob("*.parquet")}
    fresh = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet")}
    assert here == fresh
    for path in sorted(fresh):
        stored, written = pq.read_table(built.output / path), pq.read_table(tmp_path / path)
        assert stored.schema.equals(written.schema) and stored.equals(written), path


def test_every_query_of_the_sources_is_a_pair(bundled: Bundled) -> None:
    name, _, sources = bundled
    data = datasets.read(name)
    assert data.rejected == ()
    assert len(data.pairs.once) == len(data.pairs) == sum(len(d.queries) for d in sources)
    documents = {d.doc_id: d for d in sources}
    for pair in data.pairs:
        doc_id, _, number = pair.pair_id.rpartition("-q")
        source = documents[doc_id]
        wanted = source.queries[int(number) - 1]
        assert (pair.query, pair.document) == (wanted.text, source.text)
        assert (pair.language, pair.domain) == (source.language, source.domain)
        assert (pair.query_type or "") == wanted.kind
        assert pair.document_tokens == source.tokens and pair.dataset == name
        assert pair.evidence is not None
        assert (pair.evidence.start, pair.evidence.end) == (wanted.start, wanted.end)
        assert source.text.count(source.text[wanted.start : wanted.end]) == 1


def test_the_sets_cover_languages_and_lengths(bundled: Bundled) -> None:
    documents = bundled[2]
    assert {d.language for d in documents} == set(build.LANGUAGES)
    assert set(Counter(build.bucket(d.tokens) for d in documents)) == {0, 1, 2, 3}


def test_a_querys_type_depends_on_the_words_it_shares(tmp_path: Path) -> None:
    """`Fog` is in every document, so sharing it doesn't count; `freezing` shares its stem with
    `freezes`, and `frost` does not."""
    body = "Fog forms over cold water. " + "The harbor bell rings in the morning. " * 25
    evidence = {"a": "It freezes at noon.", "b": "Ships wait.", "c": "Gulls sleep."}
    for name, last in evidence.items():
        (tmp_path / f"{name}.toml").write_text(
            f'language = "eng"\ndomain = "geology"\ntext = "{body}{last}"\n'
            f'[[query]]\ntext = "what is freezing"\nevidence = "{last}"\n'
            f'[[query]]\ntext = "fog and frost"\nevidence = "{last}"\n',
            encoding="utf-8",
        )
    built = replace(build.MULTILINGUAL, sources=tmp_path)
    kinds = [[query.kind for query in d.queries] for d in build.read_all(built)]
    unshared = [build.UNSHARED, build.UNSHARED]
    assert kinds == [[build.SHARED, build.UNSHARED], unshared, unshared]


def test_special_tokens_are_not_counted() -> None:
    # [UNK] of 7 characters counts as three tokens: one for every three characters or part of them.
    assert build.count_tokens("fog lifts") == 2
    assert build.count_tokens("🚀" * 7) == 3
    assert [build.bucket(n) for n in (512, 513, 1024, 1025, 1536, 1537)] == [0, 1, 1, 2, 2, 3]


def test_gaps_in_a_set_are_reported(sources: list[build.SourceDocument]) -> None:
    fewer = build.problems([d for d in sources if d.language != "tha"])
    assert "0 documents in tha, fewer than 2" in fewer
    assert "0 queries in tha, fewer than 8" in fewer
    twice = [*sources, replace(sources[0], doc_id="copy")]
    assert "a query occurs twice" in build.problems(twice)
    assert f"{sources[0].doc_id} and copy share" in " ".join(build.problems(twice))
    short = build.problems([d for d in sources if d.tokens < 1024])
    assert "0 documents of 1,024 tokens, fewer than 15" in short
    few = build.problems(sources, replace(build.SAMPLE, max_tokens=1_500, per_bin=14))
    assert any("more than 1500" in sentence for sentence in few)
    assert any("queries in position bin" in sentence for sentence in few)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('language = "eng"', 'language = "xxx"', "language must be one of"),
        ('language = "eng"', 'langage = "eng"', "unknown keys"),
        ("[[query]]", "[[query", "not valid TOML"),
    ],
)
def test_an_invalid_source_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "geology-obsidian.toml"
    shutil.copy(build.SOURCE / path.name, path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=f"^geology-obsidian.toml: .*{reason}"):
        build.read(path)


def test_evidence_must_occur_exactly_once(tmp_path: Path) -> None:
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
