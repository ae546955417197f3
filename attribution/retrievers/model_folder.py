"""Contents of a model's folder: the files that libraries read, opened safely before any library
opens one.

A folder can come from anywhere. Only regular files of limited size are opened (reading a pipe or a
device might never end), JSON is limited in depth and number of values before it is parsed, and
files that are not part of the model (a download's `.cache`, other formats of weights) are skipped.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from poslens.attribution.retrievers.safe_files import (
    CONFIG_BYTES,
    VOCABULARY_BYTES,
    DamagedFolder,
    irregular,
    parse_json,
    read_bytes,
    require_shallow,
    shown,
    too_large,
)

MAX_ENTRIES = 10_000
"""Maximum number of files and folders in one folder."""
MAX_MODULES = 64

_CONFIGS = tuple(
    "modules.json config.json config_sentence_transformers.json sentence_*_config.json "
    "router_config.json generation_config.json processor_config.json "
    "preprocessor_config.json video_preprocessor_config.json tokenizer_config.json "
    "special_tokens_map.json added_tokens.json chat_template.json adapter_config.json "
    "artifact.metadata calibration.json model.safetensors.index.json".split()
)
_TEXTS = ("*.jinja",)
_VOCABULARIES = tuple(
    "tokenizer.json tokenizer.*.json vocab* *vocab*.json *vocab*.txt merges.txt *.model "
    "tokenizer.model* *.spm *.tiktoken tekken.json bpe.codes dict*.txt emoji.json "
    "normalizer.json byte_maps.json word_*.json *.tokenizer".split()
)
"""Names under which transformers' tokenizers look for a vocabulary, and sentence-transformers for
settings; a test compares them with the libraries' own."""
_CARD = "README.md"
"""Read by sentence-transformers only as text, so it is checked but not part of the fingerprint."""
_TEMPLATES = "additional_chat_templates"

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a model's `folder` that are read.

    `files` are all of them except the card, sorted; `weights` are those with weights. `configs` are
    the parsed configuration files by path in the folder (`1_Pooling/config.json`). `modules` are
    (type, path) of each module that the files declare, including those of a Router; empty if the
    folder is a single transformer. `pickles` are the paths of files that could be loaded as weights
    if a folder has no safetensors.
    """

    folder: Path
    files: tuple[Path, ...]
    weights: tuple[Path, ...]
    configs: Mapping[str, Any]
    modules: tuple[tuple[str, str], ...]
    pickles: tuple[str, ...]

    def config(self, *path: str) -> dict[str, Any]:
        """The settings in the configuration file at this path (values of any type); empty if it is
        missing or has no settings."""
        config = self.configs.get(str(PurePosixPath(*path)))
        return config if isinstance(config, dict) else {}

    @property
    def architectures(self) -> list[str]:
        """Names of the transformers classes that the folder's `config.json` states."""
        names = self.config("config.json").get("architectures")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def weights_in(self, place: str) -> list[Path]:
        """The weight files of the module at path `place`."""
        return [path for path in self.weights if path.parent == self.folder / place]


