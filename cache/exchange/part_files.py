"""Part files: results that any number of hosts publish to a folder or bucket without coordination.

`FOLDER/<model fingerprint>/<method>-<hash>/<hash of its pairs>.parquet`, each a sealed file of one
append. A published part is immutable: it is written under a temporary name, synced to disk and
renamed, or uploaded by a single PUT if the folder is an object store. One host ingests the parts
into its cache and maintains a manifest of their checksums. SQLite is never opened over a network.
Parts of other hosts are untrusted: a child process reads each one first.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import fs

from poslens.attribution.errors import UserError
from poslens.attribution.isolated import Reader
from poslens.attribution.paths import sync_folder
from poslens.attribution.types import Method, TextPair
from poslens.cache.exchange.incoming import LIMITS, require_readable, require_whole
from poslens.cache.exchange.parquet_file import RowSource, SealedWriter, opened
from poslens.cache.exchange.rows import ingested
from poslens.cache.exchange.transfer import Report, Taken, take
from poslens.cache.keys import method_fingerprint, text_fingerprint
from poslens.cache.storage.encoded import Computed, Destination
from poslens.cache.storage.rows import ROW, attribution_rows
from poslens.cache.storage.store import ModelKey, Store

MANIFEST = "manifest.json"
_SUFFIX = ".parquet"
Key = tuple[str, str, str]


class PartFolder:
    """A folder of parts: a path, or the URL of an object store such as `s3://bucket/folder`.

    Raises:
        UserError: the kind of storage is not supported.
    """

    def __init__(self, folder: str | Path, system: fs.FileSystem | None = None) -> None:
        self.name = str(folder)
        try:
            if system is not None:
                self._fs, self._root = system, str(folder)
            elif "://" in str(folder):
                self._fs, self._root = fs.FileSystem.from_uri(str(folder))
            else:
                self._fs, self._root = fs.LocalFileSystem(), str(Path(folder).absolute())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(
                f"{folder} can't be used for parts: use a folder, or an address such as "
                "s3://bucket/folder."
            ) from error

    def _at(self, name: str) -> str:
        return str(PurePosixPath(self._root) / name)

    def parts(self, below: str = "") -> list[str]:
        """Sorted names of the parts; only those below the folder `below` if given."""
        selector = fs.FileSelector(self._at(below), allow_not_found=True, recursive=True)
        with _explained(self.name):
            paths = [info.path for info in self._fs.get_file_info(selector) if info.is_file]
        root = PurePosixPath(self._root)
        names = [str(PurePosixPath(path).relative_to(root)) for path in paths]
        return sorted(n for n in names if n.endswith(_SUFFIX) and "/." not in f"/{n}")

    def read(self, name: str) -> bytes | None:
        """The contents of a file; None if it doesn't exist."""
        with _explained(self.name):
            try:
                with self._fs.open_input_stream(self._at(name)) as stream:
                    content: bytes = stream.read()
                    return content
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes, *, replace: bool = True) -> None:
        """Publish a file atomically; it is synced to disk when this returns. Without `replace`, a
        file of that name that another host published in the meantime is not replaced (in an object
        store, the last upload wins)."""
        with _explained(self.name):
            self._fs.create_dir(str(PurePosixPath(self._at(name)).parent), recursive=True)
            if not isinstance(self._fs, fs.LocalFileSystem):
                # An object store shows nothing before the PUT completes.
                with self._fs.open_output_stream(self._at(name)) as stream:
                    stream.write(data)
                return
            target = Path(self._at(name))
            part = target.with_name(f".{uuid.uuid4().hex}.tmp")
            try:
                with part.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if replace or not _linked(part, target):
                    part.replace(target)
            finally:
                part.unlink(missing_ok=True)
            sync_folder(target.parent)


def _linked(part: Path, target: Path) -> bool:
    """Create a hard link to the file unless the name exists; False if links are not supported."""
    try:
        os.link(part, target)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn disk and network errors into a UserError of one sentence."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or "no response"
        raise UserError(
            f"The folder of parts {name} can't be used ({reason}): check its path, permissions and "
            "free space."
        ) from error


def folder_of(model: ModelKey, method: Method) -> str:
    """Path, within the folder, of the parts of a model and a method's core."""
    return f"{model.fingerprint}/{method.name}-{method_fingerprint(method)}"


class PartWriter(Destination):
    """Publishes results as parts. Jobs of this host that use `root` share work through it, as they
    do through a store's folder."""

    def __init__(self, place: PartFolder, root: Path, poslens: str) -> None:
        self.place, self.root, self._poslens = place, root.absolute(), poslens
        self._seen: dict[str, dict[Key, bool]] = {}

    def put_encoded(self, model: ModelKey, method: Method, computed: Computed) -> None:
        """Publish results and failures as one part."""
        rows = attribution_rows(method, computed).append_column(
            ROW.field("payload"), pa.array(computed.all_payloads, pa.binary())
        )
        if not rows.num_rows:
            return
        source = RowSource(model, Method(method.name, method.params))
        name = f"{folder_of(model, method)}/{part_name(rows)}{_SUFFIX}"
        # A part is replaced by another of the same pairs only if it is damaged.
        exists = self.place.read(name) is not None
        with Reader(LIMITS) as reader:
            if exists and self._keys(name, reader):
                return
        stream = io.BytesIO()
        with SealedWriter(stream, [source], self._poslens) as writer:
            writer.write(source, rows)
        self.place.write(name, stream.getvalue(), replace=exists)
        self._seen[name] = _keys_of(rows)

    def missing(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], *, retry: bool = False
    ) -> list[TextPair]:
        """The pairs for which no host has published a result or, unless `retry`, a failure.

        Raises:
            UserError: the folder can't be read.
        """
        stored: dict[Key, bool] = {}
        with Reader(LIMITS) as reader:
            for name in self.place.parts(folder_of(model, method)):
                for key, result in self._keys(name, reader).items():
                    stored[key] = result or stored.get(key, False)
        published = {key for key, result in stored.items() if result or not retry}
        return [p for p in pairs if (p.dataset, p.pair_id, text_fingerprint(p)) not in published]

    def _keys(self, name: str, reader: Reader) -> dict[Key, bool]:
        """The pairs that a part contains, and whether each has a result. A damaged part contains
        none, so that its pairs are computed and published again."""
        if name not in self._seen:
            try:
                part = _read(self.place.read(name) or b"", name, reader)
            except UserError:
                return {}
            self._seen[name] = _keys_of(part.rows)
        return self._seen[name]


