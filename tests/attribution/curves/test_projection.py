"""Maps: reproducible by seed, neighbors stay neighbors, invalid input is refused."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from poslens.attribution.curves.projection import METRICS, Layout, comparable, project
from poslens.attribution.errors import UserError


def clusters(n: int = 40) -> np.ndarray:
    random = np.random.default_rng(3)
    return np.concatenate([random.normal(0, 0.3, (n, 24)) + 4 * np.eye(24)[i] for i in range(3)])


def test_clusters_stay_together_and_the_seed_fixes_the_map() -> None:
    epochs: list[tuple[int, int]] = []
    points = project(clusters(), Layout(), lambda done, total: epochs.append((done, total)))
    assert points.shape == (120, 2) and np.isfinite(points).all()
    groups = np.repeat(np.arange(3), 40)
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e9 * np.eye(120)
    assert (groups[distances.argmin(1)] == groups).mean() == 1
    assert epochs[-1][0] == epochs[-1][1] > 1 and epochs == sorted(epochs)
    np.testing.assert_array_equal(points, project(clusters(), Layout()))
    assert not np.allclose(points, project(clusters(), Layout(seed=1)))


def test_compiled_functions_are_stored_for_later_processes() -> None:
    project(clusters()[:5], Layout())
    layouts = importlib.import_module("umap.layouts")
    assert layouts.clip.stats.cache_path, "otherwise the first map of each process takes 10 s more"


def test_curves_are_compared_by_shape_and_not_by_height() -> None:
    rising, falling = np.linspace(0, 1, 100), np.linspace(1, 0, 100)
    heights = np.linspace(0.1, 5, 20)[:, None]
    points = project(
        np.concatenate([heights * rising, heights * falling]),
        Layout(metric=METRICS["curves"], n_neighbors=5),
    )
    a, b = points[:20].mean(0), points[20:].mean(0)
    own = np.linalg.norm(points[:20] - a, axis=1) < np.linalg.norm(points[:20] - b, axis=1)
    assert own.all()


def test_few_points_and_duplicates_can_be_mapped() -> None:
    assert project(clusters()[:5], Layout()).shape == (5, 2)
    assert np.isfinite(project(np.repeat(clusters()[:1], 7, 0), Layout())).all()


@pytest.mark.parametrize("metric", sorted(METRICS.values()))
@pytest.mark.parametrize("different", [1, 2, 4, 30])
def test_equal_vectors_share_a_point(metric: str, different: int) -> None:
    """UMAP alone would draw a cloud, a shape where there is none."""
    vectors = np.random.default_rng(2).normal(size=(different, 16)).astype(np.float32)
    many = np.repeat(vectors, 12, 0)
    for scale in (1.0, 1e-30, 1e30):
        points = project(many * np.float32(scale), Layout(metric=metric))
        assert np.isfinite(points).all()
        assert len(np.unique(points, axis=0)) == different
        np.testing.assert_array_equal(points[::12], points[11::12])
        if different > 1:
            apart = np.linalg.norm(points[::12][:, None] - points[::12][None], axis=-1)
            assert apart[~np.eye(different, dtype=bool)].min() > 1e-3


@pytest.mark.parametrize(
    ("metric", "zero", "flat"), [("cosine", False, True), ("correlation", False, False)]
)
def test_zero_and_flat_curves_are_left_off_the_map(metric: str, zero: bool, flat: bool) -> None:
    """All of them together once gave points that were NaN."""
    vectors = np.random.default_rng(2).normal(size=(9, 100)).astype(np.float32)
    vectors[3], vectors[5] = 0.0, 0.1
    known = comparable(vectors, metric)
    assert known.tolist() == [True] * 3 + [zero, True, flat] + [True] * 3
    with pytest.raises(UserError, match="zero or constant"):
        project(vectors, Layout(metric=metric))
    with pytest.raises(UserError, match="zero or constant"):
        project(np.zeros((60, 16), np.float32), Layout(metric=metric))
    assert np.isfinite(project(vectors[known], Layout(metric=metric))).all()


def test_input_that_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(UserError, match="needs at least 5 points, not 4"):
        project(clusters()[:4], Layout())
    broken = clusters()
    broken[0, 0] = np.nan
    with pytest.raises(UserError, match="not finite"):
        project(broken, Layout())
