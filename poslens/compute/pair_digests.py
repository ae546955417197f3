"""Digests of pairs that are the same in every process: keys of stored results computed from them.

Pairs of a registered data set are identified by the digests of its files, which are cached: hashing
the texts of 421,000 pairs takes longer than reading their mean curve.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from poslens.attribution import datasets
from poslens.attribution.datasets.indexes import code_digest
from poslens.attribution.errors import UserError
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import TextPair
from poslens.cache.columns import columns_of
from poslens.cache.keys import file_digest
from poslens.compute.provenance import poslens_version

MANY = 2000
"""Minimum number of pairs that are identified by the files of their data set; the texts of fewer
are hashed faster than their files are looked up."""

_digests: WeakKeyDictionary[Pairs, str] = WeakKeyDictionary()


def digest_of(*values: object) -> str:
    """32 hexadecimal digits that hash the values, whose `repr` must not depend on the process."""
    return hashlib.blake2b(repr(values).encode("utf-8", "replace"), digest_size=16).hexdigest()


def pairs_digest(pairs: Sequence[TextPair]) -> str:
    """32 hexadecimal digits that hash data sets, ids, texts and order of the pairs."""
    columns = columns_of(pairs)
    if (digest := _digests.get(columns)) is None:
        digest = ""
        with suppress(UserError, OSError):  # the data set's files are gone
            digest = _of_files(pairs)
        digest = _digests[columns] = digest or _of_texts(columns)
    return digest


def _of_texts(columns: Pairs) -> str:
    total = hashlib.blake2b(columns.texts.tobytes(), digest_size=16)
    for dataset, places in columns.places.items():
        total.update(repr((dataset, columns.ids[places].tolist())).encode("utf-8", "replace"))
    return total.hexdigest()


def _of_files(pairs: Sequence[TextPair]) -> str:
    """The digest of pairs of one registered data set; empty for few pairs, for pairs of no
    registered data set, and if its files have changed since they were read."""
    name = pairs[0].dataset if len(pairs) >= MANY else ""
    if name not in datasets.names():
        return ""
    data = datasets.read(name)
    ids: list[str] | None = None
    if pairs is not data.pairs:
        # A pair with the same id may have other texts, such as a null control's.
        if not data.pairs.holds(pairs):
            return ""
        ids = columns_of(pairs).ids.tolist()
    read = datasets.files_read(name)
    if read is None:
        return ""
    variant, files = read
    digests = [(str(path), file_digest(path)) for path in files]
    if datasets.files_read(name) != read:
        return ""
    return digest_of(poslens_version(), code_digest(), name, variant, digests, ids)
