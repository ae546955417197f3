"""Collections of each format contain every document of the corpus, judged or not, and every id."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
import torch

from poslens.attribution import datasets
from poslens.attribution.datasets import beir, formats, multiclaim, posir
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.datasets.schema import as_grade
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.ranking_measures import NDCG, RECALL, measure
from poslens.attribution.evaluation.search import rankings, search, search_lexical
from tests.support.format_files import Rows, write

pytestmark = pytest.mark.usefixtures("shared_children")

Texts = dict[str, str]


def write_posir(root: Path, language: str, text: str, distractors: int = 2) -> None:
    span = {"pos_char_span": [0, 10], "pos_char_length": len(text), "pos_token_length": 600}
    texts = {"d1": text, **{f"x{i}": f"Distractor {i}." for i in range(distractors)}, "bad": " "}
    files: dict[str, Rows] = {
        "queries.parquet": [{"_id": "q1", "text": f"{language} what melts", **span}],
        "corpus.parquet": [{"_id": name, "text": text} for name, text in texts.items()],
        "qrels/test.parquet": [
            {"query-id": "q1", "corpus-id": name, "score": 1} for name in ("d1", "gone")
        ],
    }
    write(root / language / "ice", files)


def test_posir_has_a_corpus_for_each_domain(tmp_path: Path) -> None:
    write_posir(tmp_path, "eng", "Ice melts. Stone stays.")
    write_posir(tmp_path, "pol", "Lod topnieje. Kamien.", distractors=1)
    found = posir.read(tmp_path, "mine").collection()
    assert found.parts == ("eng/ice", "pol/ice")
    first = found.queries[0]
    assert (first.query_id, first.language, first.document_tokens) == ("eng/ice/q1", "eng", 600)
    # PosIR evaluates with trec_eval too: a document missing from the corpus is not found.
    assert first.relevant == {"eng/ice/d1": 1, "eng/ice/gone": 1} and found.n_lost == 2
    assert first.pairs == {"eng/ice/d1": "q1"}
    assert first.evidence == pytest.approx(5 / 23)
    assert [d.key for d in found.documents()] == [
        "eng/ice/d1",
        "eng/ice/x0",
        "eng/ice/x1",
        "pol/ice/d1",
        "pol/ice/x0",
    ]
    assert found.survey.n == 5 and found.survey.languages["eng/ice", "eng"] == 3
    assert [r.reason.split(":")[0] for r in found.survey.rejected] == ["bad", "bad"]
    assert len(found.rejected) == 2 and "gone does not exist" in found.rejected[0].reason
    assert found.texts(["pol/ice/x0"]) == {"pol/ice/x0": "Distractor 0."}
    # Pairs are unchanged.
    assert [p.pair_id for p in posir.read(tmp_path, "mine").data_set().pairs] == ["q1", "q1/d1"]
    cross = formats.collection(tmp_path, "cross", variant="eng-pol")
    (query,) = cross.queries
    assert query.text == "eng what melts" and query.language == "eng"
    assert query.relevant == {"pol/ice/d1": 1, "pol/ice/gone": 1} and cross.survey.n == 2


def test_beir_has_grades_and_unjudged_documents(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    corpus = [{"_id": f"d{i}", "title": "T", "text": f"text {i}"} for i in range(4)]
    lines = [*map(json.dumps, corpus), "no json", json.dumps(corpus[0])]
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "what"}) + "\n")
    qrels = "query-id\tcorpus-id\tscore\nq\td1\t1\nq\td2\t3\nq\td3\t0\nq\td9\t1\n"
    (tmp_path / "qrels" / "test.tsv").write_text(qrels)
    found = beir.read(tmp_path, "b").collection()
    (query,) = found.queries
    assert query.relevant == {"d1": 1, "d2": 3, "d9": 1} and query.evidence is None
    assert query.pairs == {"d1": "q/d1", "d2": "q/d2"} and found.parts == ("",)
    assert [(d.key, d.text) for d in found.documents()] == [
        (f"d{i}", f"T text {i}") for i in range(4)
    ]
    assert [r.row for r in found.survey.rejected] == [5, 6] and len(found.rejected) == 1
    # A second pass gives the same documents.
    assert len(list(found.documents())) == 4


def write_beir(folder: Path, corpus: Texts, queries: Texts, qrels: dict[str, Texts]) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps({"_id": one, "title": "", "text": text}) for one, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    lines = [f"{q}\t{d}\t{grade}" for q, judged in qrels.items() for d, grade in judged.items()]
    header = "query-id\tcorpus-id\tscore"
    (folder / "qrels" / "test.tsv").write_text("\n".join([header, *lines]))
    return folder


def beirs_measures(scores: np.ndarray, corpus: list[str], queries: list[str], qrels) -> np.ndarray:
    """nDCG@10 and recall@100 of each query as evaluated by `beir` 2.2: the 1,001 best documents of
    each query without the one with the query's id, and all judgments passed to trec_eval, even of
    documents that are not in the corpus."""
    run = {
        query: {corpus[i]: float(row[i]) for i in np.argsort(-row)[:1001] if corpus[i] != query}
        for query, row in zip(queries, scores, strict=True)
    }
    judged = {q: {d: int(g) for d, g in ones.items()} for q, ones in qrels.items()}
    found = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recall.100"}).evaluate(run)
    return np.array([[found[q]["ndcg_cut_10"], found[q]["recall_100"]] for q in queries])


def test_measures_equal_beirs_where_queries_are_documents(tmp_path: Path) -> None:
    """As in ArguAna: each query is in the corpus under its own id and most similar to itself. Some
    judged documents are not in the corpus, including the only one of a query, and all judged
    documents of another query are irrelevant, which pytrec_eval counts as 0."""
    generator = np.random.default_rng(4)
    corpus = [f"a{i}" for i in range(300)]
    queries = corpus[::10]
    qrels = {
        query: {str(d): str(generator.integers(1, 4)) for d in generator.choice(corpus, 12, False)}
        for query in queries
    }
    for number, judged in enumerate(qrels.values()):
        judged |= {f"gone{k}": "2" for k in range(number % 4)}
    qrels[queries[0]] = {"gone": "1"}
    qrels[queries[1]][queries[1]] = "3"  # judged to answer itself, but BEIR leaves it out anyway
    qrels[queries[2]] = {corpus[5]: "0", corpus[6]: "0"}
    vectors = {one: generator.normal(size=8) for one in corpus}
    texts = {one: f"text {one}" for one in corpus}
    root = write_beir(tmp_path / "arguana", texts, {q: texts[q] for q in queries}, qrels)
    found = beir.read(root, "b").collection()
    asked = np.stack([vectors[q] for q in queries])
    scores = (asked @ np.stack([vectors[d] for d in corpus]).T).astype(np.float32)

    order = [queries.index(q.query_id) for q in found.queries]
    assert len(order) == len(queries)

    def scorer(rows, documents):
        places = [corpus.index(text.removeprefix("text ")) for text in documents]
        return torch.from_numpy(scores[np.ix_([order[row] for row in rows], places)])

    for block in (7, 400):
        ranked = rankings(found, search(found, scorer, block=block))
        assert all(one.query_id not in one.document_ids for one in ranked)
        assert all(len(one.document_ids) == 100 for one in ranked)
        actual = measure(ranked, found.queries)
        expected = beirs_measures(scores, corpus, queries, qrels)
        assert np.allclose(actual[NDCG], expected[order, 0], atol=1e-6)
        assert actual[NDCG][order.index(2)] == 0
        assert np.allclose(actual[RECALL], expected[order, 1], atol=1e-6)
    assert not found.queries[order.index(2)].relevant
    assert not any(
        pair.query == texts[queries[2]] for pair in beir.read(root, "b").data_set().pairs
    )
    own, lost = found.notes
    assert own.startswith("Documents with the id of a query are excluded") and "30 here" in own
    assert lost.endswith(f"{found.n_lost} judged documents outside the corpus.")


def test_bm25_also_skips_the_querys_own_document(tmp_path: Path) -> None:
    corpus = {"q1": "ice melts early", "d1": "ice melts", "d2": "stone"}
    root = write_beir(tmp_path, corpus, {"q1": "ice melts early"}, {"q1": {"d1": "1"}})
    for own_corpus in (False, True):
        found = beir.read(root, "b").collection()
        best = search_lexical(found, 1.2, 0.75, own_corpus=own_corpus)
        assert best is not None
        assert rankings(found, best)[0].document_ids == ("d1",)
    assert found.notes[0].endswith(": 1 here.")
    # Ids that agree by chance can exclude a relevant document, which must not go unnoticed.
    folder = write_beir(tmp_path / "1/x", corpus, {"q1": "ice"}, {"q1": {"q1": "1"}}).parent
    for judged in (folder / "x", folder):
        assert "here, 1 of them judged relevant" in beir.read(judged, "b").collection().notes[0]
    # In other formats a query may share an id with a document by chance.
    other = replace(found, skips_own_id=False)
    best = search_lexical(other, 1.2, 0.75)
    assert best is not None and rankings(other, best)[0].document_ids == ("q1", "d1")
    assert found.queries_digest != other.queries_digest, (
        "rankings of both may not be taken for each other"
    )
    assert other.notes == ()


def test_a_query_skips_its_own_document_in_its_own_language_too() -> None:
    documents = [
        Document("1", "ice melts early", language="eng"),
        Document("2", "ice melts", language="eng"),
        Document("3", "ice melts early", language="pol"),
    ]
    queries = tuple(
        Query(name, "ice melts early", "", "eng", {"2": 1}, {"2": f"{name}/2"}, None, None)
        for name in ("1", "3")
    )
    whole = Collection("c", "C", queries, lambda: iter(documents), skips_own_id=True)
    assert whole.survey.own_ids == 2
    found = whole.by_language()
    # Document 3 is never skipped: it is in another language than the query with its id.
    assert found.survey.own_ids == 1 and "with the id of a query are excluded" in found.notes[1]
    wanted = [("eng/2",), ("eng/1", "eng/2")]
    lexical = search_lexical(found, 1.2, 0.75, own_corpus=True)
    assert lexical is not None

    def longest(rows, texts):
        return torch.tensor([[float(len(text)) for text in texts]] * len(rows))

    for best in (lexical, search(found, longest, own_corpus=True)):
        assert [one.document_ids for one in rankings(found, best)] == wanted
    # Rankings stored before queries skipped their own document are not reused.
    other = replace(found, skips_own_id=False)
    assert found.queries_digest != other.queries_digest != whole.queries_digest


def test_multiclaim_searches_every_claim(tmp_path: Path) -> None:
    def cell(original: str, english: str, language: str) -> str:
        return '"' + repr((original, english, [(language, 1.0)])).replace('"', '""') + '"'

    (tmp_path / "posts.csv").write_text(
        f"post_id,instances,ocr,verdicts,text\n1,,[],[],{cell('lod', 'ice', 'pl')}\n"
    )
    (tmp_path / "fact_checks.csv").write_text(
        "fact_check_id,claim,instances,title\n"
        f"7,{cell('Eis', 'Ice', 'de')},,\n8,{cell('Kamien', 'Stone', 'pl')},,\n9,broken,,\n"
    )
    (tmp_path / "fact_check_post_mapping.csv").write_text("fact_check_id,post_id\n7,1\n")
    found = multiclaim.read(tmp_path, "m").collection()
    (query,) = found.queries
    assert (query.text, query.language, query.relevant) == ("lod", "pol", {"7": 1})
    assert [(d.key, d.language, d.text) for d in found.documents()] == [
        ("7", "deu", "Eis"),
        ("8", "pol", "Kamien"),
    ]
    assert len(found.survey.rejected) == 1
    english = formats.collection(tmp_path, "m", variant="english")
    assert [d.text for d in english.documents()] == ["Ice", "Stone"]
    # Same-language bias uses the original languages; with translations it would always be 1.
    assert english.queries[0].language == "pol"
    assert [d.language for d in english.documents()] == ["deu", "pol"]
    (pair,) = formats.read(tmp_path, "m", variant="english").pairs
    assert pair.language == "eng", "sentences and filler are those of the text"


def write_multiclaim(folder: Path, posts: Texts, claims: Texts, mapping: list[str]) -> Path:
    """Texts are given as `language text`; their English version is in capitals."""

    def cell(text: str) -> str:
        value = (text, text.upper(), [(text.split()[0], 1.0)])
        return '"' + repr(value).replace('"', '""') + '"'

    rows = "".join(f"{one},,[],[],{cell(text)}\n" for one, text in posts.items())
    (folder / "posts.csv").write_text(f"post_id,instances,ocr,verdicts,text\n{rows}")
    rows = "".join(f"{one},{cell(text)},,\n" for one, text in claims.items())
    (folder / "fact_checks.csv").write_text(f"fact_check_id,claim,instances,title\n{rows}")
    rows = "".join(f"{one.replace('-', ',')}\n" for one in mapping)
    (folder / "fact_check_post_mapping.csv").write_text(f"fact_check_id,post_id\n{rows}")
    return folder


@pytest.mark.parametrize("variant", ["", "english"])
def test_monolingual_pools_hold_the_claims_in_the_posts_language(
    tmp_path: Path, variant: str
) -> None:
    root = write_multiclaim(
        tmp_path,
        {"1": "slk ice", "2": "pol stone", "3": "slk fog", "4": "ces ice"},
        {
            "10": "pol ice",
            "11": "slk ice",
            "12": "slk stone",
            "13": "pol stone",
            "14": "slk ice",
            "15": "deu ice",
        },
        ["11-1", "14-1", "10-1", "13-2", "10-3", "15-4"],
    )
    whole = formats.collection(root, "m", variant=variant)
    assert whole.languages == ("slk", "pol", "ces") and not whole.monolingual
    found = whole.by_language()
    assert [(q.query_id, q.part, dict(q.relevant)) for q in found.queries] == [
        ("1", "slk", {"slk/11": 1, "slk/14": 1}),
        ("2", "pol", {"pol/13": 1}),
    ]
    assert found.queries[0].pairs == {"slk/11": "1/11", "slk/14": "1/14"}
    left_out = [one.reason for one in found.rejected if one.file == "queries"]
    assert [reason.split(":")[0] for reason in left_out] == ["3", "4"]
    # Every claim in a language of the posts, one language at a time; no post is German.
    assert [d.key for d in found.documents()] == [
        "slk/11",
        "slk/12",
        "slk/14",
        "pol/10",
        "pol/13",
    ]
    best = search_lexical(found, 1.2, 0.75, own_corpus=True)
    assert best is not None
    ranked = {one.query_id: one for one in rankings(found, best)}
    assert set(ranked["1"].document_ids) == {"slk/11", "slk/12", "slk/14"}
    assert set(ranked["2"].document_ids) == {"pol/10", "pol/13"}
    assert set(ranked["1"].languages) == {"slk"}
    assert found.texts(["pol/13"])["pol/13"].casefold() == "pol stone"
    assert found.queries_digest != whole.queries_digest
    assert "documents of its own language" in found.notes[0]


def test_a_collection_without_answers_in_the_querys_language_is_refused(tmp_path: Path) -> None:
    root = write_multiclaim(tmp_path, {"1": "slk ice"}, {"10": "pol ice"}, ["10-1"])
    with pytest.raises(UserError, match="no query with a relevant document in its own language"):
        formats.collection(root, "m").by_language()


def test_a_data_set_without_relevance_judgments_is_refused(tmp_path: Path) -> None:
    row = {"query": "q", "document_1": "a", "document_2": "b"}
    (tmp_path / "foil.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match="no relevance judgments"):
        formats.collection(tmp_path, "c")
    with pytest.raises(UserError, match="There is no data set 'nope'"):
        datasets.collection("nope")


def test_grades_are_rounded_to_positive_integers() -> None:
    assert [as_grade(score, "score") for score in (0.2, 1, 1.0, 2.6, 3)] == [1, 1, 1, 3, 3]


def test_a_sample_of_documents_depends_only_on_their_ids() -> None:
    """Their order doesn't matter, and a larger sample contains the smaller one."""
    documents = [Document(f"d{i}", f"Number {i} melts.") for i in range(50)]
    whole = Collection("c", "C", (), lambda: iter(documents))
    turned = Collection("c", "C", (), lambda: iter(documents[::-1]))

    def ids(found: Collection) -> list[str]:
        return [one.document_id for one in found.documents()]

    few = ids(whole.sampled_documents(10, 0))
    assert len(few) == 10 and few == sorted(few, key=lambda one: int(one[1:]))
    assert set(few) == set(ids(turned.sampled_documents(10, 0)))
    assert set(few) < set(ids(whole.sampled_documents(20, 0)))
    assert set(few) != set(ids(whole.sampled_documents(10, 1)))
    assert whole.sampled_documents(10, 0).drawn == "10 of 50 documents, drawn with seed 0"
    assert whole.sampled_documents(50, 0) is whole
    assert whole.sampled_documents(10, 0).corpus_digest != whole.corpus_digest
    with pytest.raises(UserError, match="at least 1 document"):
        whole.sampled_documents(0, 0)
