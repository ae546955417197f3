"""Pairs of documents for bias tests: read from ColDeR's files, or built from the evidence spans of
any data set.

Spans suffice for position, brevity and necessity. The other tests need the query's entity, the
answer, or another name of the entity; `lacking` states which.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from poslens.attribution.datasets.types import DataSet, spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_tests import COLDER_TESTS, TESTS, DocumentPair
from poslens.attribution.text import overlapping, require_sentences, sentences
from poslens.attribution.types import EvidenceSpan, TextPair

T = TypeVar("T")

FROM_EVIDENCE = ("position", "brevity", "necessity")
"""Tests for which evidence spans suffice."""

POSITIONS = ("end", "middle", "own")
"""Where d2 of the position test has the evidence: last, as in ColDeR's file; after half of the
other sentences; or where the data set's document has it."""

SHARES = (25, 50, 75, 100)
"""Positions of the evidence in the position test's variants: percent of the other sentences before
it."""

VARIED = ("position", "literal", "repetition")
"""Tests with variants."""

_USE_FILES = "use files of ColDeR or Re-DocRED"
NO_EVIDENCE = "The pair has no evidence span: mark the passage that answers the query."

_FILES = {f"{name}{suffix}": name for name in TESTS for suffix in ("", "_bias")}
"""ColDeR's file names; some tests append `_bias`."""

REPETITIONS = re.compile(r"repetition_([0-9]+)_of_([0-9]+)")
"""Names of files with variants of the repetition test, `repetition_m_of_n`: m of the n sentences
added to d1 name the entity, and none of those added to d2."""


@dataclass(frozen=True, slots=True)
class BiasPairs:
    """The pairs of one test, and the number of the data set's pairs that were excluded, by reason.

    `source` describes where they come from, for captions and exports; `variant` names the variant
    of the test, if these are pairs of one.
    """

    test: str
    pairs: tuple[DocumentPair, ...]
    source: str
    rejected: dict[str, int] = field(default_factory=dict)
    variant: str = ""

    @property
    def title(self) -> str:
        """Title of the test and its variant."""
        return ", ".join(filter(None, (TESTS[self.test].title, self.variant)))


def lacking(data: DataSet) -> dict[str, str]:
    """What the data set lacks for each test, in the paper's order; empty if it has pairs."""
    domains = data.pairs.labels("domain").values if _is_colder(data) else ()
    if files := {_FILES[domain] for domain in domains if domain in _FILES}:
        reason = "the data set has no pairs for it"
        return {n: "" if n in files else f"{reason} ({n}.jsonl)" for n in COLDER_TESTS}
    if not data.pairs.n_with_evidence:
        return dict.fromkeys(TESTS, f"the data set has no evidence spans: {_USE_FILES}")
    return {
        name: ""
        if name in FROM_EVIDENCE
        else f"evidence spans don't mark the entity, the answer or a wrong answer: {_USE_FILES}"
        for name in TESTS
    }


def available(data: DataSet) -> tuple[str, ...]:
    """Names of the tests that the data set has pairs for, in the paper's order."""
    return tuple(name for name, reason in lacking(data).items() if not reason)


def unknown_files(data: DataSet) -> list[str]:
    """Files of a ColDeR data set that belong to none of the seven tests."""
    domains = data.pairs.labels("domain").values if _is_colder(data) else ()
    return sorted(d for d in domains if d and d not in _FILES and not REPETITIONS.fullmatch(d))


def varied(data: DataSet) -> tuple[str, ...]:
    """The tests of `VARIED` that the data set has variants of."""
    tests = set(available(data)) - (set() if _repetitions(data) else {"repetition"})
    return tuple(test for test in VARIED if test in tests)


