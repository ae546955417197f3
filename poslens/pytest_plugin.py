"""The pytest fixture `poslens_check`, which fails a test if a model deviates from its stored
passport. pytest loads this plugin wherever PosLens is installed, so slow imports wait until a test
calls the fixture."""

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
    """A function with the arguments of `poslens.check`, such as `poslens_check(model, baseline,
    relocation=0.05)`, that returns its checks. It fails the test with a line for each failed check.
    If none failed but some could not be made or have too few documents, it skips the test with a
    line for each of those."""

    def run_checks(model: Any, baseline: str | Path, *rest: str, **options: Any) -> Sequence[Check]:
        __tracebackhide__ = True
        try:
            checks: Sequence[Check] = poslens.check(model, baseline, *rest, **options)
        except poslens.UserError as error:
            # Without its context, which would repeat the sentence.
            raise pytest.fail.Exception(str(error), pytrace=False) from None
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
