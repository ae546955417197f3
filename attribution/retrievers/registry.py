"""Which retrievers there are, and where their files lie on this machine."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from attribution.errors import UserError
from attribution.retrievers.packaged import minilm_folder

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

PLANTED = Path(__file__).parent / "planted"
BM25 = Path(__file__).parent / "bm25"


def data_folder() -> Path:
    """Where fetched models and the cache live: $POSLENS_HOME, else poslens in the user's data."""
    if home := os.environ.get("POSLENS_HOME"):
        return Path(home).expanduser()
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "poslens"


@dataclass(frozen=True, slots=True)
class RetrieverSpec:
    """A retriever by name: where its weights come from and how it is to be used.

    `max_length` and the prompts are None where the model's own configuration decides.
    `query_max_length` limits queries alone (PosIR: 512).
    """

    name: str
    title: str
    family: str
    source: str
    license: str = ""
    note: str = ""
    hub_id: str = ""
    package: str = ""
    pooling: str | None = None
    max_length: int | None = None
    query_max_length: int | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    size_mb: int | None = None

    @property
    def settings(self) -> str:
        """What besides the files decides the numbers; `None` means as the files say."""
        return (
            f"pooling={self.pooling}, max_length={self.max_length}, "
            f"query_max_length={self.query_max_length}, query_prompt={self.query_prompt!r}, "
            f"document_prompt={self.document_prompt!r}"
        )

    @property
    def prompts(self) -> str:
        """The prompts in words, for captions."""
        if self.family == "lexical":
            return "none"
        if self.query_prompt is None and self.document_prompt is None:
            return "the model's own"
        return f"query {self.query_prompt or ''!r}, document {self.document_prompt or ''!r}"

    @property
    def origin(self) -> str:
        """Where the weights come from, for captions; a folder is named, not located."""
        kind, _, rest = self.source.partition(":")
        if kind == "adapter":
            return f"adapter on {rest}, shipped with PosLens"
        if kind == "builtin":
            name, _, corpus = rest.partition(":")
            return f"{name}, statistics of {corpus or 'the two texts'}"
        if self.package:
            return f"Python package {self.package}"
        return self.hub_id or (f"folder {Path(rest).name}" if kind == "folder" else self.source)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The folders a model is loaded from: all that its fingerprint has to cover."""

    folder: Path
    adapter: Path | None = None

    def paths(self) -> list[Path]:
        """Every file that decides what the model computes, sorted."""
        roots = [self.folder] + ([self.adapter] if self.adapter else [])
        suffixes = {".safetensors", ".json", ".txt", ".model", ".jinja", ".metadata"}
        return sorted(p for root in roots for p in root.rglob("*") if p.suffix in suffixes)


@cache
def presets() -> Mapping[str, RetrieverSpec]:
    """The registry `presets.toml`, by name, in its order."""
    raw = tomllib.loads((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
    return MappingProxyType(
        {name: RetrieverSpec(name=name, **entry) for name, entry in raw.items()}
    )


_registered: dict[str, RetrieverSpec] = {}


def register_folder(name: str, folder: Path) -> RetrieverSpec:
    """Make a local folder known by name. Only the person who starts the program can do this:
    a browser chooses among names."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that holds the model's files.")
    if name in presets():
        raise UserError(f"{name} is the name of a preset: give the folder another name.")
    spec = RetrieverSpec(
        name=name, title=name, family=_family_of(folder), source=f"folder:{folder.resolve()}",
        note="A local folder.",
    )  # fmt: skip
    _registered[name] = spec
    return spec


def _family_of(folder: Path) -> str:
    from attribution.retrievers.families import family_of

    return family_of(folder)


def known() -> dict[str, RetrieverSpec]:
    """Presets and registered folders."""
    return {**presets(), **_registered}


def resolve(name: str) -> RetrieverSpec:
    """The spec of a preset, a registered folder, or a Hugging Face id.

    Raises:
        UserError: none of these.
    """
    if found := known().get(name):
        return found
    if _HUB_ID.fullmatch(name):
        spec = RetrieverSpec(
            name=name, title=name, family="dense", source=f"hub:{name}", hub_id=name,
            note="From the Hugging Face hub.",
        )  # fmt: skip
        # What is not here yet is dense until its files say otherwise; asking no hub keeps names
        # that are typed from leaving the machine.
        if installed(spec):
            spec = replace(spec, family=_family_of(locate(spec, download=False).folder))
        return spec
    raise UserError(
        f"There is no retriever named {name[:80]!r}: choose one of {', '.join(known())}, or give "
        "a Hugging Face id such as organisation/model."
    )


def with_settings(
    spec: RetrieverSpec,
    *,
    max_length: int | None = None,
    query_max_length: int | None = None,
    query_prompt: str | None = None,
) -> RetrieverSpec:
    """`spec` with other lengths or another query prompt; None leaves what it says.

    A limit above the model's own is cut to it. BM25 has neither lengths nor prompts.
    """
    if spec.family == "lexical":
        return spec
    if max_length is not None and spec.max_length is not None:
        max_length = min(max_length, spec.max_length)
    return replace(
        spec,
        max_length=max_length if max_length is not None else spec.max_length,
        query_max_length=query_max_length
        if query_max_length is not None
        else spec.query_max_length,
        query_prompt=query_prompt if query_prompt is not None else spec.query_prompt,
    )


def installed(spec: RetrieverSpec) -> bool:
    """Whether the weights lie on this machine (asks no hub)."""
    try:
        locate(spec, download=False)
    except UserError:
        return False
    return True


def locate(spec: RetrieverSpec, *, download: bool = True) -> ModelFiles:
    """The files of `spec` on this machine; from the hub only where `download`.

    Raises:
        UserError: they are not here; the sentence says how to get them.
    """
    kind, _, rest = spec.source.partition(":")
    if kind == "builtin":
        return ModelFiles(BM25)
    if kind == "package":
        return ModelFiles(minilm_folder())
    if kind == "adapter":
        adapter = PLANTED / spec.name
        if not (adapter / "adapter_model.safetensors").is_file():
            raise UserError(f"The adapter of {spec.name} is missing: restore {PLANTED.name}/.")
        return ModelFiles(locate(presets()[rest]).folder, adapter)
    if kind == "folder":
        return ModelFiles(Path(rest))
    if kind == "fetch":
        folder = data_folder() / "models" / spec.name
        if not all((folder / name).is_file() for name in ("modules.json", "model.safetensors")):
            raise UserError(
                f"{spec.name} is not on this machine yet: run "
                f"`python -m dashboard models fetch {spec.name}`."
            )
        return ModelFiles(folder)
    return ModelFiles(_from_hub(rest, download))


def _from_hub(hub_id: str, download: bool) -> Path:
    from huggingface_hub import snapshot_download

    # Resolved to a folder first, so that an id can never be read as a path on this machine, and
    # without the formats that are not loaded (pickles above all).
    patterns = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.metadata"]
    try:
        folder = snapshot_download(
            hub_id, allow_patterns=patterns, local_files_only=not download, etag_timeout=5
        )
    except Exception as error:
        raise UserError(
            f"{hub_id} could not be had from the Hugging Face hub ({type(error).__name__}): check "
            "the name and the connection, or give a local folder when starting PosLens."
        ) from error
    return Path(folder)
