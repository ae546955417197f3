"""Models that truncate vectors (`truncate_dim`, `@64d`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.chunks import late_vectors
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec, with_dimensions
from poslens.attribution.types import Attribution, TextPair

PAIR = TextPair("p", "why twice a day", "The tide rises twice a day because the Moon pulls.")


@pytest.fixture
def folder(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a tiny model that a test may change."""
    return Path(shutil.copytree(tiny_folder("bert"), tmp_path / "tiny"))


def spec_of(folder: Path) -> RetrieverSpec:
    return RetrieverSpec(name="tiny", title="tiny", family="dense", source=f"folder:{folder}")


def dense(spec: RetrieverSpec) -> DenseRetriever:
    retriever = load(spec, device="cpu")
    assert isinstance(retriever, DenseRetriever)
    return retriever


def explained(retriever: DenseRetriever, method: str) -> Attribution:
    (result,) = METHODS[method].compute(retriever, make_method(method), [PAIR])
    assert isinstance(result, Attribution)
    return result


def truncate(folder: Path, dimensions: int) -> None:
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": dimensions}))


@pytest.mark.parametrize("by_name", [True, False])
def test_scores_gradients_and_shares_are_those_of_the_first_dimensions(
    folder: Path, by_name: bool
) -> None:
    library = SentenceTransformer(str(folder), device="cpu", truncate_dim=8)
    texts = [PAIR.query, PAIR.document]
    query, document = library.encode(texts, normalize_embeddings=True)
    spec = spec_of(folder)
    if by_name:
        spec = with_dimensions(spec, 8)
    else:
        truncate(folder, 8)
    retriever = dense(spec)
    assert retriever.width == len(query) == 8
    check = check_retriever(retriever)
    assert check.library.distance < 1e-5 and not check.unfit
    for method in ("saliency", "decomposition", "occlusion"):
        assert explained(retriever, method).score == pytest.approx(query @ document, abs=1e-5)
    shares = explained(retriever, "decomposition")
    assert shares.bias_share is not None
    assert shares.document_scores.sum() + shares.bias_share == pytest.approx(shares.score, abs=1e-4)


def test_late_chunks_are_truncated(folder: Path) -> None:
    full, short = dense(spec_of(folder)), dense(with_dimensions(spec_of(folder), 8))
    (whole,), (part,) = (late_vectors(each, [PAIR.document], 4) for each in (full, short))
    assert np.allclose(part, whole[:, :8])


def test_dimensions_that_cannot_be_removed_are_refused(folder: Path) -> None:
    plain = spec_of(folder)
    short = with_dimensions(plain, 8)
    assert (short.name, short.title) == ("tiny@8d", "tiny, first 8 dimensions")
    assert short.settings == f"{plain.settings}, dimensions=8"
    with pytest.raises(UserError, match="already truncated: remove @4d"):
        with_dimensions(short, 4)
    with pytest.raises(UserError, match="not a dense model, so its vectors can't be truncated"):
        with_dimensions(replace(plain, family="sparse"), 8)
    with pytest.raises(UserError, match=r"has vectors of .* dimensions: use fewer"):
        dense(with_dimensions(plain, 4096))


def test_a_name_combines_dimensions_with_other_suffixes() -> None:
    spec = resolve("MiniLM@last@64d@configured")
    assert (spec.pooling, spec.dimensions, spec.max_length) == ("lasttoken", 64, 256)
    assert resolve("MiniLM@64d@calibrated").dimensions == 64
    for name in ("MiniLM@configured@64d", "MiniLM@calibrated@64d"):
        with pytest.raises(UserError, match="Write @64d before @configured and @calibrated"):
            resolve(name)
