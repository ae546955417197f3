"""The data sets known by name: the bundled samples, and those named when the program starts.

Each format is a module of this package that registers itself, which happens here.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOENT
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from poslens.attribution.datasets import formats, sources
from poslens.attribution.datasets.corpus import Collection, from_pairs
from poslens.attribution.datasets.formats import detect
from poslens.attribution.datasets.own import read_upload
from poslens.attribution.datasets.types import DataSet, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair

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

SAMPLE = "sample"
SAMPLE_BIAS = "sample-bias"

TYPED = "typed"
UPLOADED = "upload-"
"""What data sets of readers' own texts are called, or begin with; none that is named here is."""

_HERE = Path(__file__).parent / "sample"
_folders: dict[str, Path] = {SAMPLE: _HERE / "posir", SAMPLE_BIAS: _HERE / "colder"}
_variants: dict[str, str] = {}
_Stamp = tuple[tuple[str, int, int], ...]
_stamps: dict[str, _Stamp] = {}
_generation = 0
"""The files of each data set when it was read: their places, times and sizes."""
_titles = {
    SAMPLE: "Bundled sample (PosIR layout)",
    SAMPLE_BIAS: "Embedded bias tests (ColDeR layout)",
}


def register(name: str, source: Path | str) -> list[str]:
    """Make a data set known by name; a browser chooses among names. Gives the names it goes by.

    `source` is a folder or file of any format, `hf:organisation/name`, `ir_datasets:ID`,
    `mteb:TASK`, or one of these with
    `@eng` or `@eng-Latn` (PosIR's English part) or `@eng-pol` (its English queries with its Polish
    corpus) behind it. MultiClaim is known as
    `name` and, in English, as `name-english`.

    Raises:
        UserError: the bundled data set's name or one of readers' own texts, nothing there, no
            known format, or what cannot be fetched.
    """
    path, variant = formats.split_variant(str(source))
    folder = sources.folder_of(path)
    known = {name: variant}
    entry = formats.FORMATS[detect(folder)]
    if not variant:
        known |= {f"{name}-{other}": other for other in entry.also}
    if taken := known.keys() & _titles.keys():
        raise UserError(
            f"{taken.pop()} is the bundled data set's name: give the other one another."
        )
    if name == TYPED or name.startswith(UPLOADED):
        raise UserError(f"{name} is a name of texts that readers bring: give it another one.")
    place = folder.resolve()
    if any((_folders.get(n), _variants.get(n)) != (place, v) for n, v in known.items()):
        _folders.update(dict.fromkeys(known, place))
        _variants.update(known)
        _forget()
    for one in known:
        reload_if_changed(one)
    return list(known)


def _forget() -> None:
    """Read every data set anew when it is asked for next."""
    global _generation
    _generation += 1
    _stamps.clear()
    _read.cache_clear()
    _collection.cache_clear()
    _corpus.cache_clear()


def generation() -> int:
    """Which reading of the data sets this is: another number once they are read anew, so that what
    was made of the earlier one is not taken for what they hold now."""
    return _generation


def reload_if_changed(name: str) -> None:
    """Read a data set anew if its files have changed. Nothing else checks, so long-running programs
    such as notebooks call it."""
    if name in _stamps and name in _folders and _stamps[name] != _stamp(_folders[name]):
        _forget()


def _stamp(place: Path) -> _Stamp:
    """The files at a place, each with its time and size; none where they cannot be looked at."""
    try:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        looked = ((str(file), file.stat()) for file in files)
        return tuple((file, status.st_mtime_ns, status.st_size) for file, status in looked)
    except OSError:
        return ()


def embedded(name: str) -> bool:
    """Whether this is the name of an bundled data set, which no other can take."""
    return name in _titles


def names() -> list[str]:
    """Names of the data sets, the embedded ones first."""
    return list(_folders)


def read(name: str) -> DataSet:
    """The data set of this name, read once and kept.

    Raises:
        UserError: there is none, or its files are not as they should be.
    """
    return _read(_known(name))


@lru_cache(maxsize=4)
def _read(name: str) -> DataSet:
    return _by(formats.read, name)


def collection(name: str) -> Collection:
    """The data set of this name with its whole corpus, read once and kept; the corpus stays where
    it is and is read as it is searched.

    Raises:
        UserError: there is none, or its files judge no relevance or are not as they should be.
    """
    return _collection(_known(name))


@lru_cache(maxsize=4)
def _collection(name: str) -> Collection:
    return _by(formats.collection, name)


def judged(name: str) -> bool:
    """Whether the data set of this name is in a format that says which documents answer a query.

    Raises:
        UserError: there is none, or its files are in no known format.
    """
    with _still_there(_known(name)):
        return formats.FORMATS[detect(_folders[name])].judges


def corpus_of(name: str) -> Collection:
    """The documents of the data set of this name, whether or not it judges queries; kept, and read
    as they are asked for.

    Raises:
        UserError: there is none, or its files are not as they should be.
    """
    return _corpus(_known(name))


@lru_cache(maxsize=4)
def _corpus(name: str) -> Collection:
    return _by(formats.corpus, name)


def _known(name: str) -> str:
    """The name, where a data set has it."""
    if name not in _folders:
        raise UserError(f"There is no data set {name[:80]!r}: choose one of {', '.join(names())}.")
    return name


def _by(reader: Callable[[Path, str, str, str], T], name: str) -> T:
    """What a reader of any format makes of the data set's files."""
    with _still_there(name):
        _stamps[name] = _stamp(_folders[name])
        return reader(_folders[name], name, _titles.get(name, ""), _variants.get(name, ""))


@contextmanager
def _still_there(name: str) -> Iterator[None]:
    """Say of files that were removed or locked meanwhile whose they are, not where they were: a
    browser knows data sets by name."""
    try:
        if not _folders[name].exists():
            raise FileNotFoundError(ENOENT, "they are gone")
        yield
    except OSError as error:
        raise UserError(
            f"The files of {name} cannot be read ({error.strerror}): put them back, or start "
            "PosLens with another data set."
        ) from error


def posir_selection(pair: TextPair) -> bool:
    """The choice of pairs of PosIR's saliency scripts: English documents of at least 1,024 tokens
    (the data set's own count) whose evidence lies in the middle, 0.4 <= r <= 0.6 with r the span's
    mid-point over the document's characters. A language that the data set does not tell passes."""
    if pair.language not in (None, "eng"):
        return False
    if pair.evidence is None or (pair.document_tokens or 0) < 1024:
        return False
    middle = (pair.evidence.start + pair.evidence.end) / 2 / len(pair.document)
    return 0.4 <= middle <= 0.6
