"""Specifications of retrievers: where weights come from, how they are used, and the presets."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.attribution.paths import expanded
from poslens.attribution.retrievers.calibration import Calibration, decimals, rounded, split
from poslens.attribution.retrievers.model_folder import Contents, contents
from poslens.attribution.retrievers.safe_files import DamagedFolder, shapes

PLANTED = Path(__file__).parent / "planted"

BM25 = Path(__file__).parent / "bm25"

STEMMED = "builtin:bm25-stempel"
"""Source of BM25 over Polish stems (Stempel, as in Elasticsearch), a control of BEIR-PL."""

STEMMER = "pystempel"
"""The package of Stempel; `pip install '.[polish]'` installs it."""

ENDPOINT = "endpoint:"
"""Prefix of the source of a retriever behind an endpoint."""

OBJECT = "object:"
"""Prefix of the source of a retriever that is an object of a program (`own_object`)."""


def data_folder() -> Path:
    """Folder of fetched models and the cache: $POSLENS_HOME, or poslens in the user's data
    folder."""
    if home := os.environ.get("POSLENS_HOME"):
        return expanded(home)
    base = os.environ.get("XDG_DATA_HOME") or expanded("~/.local/share")
    return Path(base) / "poslens"


@dataclass(frozen=True, slots=True)
class RetrieverSpec:
    """A retriever: its name, the source of its weights, and its settings.

    `pooling`, `similarity`, `max_length` and the prompts are None if the model's configuration
    applies. `query_max_length` limits only queries (PosIR: 512). `query_source` is the source of a
    separate query encoder. `remote_code`: the model is defined by code in its repository, which
    runs only if it is allowed by name. `bidirectional`: transformers' own class computes the same
    with its causal mask off. `parameters` are in millions, of both encoders if there are two.
    `dequantized_bits` is the precision that weights were converted from; None if there was no loss.
    `answers` are the words for relevant and not relevant of a sequence-to-sequence reranker.
    An adapter's weights are multiplied by `strength`, or by 1 if it is None. Vectors have
    `dimensions` numbers, or as many as the model's configuration says if it is None. `calibration`
    is the attention calibration; with None, attention is unchanged. `training` says how
    PosLens debiased the model, if it did. `alias_of` is the model's own name if the user chose
    another `name`.
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
    parameters: int | None = None
    dequantized_bits: int | None = None
    query_source: str | None = None
    similarity: str | None = None
    remote_code: bool = False
    bidirectional: bool = False
    answers: tuple[str, ...] | None = None
    strength: float | None = None
    dimensions: int | None = None
    calibration: Calibration | None = None
    training: str = ""
    alias_of: str = ""

    @property
    def base(self) -> str:
        """The model's own name without suffixes: `MiniLM` for `MiniLM@last`."""
        return (self.alias_of or self.name).partition("@")[0]

    @property
    def uncalibrated(self) -> str:
        """The model's own name without calibration: `MiniLM@last` for `MiniLM@last@calibrated`."""
        name = self.alias_of or self.name
        return (split(name) or (name,))[0]

    @property
    def remote(self) -> bool:
        """Whether the model is behind an endpoint, with nothing of it on this machine."""
        return self.source.startswith(ENDPOINT)

    @property
    def without_files(self) -> bool:
        """Whether there are no files: only the model's outputs identify it."""
        return self.source.startswith((ENDPOINT, OBJECT))

    @property
    def settings(self) -> str:
        """All settings that determine the numbers besides the files; `None` means that the setting
        in the files applies."""
        text = (
            f"pooling={self.pooling}, max_length={self.max_length}, "
            f"query_max_length={self.query_max_length}, query_prompt={self.query_prompt!r}, "
            f"document_prompt={self.document_prompt!r}"
        )
        # Included only if they are set, so that keys of models without them do not change.
        if self.similarity is not None:
            text += f", similarity={self.similarity}"
        if runs_bidirectional(self):
            text += ", bidirectional"
        if self.answers is not None:
            text += f", answers={'/'.join(self.answers)}"
        if self.strength is not None:
            text += f", strength={decimals(self.strength)}"
        if self.dimensions is not None:
            text += f", dimensions={self.dimensions}"
        if self.calibration is not None:
            text += f", calibrated: {self.calibration.key}"
        return text

    @property
    def terms(self) -> str:
        """The license, and whether the weights are less precise than the published ones."""
        return ", ".join(filter(None, (self.license, self._dequantized)))

    @property
    def _dequantized(self) -> str:
        bits = self.dequantized_bits
        return "" if bits is None else f"dequantized from {bits} bits"

    @property
    def prompts(self) -> str:
        """The prompts in words, for captions."""
        if self.family == "lexical":
            return "none"
        if self.query_prompt is None and self.document_prompt is None:
            return f"the {self.noun}'s own"
        return f"query {self.query_prompt or ''!r}, document {self.document_prompt or ''!r}"

    @property
    def noun(self) -> str:
        """What sentences call the model: endpoint, object (of a Python program) or model."""
        return "endpoint" if self.remote else "object" if self.without_files else "model"

    @property
    def origin(self) -> str:
        """The source of the weights, their training and the attention calibration, for captions; of
        a folder only its name, not its path."""
        words = "" if self.calibration is None else self.calibration.words
        calibrated = f"attention calibrated: {words}" if words else ""
        return "; ".join(filter(None, (self._weights, self.training, calibrated)))

    @property
    def _weights(self) -> str:
        kind, _, rest = self.source.partition(":")
        if self.remote:
            url, _, model = rest.partition("#")
            return f"endpoint {url}{f', model {model}' if model else ''}"
        if kind == "object":
            return f"object of {rest}"
        if kind == "adapter":
            part = "" if self.strength is None else f"{decimals(self.strength)} of an "
            return f"{part}adapter on {rest}, shipped with PosLens"
        if kind == "builtin":
            name, _, corpus = rest.partition(":")
            return f"{name}, statistics of {corpus or 'the two texts'}"
        if kind == "cache":
            return rest
        if self.package:
            return ", ".join(filter(None, (f"Python package {self.package}", self._dequantized)))
        return self.hub_id or (f"folder {Path(rest).name}" if kind == "folder" else self.source)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The folders that a model is loaded from, all of which its fingerprint covers."""

    folder: Path
    adapter: Path | None = None
    query: Path | None = None
    code: bool = False

    def folders(self) -> list[Path]:
        """The folders of whole models: the document encoder and a separate query encoder."""
        return [self.folder] if self.query is None else [self.folder, self.query]

    def weight_bytes(self, each: int) -> int:
        """Memory of the weights with `each` bytes per number, as the headers of the files say.

        Raises:
            DamagedFolder: a folder or a file could not be read safely.
        """
        paths = [path for folder in self.folders() for path in contents(folder).weights]
        numbers = sum(math.prod(shape) for path in paths for shape in shapes(path).values())
        return each * numbers

    def places(self) -> list[tuple[str, Path]]:
        """Every file that determines what the model computes, with its path in its folder, such as
        `1_Pooling/config.json`; sorted. Files of a separate query encoder come last, so two
        encoders in exchanged roles are another model.

        Raises:
            DamagedFolder: a folder could not be read safely.
        """
        places = []
        for root in (self.folder, self.adapter, self.query):
            if root is not None:
                programs = root.rglob("*.py") if self.code else ()
                paths = sorted({*contents(root).files, *programs})
                places += [(path.relative_to(root).as_posix(), path) for path in paths]
        return places


NOWHERE = ModelFiles(Path(os.devnull))
"""For models without files."""


@cache
def presets() -> Mapping[str, RetrieverSpec]:
    """The presets of `presets.toml` by name, in order."""
    raw = tomllib.loads((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
    specs = {}
    for name, entry in raw.items():
        fields: dict[str, Any] = {k: tuple(v) if type(v) is list else v for k, v in entry.items()}
        specs[name] = RetrieverSpec(name=name, **fields)
    return MappingProxyType(specs)


def contents_of(name: str, folder: Path) -> Contents:
    """The files to read from the folder of the model `name`.

    Raises:
        UserError: the folder could not be read safely, or is not a model.
    """
    try:
        return contents(folder)
    except DamagedFolder as error:
        raise UserError(f"{name} {error}") from error


POOLINGS: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("cls", "mean", "weightedmean")} | {"last": "lasttoken", "max": "max"}
)
"""Poolings that can follow a model's name after @, with sentence-transformers' names for them."""


def _variant(
    spec: RetrieverSpec, suffix: str, words: str, note: str = "", **changes: Any
) -> RetrieverSpec:
    """`spec` with changes that its name, its title and its note state."""
    name, title = f"{spec.name}{suffix}", f"{spec.title}, {words}"
    return replace(spec, name=name, title=title, note=f"{spec.note} {note}".strip(), **changes)


def with_strength(spec: RetrieverSpec, strength: float) -> RetrieverSpec:
    """`spec` with a scaled adapter, and named accordingly: 0 is the model without it, 1 the full
    adapter. `strength` is rounded to six decimals.

    Raises:
        UserError: the model has no adapter, or the strength is not in [0, 1].
    """
    if not spec.source.startswith("adapter:"):
        raise UserError(f"{spec.name} has no adapter to scale: remove @{strength:g}.")
    if not 0 <= strength <= 1:
        raise UserError(f"The strength of {spec.name} must be 0 to 1, not {strength:g}.")
    scale = rounded(strength)
    if scale == 1:
        return spec
    number = decimals(scale)
    return _variant(spec, f"@{number}", f"scaled by {number}", strength=scale)


def with_pooling(spec: RetrieverSpec, pooling: str) -> RetrieverSpec:
    """`spec` with another pooling, and named accordingly; unchanged if that is its own pooling.

    Raises:
        UserError: there is no such pooling, or the model has no pooling.
    """
    short = {full: key for key, full in POOLINGS.items()}.get(pooling, pooling)
    if short not in POOLINGS:
        raise UserError(
            f"There is no pooling {pooling[:40]!r} for {spec.name}: choose from "
            f"{', '.join(POOLINGS)}."
        )
    if spec.family != "dense":
        raise UserError(f"{spec.name} has no pooling to replace: remove @{short}.")
    if POOLINGS[short] == spec.pooling:
        return spec
    note = f"Pooling changed from the model's own: {short}."
    return _variant(spec, f"@{short}", f"{short} pooling", note, pooling=POOLINGS[short])


def with_dimensions(spec: RetrieverSpec, dimensions: int) -> RetrieverSpec:
    """`spec` with vectors truncated to their first `dimensions`, and named accordingly. Models that
    are trained for it keep most of their quality (Kusupati et al. 2022, "Matryoshka Representation
    Learning"); any dense model can be truncated.

    Raises:
        UserError: it is not a dense model, or its vectors are truncated already.
    """
    suffix = f"@{dimensions}d"
    if spec.family != "dense":
        raise UserError(
            f"{spec.name} is not a dense model, so its vectors can't be truncated: remove {suffix}."
        )
    if spec.dimensions is not None:
        raise UserError(f"{spec.name} is already truncated: remove {suffix}.")
    words = f"first {counted(dimensions, 'dimension')}"
    note = f"Vectors truncated to their {words}."
    return _variant(spec, suffix, words, note, dimensions=dimensions)


CONFIGURED = "configured"
"""Suffix of a model's name with which it truncates as its configuration does."""


def with_configured_limit(spec: RetrieverSpec, limit: int | None) -> RetrieverSpec:
    """`spec` truncating at `limit` tokens, as configured, and named accordingly; unchanged if it
    does so anyway.

    Raises:
        UserError: the configuration states no limit.
    """
    if limit is None:
        raise UserError(
            f"{spec.name} has no configuration that truncates texts: remove @{CONFIGURED}."
        )
    if spec.max_length in (None, limit):
        return spec
    note = f"Truncated at {limit:,} tokens, as configured."
    return _variant(
        spec, f"@{CONFIGURED}", f"truncated at {limit:,} tokens", note, max_length=limit
    )


def with_calibration(spec: RetrieverSpec, calibration: Calibration) -> RetrieverSpec:
    """`spec` with calibrated attention, and named accordingly.

    Raises:
        UserError: it is not a dense model, or is already calibrated.
    """
    suffix = calibration.suffix
    if spec.family != "dense":
        raise UserError(
            f"{spec.name} is not a dense model, so its attention can't be calibrated: remove "
            f"{suffix}."
        )
    if spec.calibration is not None:
        raise UserError(f"{spec.name} is already calibrated: remove the second {suffix}.")
    words = calibration.words
    note = f"Attention calibrated: {words}."
    return _variant(spec, suffix, f"attention calibrated ({words})", note, calibration=calibration)


CODE_SETTING = "POSLENS_ALLOW_CODE"

CODE_ALLOWED: set[str] = set()
"""Sources of models that may run the code of their repositories."""


def code_allowed(spec: RetrieverSpec) -> bool:
    """Whether the code in the repository of `spec` may run."""
    names = {name.strip() for name in os.environ.get(CODE_SETTING, "").split(",")}
    return spec.source in CODE_ALLOWED or bool(names & {spec.base, spec.hub_id} - {""})


def runs_bidirectional(spec: RetrieverSpec) -> bool:
    """Whether transformers' own class with its causal mask off replaces the model's code."""
    return spec.bidirectional and not code_allowed(spec)


def with_settings(
    spec: RetrieverSpec, *, max_length: int, query_max_length: int, query_prompt: str
) -> RetrieverSpec:
    """`spec` with other lengths and another query prompt.

    A limit above the model's own is reduced to it. BM25 has neither lengths nor prompts, and models
    without files have no lengths.
    """
    if spec.family == "lexical":
        return spec
    spec = replace(spec, query_prompt=query_prompt)
    if spec.without_files:  # its context limit is unknown
        return spec
    if spec.max_length is not None:
        max_length = min(max_length, spec.max_length)
    return replace(spec, max_length=max_length, query_max_length=query_max_length)


def weights_absent(name: str) -> UserError:
    """The error message for computing with a model of which only results are stored here."""
    return UserError(
        f"{name}'s weights are not on this machine: only what its cache holds can be opened."
    )
