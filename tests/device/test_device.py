"""PosLens on a simulated device that is not the CPU (`tests/support/simulated_device.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked import Forked

# Of dense models the methods are compared on both devices at once, where a tensor that is on the
# wrong device or on the CPU fails as on one.
CHECKS = (
    "mixed_devices_fail()",
    "misplaced_weight_fails()",
    "methods_agree('t5')",
    "methods_agree('late interaction (BERT)')",
    "methods_agree('sparse (BERT)')",
    "methods_agree('cross-encoder (BERT)')",
    "methods_agree('cross-encoder (T5, sequence to sequence)')",
    "methods_agree('bert', 'bfloat16')",
    "methods_agree('late interaction (BERT)', 'bfloat16')",
    "methods_agree('cross-encoder (BERT)', 'bfloat16')",
    "spread_models_agree('bert')",
    "spread_models_agree('qwen3-left')",
    "interventions_agree()",
    "interventions_agree(spread=True)",
    "displacements_agree()",
    "rankings_agree('dense')",
    "rankings_agree('late')",
    "rankings_agree('sparse')",
    "audits_agree()",
    "debiasing_agrees()",
    "debiasing_agrees(spread=True)",
    "explanations_predict_alike()",
    "preferences_agree()",
    "memory_runs_out('bert')",
    "memory_runs_out('late interaction (BERT)')",
    "memory_runs_out('sparse (BERT)')",
    "memory_runs_out('cross-encoder (BERT)')",
    "studies_in_bfloat16()",
)


@pytest.mark.parametrize("check", CHECKS)
def test_on_a_simulated_device(check: str, forked: Forked, tmp_path: Path) -> None:
    code = f"from tests.device import checks; checks.prepare(); checks.{check}"
    status, _, errors = forked.run(code=code, env={"TMPDIR": str(tmp_path)})
    assert status == 0, errors[-3000:]
