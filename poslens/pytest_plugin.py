"""The pytest fixture `poslens_check`: a test that fails where a model is not as its stored passport
says. pytest finds it where PosLens is installed; nothing heavy is imported before a test calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import poslens

if TYPE_CHECKING:
    from poslens.studies.check.service import Check


@pytest.fixture(scope="session")
def poslens_check() -> Callable[..., Sequence[Check]]:
    """`poslens_check(model, baseline, dataset="sample", relocation=0.05, ...)`: takes what
    `poslens.check` takes and returns its checks. Fails the test with a line for each that failed.
    Where none failed, but the baseline has no number for one, skips it with a line for each of
    those."""

    def run_checks(model: Any, baseline: str | Path, *rest: str, **options: Any) -> Sequence[Check]:
        __tracebackhide__ = True
        try:
            checks: Sequence[Check] = poslens.check(model, baseline, *rest, **options)
        except poslens.UserError as error:
            pytest.fail(str(error), pytrace=False)
        lines: dict[str, list[str]] = {}
        for check in checks:
            lines.setdefault(check.outcome, []).append(f"{check.name}: {check.line}")
        if failed := lines.get("fail"):
            pytest.fail("\n".join(failed), pytrace=False)
        if not_checked := lines.get("not checked"):
            pytest.skip("Not checked: " + "\n".join(not_checked))
        return checks

    return run_checks
