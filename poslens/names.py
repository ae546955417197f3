"""Models and data sets that a command or a call names: by name, folder, path or NAME=PATH."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from poslens.attribution.errors import UserError
from poslens.attribution.names import Names
from poslens.attribution.paths import exists, expanded, is_folder

if TYPE_CHECKING:
    from poslens.attribution.datasets import DataSet
    from poslens.attribution.retrievers.specs import RetrieverSpec

T = TypeVar("T")


_PATHS = ("/", "./", "../", "~")
"""What only a path begins with, not a preset or a hub id."""


def resolve(name: str, posir: bool = False) -> RetrieverSpec:
    """The retriever given by a name, a folder or NAME=FOLDER, each with optional suffixes such as
    @mean; `posir` adds the PosIR paper's settings."""
    from poslens.attribution.retrievers import resolve, specs

    folder, suffix = _folder_of(name)
    label, separator, path = name.partition("=")
    # Suffixes may contain "=" too, as in @calibrated(strength=0.5).
    if separator and not folder and "@" not in label:
        label, location = named(name, "--model")
        folder, suffix = _folder_of(str(location))
        name = resolve.register_folder(label, Path(folder or path)).name + suffix
    # Folders are registered again, because the name may have been registered for another one.
    elif folder and _of_folder(name) and _of_folder(folder):
        name = _registered(Path(folder).resolve()) + suffix
    elif not folder and (name.startswith(_PATHS) or exists(name)) and _of_folder(name):
        raise UserError(f"{name} is not a folder: use the folder with the model's files.")
    if name not in resolve.known():
        from poslens.cache.storage.store import Store
        from poslens.compute.stored_models import remember

        remember(Store(specs.data_folder() / "cache"))
    spec = resolve.resolve(name)
    parent, slash, _ = name.rpartition("/")
    if slash and is_folder(parent) and spec.source[:4] == "hub:" and not resolve.installed(spec):
        raise UserError(
            f"{name} is not a folder, although {parent} is one: use the folder with the model's "
            f"files or, for a Hugging Face id, run `python -m poslens models fetch {spec.base}`."
        )
    return posir_spec(spec) if posir else spec


POSIR_PROMPT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)


