"""Repeated lookups of the same pairs are cached and still return the current results: compared with
a plain dictionary, through everything that can happen to a file."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution.curves.text_axis import curves_of
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import Array, Attribution, TextPair
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage import blocks, index
from poslens.cache.storage.maintenance import compact, drop_file, listing, repair
from poslens.cache.storage.rows import ATTRIBUTION, Key, select
from poslens.cache.storage.store import ModelKey, Store

Make = Callable[..., tuple[TextPair, Attribution]]
Known = dict[tuple[str, str], tuple[TextPair, Attribution | str]]
MODEL = ModelKey("M", "0123456789abcdef")
METHOD = make_method("saliency")


def _same(store: Store, asked: tuple[TextPair, ...], known: Known) -> None:
    """Assert that results of cached pairs equal the dictionary and what a process without caches
    reads."""
    expected: list[tuple[str, Array]] = []
    failed: dict[str, str] = {}
    for pair in asked:
        if (pair.dataset, pair.pair_id) not in known:
            continue
        of, what = known[pair.dataset, pair.pair_id]
        if (of.query, of.document) != (pair.query, pair.document):
            continue
        if isinstance(what, str):
            failed[pair.pair_id] = what
        else:
            expected.append((pair.pair_id, curves_of(what, METHOD, len(pair.document))[0]))
    missing = [p for p in asked if p.pair_id not in {*failed, *(name for name, _ in expected)}]
    for _ in range(2):
        found = store.curves(MODEL, METHOD, asked)
        assert found.pair_ids == tuple(name for name, _ in expected)
        assert found.failed == failed
        if expected:
            assert np.array_equal(found.curves, np.stack([curve for _, curve in expected]))
        assert store.missing(MODEL, METHOD, asked) == missing
    remembered = index._kept.copy()
    index.forget_below(Path("/"))
    fresh = store.curves(MODEL, METHOD, list(asked))
    index._kept.update(remembered)
    assert fresh.pair_ids == found.pair_ids and fresh.failed == found.failed
    assert np.array_equal(fresh.curves, found.curves)
    assert np.array_equal(fresh.scores, found.scores)


@pytest.mark.parametrize("seed", range(4))
def test_a_cached_selection_gets_what_is_stored_now(
    store: Store, result: Make, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(blocks, "MERGE_EVERY", 5)
    chance = random.Random(seed)
    makers = {f"p{n}": ("set", "other")[n % 2] for n in range(8)}
    made = {name: result(name, dataset=dataset) for name, dataset in makers.items()}
    changed = {
        name: result(name, dataset=dataset, document=f"another text {name} here")
        for name, dataset in makers.items()
    }
    # The same ids in another data set, with separate results.
    elsewhere = {name: result(name, dataset="third", query=f"q {name}") for name in list(made)[:3]}
    asked = Pairs(pair for pair, _ in made.values())
    other = Pairs(pair for pair, _ in changed.values())
    mixed = Pairs((*asked[:4], *other[4:]))
    third = Pairs(pair for pair, _ in elsewhere.values())
    known: Known = {}
    for step in range(40):
        pool = chance.choice([made, changed, elsewhere])
        names = chance.sample(list(pool), chance.randint(1, 3))
        rows = [pool[name] for name in names]
        what = chance.choice(["put", "put", "put", "fail", "remove", "compact", "drop"])
        if what == "put":
            # A result with other numbers than before.
            rows = [
                (pair, replace(one, document_scores=one.document_scores + np.float32(step + 1)))
                for pair, one in rows
            ]
            store.put(MODEL, METHOD, rows)
            known |= {(pair.dataset, pair.pair_id): (pair, one) for pair, one in rows}
        elif what == "fail":
            store.put_failures(MODEL, METHOD, [(pair, f"why {step}") for pair, _ in rows])
            known |= {(pair.dataset, pair.pair_id): (pair, f"why {step}") for pair, _ in rows}
        elif what == "remove":
            keys = [Key(p.dataset, p.pair_id, text_fingerprint(p)) for p, _ in rows]
            with store.reading(MODEL, METHOD) as db:
                there = select(db, ATTRIBUTION, keys) if db is not None else {}
            repair(store, MODEL, METHOD, [row.id for row in there.values()])
            for dataset, pair_id, _ in there:
                del known[dataset, pair_id]
        elif what == "compact" and store.path(MODEL, METHOD).exists():
            compact(store, MODEL, METHOD)
        elif what == "drop" and step % 4 == 0:
            for file in listing(store):
                drop_file(file)
            known.clear()
        for pairs in (asked, other, mixed, third):
            _same(store, pairs, known)


def test_a_copied_file_is_distinguished_from_its_original(store: Store, result: Make) -> None:
    """A copy has the same epoch and serials, but can diverge."""
    first, second = result("p1"), result("p2")
    store.put(MODEL, METHOD, [first])
    store.release()
    copied = Store(store.root.with_name("copied"))
    shutil.copytree(store.root, copied.root)
    asked = Pairs((first[0], second[0]))
    store.put(MODEL, METHOD, [second])
    copied.put_failures(MODEL, METHOD, [(second[0], "too long")])
    for _ in range(2):
        assert store.curves(MODEL, METHOD, asked).pair_ids == ("p1", "p2")
        assert copied.curves(MODEL, METHOD, asked).failed == {"p2": "too long"}
