"""BM25: scores equal those of bm25s, shares add up, and position is ignored."""

from __future__ import annotations

import importlib.machinery
import math
import os
import random
import shutil
import subprocess
import sys
import types
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution import datasets
from poslens.attribution.checkpoints import reporting, stoppable
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.deletion import deletion_insertion
from poslens.attribution.methods import METHODS, attribute_batches, make_method
from poslens.attribution.retrievers import lexical, resolve
from poslens.attribution.retrievers.lexical import (
    COUNTING,
    LexicalRetriever,
    corpus_of,
    folded,
    library_index,
    settings,
    terms_of,
    with_corpus,
)
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.text import sentences
from poslens.attribution.types import Attribution, TextPair
from poslens.cache.keys import file_digest
from tests.attribution.datasets.test_corpus import write_beir

TERMS = make_method("terms")


@pytest.fixture(scope="module")
def typed() -> LexicalRetriever:
    return load(resolve.resolve("BM25"))


@pytest.fixture(scope="module")
def bound(sample: DataSet) -> LexicalRetriever:
    return load(with_corpus(resolve.resolve("BM25"), sample.name))


def explain(retriever: LexicalRetriever, pair: TextPair) -> Attribution:
    return METHODS["terms"].compute(retriever, TERMS, [pair])[0]


def test_scores_equal_those_of_bm25s_over_the_whole_data_set(
    bound: LexicalRetriever, sample: DataSet
) -> None:
    documents = list(dict.fromkeys(p.document for p in sample.pairs))
    index = library_index([list(terms_of(d)) for d in documents], 1.2, 0.75)
    for pair in sample.pairs[::20]:
        expected = index.get_scores(list(terms_of(pair.query)))[documents.index(pair.document)]
        assert explain(bound, pair).score == pytest.approx(expected, rel=1e-6)


def test_scores_of_two_texts_computed_by_hand(typed: LexicalRetriever) -> None:
    """Query "tide moon", document "Tide, tide! sea": both contain tide, so idf = ln(1 + 0.5 / 2.5).
    Lengths are 2 and 3, 2.5 on average."""
    found = explain(typed, TextPair("p", "tide moon", "Tide, tide! sea"))
    share = math.log(1.2) * 2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2.5))
    assert found.score == pytest.approx(share, rel=1e-6)
    np.testing.assert_allclose(found.document_scores, [share / 2, share / 2, 0], rtol=1e-6)
    np.testing.assert_allclose(found.query_scores, [share, 0], rtol=1e-6)


