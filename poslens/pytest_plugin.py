"""The pytest fixture `poslens_check`: a test that fails where a model is not as its stored passport
says. pytest finds it where PosLens is installed; nothing heavy is imported before a test calls it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import poslens

if TYPE_CHECKING:
    from dashboard.check.service import Check


@pytest.fixture(scope="session")
def poslens_check() -> Callable[..., Sequence[Check]]:
    """`poslens_check(model, baseline, dataset="sample", lean=0.05, ...)`: takes what
    `poslens.check` takes and returns its checks. Fails the test with a line for each that failed,
    and warns of each that the baseline has no number for."""

    def check(model: Any, baseline: str | Path, *rest: str, **options: Any) -> Sequence[Check]:
        __tracebackhide__ = True
        try:
            found = poslens.check(model, baseline, *rest, **options)
        except poslens.UserError as error:
            pytest.fail(str(error), pytrace=False)
        for one in found:
            if one.outcome == "not checked":
                warnings.warn(f"{one.name} was not checked: {one.line}", stacklevel=2)
        failed = [f"{one.name}: {one.line}" for one in found if one.outcome == "fail"]
        if failed:
            pytest.fail("\n".join(failed), pytrace=False)
        return found

    return check
