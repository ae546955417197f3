"""Evidence bins and PSI by hand, and its permutation test on data without a position effect."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from poslens.attribution.evaluation.evidence_profile import (
    evidence_bin,
    evidence_profile,
    profile_over,
)


def test_bins_equal_those_of_pandas_cut() -> None:
    positions = [*np.linspace(0, 1, 21), *np.linspace(0.001, 0.999, 333)]
    expected = pd.cut(positions, bins=np.linspace(0, 1, 21), include_lowest=True).codes
    actual = [evidence_bin(position) for position in positions]
    # On an edge, the two may differ because of rounding in 0.05 * i.
    assert (
        actual[21:] == expected[21:].tolist()
        and actual[0] == 0
        and actual[1] == 0
        and actual[20] == 19
    )


def test_psi_computed_by_hand() -> None:
    # Bins 0, 9 and 19 hold 0.8, (0.5 + 0.3) / 2 and 0.6.
    found = evidence_profile(np.array([0.8, 0.5, 0.3, 0.6]), [0.01, 0.5, 0.46, 1.0], None)
    assert found is not None and found.psi == pytest.approx(1 - 0.4 / 0.8)
    assert found.counts == tuple({0: 1, 9: 2, 19: 1}.get(b, 0) for b in range(20))
    assert found.means[9] == pytest.approx(0.4) and found.means[1] is None
    assert (found.n, found.n_empty) == (4, 17)
    assert found.mean == pytest.approx(0.55) and found.mean_of_bins == pytest.approx(0.6)


def test_psi_needs_two_bins_and_a_retrieved_document() -> None:
    for values, positions in (([0.5, 0.7], [0.5, 0.5]), ([0.0, 0.0], [0.1, 0.9])):
        found = evidence_profile(np.array(values), positions, None)
        assert found is not None and found.psi is found.psi_under_permutation is found.p is None
    assert evidence_profile(np.array([]), [], None) is None


def test_the_permutation_test_distinguishes_noise_from_bias() -> None:
    generator = np.random.default_rng(0)
    positions = generator.random(400)
    noise = evidence_profile((generator.random(400) < 0.5).astype(float), positions.tolist(), None)
    biased = evidence_profile((positions < 0.5) * 0.5 + 0.5, positions.tolist(), None)
    assert noise is not None and biased is not None
    assert noise.psi and noise.psi > 0.2 and noise.p and noise.p > 0.05
    assert noise.psi_under_permutation == pytest.approx(noise.psi, abs=0.3)
    assert biased.psi == pytest.approx(0.5) and biased.p == pytest.approx(1 / 1000)


def null_data(
    generator: np.random.Generator, shared: bool
) -> tuple[np.ndarray, list[float], list[int]]:
    """40 documents with 5 queries each that have similar scores. Positions are random: one for all
    queries of a document (`shared`), or one for each."""
    levels = generator.random(40)
    positions = np.repeat(generator.random(40), 5) if shared else generator.random(200)
    scores = np.repeat(levels, 5) + generator.normal(0, 0.1, 200)
    return scores.clip(0.01), positions.tolist(), np.repeat(np.arange(40), 5).tolist()


@pytest.mark.parametrize("shared", [True, False])
def test_p_is_at_most_5_percent_in_5_percent_of_null_data_sets(shared: bool) -> None:
    generator = np.random.default_rng(3)
    found = [evidence_profile(*null_data(generator, shared)) for _ in range(300)]
    share = np.mean([one is not None and one.p is not None and one.p <= 0.05 for one in found])
    # 0.05 plus three standard errors; permuting single queries gives 0.9 if they share a position.
    assert 0.012 <= share <= 0.088


def test_queries_of_a_document_in_one_bin_are_permuted_together() -> None:
    """Three documents with two queries and one bin each, so there are six orders."""
    scores = np.array([0.2, 0.4, 0.6, 0.8, 0.9, 0.9])
    member = np.repeat(np.eye(3), 2, axis=0)
    found = profile_over(scores, member, list("aabbcc"))
    assert found.psi == pytest.approx(1 - 0.3 / 0.9)
    # Whichever bin a document's two scores move to, the three means stay the same.
    assert found.psi_under_permutation == pytest.approx(found.psi) and found.p == 1
    alone = profile_over(scores, member, None)
    assert (
        alone.psi_under_permutation is not None
        and alone.psi_under_permutation < found.psi_under_permutation
    )


def test_all_queries_of_a_document_move_together() -> None:
    """Two documents with two queries and one: swapping them swaps the means of the bins."""
    found = profile_over(np.array([0.2, 0.4, 0.9]), np.eye(2)[[0, 0, 1]], list("aab"))
    assert found.psi_under_permutation == pytest.approx(1 - 0.3 / 0.9)
