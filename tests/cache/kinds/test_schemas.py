"""Stored results of every kind: written results are read back, and forged ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import pytest
from typing_extensions import TypeAliasType

from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.types import Method
from poslens.cache.exchange.fitting import schema_for
from poslens.cache.kinds.faithfulness import RANDOM_ORDER
from poslens.cache.storage.codec import pack_fields, unpack_fields
from poslens.cache.storage.results import Key, Results, itself
from poslens.cache.storage.rows import OTHER, insert
from poslens.cache.storage.schema import SCHEMAS, Misfit, Owner, Packed, Schema
from poslens.cache.storage.store import ModelKey, Store

MODEL = ModelKey("M", "0" * 16)
FEW = ErasureParameters(fractions=(0.5,), n_random=2)
F = len(FEW.fractions)
CURVES = {"deletion": [0.5] * F, "insertion": [0.25] * F}
ORDERS = {"deletion": [[0.5] * F] * 2, "insertion": [[0.25] * F] * 2}
OF_PAIR = {"model": "M", "pair_id": "p"}
END = {"read_share": 0.9, "note": "", "seconds": 0.1}

RESULTS: dict[tuple[str, Method], dict[str, Any]] = {
    ("bias_scores", Method("bias_scores")): {
        "first": 0.5,
        "second": 1,
        "truncated": False,
        "read": 1.0,
    },
    (f"faithfulness {FEW!r}", Method("saliency")): {
        "pair_id": "p",
        "n_units": 9,
        "truncated": True,
        **CURVES,
        "baseline": ORDERS,
        "enrichment": None,
        "attribution_seconds": 0.1,
        "seconds": 0.2,
    },
    (f"faithfulness {FEW!r}", RANDOM_ORDER): ORDERS,
    ("relocation", Method("relocation", {"positions": 2})): {
        **OF_PAIR,
        "positions": [0.25, 0.75],
        "scores": [1.5, 2.5],
        "read": [1.0, 0.5],
        "original": 2.0,
        "evidence": 0.5,
        **END,
    },
    ("ablation", Method("ablation", {"by": "delete"})): {
        **OF_PAIR,
        "by": "delete",
        "spans": [[0, 5], [5, 9]],
        "edges": [0.0, 0.5, 1.0],
        "effects": [0.5, -0.25],
        "score": 1.5,
        **END,
    },
    ("displacement", Method("displacement", {"by": "prefix", "tokens": "0/32"})): {
        **OF_PAIR,
        "way": "prefix",
        "tokens": [0, 32],
        "scores": [0.5, 0.25],
        "read": [1.0, 1.0],
        "note": "",
    },
    ("segments", Method("segments")): {
        **OF_PAIR,
        "edges": [0.0, 0.5, 1.0],
        "cosines": [0.5, 0.25],
        **END,
    },
    ("insertion", Method("insertion")): {
        **OF_PAIR,
        "by": "insertion",
        "cosines": [[0.5] * 5] * 3,
        "truncated": True,
        **END,
    },
    ("others", Method("others")): {"scores": [0.5, 0.25]},
    ("needle", Method("needle")): {"ranks": [1, 2], "tokens": [60, 61], "repeated": 0},
    ("ranking", Method("ranking")): {
        "query_id": "p",
        "document_ids": ["a", "b"],
        "scores": [0.5, 0.25],
        "languages": ["eng", "pol"],
    },
    ("evidence_read", Method("evidence_read")): {"share": 0.5},
    ("preferences", Method("preferences")): {"first": [[0.5, 1.0]] * 6, "last": [[0.25, 0.5]] * 6},
    ("reachability", Method("reachability")): {
        "document_id": "p",
        "language": None,
        "n_words": 9,
        "spans": [[0, 5], [5, 9]],
        "places": [[0.25, 0.75], [0.75, 0.25]],
        "read": [[1.0, 1.0], [1.0, 0.5]],
        "ranks": [[[1, 2], [3, 0]], [[1, 2], [3, 0]]],
    },
    ("truncation", Method("truncation")): {
        "documents": 1,
        "n_words": 9,
        "word": 4,
        "n_tokens": 12,
        "first": 5,
        "last": 6,
        "claimed": 6,
    },
    ("search", Method("search")): {
        "seen": 40,
        "k": 2,
        "keys": Packed(limit=99).pack(np.array([7, 6, 5, 4], np.int64)),
    },
    ("position_ranks", Method("position_ranks")): {"pair_id": "p", "ranks": [1, 7]},
    ("chunk_plan", Method("chunk_plan")): {
        "document_id": "p",
        "vectors": 2,
        "ranks": [1, 0, 3],
        "query_ranks": [1, 2],
        "cut": [0, -1],
    },
    ("encoding_time", Method("encoding_time")): {"seconds": [0.5, 0.25]},
    ("late_chunks", Method("late_chunks")): {
        "width": 2,
        "vectors": Packed().pack(np.array([0.5, 0.25, 1.5, 2.5], np.float32)),
    },
    ("why", Method("why", {"top": 10})): {
        "document_id": "p",
        "top": 10,
        "n_documents": 40,
        "rank": 12,
        "score": 0.5,
        "source": "data set",
        "start": 3,
        "end": 9,
        "position": 0.25,
        "evidence_read": 1.0,
        "read": None,
        "moved": {"rank": 8, "null": 12, "score": 0.75, "null_score": 0.5},
        "alone": None,
        "without": None,
        "best_position": 0.5,
        "n_words": 90,
        "n_query_words": 4,
        "shared_words": ["tide"],
        "above": [
            {"document_id": "a", "rank": 1, "relevant": False, "duplicate": True, "n_words": 80}
        ],
        "relevant_above": 1,
        "duplicates_above": 1,
        "shorter_above": 1,
    },
}
OPTIONAL = {
    "bias_scores": {"truncated", "read"},
    "displacement": {"note"},
    "why": {
        *("read", "moved", "alone", "without", "best_position", "n_words", "n_query_words"),
        *("shared_words", "above", "relevant_above", "duplicates_above", "shorter_above"),
    },
}
KINDS = [
    pytest.param(*key, fields, id=f"{key[0][:12]}-{key[1].name}") for key, fields in RESULTS.items()
]

WRONG: list[Any] = [
    None,
    True,
    "x",
    "\ud800",
    -1,
    1e300,
    10**400,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    [None],
    ["x"],
    [True],
    [float("nan")] * 2,
    [1e300, 1e300],
    [[0.5], [0.5, 1]],
    [[[[0.5]]]],
    {"deletion": []},
    {"a": 1},
]


def owner(method: Method) -> Owner:
    return Owner(MODEL, method, "p")


def unpacked(kind: str, method: Method, fields: dict[str, Any]) -> Any:
    schema = schema_for(kind, method)
    assert schema is not None
    return schema.unpack(fields, owner(method))


def packed(kind: str, method: Method, found: Any) -> dict[str, Any]:
    schema = schema_for(kind, method)
    assert schema is not None
    return schema.pack(found)


def changed(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields with one of them, or one within it, replaced by each wrong value."""
    for name, right in fields.items():
        for wrong in WRONG:
            if wrong == right and type(wrong) is type(right):
                continue
            yield f"{name}={wrong!r:.40}", fields | {name: wrong}
            if isinstance(right, list):
                yield f"{name}[0]={wrong!r:.40}", fields | {name: [wrong, *right[1:]]}
        if isinstance(right, list):
            yield f"{name} shorter", fields | {name: right[:-1]}
            yield f"{name} longer", fields | {name: [*right, right[-1]]}
        if isinstance(right, dict):
            yield from ((f"{name}.{a}", fields | {name: b}) for a, b in changed(right))