def variants(data: DataSet, test: str, limit: int | None = None) -> list[BiasPairs]:
    """The pairs of each variant of a test, at most `limit` pairs of each.

    Position: d2 has the evidence after each of `SHARES` of the other sentences, d1 first. In ColDeR
    files, d1 and its evidence are those of the position test's rows. Literal: the query has the
    entity's short name, or its long one; d1 has the same name and d2 the other, so the shorter
    document is the one with the short name. Repetition: m of n added sentences of d1 name the
    entity, none of d2.

    Raises:
        UserError: the data set has no variants of the test.
    """
    if test not in varied(data):
        needed = _NEEDED.get(test, "none exist")
        raise UserError(f"{data.title} has no variants of the test {test[:80]}: {needed}.")
    if test == "position":
        pairs: Sequence[TextPair] = data.pairs
        if _is_colder(data):
            pairs = [pair.first for pair in pairs_for(data, test).pairs]
        return [_built(pairs, test, f"{share}%", limit) for share in SHARES]
    rejected: dict[str, int] = {}
    if test == "literal":
        rows = pairs_for(data, test)
        lengths = [(len(p.first.document), len(p.second.document), p) for p in rows.pairs]
        groups = {
            "short name": [p for d1, d2, p in lengths if d1 < d2],
            "long name": [p for d1, d2, p in lengths if d1 > d2],
        }
        if equal := sum(d1 == d2 for d1, d2, _ in lengths):
            rejected["Both names are equally long."] = equal
    else:
        groups = {
            f"{m} of {n}": [_document_pair(*both) for both in both_documents]
            for (n, m), both_documents in sorted(_repetitions(data).items())
        }
    chosen = {name: _chosen(pairs, limit) for name, pairs in groups.items() if pairs}
    built = [
        BiasPairs(test, tuple(pairs), f"pairs of documents as in ColDeR{note}", variant=name)
        for name, (pairs, note) in chosen.items()
    ]
    return [replace(pairs, rejected={} if i else rejected) for i, pairs in enumerate(built)]


_NEEDED = {
    "position": "it has no pairs for the test",
    "literal": "it needs a file literal_bias.jsonl, or Re-DocRED's files",
    "repetition": "it needs Re-DocRED's files, which mark the sentences that name the entity",
}


def pairs_for(
    data: DataSet, test: str, position: str = POSITIONS[0], limit: int | None = None
) -> BiasPairs:
    """The pairs of a test, at most `limit` of them, spread evenly over the data set. `position`
    applies to the position test of data sets other than ColDeR files.

    Raises:
        UserError: an unknown test or position, or the data set has no pairs for the test.
    """
    if test not in TESTS:
        raise UserError(f"There is no bias test {test[:80]!r}: choose from {', '.join(TESTS)}.")
    if position not in POSITIONS:
        raise UserError(f"position can't be {position[:80]!r}: choose from {', '.join(POSITIONS)}.")
    if reason := lacking(data).get(test, "ColDeR's rows have no document without the evidence"):
        raise UserError(f"{data.title} has no pairs for the test {test}: {reason}.")
    if not _is_colder(data):
        return _built(data.pairs, test, position, limit)
    rows = [
        _document_pair(first, second)
        for first, second in _both(data.pairs)
        if _FILES.get(first.domain or "") == test
    ]
    chosen, note = _chosen(rows, limit)
    return BiasPairs(test, tuple(chosen), f"pairs of documents as in ColDeR{note}")


def _chosen(items: Sequence[T], limit: int | None) -> tuple[Sequence[T], str]:
    """`limit` of the items, spread evenly, and a remark about the selection."""
    if limit is None or limit >= len(items):
        return items, ""
    return spread_evenly(items, limit), f"; {limit:,} of {len(items):,} spread evenly"


# -- ColDeR files ------------------------------------------------------------------------------


def _is_colder(data: DataSet) -> bool:
    """Whether the data set's pairs are the documents of ColDeR's rows."""
    first, second = (*data.pairs[:2], None, None)[:2]
    return first is not None and second is not None and _row(first) == _row(second) != ""


def _row(pair: TextPair) -> str:
    """`<bias>/<id>` of a pair read by poslens.attribution.datasets.colder; otherwise empty."""
    row, _, side = pair.pair_id.rpartition("/")
    return row if side in ("1", "2") and row.startswith(f"{pair.domain}/") else ""


def _both(pairs: Sequence[TextPair]) -> Iterator[tuple[TextPair, TextPair]]:
    """Both documents of each row: the reader returns one after the other, or neither."""
    return zip(pairs[::2], pairs[1::2], strict=True)


def _document_pair(first: TextPair, second: TextPair) -> DocumentPair:
    # Rows with the same two documents, in either order, are not independent.
    source = str(hash(frozenset((first.document, second.document))))
    return DocumentPair(_row(first), first, second, source)


def _repetitions(data: DataSet) -> dict[tuple[int, int], list[tuple[TextPair, TextPair]]]:
    """Rows of the repetition test's variants by the numbers of sentences: all, and those that name
    the entity."""
    rows: dict[tuple[int, int], list[tuple[TextPair, TextPair]]] = {}
    for first, second in _both(data.pairs) if _is_colder(data) else ():
        if match := REPETITIONS.fullmatch(first.domain or ""):
            rows.setdefault((int(match[2]), int(match[1])), []).append((first, second))
    return rows


