"""What a stored number depends on, as short hashes.

A model's fingerprint covers the contents of its weight, tokenizer and configuration files and
the settings it is used with (prompts, lengths, similarity, precision): a model changed on disk
under the same name is another model.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.paths import open_regular
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec, data_folder
from poslens.attribution.types import Method, TextPair
from poslens.cache.digests import Digests, Key, key_of

_digests: dict[Key, str] = {}
_lock = threading.Lock()
_WORTH_KEEPING = 1 << 20
"""Smaller files are read faster than remembered."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's contents, remembered while its inode does not change: by this process,
    and on disk where it is large."""
    key = key_of(path)
    with _lock:
        if found := _digests.get(key):
            return found
    large = key[1] >= _WORTH_KEEPING
    digests = Digests(data_folder() / "cache" / "digests.json")
    digest = digests.get(key) if large else None
    if digest is None:
        with open_regular(path) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        # Changed while it was read, or so lately that it could change again within the file
        # system's clock tick: not to be remembered.
        if key_of(path) != key or time.time_ns() - key[3] <= 2_000_000_000:
            return digest
        if large:
            digests.put(key, digest)
    with _lock:
        _digests[key] = digest
    return digest


def files_fingerprint(files: ModelFiles) -> str:
    """16 hexadecimal digits over names and contents of all of a model's files."""
    total = hashlib.sha256()
    for place, path in files.places():
        total.update(f"{place}\0{file_digest(path)}\n".encode())
    return total.hexdigest()[:16]


def model_fingerprint(weights: str, settings: str) -> str:
    """16 hexadecimal digits over a files' fingerprint and the settings of use."""
    return hashlib.sha256(f"{weights}\0{settings}".encode()).hexdigest()[:16]


def method_fingerprint(method: Method) -> str:
    """16 hexadecimal digits over what a method's results depend on, its curve settings left out."""
    return hashlib.sha256(method.core.encode()).hexdigest()[:16]


def text_digest(text: str) -> str:
    """32 hexadecimal digits over one text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


_texts: dict[tuple[int, int], str] = {}
_MAX_TEXTS = 500_000


def text_fingerprint(pair: TextPair) -> str:
    """16 hexadecimal digits over the two texts."""
    # A string keeps its own (keyed, 64-bit) hash, so the same pair asked for again costs nothing
    # and no text is held here.
    key = (hash(pair.query), hash(pair.document))
    found = _texts.get(key)
    if found is None:
        found = _digest(pair)[:8].hex()
        if len(_texts) >= _MAX_TEXTS:
            _texts.clear()
        _texts[key] = found
    return found


def _digest(pair: TextPair) -> bytes:
    text = f"{pair.query}\0{pair.document}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def signed(fingerprint: str) -> int:
    """16 hexadecimal digits as a signed 64-bit integer, which is SQLite's."""
    return int.from_bytes(bytes.fromhex(fingerprint), "big", signed=True)


def unsigned(number: int) -> str:
    """And back."""
    return int(number).to_bytes(8, "big", signed=True).hex()


def text_number(pair: TextPair) -> int:
    """The pair's text fingerprint as such a number."""
    return signed(text_fingerprint(pair))


def text_numbers(pairs: Sequence[TextPair], *, remembered: bool = True) -> NDArray[np.int64]:
    """That of each pair [n]. What whoever asks keeps need not be `remembered` pair by pair, which
    takes longer and as much memory as the names of the pairs."""
    if remembered:
        return np.fromiter((text_number(pair) for pair in pairs), np.int64, len(pairs))
    heads = b"".join([_digest(pair)[:8] for pair in pairs])
    return np.frombuffer(heads, ">i8").astype(np.int64)


@dataclass(frozen=True, slots=True)
class UsedModel:
    """A model as it would be used here: `fingerprint` is the store's key, `weights` the files'."""

    spec: RetrieverSpec
    fingerprint: str
    weights: str
    precision: str
    device: str


def used_model(spec: RetrieverSpec, device: str, precision: str) -> UsedModel:
    """The model as its files are now, on the device and in the precision that would be chosen;
    cheap, loads nothing. Of what has no files, the model that answered its probe.

    Raises:
        UserError: its files are not here, or the endpoint does not answer.
    """
    from poslens.attribution.retrievers import detect, lexical
    from poslens.attribution.retrievers.load import plan

    if (probe := detect.family_of(spec).probe) is not None and spec.without_files:
        from poslens.cache.probes import exact_weights, probed_weights

        values = probe(spec)
        # What is in this process repeats its answers, and a server does only nearly.
        weights = (
            probed_weights(spec.name, spec.source, values)
            if spec.remote
            else exact_weights(spec.source, values)
        )
        kind = "unknown"
        named = model_fingerprint(weights, f"{spec.settings}, precision={kind}")
        return UsedModel(spec, named, weights, kind, "elsewhere" if spec.remote else "its own")
    files, where, kind = plan(spec, device, precision)
    spec = detect.with_detected_family(spec, files.folder)
    weights = files_fingerprint(files)
    settings = f"{spec.settings}, precision={kind}{lexical.settings(spec)}"
    return UsedModel(spec, model_fingerprint(weights, settings), weights, kind, str(where))
