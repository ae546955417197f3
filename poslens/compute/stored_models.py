"""Models known from stored results, whose weights may not be on this machine.

Each store records the origin of its model and the settings it was used with. This is enough to show
and caption its results; computing new ones needs the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.family import FAMILIES
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.maintenance import models
from poslens.cache.storage.store import ModelKey, Store

_TEXTS = ("name", "title", "family", "license", "hub_id")
_SETTINGS = (
    "pooling",
    "max_length",
    "query_max_length",
    "query_prompt",
    "document_prompt",
    "similarity",
)
_NUMBERS = ("max_length", "query_max_length")
_MAX_TEXT = 2000
_MAX_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model with the settings under which its results were computed. Its spec refers to no
    weights, and its name is unique among the stored models."""

    spec: RetrieverSpec
    key: ModelKey
    weights: str
    precision: str


def about(spec: RetrieverSpec, weights: str, precision: str) -> str:
    """The description of a model that is stored with its results, as JSON, without paths of this
    machine."""
    answer = {name: getattr(spec, name) for name in (*_TEXTS, *_SETTINGS)}
    return json.dumps(
        {"spec": answer, "origin": spec.origin, "weights": weights, "precision": precision},
        ensure_ascii=False,
    )


def _read(key: ModelKey) -> StoredModel | None:
    """The model that an untrusted file describes; None if the description is invalid."""
    try:
        about = json.loads(key.about)
        spec, stated = about["spec"], {name: str(about[name]) for name in ("weights", "precision")}
        fields: dict[str, Any] = {name: str(spec[name])[:_MAX_TEXT] for name in _TEXTS}
        for name in _SETTINGS:
            value = fields[name] = spec[name]
            if value is not None and not _fits(name, value):
                return None
        if fields["name"] != key.name or not key.name.isprintable():
            return None
        if fields["family"] not in FAMILIES:
            return None
        origin = str(about["origin"])[:_MAX_TEXT]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return StoredModel(RetrieverSpec(**fields, source=f"cache:{origin}"), key, **stated)


def _fits(name: str, value: object) -> bool:
    """Whether a setting has the right type and a plausible size."""
    if name in _NUMBERS:
        return type(value) is int and 0 < value <= _MAX_TOKENS
    return isinstance(value, str) and len(value) <= _MAX_TEXT


_stored: LRUCache[list[StoredModel]] = LRUCache(1)


def stored_models(store: Store) -> list[StoredModel]:
    """Every model with stored results, most recently used first. If several weights or
    precisions share a name, all but the first get a suffix after #."""
    state: dict[str, int] = {}
    for folder in store.folder.iterdir() if store.folder.is_dir() else ():
        with suppress(OSError):  # another process has just removed it
            state[folder.name] = folder.stat().st_mtime_ns
    return _stored.get((store.root, *sorted(state.items())), lambda: _all(store, state))


def _all(store: Store, state: Mapping[str, int]) -> list[StoredModel]:
    """Every model with stored results; `state` has the time of the last use by fingerprint."""
    read = [model for key in models(store) if (model := _read(key)) is not None]
    read.sort(key=lambda model: -state.get(model.key.fingerprint, 0))
    first: dict[str, tuple[str, str]] = {}
    stored_models = []
    for model in read:
        variant = (model.weights, model.precision)
        if first.setdefault(model.spec.name, variant) != variant:
            name = f"{model.spec.name}#{model.weights[:8]}-{model.precision}"
            model = replace(model, spec=replace(model.spec, name=name))
        stored_models.append(model)
    return stored_models


def find(store: Store, spec: RetrieverSpec) -> StoredModel | None:
    """The stored model of this name and these settings; None if there is none."""
    for model in stored_models(store):
        if model.spec.name == spec.name and _same_settings(model.spec, spec):
            return model
    return None


def _same_settings(spec: RetrieverSpec, other: RetrieverSpec) -> bool:
    return all(getattr(spec, name) == getattr(other, name) for name in _SETTINGS)


def remember(store: Store) -> list[str]:
    """Make `resolve` accept the names of models that only the store knows. Returns the names of all
    models, including presets, whose results are stored but whose weights are not on this
    machine."""
    absent: dict[str, RetrieverSpec] = {}
    for model in stored_models(store):
        name, earlier = model.spec.name, absent.get(model.spec.name)
        # The name alone means the settings without a protocol's query limit, if there are several.
        if earlier is not None and (
            earlier.query_max_length is None or model.spec.query_max_length
        ):
            continue
        with suppress(UserError):
            if resolve.installed(resolve.resolve(name)):
                continue
        absent[name] = model.spec
    resolve.remember({n: spec for n, spec in absent.items() if n not in resolve.known()})
    return list(absent)
