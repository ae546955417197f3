"""How much of each pair a model can read, given its context limit and vocabulary; cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from poslens.attribution.coverage import MAX_UNKNOWN as MAX_UNKNOWN
from poslens.attribution.coverage import Coverage, of_attribution
from poslens.attribution.coverage import coverage as read
from poslens.attribution.pairs import Pairs, columns_of
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute, Explained
from poslens.compute.provenance import ModelIdentity

# Counting takes about a millisecond of tokenizing per document, so nothing is written to disk.
_coverages: LRUCache[Coverage] = LRUCache(500_000, made_again=False)

# A page calls this at every rerun, and several models read more pairs of a large set than the cache
# above can hold.
_readable: LRUCache[Pairs] = LRUCache(1_000_000, weigh=lambda pairs: 1 + len(pairs))

_QUICK = 500

Report = Callable[[int, int], None]
"""Called between batches with the number of pairs counted so far and in total. An exception that it
raises ends the counting; counts so far are not lost."""


LEFT_OUT = "only pairs whose evidence no model truncates"


def _key(model: ModelIdentity, pair: TextPair) -> tuple[str, int]:
    # A hash instead of the text, so that an uploaded document is not retained after its session.
    return model.key.fingerprint, hash((pair.query, pair.document, pair.evidence))


def _reads_texts(spec: RetrieverSpec) -> bool:
    return Capability.REMOVAL in family_of(spec).capabilities


def known(compute: Compute, spec: RetrieverSpec, pairs: Sequence[TextPair]) -> dict[str, Coverage]:
    """The cached coverage of each pair, by pair id; computes nothing."""
    if not _coverages.weight:
        return {}
    model = compute.identify(spec)
    cached = ((pair.pair_id, _coverages.find(_key(model, pair))) for pair in pairs)
    return {pair_id: coverage for pair_id, coverage in cached if coverage is not None}


def at_hand(
    compute: Compute, spec: RetrieverSpec, pairs: Sequence[TextPair]
) -> dict[str, Coverage]:
    """The cached coverage of pairs, by pair id. If the model is loaded and only a few pairs are
    missing, they are counted first, which takes a second at most."""
    coverages = known(compute, spec, pairs)
    quick = len(pairs) - len(coverages) <= _QUICK and _reads_texts(spec)
    if quick and compute.loaded(compute.identify(spec)):
        return count(compute, spec, pairs)
    return coverages


def count(
    compute: Compute,
    spec: RetrieverSpec,
    pairs: Sequence[TextPair],
    report: Report = lambda done, total: None,
) -> dict[str, Coverage]:
    """The coverage of each pair, by pair id. Loads the model if any pair has not been counted.

    Raises:
        UserError: the model cannot be loaded, or it reads no text itself.
    """
    model = compute.identify(spec)
    coverages = known(compute, spec, pairs)
    missing = [pair for pair in pairs if pair.pair_id not in coverages]
    if missing:
        done = 0
        for batch in read(compute.retriever(model), missing):
            for pair, counts in zip(missing[done:], batch, strict=False):
                coverages[pair.pair_id] = _coverages.keep(_key(model, pair), counts)
            done += len(batch)
            report(len(pairs) - len(missing) + done, len(pairs))
    return coverages


def of_pair(compute: Compute, result: Explained) -> Coverage:
    """The coverage of one result's document, without loading its model: if it is not loaded, taken
    from the attribution."""
    model, pair = result.model, result.pair
    if (counts := _coverages.find(_key(model, pair))) is not None:
        return counts
    if _reads_texts(model.spec) and compute.loaded(model):
        return count(compute, model.spec, [pair])[pair.pair_id]
    return of_attribution(result.attribution, pair.evidence)


def readable(
    compute: Compute,
    specs: Sequence[RetrieverSpec],
    pairs: Sequence[TextPair],
    report: Report = lambda done, total: None,
) -> Pairs:
    """The pairs whose evidence every model reads completely and in which every model knows nearly
    all tokens. The same `Pairs` gives the same object while it is cached.

    Raises:
        UserError: a model cannot be loaded.
    """

    def select() -> Pairs:
        by_model = [count(compute, spec, pairs, report) for spec in specs]
        columns = columns_of(pairs)
        keep = (all(of[i].readable for of in by_model) for i in columns.ids)
        return columns.select(np.fromiter(keep, np.bool_, len(columns)))

    if not isinstance(pairs, Pairs):
        return select()
    models = frozenset(compute.identify(spec).key.fingerprint for spec in specs)
    return _readable.get((models, pairs.digest), select)


def sentence(coverages: Mapping[str, Coverage]) -> str:
    """What the model cannot read of a data set's pairs, as a clause; empty if it reads all."""
    n = len(coverages)
    cut = sum(coverage.evidence_cut for coverage in coverages.values())
    n_mostly_unknown = sum(coverage.unknown_share > MAX_UNKNOWN for coverage in coverages.values())
    tokens = sum(coverage.tokens for coverage in coverages.values())
    unknown = sum(coverage.unknown for coverage in coverages.values())
    parts = []
    if cut:
        parts.append(f"in {cut:,} of {n:,} pairs the evidence is past its context limit")
    if unknown:
        parts.append(
            f"{unknown / tokens:.1%} of the tokens are unknown to it (more than "
            f"{MAX_UNKNOWN:.0%} in {n_mostly_unknown:,} of {n:,} pairs)"
        )
    return "; ".join(parts)


def pair_sentence(counts: Coverage) -> str:
    """What the model cannot read of one pair, as sentences: unknown tokens, and evidence past the
    context limit; empty if nothing."""
    parts = []
    if counts.unknown:
        parts.append(f"{counts.unknown_share:.0%} of these tokens are unknown to the model.")
    if counts.evidence == 0:
        parts.append("All of the evidence is past the context limit.")
    elif counts.evidence is not None and counts.evidence_cut:
        parts.append(f"{1 - counts.evidence:.0%} of the evidence is past the context limit.")
    return " ".join(parts)
