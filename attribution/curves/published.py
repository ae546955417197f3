"""Published results: PosIR's measures of models, and the saliency curves of its figure 5.

Measures are the JSON of PosIR's `ndcg_PSI_analysis.py`: model -> `eng-pol` (queries-documents) ->
`nDCG@10`, `PSI`, and both with a length bucket appended, `nDCG@10(Q1)`. nDCG@10 is the mean over
queries, but nDCG@10(Q1) is the mean over the 20 evidence bins of that bucket
(`EvidenceProfile.mean_of_bins`). PSI is 1 - min / max over nonempty bins, which are defined as
`evidence_bin` in `evaluation/evidence_profile.py`. The bins are not published, so PSI cannot be
recomputed from the file.

Curves are a pickled list of arrays of 100 numbers, or an .npz file with the array `curves` [n,
100]. Both are read in a separate process; pickles are read by attribution/curves/array_pickle.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poslens.attribution import isolated
from poslens.attribution.curves import array_pickle
from poslens.attribution.curves.positions import LENGTH_BUCKETS
from poslens.attribution.datasets.streams import MEGABYTE
from poslens.attribution.errors import UserError
from poslens.attribution.names import Names
from poslens.attribution.paths import open_regular
from poslens.attribution.types import N_BINS, as_array

MAX_BYTES = 20 * MEGABYTE
MAX_CURVES = 200_000
_LIMITS = isolated.Limits(memory=1 << 30, seconds=5, answer=MAX_CURVES * N_BINS * 8)
_MAX_HEADER = 4096
_ROWS = 1000
PICKLES = (".pkl", ".pickle")
CURVE_SUFFIXES = (*PICKLES, ".npz")

_SETTING = re.compile(r"[a-z]{2,3}-[a-z]{2,3}")


@dataclass(frozen=True, slots=True)
class PublishedCurves:
    """Published curves of a model: mean [100] and standard deviation [100] (ddof=1) over `n` pairs,
    and their source. PosIR's code saves one curve per query with its document; of how many distinct
    documents is not published."""

    model: str
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    n: int
    source: str


FIGURE_5 = Path(__file__).with_name("posir_figure5.csv")
FIGURE_5_SOURCE = "PosIR, figure 5 (Zeng et al. 2026, arXiv:2601.08363)"


@cache
def figure_5() -> tuple[PublishedCurves, ...]:
    """The two models of PosIR's figure 5, which ship with PosLens."""
    with FIGURE_5.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    published = []
    for model in dict.fromkeys(row["model"] for row in rows):
        points = [row for row in rows if row["model"] == model]
        mean, std = (np.array([float(row[name]) for row in points]) for name in ("mean", "std"))
        published.append(PublishedCurves(model, mean, std, int(points[0]["n"]), FIGURE_5_SOURCE))
    return tuple(published)


def read_curves(model: str, name: str, data: bytes) -> PublishedCurves:
    """Curves of `model` from a file's bytes; `name` determines the format and is used in messages.

    Raises:
        UserError: another format, over 20 MB, or not n >= 2 arrays of 100 finite floats.
    """
    suffix = Path(name).suffix.lower()
    if suffix not in CURVE_SUFFIXES:
        raise UserError(f"{name} is not a file of curves: use a .npz or .pkl file.")
    if len(data) > MAX_BYTES:
        raise UserError(
            f"{name} has {len(data) / MEGABYTE:,.1f} MB; the limit is {MAX_BYTES // MEGABYTE} MB: "
            "use a file with fewer curves."
        )
    damaged = _not_curves(name)
    raw = isolated.call(curves_of, [name, suffix], data, damaged=damaged, limits=_LIMITS)
    values = np.frombuffer(raw, dtype="<f8")
    if len(values) % N_BINS or len(values) < 2 * N_BINS:
        raise UserError(damaged)
    curves = as_array(values.reshape(-1, N_BINS), (None, N_BINS), "a curve")
    mean, std = curves.mean(0, dtype=np.float64), curves.std(0, dtype=np.float64, ddof=1)
    return PublishedCurves(model, mean, std, len(curves), f"file {name}")


def _not_curves(name: str) -> str:
    return (
        f"{name} contains no curves: use a .npz file with the array curves [n, {N_BINS}], or a "
        f"pickle that consists of two or more numpy arrays of {N_BINS} floats."
    )