def test_a_repeated_query_word_counts_twice(typed: LexicalRetriever) -> None:
    once = explain(typed, TextPair("p", "tide moon sun", "the tide"))
    twice = explain(typed, TextPair("p", "tide tide sun", "the tide"))
    assert twice.score == pytest.approx(2 * once.score, rel=1e-6)
    np.testing.assert_allclose(twice.query_scores, [once.score, once.score, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "spellings",
    [
        ("caf\u00e9", "cafe\u0301", "CAF\u00c9", "CAFE\u0301"),
        ("\u017c\u00f3\u0142w", "z\u0307o\u0301\u0142w", "\u017b\u00d3\u0141W"),
        ("don't", "don\u2019t", "DON\u2019T", "don\u02bct"),
        ("\u0130stanbul", "istanbul", "I\u0307STANBUL", "ISTANBUL", "i\u0307stanbul"),
        ("ISPARTA", "\u0131sparta", "Isparta"),
        ("stra\u00dfe", "STRASSE", "stra\u1e9ee"),
        ("\u03bb\u03cc\u03b3\u03bf\u03c2", "\u039b\u038c\u0393\u039f\u03a3"),
        ("\ud55c\uad6d", "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
    ],
)
def test_spellings_of_a_word_match_each_other(
    typed: LexicalRetriever, spellings: tuple[str, ...]
) -> None:
    assert len({terms_of(one) for one in spellings}) == 1 and len(terms_of(spellings[0])) == 1
    scores = {
        round(explain(typed, TextPair("p", asked, f"Sea. {found}, moon")).score, 6)
        for asked in spellings
        for found in spellings
    }
    assert len(scores) == 1 and scores.pop() > 0


def test_quotation_marks_are_not_part_of_a_word() -> None:
    assert terms_of("\u2018tide\u2019 \u201ctide\u201d 'tide' dogs\u2019 tide") == (
        "tide",
        "tide",
        "tide",
        "dogs",
        "tide",
    )
    assert len(set(terms_of("a\u00e4 aa ae"))) == 3, "letters with marks stay other letters"


def test_every_letter_is_folded_once_and_the_same_in_both_forms() -> None:
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if not letter.isalnum():
            continue
        once = folded(letter)
        assert folded(once) == once, hex(code)
        for form in ("NFC", "NFD"):
            assert folded(unicodedata.normalize(form, letter)) == once, (form, hex(code))


def test_a_word_missing_from_the_statistics_counts_as_the_rarest(
    bound: LexicalRetriever, sample: DataSet
) -> None:
    """Typed texts can have unknown words, which once counted as nothing."""
    word = "zyzzyva"
    known = bound.statistics
    assert known is not None and word not in known.frequencies
    pair = TextPair("p", word, f"A {word} is a weevil.")
    idf = math.log(1 + (known.n + 0.5) / 0.5)
    expected = idf / (1 + 1.2 * (0.25 + 0.75 * 5 / known.average_length))
    assert explain(bound, pair).score == pytest.approx(expected, rel=1e-6)


def test_shares_add_up_to_the_score_on_both_sides(bound: LexicalRetriever, sample: DataSet) -> None:
    for pair in sample.pairs[::10]:
        found = explain(bound, pair)
        assert found.document_scores.sum() == pytest.approx(found.score, rel=1e-5)
        assert found.query_scores.sum() == pytest.approx(found.score, rel=1e-5)
        assert found.matrix is not None and found.bias_share == 0
        assert abs(found.completeness_error or 0) <= 1e-5 * max(found.score, 1)


def test_token_offsets_point_at_their_characters(bound: LexicalRetriever, sample: DataSet) -> None:
    pair = next(p for p in sample.pairs if p.language != "eng")
    found = explain(bound, pair)
    for text, read in ((pair.query, found.query), (pair.document, found.document)):
        assert [text[t.start : t.end] for t in read.tokens] == [t.text for t in read.tokens]
    assert found.score > 0 and not found.document.truncated


def test_sentence_order_does_not_change_shares(bound: LexicalRetriever, sample: DataSet) -> None:
    pair = next(p for p in sample.pairs if len(sentences(p.document)) > 5)
    pieces = [pair.document[a:b] for a, b in sentences(pair.document, pair.language)]
    random.Random(3).shuffle(pieces)
    shuffled = TextPair("s", pair.query, " ".join(pieces), dataset=pair.dataset)
    one, other = explain(bound, pair), explain(bound, shuffled)
    assert [t.text for t in one.document.tokens] != [t.text for t in other.document.tokens]
    assert other.score == pytest.approx(one.score, rel=1e-6)

    def by_word(found: Attribution) -> list[tuple[str, float]]:
        pairs = zip(found.document.tokens, found.document_scores, strict=True)
        return sorted((token.text, round(float(share), 6)) for token, share in pairs)

    assert by_word(one) == by_word(other)


def test_occluding_all_occurrences_of_a_term_equals_its_share(typed: LexicalRetriever) -> None:
    """Removing a word that occurs once loses its whole share."""
    pair = TextPair("p", "tide moon", "The tide follows the moon.")
    method = make_method("occlusion")
    found = METHODS["occlusion"].compute(typed, method, [pair])[0]
    exact = explain(typed, pair)
    assert found.score == pytest.approx(exact.score, rel=1e-6)
    np.testing.assert_allclose(found.document_scores, exact.document_scores, rtol=1e-5)
    np.testing.assert_allclose(found.query_scores, exact.query_scores, rtol=1e-5)


def test_deletion_ends_at_zero_and_beats_random_orders(
    bound: LexicalRetriever, sample: DataSet
) -> None:
    pair = sample.pairs[0]
    result = deletion_insertion(bound, pair, explain(bound, pair))
    assert result.score == pytest.approx(explain(bound, pair).score, rel=1e-5)
    assert result.baseline == 0 and result.gain is not None
    assert result.gain.deletion_area > 0 and result.gain.insertion_area > 0


def test_the_self_check_compares_with_bm25s(
    typed: LexicalRetriever, bound: LexicalRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    for retriever in (typed, bound):
        assert check_retriever(retriever).library.distance < 1e-9
        assert "bm25s" in check_retriever(retriever).sentence()
    parts = LexicalRetriever._parts

    def wrong(self: LexicalRetriever, *args: object) -> tuple:
        terms, values = parts(self, *args)  # type: ignore[arg-type]
        return terms, values.sqrt()

    monkeypatch.setattr(LexicalRetriever, "_parts", wrong)
    with pytest.raises(UserError, match="differently in PosLens than in bm25s"):
        check_retriever(bound)


def test_the_library_does_not_import_jax(tmp_path: Path) -> None:
    """bm25s imports JAX if it is installed, and JAX reserves most of a GPU's memory. Other code can
    still import it."""
    (tmp_path / "jax.py").write_text("print('imported')")
    code = """
from concurrent.futures import ThreadPoolExecutor
from poslens.attribution.retrievers.lexical import library_index

def best(number):
    index = library_index([["tide"], ["fog", "tide", "moon"]], 1.2, 0.75)
    return index.get_scores(["fog"]).argmax()

with ThreadPoolExecutor(4) as threads:
    print(*threads.map(best, range(4)))
import jax
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "1", "1", "1", "imported"]


def test_statistics_are_part_of_the_fingerprint(
    sample: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = resolve.resolve("BM25")
    spec = with_corpus(plain, sample.name)
    assert corpus_of(spec) == sample.name and "statistics of sample" in spec.origin
    assert "the two texts" in plain.origin and with_corpus(plain, "typed") is plain
    assert with_corpus(resolve.resolve("MiniLM"), sample.name) == resolve.resolve("MiniLM")
    before = settings(spec, file_digest)
    fewer = datasets.corpus_of(sample.name).sampled_documents(50, 0)
    monkeypatch.setattr(datasets, "corpus_of", lambda name: fewer)
    after = settings(spec, file_digest)
    assert after != before and settings(plain, file_digest) not in (before, after)


def test_statistics_are_those_of_the_whole_corpus(tmp_path: Path) -> None:
    """As bm25s counts them, although only two of the documents are judged."""
    corpus = {"d1": "The tide turns.", "d2": "Fog lifts.", "d3": "The tide. Low tide!"}
    corpus["d4"] = "Fog drifts over the tide."
    queries, qrels = {"q1": "the tide", "q2": "fog"}, {"q1": {"d1": "1"}, "q2": {"d2": "1"}}
    datasets.register("beir", write_beir(tmp_path / "beir", corpus, queries, qrels))
    retriever = load(with_corpus(resolve.resolve("BM25"), "beir"))
    words = [list(terms_of(text)) for text in corpus.values()]
    index = library_index(words, retriever.k1, retriever.b)
    pairs = datasets.read("beir").pairs
    assert len(pairs) == 2
    for row, pair in enumerate(pairs):
        expected = index.get_scores(list(terms_of(pair.query)))[row]
        assert explain(retriever, pair).score == pytest.approx(expected)


def test_a_large_corpus_is_identified_by_its_files_without_counting_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, qrels = {"d1": "The tide turns.", "d2": "Fog lifts."}, {"q": {"d1": "1"}}
    folder = write_beir(tmp_path / "large", corpus, {"q": "tide"}, qrels)
    datasets.register("large", folder)
    spec = with_corpus(resolve.resolve("BM25"), "large")
    monkeypatch.setattr(lexical, "_LARGE_BYTES", 10)
    monkeypatch.setattr(lexical, "statistics_of", lambda texts: pytest.fail("counted"))
    before = settings(spec, file_digest)
    (folder / "corpus.jsonl").write_text((folder / "corpus.jsonl").read_text().lower())
    datasets.reload_if_changed("large")
    assert settings(spec, file_digest) != before
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="The files of large can't be read"):
        settings(spec, file_digest)


def test_counting_words_reports_progress_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = {f"d{n}": f"The tide turns {n} times." for n in range(8)}
    folder = write_beir(tmp_path / "eight", corpus, {"q": "tide"}, {"q": {"d1": "1"}})
    datasets.register("eight", folder)
    monkeypatch.setattr(lexical, "_LARGE_BYTES", 10)
    monkeypatch.setattr(lexical, "_COUNTED_AT_A_TIME", 2)
    retriever = load(with_corpus(resolve.resolve("BM25"), "eight"))
    (pair,) = datasets.read("eight").pairs
    told: list[tuple[float, str]] = []
    with reporting(lambda share, doing, before: told.append((share, doing))):
        with stoppable(lambda: len(told) > 1), pytest.raises(Stopped):
            explain(retriever, pair)
        assert told == [(0, COUNTING), (0.25, COUNTING)]
        told.clear()
        explain(retriever, pair)
        assert told == [(share, COUNTING) for share in (0, 0.25, 0.5, 0.75, 1)]
        explain(retriever, pair)
    assert len(told) == 5, "counted once"


def test_bias_tests_have_the_statistics_of_their_pairs() -> None:
    texts = {pair.document for pair in datasets.read(datasets.SAMPLE_BIAS).pairs}
    retriever = load(with_corpus(resolve.resolve("BM25"), datasets.SAMPLE_BIAS))
    assert retriever.statistics == lexical.statistics_of(map(terms_of, texts))


def test_a_text_without_words_fails_only_its_own_pair(typed: LexicalRetriever) -> None:
    pairs = [TextPair("a", "tide", "the tide"), TextPair("b", "tide", "... !")]
    outcomes = {
        o.pair.pair_id: o for batch in attribute_batches(typed, TERMS, pairs) for o in batch
    }
    assert outcomes["a"].attribution is not None
    assert "reads no word" in outcomes["b"].reason and outcomes["b"].attribution is None


def test_a_document_without_words_does_not_affect_the_others(tmp_path: Path) -> None:
    rows = ["tide,The tide turns twice.", "sea,Rivers run to the sea.", "what,??? !"]
    (tmp_path / "some.csv").write_text("\n".join(["query,document", *rows]))
    (tmp_path / "none.csv").write_text("query,document\n!!!,??? !\n")
    for name in ("some", "none"):
        datasets.register(name, tmp_path / f"{name}.csv")
    retriever = load(with_corpus(resolve.resolve("BM25"), "some"))
    assert check_retriever(retriever).library.distance < 1e-9
    documents = [row.split(",")[1] for row in rows]
    scores = retriever.scores("the tide", documents, retriever.statistics)
    assert scores[0] > scores[1] > 0 and scores[2] == -np.inf
    with pytest.raises(UserError, match="No document of none has a word"):
        load(with_corpus(resolve.resolve("BM25"), "none"))


STEMS = {"kotami": "kot", "kota": "kot", "psami": "pies"}


@pytest.fixture
def stempel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for pystempel with three words."""
    module = types.ModuleType("pystempel")
    module.__spec__ = importlib.machinery.ModuleSpec("pystempel", None)
    module.Stemmer = types.SimpleNamespace(default=lambda: STEMS.get)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pystempel", module)
    monkeypatch.setattr(lexical, "version", lambda name: "2.0.0")
    for cached in (lexical._stemmer, lexical.polish_stem):
        cached.cache_clear()
    yield
    for cached in (lexical._stemmer, lexical.polish_stem):
        cached.cache_clear()


@pytest.mark.usefixtures("stempel")
def test_polish_stems_match_other_forms() -> None:
    retriever = load(resolve.resolve("BM25-stempel"))
    assert isinstance(retriever, LexicalRetriever)
    assert retriever.terms_of("Kotami i PSAMI, nie") == ("kot", "i", "pies", "nie")
    ((same,), (plain,)) = (
        list(model.exact(["kota"], ["Z kotami."], [(0, 0)]))
        for model in (retriever, load(resolve.resolve("BM25")))
    )
    assert same.score > 0 and plain.score == 0
    assert [token.text for token in same.document.tokens] == ["Z", "kotami"]
    pair = TextPair("p", "kota", "Z kotami. Pies.")
    assert retriever.check(pair).distance < 1e-9
    spec = with_corpus(resolve.resolve("BM25-stempel"), "sample")
    assert corpus_of(spec) == "sample" and "stems=pystempel 2.0.0" in settings(spec, file_digest)
    plain = with_corpus(resolve.resolve("BM25"), "sample")
    without = settings(plain, file_digest)
    assert settings(spec, file_digest) != without and "stems" not in without


def test_a_missing_stemmer_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"BM25-stempel needs the Polish stemmer: run `pip install"):
        load(resolve.resolve("BM25-stempel"))
