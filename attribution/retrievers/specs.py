"""What a retriever is by name: where its weights come from and how it is used. The presets."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from poslens.attribution.errors import UserError
from poslens.attribution.paths import expanded
from poslens.attribution.retrievers.calibration import Calibration, decimals, rounded
from poslens.attribution.retrievers.model_folder import Contents, contents
from poslens.attribution.retrievers.safe_files import DamagedFolder

PLANTED = Path(__file__).parent / "planted"

BM25 = Path(__file__).parent / "bm25"

ENDPOINT = "endpoint:"
"""What the source of a retriever begins with that is computed elsewhere."""

OBJECT = "object:"
"""What the source of a retriever begins with that is an object of a program (`own_object`)."""


def data_folder() -> Path:
    """Where fetched models and the cache live: $POSLENS_HOME, else poslens in the user's data."""
    if home := os.environ.get("POSLENS_HOME"):
        return expanded(home)
    base = os.environ.get("XDG_DATA_HOME") or expanded("~/.local/share")
    return Path(base) / "poslens"


@dataclass(frozen=True, slots=True)
class RetrieverSpec:
    """A retriever by name: where its weights come from and how it is to be used.

    `pooling`, `similarity`, `max_length` and the prompts are None where the model's own
    configuration decides. `query_max_length` limits queries alone (PosIR: 512). `query_source` is
    where the queries' own encoder comes from, if they have one. `remote_code` says that the model
    is defined by code in its repository, which runs only where it is allowed by name;
    `bidirectional` that transformers' own class computes the same with its causal mask off.
    `parameters` are in millions, of both encoders where there are two. `dequantized_bits` is the
    precision of the weights that these were converted from; None if nothing was lost. `answers` are
    the words for relevant and not relevant of a sequence-to-sequence reranker. `strength` scales an
    adapter's weights; None is all of it. `calibration` is how attention is calibrated; None is as
    the model has it.
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
    calibration: Calibration | None = None

    @property
    def base(self) -> str:
        """The name without a choice of the user's behind it: `MiniLM` of `MiniLM@last`."""
        return self.name.partition("@")[0]

    @property
    def remote(self) -> bool:
        """Whether it is computed elsewhere: nothing of it is on this machine."""
        return self.source.startswith(ENDPOINT)

    @property
    def without_files(self) -> bool:
        """Whether there are no files of it here: only its answers tell what it is."""
        return self.source.startswith((ENDPOINT, OBJECT))

    @property
    def settings(self) -> str:
        """What besides the files decides the numbers; `None` means as the files say."""
        text = (
            f"pooling={self.pooling}, max_length={self.max_length}, "
            f"query_max_length={self.query_max_length}, query_prompt={self.query_prompt!r}, "
            f"document_prompt={self.document_prompt!r}"
        )
        # Named only where they are set, so that keys of models without them stay what they were.
        if self.similarity is not None:
            text += f", similarity={self.similarity}"
        if runs_bidirectional(self):
            text += ", bidirectional"
        if self.answers is not None:
            text += f", answers={'/'.join(self.answers)}"
        if self.strength is not None:
            text += f", strength={decimals(self.strength)}"
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
            owner = "endpoint" if self.remote else "object" if self.without_files else "model"
            return f"the {owner}'s own"
        return f"query {self.query_prompt or ''!r}, document {self.document_prompt or ''!r}"

    @property
    def origin(self) -> str:
        """Where the weights come from, for captions, and how their attention is calibrated; a
        folder is named, not located."""
        if self.calibration is None:
            return self._weights
        return f"{self._weights}; attention calibrated: {self.calibration.words}"

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
    """The folders a model is loaded from: all that its fingerprint has to cover."""

    folder: Path
    adapter: Path | None = None
    query: Path | None = None
    code: bool = False

    def folders(self) -> list[Path]:
        """Those that hold a whole model: the documents' encoder, and the queries' own."""
        return [self.folder] if self.query is None else [self.folder, self.query]

    def paths(self) -> list[Path]:
        """Every file that decides what the model computes, sorted; those of the queries' own
        encoder come last, so that two encoders that change places are another model.

        Raises:
            DamagedFolder: a folder could not be read safely.
        """
        paths: list[Path] = []
        for root in (self.folder, self.adapter, self.query):
            if root is not None:
                programs = root.rglob("*.py") if self.code else ()
                paths += sorted({*contents(root).files, *programs})
        return paths

    def places(self) -> list[tuple[str, Path]]:
        """The same with each file's place in its folder, such as `1_Pooling/config.json`."""
        roots = [root for root in (self.query, self.adapter, self.folder) if root is not None]
        return [
            (next(path.relative_to(r) for r in roots if path.is_relative_to(r)).as_posix(), path)
            for path in self.paths()
        ]


NOWHERE = ModelFiles(Path(os.devnull))
"""The files of what has none."""