def curves_of(data: bytes, name: str, suffix: str) -> Iterator[bytes]:
    """The curves of a file as float64; runs in the child process of `read_curves`.

    Raises:
        UserError: as `read_curves`.
    """
    try:
        values = _curves(data, suffix)
        good = (
            values.ndim == 2
            and values.shape[1] == N_BINS
            and 2 <= len(values) <= MAX_CURVES
            and bool((np.abs(values) <= np.finfo(np.float32).max).all())
        )
        if not good:
            raise ValueError(values.shape)
    except (array_pickle.NotArrays, ValueError, MemoryError) as error:
        raise UserError(_not_curves(name)) from error
    for start in range(0, len(values), _ROWS):
        yield np.ascontiguousarray(values[start : start + _ROWS], dtype="<f8").tobytes()


def _curves(data: bytes, suffix: str) -> NDArray[np.float64]:
    if suffix in PICKLES:
        return np.stack(
            [np.atleast_1d(array) for array in array_pickle.arrays(data, MAX_CURVES * N_BINS)]
        )
    try:
        limit = _MAX_HEADER + MAX_CURVES * N_BINS * 8
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("curves.npy") as packed:
            head = packed.read(limit + 1)
        if len(head) > limit:
            raise ValueError("more curves than are read")
        # numpy refuses arrays that contain pickles unless they are explicitly allowed.
        loaded = np.load(io.BytesIO(head))
    # A damaged archive can raise almost any exception.
    except Exception as error:
        raise ValueError("no archive with curves") from error
    if not isinstance(loaded, np.ndarray) or loaded.dtype.kind not in "fiu":
        raise ValueError("no numbers")
    return loaded.astype(np.float64)


@dataclass(frozen=True, slots=True)
class PublishedMeasures:
    """Measures of one model in one setting (`eng-pol`: English queries, Polish documents), overall
    and by length bucket. Bucket values of nDCG@10 are means over evidence bins."""

    model: str
    setting: str
    ndcg: float
    psi: float
    bucket_ndcg: Mapping[str, float]
    bucket_psi: Mapping[str, float]


def read_measures(name: str, data: bytes) -> list[PublishedMeasures]:
    """The measures of a file in PosIR's layout.

    Raises:
        UserError: over 20 MB, another layout, or a number outside [0, 1].
    """
    if len(data) > MAX_BYTES:
        raise UserError(f"{name} has more than {MAX_BYTES // MEGABYTE} MB: use a smaller file.")
    try:
        measures = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not JSON: use results in PosIR's layout.") from error
    rows = []
    for model, settings in _items(name, measures, "models"):
        for setting, values in _items(name, settings, f"settings of {model[:60]}"):
            where = f"{model[:60]}, {setting[:20]}"
            if not _SETTING.fullmatch(setting):
                raise UserError(f"{name}: {where} is not a pair of languages such as eng-eng.")
            share = partial(_share, name, where, values)
            rows.append(
                PublishedMeasures(
                    model,
                    setting,
                    share("nDCG@10"),
                    share("PSI"),
                    {bucket: share(f"nDCG@10({bucket})") for bucket in LENGTH_BUCKETS},
                    {bucket: share(f"PSI({bucket})") for bucket in LENGTH_BUCKETS},
                )
            )
    if not rows:
        raise UserError(f"{name} contains no results: use results in PosIR's layout.")
    return rows


def _items(name: str, value: object, what: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise UserError(
            f"{name} is not in PosIR's layout: {what} must be an object with named entries."
        )
    return list(value.items())


def _share(name: str, where: str, values: object, key: str) -> float:
    number = values.get(key) if isinstance(values, dict) else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        raise UserError(f"{name}: {key} of {where} is not a number between 0 and 1.")
    return float(number)


# -- files of a folder given at startup ----------------------------------------------------------

_folders: Names[Path] = Names()


def register(folder: Path) -> None:
    """Register the published files of a folder by name.

    Raises:
        UserError: the folder does not exist or contains no such file.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: use one with .npz, .pkl or .json files.")
    if not _listed(folder):
        raise UserError(f"{folder.name} has no .npz, .pkl or .json file: use another folder.")
    _folders[str(folder.resolve())] = folder.resolve()


def known() -> dict[str, Path]:
    """The files of registered folders by name; a browser selects names, never paths."""
    return {path.name: path for folder in _folders.values() for path in _listed(folder)}


def _listed(folder: Path) -> list[Path]:
    suffixes = (*CURVE_SUFFIXES, ".json")
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in suffixes and p.is_file())


def read_bytes(path: Path) -> bytes:
    """A file's bytes, up to one byte more than the limit.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open_regular(path) as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(
            f"{path.name} cannot be read ({error.strerror}): check its path."
        ) from error


def model_of(name: str) -> str:
    """The model in a file's name: `posir_saliency_NV-Embed-v2.npz` is about NV-Embed-v2."""
    return Path(name).stem.removeprefix("posir_saliency_")