# -- built from evidence spans -----------------------------------------------------------------


def _built(pairs: Sequence[TextPair], test: str, position: str, limit: int | None) -> BiasPairs:
    built: list[DocumentPair] = []
    rejected: Counter[str] = Counter()
    marked = [pair for pair in pairs if pair.evidence is not None]
    if len(marked) < len(pairs):
        rejected[NO_EVIDENCE] = len(pairs) - len(marked)
    splittable = []
    for pair in marked:
        try:
            require_sentences(pair.document)
        except UserError as error:
            rejected[str(error)] += 1
        else:
            splittable.append(pair)
    chosen, spread = _chosen(splittable, limit)
    for pair in chosen:
        try:
            built.append(build(pair, test, position))
        except UserError as error:
            rejected[str(error)] += 1
    share = position in _PERCENT
    where = f"{position} of the other sentences" if share else _WHERE.get(position, "")
    how = {
        "position": f"evidence moved from the front to {'after ' * share}{where}",
        "brevity": "evidence alone against evidence and the rest",
        "necessity": "the document against the document without its evidence",
    }[test]
    note = f"built from evidence spans: {how}; other sentences may name the entity too"
    if not built:
        reasons = "; ".join(f"{n:,} x {reason}" for reason, n in rejected.items())
        raise UserError(f"No pair of documents could be built for the test {test}: {reasons}")
    variant = position if share else ""
    return BiasPairs(test, tuple(built), note + spread, dict(rejected), variant)


_PERCENT = {f"{share}%": share / 100 for share in SHARES}
_WHERE = {"end": "the end", "middle": "the middle", "own": "its own position"}


def build(pair: TextPair, test: str, position: str = POSITIONS[0]) -> DocumentPair:
    """d1 and d2 of one query, document and evidence span, built from whole sentences.

    The evidence is every sentence that the span touches, as one block. Position: d1 has it first
    and d2 at `position`, one of `POSITIONS` or a percentage of `SHARES`; the other sentences are
    the same and in order. Brevity: d1 is the evidence alone, d2 the evidence followed by all other
    sentences. Necessity: d2 lacks the evidence. Sentences are joined by the most frequent white
    space between the document's sentences.

    Raises:
        UserError: the evidence has no words, or there is no other sentence.
    """
    assert pair.evidence is not None
    spans = sentences(pair.document, pair.language)
    touched = overlapping(spans, pair.evidence)
    evidence = [pair.document[slice(*spans[i])] for i in touched]
    others = [pair.document[slice(*span)] for i, span in enumerate(spans) if i not in touched]
    if not evidence:
        raise UserError("The evidence span has no words: mark a passage with words.")
    if not others:
        raise UserError("The document has no sentence outside the evidence: use a longer one.")
    gaps = Counter(pair.document[a[1] : b[0]] for a, b in pairwise(spans))
    gap = gaps.most_common(1)[0][0]
    shares = {"end": 1.0, "middle": 0.5, **_PERCENT}
    before = touched[0] if position == "own" else int(shares[position] * len(others))
    orders: list[tuple[int, list[str]]] = {
        "position": [(0, others), (before, others)],
        "brevity": [(0, []), (0, others)],
        "necessity": [(touched[0], others)],
    }[test]
    # The position is part of the id, so results of two positions are stored separately.
    item = f"{test}-{position}/{pair.pair_id}" if test == "position" else f"{test}/{pair.pair_id}"
    placed = [
        _placed(pair, evidence, rest, at, gap, f"{item}/{side}")
        for side, (at, rest) in enumerate(orders, start=1)
    ]
    if test == "necessity":
        rest = gap.join(others)
        placed.append(replace(placed[0], pair_id=f"{item}/2", document=rest, evidence=None))
    first, second = placed
    return DocumentPair(item, first, second, pair.document)


def _placed(
    pair: TextPair, evidence: list[str], others: list[str], before: int, gap: str, pair_id: str
) -> TextPair:
    """The document with the evidence after the first `before` other sentences."""
    front = "".join(f"{sentence}{gap}" for sentence in others[:before])
    middle = gap.join(evidence)
    back = "".join(f"{gap}{sentence}" for sentence in others[before:])
    return replace(
        pair,
        pair_id=pair_id,
        document=front + middle + back,
        evidence=EvidenceSpan(len(front), len(front) + len(middle)),
        document_tokens=None,
    )
