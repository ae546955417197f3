"""Models that are objects of a Python program: anything with `encode(list of texts)`.

They work like an embedding endpoint (`endpoint`), with the same limits. `remember` names an object
by its class and a part of its fingerprint, which consists of its exact vectors of fixed texts
instead of digests of files. Objects are referenced weakly if their class allows it (a class with
slots may not), so that their memory can be freed; the last KEPT objects are remembered.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import Unavailable, UserError
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.endpoint import EmbeddingEndpoint
from poslens.attribution.retrievers.endpoint_client import PROBE, Rejected
from poslens.attribution.retrievers.family import Capability, Family, register
from poslens.attribution.retrievers.specs import OBJECT, RetrieverSpec
from poslens.attribution.types import Array

BATCH = 32
"""Maximum number of texts in a call of `encode`."""

KEPT = 64
"""Maximum number of objects remembered at a time: a model explained at each step of its training is
a different one each time."""

# Two short texts and one longer than the context limit of most models: a model with another limit
# or one more training step returns other vectors.
_PROBES = (PROBE, "qué es la sal 塩", " ".join([PROBE] * 40))


def vectors_of(name: str, texts: Sequence[str]) -> Array:
    """Vectors [n, H] of texts, in order, of the object that currently has this name.

    Raises:
        Unavailable: the object was freed, or `encode` fails or does not return one vector per text.
        Rejected: a vector is not finite.
    """
    model, width = _alive(name), int(_known[name][1].shape[1])
    parts = []
    for start in range(0, len(texts), BATCH):
        checkpoint()
        parts.append(_encoded(name, model, texts[start : start + BATCH], width))
    return np.concatenate(parts) if parts else np.zeros((0, width), np.float32)


_known: dict[str, tuple[Callable[[], Any], Array]] = {}


def remember(model: Any) -> RetrieverSpec:
    """Register an object and return its name. Objects of one class with equal vectors are the same
    model. Vectors are compared by its `similarity_fn_name`, "cosine" or "dot", by default cosine.

    Raises:
        UserError: it has no `encode`, or that does not return vectors.
    """
    kind = type(model)
    title = re.sub(r"[^\w.-]", "", kind.__name__, flags=re.ASCII)[:60] or "object"
    if not callable(getattr(model, "encode", None)):
        raise UserError(
            f"An object of type {kind.__name__} is not a model: use a preset, a Hugging Face id, a "
            "folder, a SentenceTransformer or an object with encode(list of texts)."
        )
    similarity = getattr(model, "similarity_fn_name", None) or "cosine"
    similarity = getattr(similarity, "value", similarity)
    if similarity not in ("cosine", "dot"):
        raise UserError(
            f"{title} compares vectors by {str(similarity)[:40]!r}: set its similarity_fn_name to "
            "cosine or dot."
        )
    first = _encoded(title, model, _PROBES[:1])
    others = [_encoded(title, model, [text], first.shape[1]) for text in _PROBES[1:]]
    probe = np.concatenate([first, *others])
    source = f"{OBJECT}{kind.__module__}.{kind.__qualname__}"
    digest = hashlib.sha256(source.encode() + similarity.encode() + probe.tobytes()).hexdigest()
    name = f"{title}-{digest[:8]}"
    _keep(name, model, probe)
    return RetrieverSpec(
        name=name,
        title=name,
        family="object",
        source=source,
        similarity=similarity,
        note="A Python object with an encode method.",
    )


def _keep(name: str, model: Any, probe: Array) -> None:
    """Register an object; drops freed objects, and the oldest of more than `KEPT`."""
    freed = [key for key, (reference, _) in list(_known.items()) if reference() is None]
    for other in (name, *freed):
        _known.pop(other, None)
    _known[name] = _reference(model), probe
    for other in list(_known)[:-KEPT]:
        _known.pop(other, None)


def _reference(model: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(model)
    except TypeError:  # a class with slots, for example
        return lambda: model


def _alive(name: str) -> Any:
    model = _known[name][0]() if name in _known else None
    if model is None:
        raise Unavailable(
            f"{name} was a Python object that is no longer in memory: create it again."
        )
    return model


def _encoded(name: str, model: Any, texts: Sequence[str], width: int | None = None) -> Array:
    """Vectors [n, H] of texts; H must be `width` if that is known."""
    try:
        given = model.encode(list(texts))
    except UserError:
        raise
    except Exception as error:
        what = ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))[:300]
        raise Unavailable(
            f"{name}'s encode fails on a list of texts ({what}): call it directly to see the whole "
            "error."
        ) from error
    try:
        values = _numbers(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unavailable(
            f"{name}'s encode returns {type(given).__name__}, which is not an array of numbers: it "
            "must return one vector per text, all of the same length."
        ) from error
    expected = f"[{len(texts)}, {width or 'dimensions'}]"
    shape = f"[{', '.join(map(str, values.shape))}]"
    if (
        values.ndim != 2
        or len(values) != len(texts)
        or values.shape[1] != (width or values.shape[1])
    ):
        raise Unavailable(
            f"{name}'s encode returns an array of shape {shape} for {counted(len(texts), 'text')}: "
            f"it must return shape {expected}."
        )
    if not values.shape[1]:
        raise Unavailable(f"{name}'s encode returns empty vectors: shape {shape}.")
    invalid = np.flatnonzero(~np.isfinite(values).all(axis=-1))
    if len(invalid):
        rejected = Rejected(f"{name}'s encode returns a vector that is not finite for {{what}}.")
        rejected.texts = [texts[int(invalid[0])]]
        raise rejected
    return values


def _numbers(given: Any) -> Array:
    """`given` as float32: an array, a tensor on any device, or a list of either or of numbers."""
    rows = list(given) if isinstance(given, (list, tuple)) else given
    plain = [_off_device(row) for row in rows] if isinstance(rows, list) else _off_device(rows)
    values = np.asarray(plain)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"{values.dtype} is no number")
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float32)


def _off_device(row: Any) -> Any:
    return row.detach().float().cpu().numpy() if isinstance(row, Tensor) else row


def _probe(spec: RetrieverSpec) -> Array:
    _alive(spec.base)
    return _known[spec.base][1].reshape(-1)


FAMILY = register(
    Family(
        name="object",
        title="object with encode",
        order=62,
        capabilities=frozenset({Capability.REMOVAL, Capability.VECTOR}),
        search="vectors",
        load=lambda spec, _files, _place: EmbeddingEndpoint(spec, partial(vectors_of, spec.base)),
        has_weights=False,
        why_not="an object with encode returns only vectors of texts, so there are no gradients, "
        "layers or term weights",
        probe=_probe,
    )
)