def limit_of(name: str) -> int | None:
    """Largest accepted size of a file of this name that is not weights; None if no library reads
    it."""
    if name == _CARD or _matches(name, _CONFIGS + _TEXTS):
        return CONFIG_BYTES
    return VOCABULARY_BYTES if _matches(name, _VOCABULARIES) else None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# -- the files ---------------------------------------------------------------------------------


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of one folder, sorted by name.

    Raises:
        DamagedFolder: it cannot be listed, or has too many entries.
    """
    listed: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                if len(listed) >= MAX_ENTRIES:
                    raise DamagedFolder(
                        f"has more than {MAX_ENTRIES} files in its folder: use a folder with one "
                        "model only."
                    )
                listed.append(entry)
    except OSError as error:
        raise DamagedFolder(
            f"has a folder that can't be read ({type(error).__name__}): restore it."
        ) from error
    return sorted(listed, key=lambda entry: entry.name)


def _require_regular(entry: os.DirEntry[str], limit: int | None = None) -> None:
    """Refuse anything but a regular file of at most `limit` bytes; links are followed, because a
    hub download consists of links."""
    try:
        status = entry.stat()
    except OSError as error:
        raise DamagedFolder(irregular(entry.name)) from error
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFolder(irregular(entry.name))
    if limit is not None and status.st_size > limit:
        raise DamagedFolder(too_large(entry.name, limit))


class _Reader:
    """Collects the files of one folder that are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[Path] = []
        self.weights: list[Path] = []
        self.pickles: list[str] = []
        self.configs: dict[str, Any] = {}
        self.modules: list[tuple[str, str]] = []
        self.seen: set[str] = set()

    def folder(self, place: str) -> None:
        """Collect the files of the folder at path `place`, "" for the root."""
        if place in self.seen:
            return
        self.seen.add(place)
        folder = self.root / place
        entry_of = {entry.name: entry for entry in entries(folder)}
        for name, entry in entry_of.items():
            limit = limit_of(name)
            if limit is None:
                continue
            _require_regular(entry, limit)
            if name == _CARD:
                continue
            path = folder / name
            self.files.append(path)
            if _matches(name, _CONFIGS):
                self.configs[str(PurePosixPath(place, name))] = parse_json(
                    read_bytes(path, limit), name
                )
            elif name.endswith(".json"):
                require_shallow(read_bytes(path, limit), name)
        self._weights(place, entry_of)
        if _TEMPLATES in entry_of and entry_of[_TEMPLATES].is_dir():
            for entry in entries(folder / _TEMPLATES):
                if entry.name.endswith(".jinja"):
                    _require_regular(entry, CONFIG_BYTES)
                    self.files.append(folder / _TEMPLATES / entry.name)

    def _weights(self, place: str, entry_of: Mapping[str, os.DirEntry[str]]) -> None:
        index = self.configs.get(str(PurePosixPath(place, "model.safetensors.index.json")))
        names: list[str] = []
        if "model.safetensors" in entry_of:
            names = ["model.safetensors"]
        elif index is not None:
            names = _shards(index)
        elif "adapter_model.safetensors" in entry_of:
            names = ["adapter_model.safetensors"]
        for name in names:
            if name not in entry_of:
                raise DamagedFolder(
                    f"lacks {shown(name)}, which its index of weights names: restore the file."
                )
            _require_regular(entry_of[name])
            self.weights.append(self.root / place / name)
        if not names:
            parts = (name for name in entry_of if name.lower().endswith(PICKLES))
            self.pickles += [str(PurePosixPath(place, name)) for name in parts]

    def named(self, listed: Any, name: str) -> Iterator[tuple[str, str]]:
        """(type, path) of each module in a `modules.json`."""
        if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_MODULES:
            raise DamagedFolder(f"has a {name} that is not a list of modules: restore the file.")
        for item in listed:
            kind, place = (item.get("type"), item.get("path")) if isinstance(item, dict) else (0, 0)
            if not (isinstance(kind, str) and isinstance(place, str)):
                raise DamagedFolder(f"has a module without type and path in {name}: restore it.")
            yield kind, self.inside(place, name)

    def inside(self, place: str, said_by: str) -> str:
        """`place` in the notation of `seen`; a module must be in a folder below the root."""
        parts = PurePosixPath(place).parts
        outside = place.startswith("/") or any(mark in place for mark in "\\:\0")
        if outside or len(parts) > 8 or any(part.startswith(".") for part in parts):
            raise DamagedFolder(
                f"has a module outside its folder in {said_by} ({place[:60]!a}): name folders "
                "inside it."
            )
        folder = self.root.joinpath(*parts)
        # Modules without settings may have no folder.
        if parts and folder.exists():
            within = folder.resolve().is_relative_to(self.root.resolve())
            if not folder.is_dir() or not within:
                raise DamagedFolder(irregular(parts[-1]))
        return "/".join(parts)

    def routes(self, place: str, depth: int) -> Iterator[tuple[str, str]]:
        """(type, path) of the modules to which a Router at `place` sends texts."""
        config = self.configs.get(str(PurePosixPath(place, "router_config.json")))
        name = "router_config.json" if config else "config.json"
        config = config or self.configs.get(str(PurePosixPath(place, "config.json")))
        types = config.get("types") if isinstance(config, dict) else None
        if not isinstance(types, dict) or len(types) > MAX_MODULES or depth > 3:
            raise DamagedFolder(f"has a Router whose {name} names no modules: restore the file.")
        for below, kind in types.items():
            if not isinstance(kind, str):
                raise DamagedFolder(f"has a module without type in {name}: restore the file.")
            where = "/".join(filter(None, (place, self.inside(below, name))))
            yield kind, where


