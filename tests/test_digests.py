"""Caches in memory are keyed by digests of contents, never by `id()`."""

import ast
import gc
from dataclasses import replace
from pathlib import Path

from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.datasets.judged_pairs import from_pairs
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.compute.selection import facets
from poslens.studies.ranking.service import monolingual

ROOT = Path(__file__).resolve().parents[1]

# Objects that live as long as the dictionary in which their id is a key.
WITHIN_ONE_CALL = {
    "attribution/methods/linearized.py",
    "attribution/retrievers/hub.py",
    "cache/storage/encoded.py",
}


def data_set(document: str = "Fog lifts at noon.") -> DataSet:
    pairs = [
        TextPair("a", "when does fog lift", document, EvidenceSpan(0, 3), "eng", dataset="d"),
        TextPair("b", "what rises", "Bread rises.", language="eng", dataset="d"),
    ]
    return DataSet("d", "D", Pairs(pairs))


def test_no_cache_is_keyed_by_an_address() -> None:
    found = set()
    for package in ("attribution", "cache", "poslens", "dashboard"):
        for path in (ROOT / package).glob("**/*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "id":
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == WITHIN_ONE_CALL


def test_only_equal_data_sets_share_an_entry() -> None:
    one = facets(data_set())
    assert facets(data_set()) is one
    for other in (data_set("Fog lifts at ten."), replace(data_set(), title="E")):
        assert facets(other) is not one
        assert facets(other).data == other


def test_a_data_set_at_the_memory_address_of_a_deleted_one_is_not_confused_with_it() -> None:
    for number in range(200):
        text = f"Fog number {number} lifts."
        assert facets(data_set(text)).data.pairs[0].document == text
        gc.collect(0)


def test_equal_pairs_have_one_digest() -> None:
    pairs = data_set().pairs
    assert Pairs(pairs).digest == Pairs(list(data_set().pairs)).digest
    others = [pairs[::-1], pairs[:1], (replace(pairs[0], language="deu"), pairs[1])]
    assert len({Pairs(other).digest for other in (pairs, *others)}) == 4


def test_only_equal_collections_share_an_entry() -> None:
    one = monolingual(from_pairs(data_set()))
    assert monolingual(from_pairs(data_set())) is one
    assert monolingual(from_pairs(data_set("Fog lifts at ten."))) is not one
    gc.collect()
    assert monolingual(from_pairs(data_set())) is one


def test_a_collection_digest_covers_queries_documents_and_how_they_were_drawn() -> None:
    whole = from_pairs(data_set())
    others = [
        from_pairs(data_set("Fog lifts at ten.")),
        replace(whole, title="E"),
        replace(whole, drawn="one query"),
        replace(whole, monolingual=True),
        replace(whole, skips_own_id=True),
        replace(whole, queries=whole.queries[:1]),
        replace(whole, queries=(replace(whole.queries[0], evidence=0.5), *whole.queries[1:])),
        replace(whole, stream=lambda: (replace(d, language="deu") for d in whole.stream())),
    ]
    assert len({one.digest for one in (whole, *others)}) == 1 + len(others)


def test_a_collection_digest_follows_the_files_of_its_corpus(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text("one")

    def collection() -> Collection:
        return replace(from_pairs(data_set()), files=(file,))

    before = collection().digest
    assert collection().digest == before
    file.write_text("another")
    assert collection().digest != before
