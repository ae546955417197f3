"""Agreement of a method with interventions counts the pairs that it is computed over."""

from __future__ import annotations

import numpy as np

from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.agreement import agreement


def test_pairs_with_a_truncated_document_are_counted() -> None:
    def ablated(read_share: float) -> Ablation:
        parts, edges = ((0, 50), (50, 60), (60, 100)), np.array([0, 0.5, 0.6, 1])
        effects = np.array([1.0, 3.0, 2.0])
        return Ablation("m", "p", "delete", parts, edges, effects, 1, read_share, "", 0)

    curves = [np.linspace(0, 1, 100)] * 3
    assert agreement("m", curves, [ablated(1), ablated(0.5), ablated(0.9)], "abc").n_truncated == 2