def posir_spec(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` with the settings of PosIR's saliency scripts: the query prompt, queries truncated
    at 512 tokens and documents at 2,048."""
    from poslens.attribution.retrievers.specs import with_settings

    return with_settings(spec, max_length=2048, query_max_length=512, query_prompt=POSIR_PROMPT)


def posir_ranking_spec(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` with the settings of PosIR's ranking script (`eval.py`): the query prompt, and
    8,192 tokens for queries and documents. The script adds the prompt to queries of
    Qwen3-Embedding models only; here every model's queries get it."""
    from poslens.attribution.retrievers.specs import with_settings

    return with_settings(spec, max_length=8192, query_max_length=8192, query_prompt=POSIR_PROMPT)


def _folder_of(name: str) -> tuple[str, str]:
    """The folder that a name begins with (empty without one), and the suffix after it."""
    folder, suffix = name, ""
    # A folder's name may contain "@" itself, so the longest match wins.
    while folder and not is_folder(folder):
        folder, at, part = folder.rpartition("@")
        suffix = at + part + suffix
    return folder, suffix


def _of_folder(name: str) -> bool:
    """Whether the name is free, or registered for a folder."""
    from poslens.attribution.retrievers import resolve

    spec = resolve.known().get(name)
    return spec is None or spec.source.startswith("folder:")


def _registered(folder: Path) -> str:
    """Register a folder and return its name: the folder's own, preceded by as many parent folders
    as distinguish it from other registered models, as in `run-2/checkpoint-500`."""
    from poslens.attribution.retrievers import resolve, specs

    for n in range(1, len(folder.parts)):
        name = "/".join(folder.parts[-n:])
        spec = resolve.known().get(name)
        # `register_folder` refuses a preset's name.
        if spec is None or name in specs.presets() or spec.source == f"folder:{folder}":
            break
    return resolve.register_folder(name, folder).name


def for_data(spec: RetrieverSpec, dataset: str) -> RetrieverSpec:
    """The same retriever with the data set's word statistics, if it uses any (BM25)."""
    from poslens.attribution.retrievers.lexical import with_corpus

    return with_corpus(spec, dataset)


def specs_of(
    names: Iterable[str], dataset: str, of: Callable[[str], RetrieverSpec] = resolve
) -> list[RetrieverSpec]:
    """The retrievers of these names, resolved by `of`, with the data set's word statistics and
    without duplicates (`distinct`)."""
    return distinct(for_data(of(name), dataset) for name in names)


def distinct(specs: Iterable[RetrieverSpec]) -> list[RetrieverSpec]:
    """These retrievers without duplicates, even if one was given by several names, because p values
    are adjusted for the number of rows.

    Raises:
        UserError: two folders are given one name.
    """
    by_name: dict[str, RetrieverSpec] = {}
    for spec in specs:
        if by_name.setdefault(spec.name, spec).source != spec.source:
            raise UserError(f"--model uses the name {spec.name} for two folders: rename one.")
    return list(by_name.values())


_given: Names[str] = Names()
"""The data sets of --data by name. Their names precede paths, because the working directory may
have a folder of the same name."""


def register_data(named_sources: Mapping[str, str]) -> list[str]:
    """Register the data sets of --data, given by name, and return all their names.

    Raises:
        UserError: a data set cannot be registered.
    """
    from poslens.attribution import datasets

    registered = {
        registered_name: source
        for name, source in named_sources.items()
        for registered_name in datasets.register(name, source)
    }
    _given.update(registered)
    return list(registered)


def data_name(dataset: str | Path) -> str:
    """The name of a data set given by name or path; a path is registered under its name. Files that
    changed since they were read are read again."""
    from poslens.attribution import datasets

    dataset = str(dataset)
    # Paths are registered again, because the name may have been registered for another folder.
    is_name = datasets.embedded(dataset) or dataset in _given
    name = "" if is_name else _name_of(dataset)
    if name:
        datasets.register(name, dataset)
    datasets.reload_if_changed(name or dataset)
    return name or dataset


def _name_of(source: str) -> str:
    """The name of the data set at a path; empty if there is none, unless `source` can only be a
    path: registering it then fails with the reason."""
    from poslens.attribution import datasets
    from poslens.attribution.datasets import formats, sources, tables

    path, variant = formats.split_variant(source)
    fetched = bool(sources.prefix_of(path))
    if not fetched and not exists(path):
        is_path = bool(tables.suffix(path)) or Path(path).name != path
        if not is_path or source in datasets.names():
            return ""
    name = sources.short_name(path) if fetched else Path(path).resolve().name
    return f"{name}@{variant}" if variant else name


def named(value: str, what: str, kind: str = "FOLDER") -> tuple[str, Path]:
    """Split NAME=FOLDER, or NAME= with another kind of value, into its two parts."""
    name, folder = _parted(value, f"{what} must be NAME={kind}, not {value[:80]!r}.")
    return name, expanded(folder)


def unique_by_name(given: Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    """The given values by name.

    Raises:
        UserError: a name is given twice; `what` is the option.
    """
    by_name: dict[str, T] = {}
    for name, value in given:
        if name in by_name:
            raise UserError(f"{what} uses the name {name} twice: use different names.")
        by_name[name] = value
    return by_name


def sources(values: list[str] | None) -> dict[str, str]:
    """The values of --data as paths or sources by name, with `~` expanded."""
    parted = (
        _parted(
            value,
            "--data must be NAME=PATH, NAME=hf:ORGANIZATION/NAME, NAME=ir_datasets:ID or "
            f"NAME=mteb:TASK, not {value!r}.",
        )
        for value in values or []
    )
    return unique_by_name(((name, str(expanded(source))) for name, source in parted), "--data")


def _parted(value: str, message: str) -> tuple[str, str]:
    name, separator, source = value.partition("=")
    if not separator or not name or not source:
        raise UserError(message)
    return name, source


_REJECTIONS = 3
"""Number of rejected rows that are printed."""


def with_rejections(data: DataSet) -> DataSet:
    """The same data set, after printing on stderr how many of its rows could not be read, with the
    first reasons."""
    if n := len(data.rejected):
        print("1 row was rejected:" if n == 1 else f"{n:,} rows were rejected:", file=sys.stderr)
        for row in data.rejected[:_REJECTIONS]:
            print(f"  {row}", file=sys.stderr)
        if n > _REJECTIONS:
            print(
                f"  and {n - _REJECTIONS:,} more, listed by `poslens datasets --data NAME=PATH "
                "--format json`",
                file=sys.stderr,
            )
    return data
