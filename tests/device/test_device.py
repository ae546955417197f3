"""PosLens on a device that is not the CPU: a simulated one (`tests/support/simulated_device.py`),
and a GPU if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
    "displacements_agree()",
    "other_documents_agree()",
    "rankings_agree('dense')",
    "rankings_agree('late')",
    "rankings_agree('sparse')",
    "audits_agree()",
    "debiasing_agrees()",
    "explanations_predict_alike()",
    "preferences_agree()",
    "memory_runs_out('bert')",
    "memory_runs_out('late interaction (BERT)')",
    "memory_runs_out('sparse (BERT)')",
    "memory_runs_out('cross-encoder (BERT)')",
    "models_take_turns()",
    "copies_run_out('bert')",
    "copies_run_out('late interaction (BERT)')",
    "copies_run_out('cross-encoder (BERT)')",
    "studies_in_bfloat16()",
)


SIMULATED_ONLY = ("devices_fail", "weight_fails", "spread", "run_out", "runs_out", "take_turns")
"""Parts of the names of checks that need two devices, errors that the simulation alone gives, or
memory that runs out at a few kilobytes."""
ON_GPU = [check for check in CHECKS if not any(part in check for part in SIMULATED_ONLY)]


@pytest.mark.parametrize("check", CHECKS)
def test_results_agree_on_a_simulated_device(check: str, forked: Forked, tmp_path: Path) -> None:
    _run(f"checks.prepare(); checks.{check}", forked, tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
@pytest.mark.parametrize("check", ON_GPU)
def test_results_agree_on_a_gpu(check: str, forked: Forked, tmp_path: Path) -> None:
    _run(f"checks.prepare('cuda:0'); checks.{check}", forked, tmp_path)


def _run(calls: str, forked: Forked, tmp_path: Path) -> None:
    code = f"from tests.device import checks; {calls}"
    status, _, errors = forked.run(code=code, env={"TMPDIR": str(tmp_path)})
    assert status == 0, errors[-3000:]
