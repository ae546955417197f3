"""Pairs that are used repeatedly, with their attributes as columns for vectorized lookups."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import eq
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.types import TextPair, text_digest

LabelName = Literal["dataset", "language", "domain", "query_type", "query_language"]


class Labels(NamedTuple):
    """A column of texts that repeat: each pair's index in `values` [n], -1 where it has none."""

    codes: NDArray[np.signedinteger[Any]]
    values: tuple[str, ...]


class Pairs(Sequence[TextPair]):
    """A sequence of n pairs. Their attributes as columns [n] are computed at first use and freed
    together with it; callers must not modify the arrays."""

    def __init__(self, pairs: Iterable[TextPair] = ()) -> None:
        self._pairs = tuple(pairs)
        self._labels: dict[LabelName, Labels] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, place: int) -> TextPair: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[TextPair, ...]: ...

    def __getitem__(self, place: int | slice) -> TextPair | tuple[TextPair, ...]:
        return self._at(place)

    def _at(self, place: int | slice) -> TextPair | tuple[TextPair, ...]:
        return self._pairs[place]

    def __iter__(self) -> Iterator[TextPair]:
        return iter(self._pairs)

    def __eq__(self, other: object) -> bool:
        """Whether the other is a sequence of equal pairs, in the same order."""
        if self is other:
            return True
        if not isinstance(other, Pairs | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash((len(self), *self.ids[:1], *self.ids[-1:]))

    def __repr__(self) -> str:
        return f"Pairs({len(self):,}, {self.digest})"

    @cached_property
    def digest(self) -> str:
        """Digest of everything in the pairs, for caches in this process's memory. It uses the
        strings' own keyed hashes, which Python caches, so it reads no text twice."""
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        return hashlib.sha256(hashes.tobytes()).hexdigest()[:32]

    # -- columns -------------------------------------------------------------------------------

    @cached_property
    def ids(self) -> NDArray[np.object_]:
        """Pair ids [n]."""
        return np.array([pair.pair_id for pair in self], dtype=object)

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        """Fingerprints of the pairs' texts as signed 64-bit integers [n], as the store indexes
        them."""
        return fingerprints(pair.text_digest for pair in self)

    @cached_property
    def _sorted_texts(self) -> NDArray[np.int64]:
        return np.sort(self.texts)

    def joins(self, query: str, document: str) -> bool:
        """Whether a pair joins these two texts."""
        (text,) = fingerprints([text_digest(query, document)])
        place = int(self._sorted_texts.searchsorted(text))
        return place < len(self) and bool(self._sorted_texts[place] == text)

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """Index of each pair's document among the distinct documents [n], numbered in order of
        first occurrence."""
        return numbered([pair.document for pair in self])

    @cached_property
    def document_tokens(self) -> NDArray[np.int64]:
        """The data set's token counts of the documents [n]; 0 where it has none."""
        return np.fromiter((pair.document_tokens or 0 for pair in self), np.int64, len(self))

    @cached_property
    def evidence_positions(self) -> NDArray[np.float64]:
        """Midpoints of the evidence as shares of the documents' characters [n]; NaN without
        evidence."""
        return midpoints(
            np.fromiter((p.evidence.start if p.evidence else -1 for p in self), np.int64),
            np.fromiter((p.evidence.end if p.evidence else -1 for p in self), np.int64),
            np.fromiter((len(pair.document) for pair in self), np.int64),
        )

    @property
    def n_documents(self) -> int:
        """The number of distinct documents."""
        return int(self.documents.max(initial=-1)) + 1

    @property
    def n_with_evidence(self) -> int:
        """The number of pairs with evidence."""
        return int(np.isfinite(self.evidence_positions).sum())

    @cached_property
    def has_queries(self) -> bool:
        """Whether any pair has a query."""
        return any(pair.query for pair in self)

    def labels(self, name: LabelName) -> Labels:
        """The column of data set names, languages, domains, query types or stated languages of
        queries."""
        if name not in self._labels:
            self._labels[name] = self._read_labels(name)
        return self._labels[name]

    def _read_labels(self, name: LabelName) -> Labels:
        codes: dict[str | None, int] = {None: -1}
        values = [codes.setdefault(getattr(pair, name), len(codes) - 1) for pair in self]
        return Labels(
            np.array(values, np.int32), tuple(value for value in codes if value is not None)
        )

    @cached_property
    def places(self) -> Mapping[str, NDArray[np.int64]]:
        """Indices of the pairs of each data set, by data set name."""
        codes, values = self.labels("dataset")
        return {name: np.flatnonzero(codes == code) for code, name in enumerate(values)}

    # -- lookups and selections ----------------------------------------------------------------

    def find(self, pair_id: str) -> int | None:
        """Index of the (last) pair with this id; None if there is none."""
        return self._by_id.get(pair_id)

    def get(self, pair_id: str) -> TextPair | None:
        """The (last) pair with this id; None if there is none."""
        place = self.find(pair_id)
        return None if place is None else self[place]

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {pair.pair_id: place for place, pair in enumerate(self)}

    def documents_of(self, ids: Sequence[str]) -> list[int]:
        """The document of the pair with each id, as its index in `documents`: the groups that a
        bootstrap resamples."""
        documents: list[int] = self.documents.tolist()
        pair_ids = self.ids.tolist()
        if pair_ids == ids:
            return documents
        document_of = dict(zip(pair_ids, documents, strict=True))
        return [document_of[pair_id] for pair_id in ids]

    def select(self, places: NDArray[np.int64] | NDArray[np.bool_]) -> Pairs:
        """The pairs at these indices in this order, or those where a mask [n] is true."""
        indices = np.flatnonzero(places) if places.dtype == np.bool_ else places
        return Pairs(self._pairs[place] for place in indices.tolist())

    def containing(self, words: Sequence[str]) -> NDArray[np.bool_]:
        """Mask [n] of the pairs that have every word in their id, query or document, ignoring
        case and the Unicode form of accents."""
        needles = [_folded(word) for word in words]
        texts = (_folded(f"{pair.pair_id} {pair.query} {pair.document}") for pair in self)
        keep = (all(needle in text for needle in needles) for text in texts)
        return np.fromiter(keep, np.bool_, len(self))

    def holds(self, pairs: Sequence[TextPair]) -> bool:
        """Whether `pairs` were selected from these, so that their ids identify them; False if they
        only have the same ids."""
        places = ((self.find(pair.pair_id), pair) for pair in pairs)
        return all(place is not None and self._pairs[place] is pair for place, pair in places)

    @property
    def once(self) -> Pairs:
        """The pairs without duplicate ids: each at its first position, with its last texts."""
        return self if self._once is None else self._once

    @cached_property
    def _once(self) -> Pairs | None:
        # None instead of `self`: a reference cycle would survive until the next garbage collection.
        ids = self.ids.tolist()
        if len(self.places) < 2:
            last: dict[object, int] = dict(zip(ids, range(len(ids)), strict=True))
        else:
            # Comparing ids is enough in the common case; a million tuples would take 70 MB.
            datasets = self.labels("dataset").codes.tolist()
            last = {key: place for place, key in enumerate(zip(datasets, ids, strict=True))}
        if len(last) == len(ids):
            return None
        return self.select(np.fromiter(last.values(), np.int64, len(last)))


def _folded(text: str) -> str:
    """Text for a search, with i for both Turkish letters, as BM25 compares words: a tenth of the
    time of `retrievers.lexical.folded`, which covers all cases of canonical caseless matching."""
    plain = unicodedata.normalize("NFC", text.casefold())
    return plain.replace("i\u0307", "i").replace("\u0131", "i")


def columns_of(pairs: Sequence[TextPair]) -> Pairs:
    """The pairs with their columns: the same object if it is a `Pairs`, which keeps them."""
    return pairs if isinstance(pairs, Pairs) else Pairs(pairs)


def fingerprints(digests: Iterable[bytes]) -> NDArray[np.int64]:
    """The first 64 bits of each digest as signed integers [n]."""
    heads = b"".join([digest[:8] for digest in digests])
    return np.frombuffer(heads, ">i8").astype(np.int64)


def midpoints(
    starts: NDArray[np.integer], ends: NDArray[np.integer], lengths: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Midpoints of spans as shares of their texts' lengths [n]; NaN where a start is negative."""
    shares = (starts.astype(np.int64) + ends) / 2 / np.maximum(lengths, 1)
    return np.where(starts < 0, np.nan, shares)


def numbered(groups: Sequence[Hashable]) -> NDArray[np.int64]:
    """Groups as integers [n] from 0, in order of first appearance."""
    order: dict[Hashable, int] = {}
    return np.array([order.setdefault(group, len(order)) for group in groups], dtype=np.int64)