def _shards(index: Any) -> list[str]:
    """Names of the weight files in an index; they must be in the same folder."""
    shards = index.get("weight_map") if isinstance(index, dict) else None
    listed = shards.values() if isinstance(shards, dict) else ()
    names = set(listed) if all_texts(listed) else set()
    if not names or not all(re.fullmatch(r"[\w][\w.-]*\.safetensors", name) for name in names):
        raise DamagedFolder(
            "has an index of weights (model.safetensors.index.json) that names files other than "
            "the safetensors files in its folder: restore the file."
        )
    return sorted(names)


def all_texts(values: Any) -> bool:
    """Whether all values are texts."""
    return all(isinstance(value, str) for value in values)


def is_router(kind: str) -> bool:
    """Whether modules of this type send queries and documents to modules of their own."""
    return kind.rpartition(".")[2] in ("Router", "Asym")


def _read(root: Path) -> Contents:
    reader = _Reader(root)
    reader.folder("")
    if "modules.json" in reader.configs:
        named = reader.named(reader.configs["modules.json"], "modules.json")
        waiting = [(kind, place, 0) for kind, place in named]
        while waiting:
            kind, place, depth = waiting.pop(0)
            reader.modules.append((kind, place))
            if len(reader.modules) > MAX_MODULES:
                raise DamagedFolder("lists too many modules for a model: restore modules.json.")
            if (root / place).is_dir():
                reader.folder(place)
            if is_router(kind):
                waiting += [(k, p, depth + 1) for k, p in reader.routes(place, depth)]
    return Contents(
        root,
        tuple(sorted(reader.files + reader.weights)),
        tuple(sorted(reader.weights)),
        MappingProxyType(reader.configs),
        tuple(reader.modules),
        tuple(reader.pickles),
    )


_known: dict[Path, tuple[tuple[object, ...], Contents]] = {}
_KNOWN = 32


def contents(folder: Path) -> Contents:
    """The files of a model's folder that are read, with its parsed configuration; cached until one
    of them changes.

    Raises:
        DamagedFolder: the files could not be read safely, or are not a model.
    """
    cached = _known.get(folder)
    if cached is not None and _state(folder, cached[1]) == cached[0]:
        return cached[1]
    contents = _read(folder)
    state = _state(folder, contents)
    # A folder that has just changed is not cached: another change could have the same file
    # system timestamp.
    if state and time.time_ns() - max(s for s in state if isinstance(s, int)) > 2_000_000_000:
        if len(_known) >= _KNOWN:
            _known.clear()
        _known[folder] = (state, contents)
    return contents


def _state(folder: Path, contents: Contents) -> tuple[object, ...]:
    """A value that changes when a file that is read changes, appears or disappears."""
    try:
        places = {folder, *(folder / place for _, place in contents.modules)}
        places |= {path.parent for path in contents.files}
        stats = [p.stat() for p in (*sorted(p for p in places if p.is_dir()), *contents.files)]
    except OSError:
        return ()
    return tuple(n for s in stats for n in (s.st_ctime_ns, (s.st_dev, s.st_ino, s.st_size)))
