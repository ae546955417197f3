"""Selection by filters, compared with a plain loop over pairs; and its caches."""

from __future__ import annotations

import random
import unicodedata

import pytest

from poslens.attribution import datasets
from poslens.attribution.curves.positions import length_bucket
from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.compute.selection import ANY, FACETS, Filters, evidence_position, facets
from poslens.studies.map import CurveMap


def pair(n: int, chance: random.Random) -> TextPair:
    words = [chance.choice(["fog", "ice", "tide"]) for _ in range(12)]
    document = " ".join(words)
    start = chance.randrange(len(document) - 4)
    return TextPair(
        f"p{n}",
        f"what is {n}",
        document,
        chance.choice([None, EvidenceSpan(start, start + 4)]),
        domain=chance.choice(["sea", "land", None]),
        language=chance.choice(["eng", "deu"]),
        document_tokens=chance.choice([None, 100, 600, 2000]),
        query_type=chance.choice([None, "question"]),
    )


@pytest.fixture
def data() -> DataSet:
    chance = random.Random(4)
    return DataSet("some", "some", Pairs(pair(n, chance) for n in range(200)))


@pytest.mark.parametrize("seed", range(20))
def test_selected_pairs_equal_those_of_a_plain_loop(data: DataSet, seed: int) -> None:
    chance = random.Random(seed)
    found = facets(data)
    wanted = {name: chance.choice([ANY, ANY, *found.counts[name]]) for name in FACETS}
    low, high = sorted(chance.sample(range(0, 101, 5), 2))
    search = chance.choice(["", "FOG ice", "p1"])

    def passes(one: TextPair) -> bool:
        bucket = length_bucket(one.document_tokens) if one.document_tokens else ""
        values = [one.domain, one.language, bucket, one.query_type]
        if any(wanted[name] not in (ANY, v) for name, v in zip(FACETS, values, strict=True)):
            return False
        at = evidence_position(one)
        if at is None or not low <= 100 * at <= high:
            return False
        said = f"{one.pair_id} {one.query} {one.document}".casefold()
        return all(word in said for word in search.casefold().split())

    chosen = found.select(Filters(tuple(wanted.items()), (low, high), search))
    assert chosen.pairs == tuple(one for one in data.pairs if passes(one))
    assert [chosen.pairs.find(one.pair_id) for one in chosen.pairs] == list(
        range(len(chosen.pairs))
    )


def test_without_filters_all_pairs_are_selected(data: DataSet) -> None:
    chosen = facets(data).select(Filters((("domain", ANY),)))
    assert chosen.pairs == data.pairs and chosen.words == ""


@pytest.mark.parametrize(
    ("search", "text"),
    [
        ("Hải đăng", unicodedata.normalize("NFD", "Ngọn hải đăng cổ.")),
        (unicodedata.normalize("NFD", "Hải đăng"), "Ngọn hải đăng cổ."),
        ("istanbul", "İstanbul büyük."),
        ("ISPARTA", "ısparta küçük."),
        ("ΦΆΡΟΣ", "Ο φάρος."),
        ("strasse", "Lange Straße"),
        ("月球", "海洋潮汐由月球引力引起。"),
    ],
)
def test_a_search_ignores_case_and_the_unicode_form(search: str, text: str) -> None:
    pairs = Pairs([TextPair("a", "x", text), TextPair("b", "x", "Other.")])
    chosen = facets(DataSet(text, text, pairs)).select(Filters(search=search))
    assert chosen.pairs.ids.tolist() == ["a"]


def test_the_description_names_only_the_active_filters() -> None:
    asked = Filters((("domain", "sea"), ("language", ANY), ("query_type", "a")), (0, 20), " Fog  x")
    assert str(asked) == "domain sea, query type a, evidence 0-20%, search 'fog x'"


def test_selections_are_cached_per_data_set(data: DataSet) -> None:
    asked = Filters((("language", "eng"),))
    assert facets(data).select(asked) is facets(data).select(asked)
    assert facets(datasets.read(datasets.SAMPLE)).select(asked).data is not data


def test_the_posir_selection_is_cached_too(data: DataSet) -> None:
    found = facets(data).select(Filters()).posir
    assert isinstance(found.pairs, Pairs) and found.words == "PosIR protocol"
    assert found.pairs == tuple(
        pair for pair in data.pairs if datasets.posir_selection(Pairs([pair]))
    )
    assert facets(data).select(Filters()).posir is found
    assert CurveMap(make_method("saliency"), found.pairs).pairs is found.pairs
