"""Maps of a data set: what is drawn, and what is left out and counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from poslens.attribution.curves.projection import METRICS, Layout
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import TextPair
from poslens.cache.jobs.claims import in_use
from poslens.compute.compute import Compute
from poslens.studies.map import CurveMap, job, stored_map

LAYOUT = Layout(metric=METRICS["curves"], n_neighbors=3)
METHOD = make_method("terms")
WORDS = ("ice", "stone", "fog", "tide", "moon", "salt", "river", "sand")


def pair(number: int, word: str) -> TextPair:
    """The word is at one of four positions: so few distinct curves don't need UMAP, which takes ten
    seconds to compile."""
    others = [f"word{k}" for k in range(12)]
    others[3 * (number % 4)] = WORDS[number]
    return TextPair(f"p{number}", word, " ".join(others))


def test_curves_of_zeros_are_left_off_the_map(tmp_path: Path) -> None:
    """BM25's curve is zero if query and document share no word; such curves must not be mapped."""
    compute, spec = Compute(tmp_path), with_corpus(resolve("BM25"), "sample")
    pairs = [pair(n, word) for n, word in enumerate(WORDS)]
    strangers = [pair(n, "nothing") for n in range(2)]
    strangers = [TextPair(f"s{n}", one.query, one.document) for n, one in enumerate(strangers)]
    source = CurveMap(METHOD, [*pairs, *strangers])
    fingerprint, active = compute.identify(spec).key.fingerprint, list[bool]()
    run = job(compute, spec, source, LAYOUT).start(
        lambda _: active.append(in_use(compute.root, fingerprint))
    )
    run.wait()
    assert run.error == ""
    assert active[:-1] and all(active[:-1]), "Storage could delete what the map relies on"
    found = stored_map(compute, spec, source, LAYOUT)
    assert found.items == tuple(f"p{n}" for n in range(len(WORDS))) and found.n_flat == 2
    assert found.n_truncated == 0
    assert found.points is not None and found.points.shape == (len(WORDS), 2)
    assert np.isfinite(found.points).all()


def test_a_map_of_only_zeros_is_refused_in_one_sentence(tmp_path: Path) -> None:
    compute, spec = Compute(tmp_path), with_corpus(resolve("BM25"), "sample")
    source = CurveMap(METHOD, [pair(n, "nothing") for n in range(6)])
    run = job(compute, spec, source, LAYOUT).start()
    run.wait()
    assert run.error.startswith("All 6 vectors are zero or constant")
    found = stored_map(compute, spec, source, LAYOUT)
    assert (found.items, found.points, found.n_flat) == ((), None, 6)
