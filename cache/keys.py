"""Short hashes of everything a stored result depends on.

A model's fingerprint covers the contents of its weight, tokenizer and configuration files and the
settings it is used with (prompts, lengths, similarity, precision): a model that changes on disk
under the same name counts as another model.

Digests of large files are cached on disk, so that gigabytes of weights are not read at each start.
A cached digest is valid for a file in the state (`file_state`) that it had when it was read. The
cache is one JSON file; a file that is damaged or can't be read or written counts as empty.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.errors import UserError
from poslens.attribution.paths import FileState, file_state, open_regular
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec, data_folder
from poslens.attribution.types import Method, TextPair
from poslens.cache.exchange.atomic_file import json_object, replacing

_digests: dict[FileState, str] = {}
_lock = threading.Lock()
_MAX_DIGESTS = 10_000
_WORTH_KEEPING = 1 << 20
"""Minimum size in bytes of a file whose digest is cached on disk; hashing a smaller one is faster
than a lookup."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's contents, cached until the file changes: in this process, and on disk if
    the file is large."""
    state = file_state(path.absolute())
    with _lock:
        if stored := _digests.get(state):
            return stored
    large = state[1] >= _WORTH_KEEPING
    place = data_folder() / "cache" / "digests.json"
    digest = find_digest(place, state) if large else None
    if digest is None:
        with open_regular(path) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        # Changed while it was read, or so recently that a second change within the file system's
        # clock resolution would go unnoticed: not cached.
        if file_state(path.absolute()) != state or time.time_ns() - state[3] <= 2_000_000_000:
            return digest
        if large:
            keep_digest(place, state, digest)
    with _lock:
        _digests[state] = digest
    return digest


def find_digest(place: Path, state: FileState) -> str | None:
    """The digest cached at `place`, or None if there is none or the file has changed since."""
    match json_object(place).get(state[0]):
        case [*stored, str(digest)] if tuple(stored) == state[1:] and len(digest) == 64:
            return digest
    return None


def keep_digest(place: Path, state: FileState, digest: str) -> None:
    """Cache a digest at `place`. If two processes write at the same time, one digest is lost and
    its model file is read again."""
    with _lock, suppress(OSError, UserError):
        entries = json_object(place)
        entries.pop(state[0], None)
        entries[state[0]] = [*state[1:], digest]
        while len(entries) > _MAX_DIGESTS:
            del entries[next(iter(entries))]
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as stream:
            stream.write(json.dumps(entries).encode())


def files_fingerprint(files: ModelFiles) -> str:
    """16 hexadecimal digits that hash the names and contents of all of a model's files."""
    total = hashlib.sha256()
    for place, path in files.places():
        total.update(f"{place}\0{file_digest(path)}\n".encode())
    return total.hexdigest()[:16]


def model_fingerprint(weights: str, settings: str) -> str:
    """16 hexadecimal digits that hash the files' fingerprint and the settings of use."""
    return hashlib.sha256(f"{weights}\0{settings}".encode()).hexdigest()[:16]


def method_fingerprint(method: Method) -> str:
    """16 hexadecimal digits that hash what a method's results depend on, excluding its curve
    settings."""
    return hashlib.sha256(method.core.encode()).hexdigest()[:16]


def text_digest(text: str) -> str:
    """32 hexadecimal digits that hash one text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


_texts: dict[tuple[int, int], str] = {}
_MAX_TEXTS = 500_000


def text_fingerprint(pair: TextPair) -> str:
    """16 hexadecimal digits that hash the two texts of a pair."""
    # Strings cache their own (keyed, 64-bit) hash, so looking up the same pair again is cheap, and
    # this cache keeps no texts.
    key = (hash(pair.query), hash(pair.document))
    fingerprint = _texts.get(key)
    if fingerprint is None:
        fingerprint = pair.text_digest[:8].hex()
        if len(_texts) >= _MAX_TEXTS:
            _texts.clear()
        _texts[key] = fingerprint
    return fingerprint


def signed(fingerprint: str) -> int:
    """16 hexadecimal digits as a signed 64-bit integer, SQLite's integer type."""
    return int.from_bytes(bytes.fromhex(fingerprint), "big", signed=True)


@dataclass(frozen=True, slots=True)
class UsedModel:
    """A model as it would be used here: `fingerprint` is its key in the store, `weights` that of
    its files."""

    spec: RetrieverSpec
    fingerprint: str
    weights: str
    precision: str
    device: str


def used_model(spec: RetrieverSpec, device: str, precision: str) -> UsedModel:
    """The model with its current files, on the device and in the precision that would be chosen.
    Fast: loads no weights. A model without files is identified by its answer to a probe.

    Raises:
        UserError: its files are not on this machine, or the endpoint doesn't answer.
    """
    from poslens.attribution.retrievers import detect, lexical
    from poslens.attribution.retrievers.load import plan

    if (probe := detect.family_of(spec).probe) is not None and spec.without_files:
        from poslens.cache.probes import exact_weights, probed_weights

        settings = f"{spec.settings}, precision=unknown"
        # Models in this process reproduce their answers exactly; servers only approximately.
        if spec.remote:
            weights, place = probed_weights(spec.name, spec.source, probe(spec)), "elsewhere"
            settings += ", version=2"  # earlier results can be those of a count of texts
        else:
            weights, place = exact_weights(spec.source, probe(spec)), "its own"
        return UsedModel(spec, model_fingerprint(weights, settings), weights, "unknown", place)
    files, planned = plan(spec, device, precision)
    spec = detect.with_detected_family(spec, files.folder)
    weights = files_fingerprint(files)
    settings = (
        f"{spec.settings}, precision={planned.precision}{lexical.settings(spec, file_digest)}"
    )
    named = model_fingerprint(weights, settings)
    return UsedModel(spec, named, weights, planned.precision, str(planned.device))
