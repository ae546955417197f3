"""A debiased model on disk: its adapter is merged into the weights, and it doesn't need PosLens."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from sentence_transformers import SentenceTransformer

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.debiasing import folder as folders
from poslens.attribution.debiasing.export import copy_model, write_model
from poslens.attribution.debiasing.folder import ADAPTER, MANIFEST, Manifest
from poslens.attribution.debiasing.training import Training
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import limits, resolve
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.cache.storage.store import ModelKey
from poslens.compute.provenance import ModelIdentity, of_model
from tests.attribution.debiasing.debias_testing import QUICK, corpus
from tests.support.forked import Forked

TEXTS = ["The tide rises twice a day.", "Over lazy dogs jumping. The quick brown fox."]
MANIFEST_OF = Manifest(
    base="tiny/base",
    training="one",
    recipe={k: float(v) for k, v in asdict(QUICK).items()},
    corpus="short",
    corpus_digest="abc",
    n_documents=30,
    n_sentences=60,
    steps=6,
    early=False,
    checks=((0, 0.0, Estimate(-0.1, -0.2, -0.05, 3, 3, "texts")), (6, 0.5, Estimate(-0.01))),
    license="MIT",
    max_length=64,
)
Build = Callable[..., DenseRetriever]


def vectors(retriever: DenseRetriever) -> np.ndarray:
    with torch.no_grad():
        return retriever.embed(retriever.encode_plain(TEXTS, "document")).numpy()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", ["bert", "bge-m3", "qwen3-left", "gpt_neo", "labse"])
def test_a_folder_contains_the_trained_model(tiny: Build, home: Path, kind: str) -> None:
    retriever = tiny(kind, query_prompt="query: ")
    plain = vectors(retriever)
    training = Training(retriever, corpus(), replace(QUICK, steps=2))
    training.run()
    trained = vectors(retriever)
    assert np.abs(trained - plain).max() > 1e-4
    folder = folders.new_folder("some/tiny model")
    assert folder.name == "tiny-model-debiased"
    write_model(retriever, training.adapter, MANIFEST_OF, folder)

    alone = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(alone.encode(TEXTS), trained, rtol=1e-4, atol=2e-5)
    assert alone.prompts["query"] == "query: "
    assert [path.name for path in folder.rglob("*.safetensors") if ADAPTER not in path.parts]

    # Only the adapter, on the base model.
    base = tiny(kind)
    base.model[0].auto_model = PeftModel.from_pretrained(base.backbone, str(folder / ADAPTER))
    np.testing.assert_allclose(vectors(base), trained, rtol=1e-4, atol=2e-5)

    # And immediately by name.
    spec = resolve.resolve("tiny-model-debiased")
    assert spec == folders.find("one") and folders.find("two") is None
    again = load(spec, "cpu", "float32")
    assert isinstance(again, DenseRetriever)
    np.testing.assert_allclose(vectors(again), trained, rtol=1e-4, atol=2e-5)
    assert resolve.resolve("tiny-model-debiased@calibrated").calibration is not None
    assert folders.new_folder("some/tiny model").name == "tiny-model-debiased-2"

    # Its provenance says how it was trained, wherever the folder is.
    copied = resolve.register_folder("copied", Path(shutil.copytree(folder, home / "copied")))
    for each in (spec, copied, resolve.resolve("tiny-model-debiased@calibrated")):
        provenance = of_model(
            ModelIdentity(each, ModelKey("x", "x"), "", "", "cpu"), "any", "short"
        )
        # A copied folder states what its tokenizer and its positions limit.
        assert provenance.max_length == limits.context_limit(each)
        assert each is copied or provenance.max_length == 64
        trained_by = (
            "; tiny/base debiased in 6 steps on 60 sentences of half of the 30 documents of "
        )
        assert f"{trained_by}short (seed=7, steps=6, check_every=3, " in provenance.model_source


def test_the_manifest_contains_estimates_and_reads_those_that_were_text(home: Path) -> None:
    MANIFEST_OF.write(home)
    assert folders.read_manifest(home) == MANIFEST_OF
    stored = json.loads((home / MANIFEST).read_text())
    effect = stored["checks"][0][2]
    assert (effect["value"], effect["low"], effect["high"]) == (-0.1, -0.2, -0.05)
    texts = ["-0.1394 [-0.1590, -0.1228]", "+0.0012", "–"]
    stored["checks"] = [[step, 0.5, text] for step, text in enumerate(texts)]
    (home / MANIFEST).write_text(json.dumps(stored))
    manifest = folders.read_manifest(home)
    assert manifest is not None
    expected = [Estimate(-0.1394, -0.159, -0.1228), Estimate(0.0012), None]
    assert [effect for *_, effect in manifest.checks] == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"recipe": {"seed": "seven"}},
        {"recipe": []},
        {"recipe": {f"option{n}": 1.0 for n in range(99)}},
        {"base": 5},
        {"base": "x" * 1000},
        {"n_sentences": "60"},
        {"max_length": "64"},
        {"checks": [[1, 0.5, []]]},
        {"other": 1},
    ],
)
def test_a_manifest_of_other_types_is_ignored(home: Path, changed: dict[str, Any]) -> None:
    """The folder of a model can come from anyone, and captions show how it was trained."""
    MANIFEST_OF.write(home)
    stored = json.loads((home / MANIFEST).read_text())
    (home / MANIFEST).write_text(json.dumps(stored | changed))
    assert folders.read_manifest(home) is None


def test_a_manifest_that_is_a_pipe_blocks_nothing(home: Path) -> None:
    (home / MANIFEST).unlink(missing_ok=True)
    os.mkfifo(home / MANIFEST)
    assert folders.read_manifest(home) is None


def test_a_folder_loads_without_poslens(tiny: Build, home: Path, forked: Forked) -> None:
    retriever = tiny("bert")
    training = Training(retriever, corpus(), replace(QUICK, steps=1))
    training.run()
    trained = vectors(retriever)
    folder = folders.new_folder("tiny")
    write_model(retriever, training.adapter, MANIFEST_OF, folder)
    code = (
        "import sys, json; from sentence_transformers import SentenceTransformer as S\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'poslens']:\n"
        " del sys.modules[name]\n"
        "sys.modules['poslens'] = None  # can't be imported\n"
        "m = S(sys.argv[1], device='cpu', local_files_only=True)\n"
        "print(json.dumps(m.encode(json.loads(sys.argv[2])).tolist()))"
    )
    status, printed, errors = forked.run(str(folder), json.dumps(TEXTS), code=code)
    assert status == 0, errors
    np.testing.assert_allclose(json.loads(printed), trained, rtol=1e-4, atol=2e-5)


def test_a_copy_is_complete(tiny: Build, home: Path, tmp_path: Path) -> None:
    retriever = tiny("bert")
    retriever.model.truncate_dim = 8
    training = Training(retriever, corpus(), replace(QUICK, steps=1))
    folder = folders.new_folder("tiny")
    write_model(retriever, training.adapter, MANIFEST_OF, folder)
    copy_model(folder, tmp_path / "out")
    names = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*")
    }
    assert {"README.md", MANIFEST, "modules.json", "model.safetensors"} <= names
    assert f"{ADAPTER}/adapter_model.safetensors" in names
    SentenceTransformer(str(tmp_path / "out"), device="cpu")
    with pytest.raises(UserError, match="already exists"):
        copy_model(folder, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    for part in ("tiny/base", "half of its 30 documents", "seed 7", "license: mit", "## Limits"):
        assert part in card
    assert "first 8 dimensions and are not normalized" in card
    for path in (tmp_path / "out").rglob("*.json"):
        assert str(home) not in path.read_text()


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "planted")

    monkeypatch.setattr(shutil, "copytree", fails)
    with pytest.raises(UserError, match="No space left on device"):
        copy_model(tmp_path, tmp_path / "new" / "out")
    assert list((tmp_path / "new").iterdir()) == []


def test_folders_without_a_debiased_model_are_skipped(home: Path) -> None:
    for name, text in {"a": "", "b": "{}", "c": "[1]", "d": "{" * 5000}.items():
        (folders.root() / name).mkdir(parents=True)
        (folders.root() / name / MANIFEST).write_text(text)
    (folders.root() / "e").mkdir()
    assert folders.debiased_models() == {}
