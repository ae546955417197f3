"""The pytest fixture `poslens_check`, which fails a test if a model has changed from its stored
passport. pytest finds it wherever PosLens is installed; nothing slow is imported before a test
calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import poslens

if TYPE_CHECKING:
    from poslens.studies.check.measures import Check


@pytest.fixture(scope="session")
def poslens_check() -> Callable[..., Sequence[Check]]:
    """`poslens_check(model, baseline, dataset="sample", relocation=0.05, ...)` takes the
    arguments of `poslens.check` and returns its checks. It fails the test with a line for each
    failed check. If no check failed, but some could not be made or have too few documents to
    decide, it skips the test with a line for each of those."""

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
        if undecided := [
            f"{outcome}: {line}"
            for outcome, outcome_lines in lines.items()
            for line in outcome_lines
            if outcome != "pass"
        ]:
            pytest.skip("\n".join(undecided))
        return checks

    return run_checks
