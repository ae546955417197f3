"""The registered data sets: the bundled samples, and those given at startup.

Each format is a module that registers itself when this package imports it.
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import numpy as np

from poslens.attribution.datasets import formats, indexes, sources
from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.datasets.formats import detect
from poslens.attribution.datasets.judged_pairs import from_pairs
from poslens.attribution.datasets.own import read_upload
from poslens.attribution.datasets.streams import files_opened
from poslens.attribution.datasets.types import DataSet, Rejection
from poslens.attribution.errors import UserError, printable
from poslens.attribution.names import Names
from poslens.attribution.pairs import Pairs
from poslens.attribution.paths import FileState, file_state

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Collection",
    "DataSet",
    "Rejection",
    "collection",
    "corpus_of",
    "detect",
    "embedded",
    "from_pairs",
    "judged",
    "names",
    "posir_selection",
    "read",
    "read_upload",
    "register",
    "reload_if_changed",
]

T = TypeVar("T")
Stamp = tuple[FileState, ...]

SAMPLE = "sample"
SAMPLE_MULTILINGUAL = "sample-multilingual"
SAMPLE_BIAS = "sample-bias"

TYPED = "typed"
UPLOADED = "upload-"
"""Reserved: the name of a data set of typed texts, and the prefix of names of uploaded ones."""

_HERE = Path(__file__).parent / "sample"


@dataclass(frozen=True, slots=True)
class _Registered:
    """The folder or file of a data set, its variant, and the title of a bundled one."""

    place: Path
    variant: str = ""
    title: str = ""


_BUNDLED = {
    SAMPLE: _Registered(_HERE / "posir", title="Bundled sample (PosIR format)"),
    SAMPLE_MULTILINGUAL: _Registered(
        _HERE / "multilingual", title="Bundled multilingual sample (PosIR format)"
    ),
    SAMPLE_BIAS: _Registered(_HERE / "colder", title="Bundled bias tests (ColDeR layout)"),
}
_registered: Names[_Registered] = Names(_BUNDLED)
_stamps: dict[str, Stamp] = {}
"""The state of each data set's folder when its pairs or its corpus were last read."""
_files: dict[str, dict[str, FileState]] = {}
"""The files from which each data set was last read: see `files_read`."""
_generation = 0
_RESOLUTION_NS = 2_000_000_000
"""More than the resolution of any file system's clock, FAT's 2 s included."""


def register(name: str, source: Path | str) -> list[str]:
    """Register a data set under a name, and return its names; browsers select names.

    `source` is a folder or file in any format, `hf:organisation/name`, `ir_datasets:ID`,
    `mteb:TASK`, or one of these with `@eng` or `@eng-Latn` (PosIR's English part) or `@eng-pol`
    (its English queries with its Polish corpus) appended. MultiClaim is registered as `name` and,
    in English, as `name-english`.

    Raises:
        UserError: the name is reserved or not text, nothing is at the path, the format is unknown,
            or the data set cannot be fetched.
    """
    if printable(name) != name:  # results are stored under it as UTF-8
        raise UserError(
            f"{printable(name)} is not a valid UTF-8 name: rename the file, or use --data "
            "NAME=PATH."
        )
    path, variant = formats.split_variant(str(source))
    folder = sources.folder_of(path)
    place = folder.resolve()
    new = {name: _Registered(place, variant)}
    try:
        entry = formats.FORMATS[detect(folder)]
    except OSError as error:
        raise UserError(
            f"{folder} can't be read ({error.strerror}): check its permissions."
        ) from error
    if not variant:
        new |= {f"{name}-{other}": _Registered(place, other) for other in entry.also}
    if taken := new.keys() & _BUNDLED.keys():
        raise UserError(f"{taken.pop()} is the name of a bundled data set: use another name.")
    if is_own(name):
        raise UserError(f"{name} is reserved for uploaded and typed texts: use another name.")
    if any(_registered.get(each) != files for each, files in new.items()):
        _registered.update(new)
        _forget()
    for each in new:
        reload_if_changed(each)
    return list(new)


def is_own(name: str) -> bool:
    """Whether a data set of this name consists of texts that a reader typed or uploaded."""
    return name == TYPED or name.startswith(UPLOADED)


def _forget() -> None:
    """Read every data set again at its next use."""
    global _generation
    _generation += 1
    _stamps.clear()
    _files.clear()
    _read.cache_clear()
    _searchable.cache_clear()


def generation() -> int:
    """A number that changes when data sets are read again, so that results derived from an earlier
    state are not used for the current one."""
    return _generation


def reload_if_changed(name: str) -> None:
    """Read a data set again if its files changed. Nothing else checks this, so long-running
    programs such as notebooks call it."""
    files = _registered.get(name)
    if name in _stamps and files is not None and _stamps[name] != _stamp(files.place):
        _forget()


