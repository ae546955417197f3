"""Published curves and measures are read and compared with PosLens's formulas."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution.curves import published
from poslens.attribution.curves.curve_summary import center_of_mass
from poslens.attribution.curves.positions import LENGTH_BUCKETS, positions
from poslens.attribution.curves.published import (
    figure_5,
    model_of,
    read_bytes,
    read_curves,
    read_measures,
)
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.evidence_profile import evidence_profile

REFERENCE = next(
    (
        folder / "shared" / "reference"
        for folder in Path(__file__).resolve().parents
        if (folder / "shared" / "reference").is_dir()
    ),
    None,
)
needs_reference = pytest.mark.skipif(
    REFERENCE is None, reason="the published data (shared/reference) is not beside the repository"
)
pytestmark = pytest.mark.usefixtures("shared_children")
ENDS = {"Qwen3-Embedding-8B": (0.938, 0.671, 0.424), "NV-Embed-v2": (0.069, 0.562, 0.639)}
CURVES = np.random.default_rng(1).random((6, 100))


def npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


@needs_reference
@pytest.mark.parametrize("model", ENDS)
def test_figure_5_equals_the_published_data(model: str) -> None:
    assert REFERENCE is not None
    path = REFERENCE / f"posir_saliency_{model}.npz"
    found = read_curves(model_of(path.name), path.name, read_bytes(path))
    with np.load(path) as archive:
        raw = archive["curves"].astype(np.float64)
    assert found.model == model and found.n == 3131
    # The script behind the figure draws pandas' mean and standard deviation (ddof=1).
    n = len(raw)
    mean = raw.sum(0) / n
    std = np.sqrt(((raw - mean) ** 2).sum(0) / (n - 1))
    assert np.allclose(found.mean, mean, atol=1e-6) and np.allclose(found.std, std, atol=1e-6)
    first, last, mass = ENDS[model]
    assert found.mean[[0, -1]] == pytest.approx([first, last], abs=5e-4)
    assert center_of_mass(found.mean, positions("point")) == pytest.approx(mass, abs=5e-4)
    # The same from a pickle, as PosIR publishes it.
    again = read_curves(model, f"{model}.pkl", pickle.dumps(list(raw)))
    assert np.array_equal(again.mean, found.mean) and np.array_equal(again.std, found.std)


@needs_reference
@pytest.mark.parametrize("model", ENDS)
def test_the_shipped_figure_equals_the_published_data(model: str) -> None:
    assert REFERENCE is not None
    path = REFERENCE / f"posir_saliency_{model}.npz"
    expected = read_curves(model, path.name, read_bytes(path))
    (actual,) = [one for one in figure_5() if one.model == model]
    assert actual.n == expected.n
    assert np.allclose(actual.mean, expected.mean, atol=1e-8)
    assert np.allclose(actual.std, expected.std, atol=1e-8)


def test_the_shipped_figure_has_both_models_and_the_papers_end_points() -> None:
    assert {one.model: (one.n, len(one.mean), len(one.std)) for one in figure_5()} == dict.fromkeys(
        ENDS, (3131, 100, 100)
    )
    for one in figure_5():
        first, last, mass = ENDS[one.model]
        assert one.mean[[0, -1]] == pytest.approx([first, last], abs=5e-4)
        assert center_of_mass(one.mean, positions("point")) == pytest.approx(mass, abs=5e-4)


def test_both_formats_give_the_same_curves() -> None:
    for name, data in (
        ("a.npz", npz(curves=CURVES)),
        ("a.pkl", pickle.dumps(list(CURVES))),
        ("a.PICKLE", pickle.dumps(list(CURVES), 2)),
    ):
        found = read_curves("m", name, data)
        assert found.n == 6 and np.allclose(found.mean, CURVES.mean(0), atol=1e-6)
        assert np.allclose(found.std, CURVES.std(0, ddof=1), atol=1e-6)


class Calls:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.npz", b"", "contains no curves"),
        ("a.npz", b"PK\x03\x04" + b"\0" * 99, "contains no curves"),
        ("a.npz", npz(other=CURVES), "contains no curves"),
        ("a.npz", npz(curves=CURVES[:1]), "contains no curves"),
        ("a.npz", npz(curves=CURVES[:, :99]), "contains no curves"),
        ("a.npz", npz(curves=CURVES * np.nan), "contains no curves"),
        ("a.npz", npz(curves=np.full((2, 100), "x")), "contains no curves"),
        ("a.npz", npz(curves=np.array([Calls()] * 100, dtype=object)), "contains no curves"),
        ("a.npz", pickle.dumps(Calls()), "contains no curves"),
        ("a.pkl", pickle.dumps([Calls()]), "contains no curves"),
        ("a.pkl", pickle.dumps([CURVES[0], CURVES[0][:9]]), "contains no curves"),
        ("a.csv", b"1,2", "use a .npz or .pkl file"),
        ("a.npz", b"x" * 20_000_001, "the limit is 20 MB"),
    ],
)
def test_files_without_curves_are_refused_in_one_sentence(
    name: str, data: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=message) as error:
        read_curves("m", name, data)
    assert "\n" not in str(error.value) and capfd.readouterr().out == ""


def test_an_archive_that_unpacks_to_gigabytes_ends_its_child() -> None:
    out = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**8, 100)}
    )
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("curves.npy", header.getvalue() + bytes(10_000_000))
    with pytest.raises(UserError, match="contains no curves"):
        read_curves("m", "a.npz", out.getvalue())


@needs_reference
def test_published_measures_are_read() -> None:
    assert REFERENCE is not None
    path = REFERENCE / "posir_metrics.json"
    rows = read_measures(path.name, read_bytes(path))
    raw = json.loads(path.read_text())
    assert len(rows) == 180 and len({row.model for row in rows}) == 10
    for row in rows:
        known = raw[row.model][row.setting]
        assert (row.ndcg, row.psi) == (known["nDCG@10"], known["PSI"])
        assert row.bucket_psi == {b: known[f"PSI({b})"] for b in LENGTH_BUCKETS}
        # An overall mean is within the range of its parts; each bucket has fewer queries per bin,
        # so its extremes are at least as far apart.
        assert min(row.bucket_ndcg.values()) < row.ndcg < max(row.bucket_ndcg.values())
        assert row.psi <= max(row.bucket_psi.values())


def test_psi_and_the_mean_of_bins_equal_those_of_the_published_script() -> None:
    """The script: pandas.cut into 20 bins, means of the groups, 1 - min / max, and for a length
    bucket the mean of those means."""
    import pandas as pd

    generator = np.random.default_rng(5)
    frame = pd.DataFrame({"at": generator.random(500) ** 2, "score": generator.random(500)})
    cut = pd.cut(frame["at"], bins=np.linspace(0, 1, 21).tolist(), include_lowest=True)
    means = frame.groupby(cut, observed=True)["score"].mean()
    found = evidence_profile(frame["score"].to_numpy(), frame["at"].tolist(), None)
    assert found is not None and found.psi == pytest.approx(1 - means.min() / means.max())
    assert found.mean_of_bins == pytest.approx(means.mean())
    assert found.mean == pytest.approx(frame["score"].mean())


GOOD = {f"{m}{b}": 0.5 for m in ("nDCG@10", "PSI") for b in ("", *(f"(Q{i})" for i in range(1, 5)))}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "models must be"),
        ({}, "contains no results"),
        ({"m": []}, "settings of m"),
        ({"m": {"english": GOOD}}, "not a pair of languages"),
        ({"m": {"eng-eng": {}}}, "nDCG@10 of m, eng-eng"),
        ({"m": {"eng-eng": {**GOOD, "PSI": 2}}}, "PSI of m, eng-eng"),
        ({"m": {"eng-eng": {**GOOD, "PSI(Q3)": True}}}, r"PSI\(Q3\) of m, eng-eng"),
        ({"m": {"eng-eng": {**GOOD, "PSI": float("nan")}}}, "PSI of m"),
        ({"m": {"eng-eng": []}}, "nDCG@10 of m"),
    ],
)
def test_json_of_another_form_is_refused_in_one_sentence(found: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_measures("r.json", json.dumps(found).encode())


def test_invalid_json_is_refused_in_one_sentence() -> None:
    for data in (b"", b"{", b"[" * 100_000, b"\xff\xfe"):
        with pytest.raises(UserError, match=r"is not JSON|must be"):
            read_measures("r.json", data)


def test_a_folders_curves_are_registered_by_file_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        published.register(tmp_path / "none")
    with pytest.raises(UserError, match=r"has no \.npz"):
        published.register(tmp_path)
    (tmp_path / "a.npz").write_bytes(npz(curves=CURVES))
    (tmp_path / "notes.txt").write_text("no")
    published.register(tmp_path)
    assert list(published.known()) == ["a.npz"]
    assert read_curves("m", "a.npz", read_bytes(published.known()["a.npz"])).n == 6
