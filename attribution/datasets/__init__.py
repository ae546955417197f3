"""The registered data sets: the bundled samples, and those given at startup.

Each format is a module that registers itself when this package imports it.
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
from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.datasets.formats import detect
from poslens.attribution.datasets.judged_pairs import from_pairs
from poslens.attribution.datasets.own import read_upload
from poslens.attribution.datasets.types import DataSet, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.names import Names
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
SAMPLE_MULTILINGUAL = "sample-multilingual"
SAMPLE_BIAS = "sample-bias"

TYPED = "typed"
UPLOADED = "upload-"
"""Reserved names and prefixes of data sets of readers' own texts."""

_HERE = Path(__file__).parent / "sample"
_folders: Names[Path] = Names(
    {
        SAMPLE: _HERE / "posir",
        SAMPLE_MULTILINGUAL: _HERE / "multilingual",
        SAMPLE_BIAS: _HERE / "colder",
    }
)
_variants: Names[str] = Names()
_Stamp = tuple[tuple[str, int, int], ...]
_stamps: dict[str, _Stamp] = {}
"""The files of each data set when it was read: paths, times and sizes."""
_of_pairs: dict[str, _Stamp] = {}
"""The same, when its pairs were read: its corpus may be read later."""
_generation = 0
_titles = {
    SAMPLE: "Bundled sample (PosIR format)",
    SAMPLE_MULTILINGUAL: "Bundled multilingual sample (PosIR format)",
    SAMPLE_BIAS: "Bundled bias tests (ColDeR layout)",
}


def register(name: str, source: Path | str) -> list[str]:
    """Register a data set under a name, and return its names; browsers select names.

    `source` is a folder or file in any format, `hf:organisation/name`, `ir_datasets:ID`,
    `mteb:TASK`, or one of these with `@eng` or `@eng-Latn` (PosIR's English part) or `@eng-pol`
    (its English queries with its Polish corpus) appended. MultiClaim is registered as `name` and,
    in English, as `name-english`.

    Raises:
        UserError: the name is reserved, nothing is at the path, the format is unknown, or the data
            set cannot be fetched.
    """
    path, variant = formats.split_variant(str(source))
    folder = sources.folder_of(path)
    variants = {name: variant}
    entry = formats.FORMATS[detect(folder)]
    if not variant:
        variants |= {f"{name}-{other}": other for other in entry.also}
    if taken := variants.keys() & _titles.keys():
        raise UserError(
            f"{taken.pop()} is the bundled data set's name: give the other one another."
        )
    if name == TYPED or name.startswith(UPLOADED):
        raise UserError(f"{name} is a name of texts that readers bring: give it another one.")
    place = folder.resolve()
    if any((_folders.get(n), _variants.get(n)) != (place, v) for n, v in variants.items()):
        _folders.update(dict.fromkeys(variants, place))
        _variants.update(variants)
        _forget()
    for registered in variants:
        reload_if_changed(registered)
    return list(variants)


def _forget() -> None:
    """Read every data set again at its next use."""
    global _generation
    _generation += 1
    _stamps.clear()
    _of_pairs.clear()
    _read.cache_clear()
    _collection.cache_clear()
    _corpus.cache_clear()


def generation() -> int:
    """A number that changes when data sets are read again, so that results derived from an earlier
    state are not used for the current one."""
    return _generation


def reload_if_changed(name: str) -> None:
    """Read a data set again if its files changed. Nothing else checks this, so long-running
    programs such as notebooks call it."""
    if name in _stamps and name in _folders and _stamps[name] != _stamp(_folders[name]):
        _forget()


def _stamp(place: Path) -> _Stamp:
    """The files at a path with their times and sizes; empty if they cannot be read."""
    try:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        looked = ((str(file), file.stat()) for file in files)
        return tuple((file, status.st_mtime_ns, status.st_size) for file, status in looked)
    except OSError:
        return ()


def files_read(name: str) -> tuple[str, tuple[Path, ...]] | None:
    """The variant of a data set, and the files that its pairs in memory were read from; None if
    they have changed since, or if the pairs were not read."""
    stamp = _of_pairs.get(name)
    if not stamp or stamp != _stamp(_folders[name]):
        return None
    return _variants.get(name, ""), tuple(
        path for file, *_ in stamp if (path := Path(file)).is_file()
    )


def embedded(name: str) -> bool:
    """Whether this is the name of a bundled data set, which no other data set can have."""
    return name in _titles


def names() -> list[str]:
    """Names of the data sets, the bundled ones first."""
    return list(_folders)


def read(name: str) -> DataSet:
    """The data set of this name; read once and cached.

    Raises:
        UserError: there is none, or its files are invalid.
    """
    return _read(_known(name))


@lru_cache(maxsize=4)
def _read(name: str) -> DataSet:
    _of_pairs[name] = _stamp(_folders[name])
    return _by(formats.read, name)


def collection(name: str) -> Collection:
    """The data set of this name with its whole corpus; cached, except the corpus, which is read
    while it is searched.

    Raises:
        UserError: there is none, or its files have no relevance judgments or are invalid.
    """
    return _collection(_known(name))


@lru_cache(maxsize=4)
def _collection(name: str) -> Collection:
    return _by(formats.collection, name)


def judged(name: str) -> bool:
    """Whether the format of this data set states which documents answer a query.

    Raises:
        UserError: there is none, or its files are in no known format.
    """
    with _still_there(_known(name)):
        return not formats.FORMATS[detect(_folders[name])].unjudged


def corpus_of(name: str) -> Collection:
    """The documents of this data set, with or without judgments; cached, but documents are read on
    demand.

    Raises:
        UserError: there is none, or its files are invalid.
    """
    return _corpus(_known(name))


@lru_cache(maxsize=4)
def _corpus(name: str) -> Collection:
    return _by(formats.corpus, name)


def _known(name: str) -> str:
    """The name, if a data set has it."""
    if name not in _folders:
        raise UserError(f"There is no data set {name[:80]!r}: choose one of {', '.join(names())}.")
    return name


def _by(reader: Callable[[Path, str, str, str], T], name: str) -> T:
    """The result of a format's reader for the data set's files."""
    with _still_there(name):
        _stamps[name] = _stamp(_folders[name])
        return reader(_folders[name], name, _titles.get(name, ""), _variants.get(name, ""))


@contextmanager
def _still_there(name: str) -> Iterator[None]:
    """Report files that were removed or locked by the data set's name instead of by their paths,
    which browsers must not see."""
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
    """The pairs that PosIR's saliency scripts select: English documents of at least 1,024 tokens
    (the data set's own count) whose evidence is in the middle, 0.4 <= r <= 0.6, where r is the
    span's mid-point relative to the document's characters. Unknown languages are included."""
    if pair.language not in (None, "eng"):
        return False
    if pair.evidence is None or (pair.document_tokens or 0) < 1024:
        return False
    middle = (pair.evidence.start + pair.evidence.end) / 2 / len(pair.document)
    return 0.4 <= middle <= 0.6
