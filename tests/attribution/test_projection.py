"""Maps: the same for the same seed, neighbours stay neighbours, bad input is said."""

from __future__ import annotations

import numpy as np
import pytest

from attribution.errors import UserError
from attribution.projection import METRICS, Layout, project


def clusters(n: int = 40) -> np.ndarray:
    random = np.random.default_rng(3)
    return np.concatenate([random.normal(0, 0.3, (n, 24)) + 4 * np.eye(24)[i] for i in range(3)])


def test_groups_stay_together_and_the_seed_decides() -> None:
    epochs: list[tuple[int, int]] = []
    points = project(clusters(), Layout(), lambda done, total: epochs.append((done, total)))
    assert points.shape == (120, 2) and np.isfinite(points).all()
    groups = np.repeat(np.arange(3), 40)
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e9 * np.eye(120)
    assert (groups[distances.argmin(1)] == groups).mean() == 1
    assert epochs[-1][0] == epochs[-1][1] > 1 and epochs == sorted(epochs)
    np.testing.assert_array_equal(points, project(clusters(), Layout()))
    assert not np.allclose(points, project(clusters(), Layout(seed=1)))


def test_curves_are_compared_by_shape_not_by_height() -> None:
    rising, falling = np.linspace(0, 1, 100), np.linspace(1, 0, 100)
    heights = np.linspace(0.1, 5, 20)[:, None]
    points = project(np.concatenate([heights * rising, heights * falling]),
                     Layout(metric=METRICS["curves"], n_neighbors=5))  # fmt: skip
    a, b = points[:20].mean(0), points[20:].mean(0)
    own = np.linalg.norm(points[:20] - a, axis=1) < np.linalg.norm(points[:20] - b, axis=1)
    assert own.all()


def test_few_points_and_doubles_work() -> None:
    assert project(clusters()[:5], Layout()).shape == (5, 2)
    assert np.isfinite(project(np.repeat(clusters()[:1], 7, 0), Layout())).all()


def test_what_makes_no_map_is_said() -> None:
    with pytest.raises(UserError, match="needs 5 points and there are 4"):
        project(clusters()[:4], Layout())
    broken = clusters()
    broken[0, 0] = np.nan
    with pytest.raises(UserError, match="not finite"):
        project(broken, Layout())
