"""Types of results refuse invalid values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from poslens.attribution.curves.positions import positions
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.types import (
    Attribution,
    EvidenceSpan,
    Method,
    PositionCurve,
    Provenance,
    TextPair,
    Token,
    TokenizedText,
    as_array,
)

TEXT = TokenizedText.of(
    (Token("[CLS]", 0, 0, True), Token("fog", 0, 3), Token("##s", 3, 4)), 2, 512
)


def make(**changes) -> Attribution:
    fields = {
        "model": "m",
        "method": Method("saliency"),
        "pair_id": "p",
        "score": 0.5,
        "query": TEXT,
        "document": TEXT,
        "query_scores": np.ones(3),
        "document_scores": np.ones(3),
    } | changes
    return Attribution(**fields)


def curve(**changes) -> PositionCurve:
    fields = {
        "model": "m",
        "dataset": "d",
        "method": Method("saliency"),
        "mean": np.ones(100),
        "std": np.ones(100),
        "ci_low": np.ones(100),
        "ci_high": np.ones(100),
        "n": 1,
        "positions": positions("bin_mean"),
        "n_documents": 1,
        "n_truncated": 0,
        "n_failed": 0,
    } | changes
    return PositionCurve(**fields)


BAD = [np.nan, np.inf, -np.inf, 1e39]  # 1e39 is no float32


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("field", ["query_scores", "document_scores", "matrix", "score"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_attribution_refuses_non_finite_numbers(field: str, bad: float) -> None:
    value: object = bad
    if field != "score":
        shape = (3, 3) if field == "matrix" else (3,)
        array = np.ones(shape)
        array.flat[-1] = bad
        value = array
    with pytest.raises(UserError, match="not a finite number"):
        make(**{field: value})


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("field", ["mean", "std", "ci_low", "ci_high"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_curve_refuses_non_finite_numbers(field: str, bad: float) -> None:
    array = np.ones(100)
    array[50] = bad
    with pytest.raises(UserError, match="not a finite number"):
        curve(**{field: array})


@pytest.mark.parametrize("field", ["bias_share", "completeness_error"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_shares_refuse_non_finite_numbers(field: str, bad: float) -> None:
    with pytest.raises(UserError, match="not a finite number"):
        make(**{field: bad})


@pytest.mark.parametrize(
    "change",
    [
        {"document_scores": np.ones(2)},
        {"query_scores": np.ones((3, 1))},
        {"matrix": np.ones(3)},
        {"matrix": np.ones((3, 2))},
    ],
)
def test_a_wrong_shape_raises_value_error(change: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        make(**change)
    with pytest.raises(ValueError, match="expected"):
        curve(mean=np.ones(99))


def test_arrays_are_read_only_copies() -> None:
    mine = np.ones(3)
    result = make(document_scores=mine, matrix=np.ones((3, 3)))
    mine[0] = 7.0  # still mine, and no longer the result's
    assert result.document_scores.tolist() == [1, 1, 1]
    for array in (result.document_scores, result.query_scores, result.matrix, curve().mean):
        assert array is not None and array.dtype == np.float32
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(FrozenInstanceError):
            result.score = 1.0  # type: ignore[misc]
    assert as_array([[1, 2]], (None, 2), "x").shape == (1, 2)


def test_truncation_is_derived_from_the_number_of_tokens() -> None:
    assert TEXT.content.tolist() == [False, True, True]
    assert not TEXT.truncated and TEXT.read_until == 4
    assert replace(TEXT, n_tokens_full=3).truncated
    nothing = TokenizedText.of((Token("[CLS]", 0, 0, True),), 0, 512)
    assert nothing.read_until == 0 and not nothing.truncated


def test_tokens_are_stored_as_columns_and_read_one_by_one() -> None:
    assert (TEXT.texts, len(TEXT)) == (("[CLS]", "fog", "##s"), 3)
    tokens = TEXT.tokens
    assert tokens == (("[CLS]", 0, 0, True), ("fog", 0, 3, False), ("##s", 3, 4, False))
    assert all(type(value) in (str, int, bool) for token in tokens for value in token)
    assert TokenizedText.of(iter(tokens), 2, 512) == TEXT != replace(TEXT, ends=[0, 3, 5])
    assert TokenizedText.of((), 0, 512).tokens == ()
    mine = np.array([0, 0, 3])
    text = replace(TEXT, starts=mine)
    mine[0] = 7  # still mine, and no longer the text's
    assert text == TEXT and text.starts.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        text.starts[0] = 7
    with pytest.raises(ValueError, match=r"ends: \(2,\) of 3 tokens"):
        replace(TEXT, ends=[0, 3])


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 2), (3, 2)])
def test_an_empty_evidence_span_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="span"):
        EvidenceSpan(start, end)


def test_evidence_outside_its_document_is_refused() -> None:
    assert TextPair("p", "q", "abc", EvidenceSpan(0, 3)).evidence == EvidenceSpan(0, 3)
    with pytest.raises(ValueError, match="evidence ends at 4"):
        TextPair("p", "q", "abc", EvidenceSpan(0, 4))


# -- methods -----------------------------------------------------------------------------------


def test_a_methods_repr_is_its_identity() -> None:
    method = make_method("saliency")
    assert repr(method) == (
        "saliency(version=1, normalization=p99, resampling=bin_mean, curve_version=1)"
    )
    assert method.core == "saliency(version=1)"
    other = make_method("saliency", {"resampling": "point", "normalization": "max"})
    assert other.core == method.core and other != method and hash(other) != hash(method)
    assert make_method("saliency", {"resampling": "bin_mean"}) == method
    assert len({method, make_method("saliency"), other}) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Method("m", {"a": 1, "b": 2}), Method("m", {"b": 2, "a": 1})),
        (Method("m", {"a": 1}), Method("m", {"a": "1"})),
        (Method("m", {"a": 1}), Method("m", {"a": 1.0})),
        (Method("m", {"a": True}), Method("m", {"a": 1})),
    ],
)
def test_methods_are_equal_if_their_reprs_are(one: Method, other: Method) -> None:
    """As Method says: the repr is label, equality and part of the key at once."""
    assert (one == other) == (repr(one) == repr(other))
    assert one != other or hash(one) == hash(other)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("../x", None, f"There is no method '../x': choose from {', '.join(METHODS)}."),
        ("occlusion", {"level": "x"}, "level can't be 'x': choose from word, token, sentence."),
        ("saliency", {"resampling": ""}, "resampling can't be '': choose from bin_mean, point."),
        (
            "saliency",
            {"steps": "3"},
            "saliency has no parameter 'steps': it has normalization, resampling.",
        ),
    ],
)
def test_an_unknown_choice_is_refused_by_name(
    name: str, options: dict | None, sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        make_method(name, options)
    assert str(caught.value) == sentence


def test_the_table_of_methods_is_consistent() -> None:
    for name, entry in METHODS.items():
        assert entry.name == name and entry.title and entry.help.endswith(".")
        for parameter in entry.parameters:
            for value in parameter.choices:
                assert make_method(name, {parameter.name: value}).params[parameter.name] == value


def test_provenance_states_only_what_is_known() -> None:
    full = Provenance(
        poslens="0.1.0",
        model="MiniLM",
        model_source="hub",
        weights="ab12",
        method="saliency()",
        dataset="sample",
        n_pairs=3,
        max_length=512,
        truncated=0,
        precision="float32",
        prompts="",
    )
    names = [name for name, _ in full.items()]
    assert "truncated" in names and "prompts" not in names and "selection" not in names
    assert full.caption().startswith("poslens: 0.1.0 · model: MiniLM · model source: hub · ")
    assert "max length: 512 tokens · document truncated in 0 pairs" in full.caption()
    assert (
        "1 document truncated" in replace(full, n_pairs=None, n_documents=3, truncated=1).caption()
    )
    single = replace(full, n_pairs=None)
    assert "document truncated for 1 query" in replace(single, n_queries=3, truncated=1).caption()
    assert "document not truncated" in single.caption()
    assert "document truncated" in replace(single, truncated=1).caption()
    # A count that is not known is no count of none.
    assert not {"n_documents", "n_queries", "control", "interval"} & set(full.entry())
    assert "truncated" not in replace(full, truncated=None).caption()