def test_every_kind_is_tested() -> None:
    alike = {"thirds": "segments", "removal": "insertion"}
    assert {alike.get(kind, kind) for kind in SCHEMAS} <= {kind for kind, _ in RESULTS}


@pytest.mark.parametrize(("kind", "method", "fields"), KINDS)
def test_stored_results_are_read_back(kind: str, method: Method, fields: dict[str, Any]) -> None:
    stored = unpack_fields(pack_fields(fields))
    assert stored is not None
    again = packed(kind, method, unpacked(kind, method, stored))
    assert again == fields


@pytest.mark.parametrize(("kind", "method", "fields"), KINDS)
def test_a_forged_field_is_refused_or_has_the_declared_type(
    kind: str, method: Method, fields: dict[str, Any]
) -> None:
    """Accepted values have the declared types: stored again, they equal the input."""
    refused = 0
    for name, offered in changed(fields):
        try:
            found = unpacked(kind, method, offered)
        except Misfit:
            refused += 1
            continue
        again = packed(kind, method, found)
        assert again.keys() == fields.keys(), name
        for field, value in again.items():
            assert same_form(value, fields[field]) or value is None, (name, value)
    assert refused > len(fields)


def same_form(value: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return isinstance(value, dict) and all(
            value[k] is None or same_form(value[k], v) for k, v in right.items()
        )
    if isinstance(right, list):
        return isinstance(value, list) and all(
            same_form(each, right[0]) or (each is None and isinstance(right[0], str))
            for each in value
        )
    if isinstance(right, bool | str) or right is None:
        return isinstance(value, type(right)) or right is None
    return type(value) in (int, float) and bool(np.isfinite(value))


@pytest.mark.parametrize(("kind", "method", "fields"), KINDS)
def test_missing_and_additional_fields_are_refused(
    kind: str, method: Method, fields: dict[str, Any]
) -> None:
    with pytest.raises(Misfit):
        unpacked(kind, method, fields | {"another": 1})
    for name in fields.keys() - OPTIONAL.get(kind, set()):
        with pytest.raises(Misfit):
            unpacked(kind, method, {key: value for key, value in fields.items() if key != name})


def test_a_result_of_another_pair_or_model_is_refused() -> None:
    method = Method("relocation", {"positions": 2})
    fields = RESULTS["relocation", method] | {"model": "another", "pair_id": "another"}
    found = unpacked("relocation", method, fields)
    assert (found.model, found.pair_id) == ("M", "p")


@pytest.mark.parametrize(
    "kind",
    [
        "nothing known",
        "faithfulness",
        "faithfulness ",
        "faithfulness x",
        f"faithfulness {FEW!r} ",
        f"faithfulness {FEW!r}".replace("version=2", "version=1"),
        f"faithfulness {FEW!r}".replace("word", "page"),
        f"faithfulness {FEW!r}".replace("0.5", "5e999"),
        f"faithfulness {FEW!r}".replace("n_random=2", "n_random=999"),
    ],
)
def test_an_unknown_kind_has_no_schema(kind: str) -> None:
    assert schema_for(kind, Method("saliency")) is None


@pytest.mark.parametrize(
    "parameters", [ErasureParameters(), FEW, ErasureParameters((0.125,), "token", 7, 0)]
)
def test_parameters_are_parsed_from_their_repr(parameters: ErasureParameters) -> None:
    assert ErasureParameters.parse(repr(parameters)) == parameters


@pytest.mark.parametrize(("kind", "method", "fields"), KINDS)
def test_forged_results_stored_earlier_count_as_missing(
    kind: str, method: Method, fields: dict[str, Any], tmp_path: Path
) -> None:
    schema = schema_for(kind, method)
    assert schema is not None
    results = Results[Key, Any](tmp_path, schema, key=itself)
    items = [Key("set", f"p{n}", "text") for n in range(len(fields) + 1)]
    rows = [fields | {name: {"a": []}} for name in fields] + [fields]
    with Store(tmp_path).writing(MODEL, method) as db:
        for item, row in zip(items, rows, strict=True):
            insert(db, [(OTHER + kind, *item, None, pack_fields(row))])
    last = items[-1].item
    assert list(results.select(MODEL, method, items).results) == [last]
    assert results.missing(MODEL, method, items) == items[:-1]
    assert results.get(MODEL, method, items[0]) is None


def test_arrays_may_be_declared_through_an_alias() -> None:
    """As `NDArray` is from NumPy 2.5 on, under Python 3.12."""
    scalar = TypeVar("scalar", bound=np.generic)
    array: Any = np.ndarray[tuple[Any, ...], np.dtype[scalar]]  # type: ignore[valid-type]
    alias: Any = TypeAliasType("alias", array, type_params=(scalar,))  # type: ignore[misc]
    packed = Annotated[alias[np.int64], Packed(limit=99)]
    schema = Schema(make_dataclass("Numbers", [("plain", alias[np.float32]), ("packed", packed)]))
    numbers = Packed(limit=99).pack(np.array([7, 6], np.int64))
    read: Any = schema.unpack({"plain": [0.5, 0.25], "packed": numbers}, owner(Method("numbers")))
    assert read.plain.dtype == np.float32 and read.plain.tolist() == [0.5, 0.25]
    assert read.packed.dtype == np.int64 and read.packed.tolist() == [7, 6]