@cache
def presets() -> Mapping[str, RetrieverSpec]:
    """The presets of `presets.toml`, by name, in its order."""
    raw = tomllib.loads((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
    return MappingProxyType(
        {name: RetrieverSpec(name=name, **_tuples(entry)) for name, entry in raw.items()}
    )


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}


def contents_of(name: str, folder: Path) -> Contents:
    """What is read of the folder of the model `name`.

    Raises:
        UserError: it could not be read safely, or is no model.
    """
    try:
        return contents(folder)
    except DamagedFolder as error:
        raise UserError(f"{name} {error}") from error


POOLINGS: Mapping[str, str] = MappingProxyType(
    {
        "cls": "cls",
        "mean": "mean",
        "weightedmean": "weightedmean",
        "last": "lasttoken",
        "max": "max",
    }
)
"""Poolings that can follow a model's name after @, and what sentence-transformers calls them."""


def with_strength(spec: RetrieverSpec, strength: float) -> RetrieverSpec:
    """`spec` with its adapter scaled, and named so: 0 is the model without it, 1 all of it.
    `strength` is rounded to six decimals.

    Raises:
        UserError: the model has no adapter, or the strength is not from 0 to 1.
    """
    if not spec.source.startswith("adapter:"):
        raise UserError(f"{spec.name} has no adapter to scale: leave out @{strength:g}.")
    if not 0 <= strength <= 1:
        raise UserError(f"{spec.name} can be scaled by 0 to 1, not by {strength:g}.")
    scale = rounded(strength)
    if scale == 1:
        return spec
    return replace(
        spec,
        name=f"{spec.name}@{decimals(scale)}",
        title=f"{spec.title}, scaled by {decimals(scale)}",
        strength=scale,
    )


def with_pooling(spec: RetrieverSpec, pooling: str) -> RetrieverSpec:
    """`spec` pooled otherwise, and named so; itself where that is the pooling it says it has.

    Raises:
        UserError: there is no such pooling, or the model pools nothing.
    """
    short = {full: key for key, full in POOLINGS.items()}.get(pooling, pooling)
    if short not in POOLINGS:
        raise UserError(
            f"There is no pooling {pooling[:40]!r} to put behind {spec.name}@: choose one of "
            f"{', '.join(POOLINGS)}."
        )
    if spec.family != "dense":
        raise UserError(f"{spec.name} has no pooling to replace: leave out @{short}.")
    if POOLINGS[short] == spec.pooling:
        return spec
    return replace(
        spec,
        name=f"{spec.name}@{short}",
        title=f"{spec.title}, {short} pooling",
        pooling=POOLINGS[short],
        note=f"{spec.note} Pooling changed from the model's own: {short}.".strip(),
    )


CONFIGURED = "configured"
"""What follows a model's name after @ where it truncates as its own configuration says."""


def with_configured_limit(spec: RetrieverSpec, limit: int | None) -> RetrieverSpec:
    """`spec` truncating at `limit` tokens, as its own configuration says, and named so; itself
    where it does that anyway.

    Raises:
        UserError: the configuration names no limit.
    """
    if limit is None:
        raise UserError(
            f"{spec.name} has no configuration that truncates texts: leave out @{CONFIGURED}."
        )
    if spec.max_length in (None, limit):
        return spec
    return replace(
        spec,
        name=f"{spec.name}@{CONFIGURED}",
        title=f"{spec.title}, truncated at {limit:,} tokens",
        max_length=limit,
        note=f"{spec.note} Truncated at {limit:,} tokens, as configured.".strip(),
    )


def with_calibration(spec: RetrieverSpec, calibration: Calibration) -> RetrieverSpec:
    """`spec` with its attention calibrated, and named so.

    Raises:
        UserError: it is no dense model, or is calibrated already.
    """
    suffix = calibration.suffix
    if spec.family != "dense":
        raise UserError(
            f"{spec.name} is no dense model, so its attention is not calibrated: leave out "
            f"{suffix}."
        )
    if spec.calibration is not None:
        raise UserError(f"{spec.name} is calibrated already: leave out the second {suffix}.")
    return replace(
        spec,
        name=spec.name + suffix,
        title=f"{spec.title}, attention calibrated ({calibration.words})",
        calibration=calibration,
        note=f"{spec.note} Attention calibrated: {calibration.words}.".strip(),
    )


CODE_SETTING = "POSLENS_ALLOW_CODE"

_code_allowed: set[str] = set()


def code_allowed(spec: RetrieverSpec) -> bool:
    """Whether the code in the repository of `spec` may be run."""
    names = {name.strip() for name in os.environ.get(CODE_SETTING, "").split(",")}
    return spec.source in _code_allowed or bool(names & {spec.base, spec.hub_id} - {""})


def runs_bidirectional(spec: RetrieverSpec) -> bool:
    """Whether transformers' own class with its causal mask off stands in for the model's code."""
    return spec.bidirectional and not code_allowed(spec)


def with_settings(
    spec: RetrieverSpec,
    *,
    max_length: int | None = None,
    query_max_length: int | None = None,
    query_prompt: str | None = None,
) -> RetrieverSpec:
    """`spec` with other lengths or another query prompt; None leaves what it says.

    A limit above the model's own is cut to it. BM25 has neither lengths nor prompts, what has no
    files no lengths.
    """
    if spec.family == "lexical":
        return spec
    if spec.without_files:  # it cuts texts where it likes
        max_length = query_max_length = None
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


def weights_absent(name: str) -> UserError:
    """What is said of computing with a model of which only results are here."""
    return UserError(
        f"{name}'s weights are not on this machine: only what its cache holds can be opened."
    )


def permit_code(sources: Iterable[str]) -> None:
    """Let the models of these sources run the code of their repositories."""
    _code_allowed.update(sources)
