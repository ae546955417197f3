"""A calibrated model as a folder: written, then loaded by sentence-transformers and PosLens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.calibrated_attention import calibrator_of
from poslens.attribution.retrievers.calibrated_transformer import SETTINGS, export
from poslens.attribution.retrievers.calibration import Calibration
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.keys import used_model
from tests.support.forked import Forked

HOW = Calibration(0.7, 8, 1)
TEXTS = ["The tide rises twice a day because the Moon pulls the water. " * 3, "a fox"]


def spec_of(folder: Path) -> RetrieverSpec:
    return RetrieverSpec("calibrated", "calibrated", "dense", f"folder:{folder}")


@pytest.fixture
def exported(tiny: Callable[..., DenseRetriever], tmp_path: Path) -> tuple[DenseRetriever, Path]:
    retriever = tiny("bert", calibration=HOW)
    export(retriever, tmp_path / "calibrated")
    return retriever, tmp_path / "calibrated"


def vectors(retriever: DenseRetriever) -> np.ndarray:
    with torch.no_grad():
        return retriever.embed(retriever.encode_texts(TEXTS, "document")).numpy()


def test_an_exported_model_encodes_as_the_calibrated_one(
    exported: tuple[DenseRetriever, Path], tiny: Callable[..., DenseRetriever]
) -> None:
    retriever, folder = exported
    expected = vectors(retriever)
    library = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(library.encode(TEXTS), expected, atol=1e-6)
    loaded = load(spec_of(folder), device="cpu")
    assert isinstance(loaded, DenseRetriever)
    found = calibrator_of(loaded.backbone)
    assert found is not None and found.calibration == HOW and found.rows == "mean"
    np.testing.assert_allclose(vectors(loaded), expected, atol=1e-6)
    assert np.abs(expected - vectors(tiny("bert"))).max() > 1e-4


def test_another_process_needs_only_this_package(
    exported: tuple[DenseRetriever, Path], forked: Forked
) -> None:
    retriever, folder = exported
    # Every module of PosLens is imported again, but the dashboard and Streamlit can't be.
    program = (
        "import sys, json; from sentence_transformers import SentenceTransformer as S\n"
        "for name in [n for n in sys.modules if n.split('.')[0] in ('poslens', 'streamlit')]:\n"
        " del sys.modules[name]\n"
        "sys.modules['streamlit'] = sys.modules['poslens.dashboard'] = None\n"
        "m = S(sys.argv[1], device='cpu', trust_remote_code=True)\n"
        "assert 'poslens' in sys.modules\n"
        "print(json.dumps(m.encode(json.loads(sys.argv[2])).tolist()))"
    )
    status, printed, errors = forked.run(str(folder), json.dumps(TEXTS), code=program)
    assert status == 0, errors
    np.testing.assert_allclose(json.loads(printed), vectors(retriever), atol=1e-6)


def test_a_saved_copy_keeps_the_calibration(
    exported: tuple[DenseRetriever, Path], tmp_path: Path
) -> None:
    _, folder = exported
    SentenceTransformer(str(folder), device="cpu", trust_remote_code=True).save_pretrained(
        str(tmp_path / "copy"), create_model_card=False
    )
    assert (tmp_path / "copy" / SETTINGS).read_bytes() == (folder / SETTINGS).read_bytes()


def test_another_calibration_is_another_model(exported: tuple[DenseRetriever, Path]) -> None:
    _, folder = exported
    before = used_model(spec_of(folder), "cpu", "auto").fingerprint
    said = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps(said | {"strength": 0.1}))
    assert used_model(spec_of(folder), "cpu", "auto").fingerprint != before


def test_a_folder_written_by_an_earlier_version_is_read(
    exported: tuple[DenseRetriever, Path],
) -> None:
    retriever, folder = exported
    settings = json.loads((folder / SETTINGS).read_text())
    earlier = {("basket" if key == "block" else key): value for key, value in settings.items()}
    assert "basket" in earlier
    (folder / SETTINGS).write_text(json.dumps(earlier))
    again = load(spec_of(folder), device="cpu")
    assert isinstance(again, DenseRetriever)
    np.testing.assert_allclose(vectors(again), vectors(retriever), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strength": 2}, "must be 0 to 1"),
        ({"block": 0}, "at least 1 token"),
        ({"layers": 9}, "has only 2 attention layers"),
        ({"rows": "all"}, "has no valid settings"),
        ({"block": "8"}, "has no valid settings"),
    ],
)
def test_a_damaged_calibration_is_refused_in_one_sentence(
    exported: tuple[DenseRetriever, Path], changes: dict[str, object], message: str
) -> None:
    _, folder = exported
    kept = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps(kept | changes))
    with pytest.raises(UserError, match=message):
        load(spec_of(folder), device="cpu")


def test_other_poslens_classes_are_refused_as_modules(
    exported: tuple[DenseRetriever, Path],
) -> None:
    _, folder = exported
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "poslens.attribution.retrievers.dense.DenseRetriever"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=r"PosLens does not support|neither imports"):
        load(spec_of(folder), device="cpu")


def test_a_model_without_calibration_is_not_exported(
    tiny: Callable[..., DenseRetriever], exported: tuple[DenseRetriever, Path], tmp_path: Path
) -> None:
    retriever, folder = exported
    with pytest.raises(UserError, match="is not calibrated"):
        export(tiny("bert"), tmp_path / "plain")
    with pytest.raises(UserError, match="already exists"):
        export(retriever, folder)