def _stamp(place: Path) -> Stamp:
    """The states of the files at a path; empty if they cannot be read."""
    try:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        return tuple(map(file_state, files))
    except OSError:
        return ()


def files_read(name: str) -> Mapping[str, FileState]:
    """The files from which the data set in memory was read: their paths in its folder, and the
    state of each when it was read. Empty if nothing was read, or if pairs and corpus were read from
    files in different states."""
    return _files.get(name, {})


def _keep_files(name: str, stamp: Stamp, paths: Iterable[str]) -> None:
    place, files = _registered[name].place, set(paths)
    folder = place if place.is_dir() else place.parent
    read = {
        Path(state[0]).relative_to(folder).as_posix(): state for state in stamp if state[0] in files
    }
    _files[name] = read if _files.get(name, read) == read else {}


def embedded(name: str) -> bool:
    """Whether this is the name of a bundled data set, which no other data set can have."""
    return name in _BUNDLED


def names() -> list[str]:
    """Names of the data sets, the bundled ones first."""
    return list(_registered)


def read(name: str) -> DataSet:
    """The data set of this name; cached. The pairs of a large one are read from its files once,
    and then from their index (`indexes`), also by later processes.

    Raises:
        UserError: no data set has this name, or its files are invalid.
    """
    data = _read(_known(name))
    if data.damaged:
        _forget()
        data = _read(name)
    return data


@lru_cache(maxsize=4)
def _read(name: str) -> DataSet:
    with still_there(name):
        files = _registered[name]
        stamp = _stamps[name] = _stamp(files.place)
        place = indexes.place_of(name, str(files.place), files.variant)
        if index := indexes.opened(place, stamp):
            data, read_from = index
            _keep_files(name, stamp, read_from)
            return data
        # Whether another change of the files would change their times, whatever the resolution of
        # the file system's clock.
        newest = max((max(mtime, ctime) for _, _, mtime, ctime, _ in stamp), default=0)
        settled = bool(stamp) and time.time_ns() - newest > _RESOLUTION_NS
        data = _by(formats.read, name)
        if settled and _stamps[name] == stamp == _stamp(files.place):
            read_from = [path for path, *_ in _files[name].values()]
            data = indexes.saved(place, stamp, data, read_from)
        return data


def collection(name: str) -> Collection:
    """The data set of this name with its whole corpus; cached, except the corpus, which is read
    while it is searched.

    Raises:
        UserError: no data set has this name, or its files have no relevance judgments or are
            invalid.
    """
    return _searchable(formats.collection, _known(name))


def judged(name: str) -> bool:
    """Whether the format of this data set states which documents answer a query.

    Raises:
        UserError: no data set has this name, or its files are in no known format.
    """
    with still_there(_known(name)):
        return not formats.FORMATS[detect(_registered[name].place)].unjudged


def corpus_of(name: str) -> Collection:
    """The documents of this data set; the `collection` itself if it has judgments. Cached, but
    documents are read on demand.

    Raises:
        UserError: no data set has this name, or its files are invalid.
    """
    return collection(name) if judged(name) else _searchable(formats.corpus, name)


@lru_cache(maxsize=8)
def _searchable(reader: Callable[[Path, str, str, str], Collection], name: str) -> Collection:
    return _by(reader, name)


def _known(name: str) -> str:
    """The name, if a data set has it."""
    if name not in _registered:
        raise UserError(f"There is no data set {name[:80]!r}: choose from {', '.join(names())}.")
    return name


def _by(reader: Callable[[Path, str, str, str], T], name: str) -> T:
    """The result of a format's reader for the data set's files."""
    with still_there(name), files_opened() as opened:
        files = _registered[name]
        stamp = _stamps[name] = _stamp(files.place)
        result = reader(files.place, name, files.title, files.variant)
        if isinstance(result, Collection):  # reads its corpus later
            opened.update(result.files)
        _keep_files(name, stamp, map(str, opened))
        return result


@contextmanager
def still_there(name: str) -> Iterator[None]:
    """If files were removed or locked, raise an error that names the data set instead of their
    paths, which browsers must not see."""
    try:
        if not _registered[name].place.exists():
            raise FileNotFoundError(ENOENT, "they are gone")
        yield
    except OSError as error:
        raise UserError(
            f"The files of {name} can't be read ({error.strerror}): restore them, or start PosLens "
            "with another data set."
        ) from error


def posir_selection(pairs: Pairs) -> Pairs:
    """The pairs that PosIR's saliency scripts select: English documents of at least 1,024 tokens
    (the data set's own count) whose evidence is in the middle, 0.4 <= r <= 0.6, where r is the
    span's mid-point relative to the document's characters. Unknown languages are included."""
    codes, languages = pairs.labels("language")
    other = [code for code, language in enumerate(languages) if language != "eng"]
    middle = pairs.evidence_positions
    return pairs.select(
        ~np.isin(codes, other) & (pairs.document_tokens >= 1024) & (middle >= 0.4) & (middle <= 0.6)
    )