_KEYS = ["dataset", "pair_id", "text", "reason"]


def _keys_of(rows: pa.RecordBatch) -> dict[Key, bool]:
    return {
        (row["dataset"], row["pair_id"], row["text"]): row["reason"] is None
        for row in rows.select(_KEYS).to_pylist()
    }


def part_name(rows: pa.RecordBatch) -> str:
    """Part name: 32 hexadecimal digits that hash the pairs, their texts, and which of them
    failed."""
    keys = sorted(
        f"{row['dataset']}\0{row['pair_id']}\0{row['text']}\0{row['reason'] is not None}"
        for row in rows.select(_KEYS).to_pylist()
    )
    return hashlib.sha256("\n".join(keys).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Part(NamedTuple):
    """The rows of a part, of one source, and a mask of those that are valid results of their kind;
    None if all are attributions."""

    source: RowSource
    rows: pa.RecordBatch
    fits: NDArray[np.bool_] | None


def _read(data: bytes, name: str, reader: Reader) -> _Part:
    fits = require_readable(reader, data, name)
    with opened(io.BytesIO(data), name) as sealed:
        batches = [(source, rows) for source, rows in sealed.batches() if rows.num_rows]
    if not batches:
        raise UserError(f"{name} contains no results: delete it.")
    for source, _ in batches:
        if not name.startswith(folder_of(source.model, source.method)):
            raise UserError(f"{name} is in another model's folder: move it back.")
    rows = pa.concat_batches([rows for _, rows in batches])
    require_whole(rows, name)
    return _Part(batches[0][0], rows, fits)


@dataclass(frozen=True, slots=True)
class Ingested:
    """Outcome of ingesting a folder of parts: the number of new parts, the outcome for their rows,
    and one error message for each damaged part."""

    parts: int
    new: int
    taken: Taken
    problems: tuple[str, ...]


def ingest(
    store: Store, place: PartFolder, *, report: Report = lambda done, total: None
) -> Ingested:
    """Add the parts that the store has not ingested, each in one transaction together with its
    name, so that this can be interrupted and repeated at any time. Writes the manifest.

    Raises:
        UserError: the folder can't be read, or the store can't be written.
    """
    names = place.parts()
    manifest = read_manifest(place)
    in_store: dict[str, set[str]] = {}
    taken, problems, new = Taken(), [], 0
    with Reader(LIMITS) as reader:
        for done, name in enumerate(names):
            report(done, len(names))
            where = name.rpartition("/")[0]
            if where in in_store and name in in_store[where] and name in manifest:
                continue
            data = place.read(name) or b""
            try:
                part = _read(data, name, reader)
            except UserError as error:
                problems.append(str(error))
                continue
            model, method = part.source.model, part.source.method
            manifest[name] = {
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
                "rows": part.rows.num_rows,
                "model": model.name,
                "method": method.core,
            }
            if where not in in_store:
                in_store[where] = ingested(store, model, method)
            if name in in_store[where]:
                continue
            taken += take(store, part.source, part.rows, name, fits=part.fits)
            new += 1
    report(len(names), len(names))
    if names:
        content = {
            "format": 1,
            "parts": {name: manifest[name] for name in names if name in manifest},
        }
        place.write(MANIFEST, json.dumps(content, indent=1, sort_keys=True).encode())
    return Ingested(len(names), new, taken, tuple(problems))


def read_manifest(place: PartFolder) -> dict[str, dict[str, object]]:
    """The ingested parts by name: sha256, bytes, rows, model, method."""
    try:
        return dict(json.loads(place.read(MANIFEST) or b'{"parts": {}}')["parts"])
    except (ValueError, KeyError, TypeError):
        return {}


def verify(place: PartFolder, report: Report = lambda done, total: None) -> tuple[int, list[str]]:
    """Check every part against the manifest, its own checksums and its name. Returns the number of
    parts, and one sentence for each that is damaged or missing.

    Raises:
        UserError: the folder can't be read.
    """
    names, manifest, problems = place.parts(), read_manifest(place), []
    with Reader(LIMITS) as reader:
        for done, name in enumerate(names):
            report(done, len(names))
            data = place.read(name) or b""
            entry = manifest.get(name)
            if entry is not None and entry.get("sha256") != hashlib.sha256(data).hexdigest():
                problems.append(f"{name} differs from its entry in the manifest: publish it again.")
                continue
            try:
                rows = _read(data, name, reader).rows
                if f"/{part_name(rows)}{_SUFFIX}" not in f"/{name}":
                    problems.append(f"{name} contains other pairs than its name states.")
            except UserError as error:
                problems.append(str(error))
    report(len(names), len(names))
    problems += [f"{name} is gone." for name in sorted(manifest.keys() - set(names))]
    return len(names), problems
