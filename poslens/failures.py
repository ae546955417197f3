"""The table of items without a result, which every command that records them can print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poslens.rows import Table, column

if TYPE_CHECKING:
    from poslens.compute.runs import Job

FAILURES = "failures"


@dataclass(frozen=True)
class FailureRow:
    """An item without a result."""

    model: str = column("Name of the model, with the setting if several were computed.")
    item: str = column("Id of the item, such as a pair, query or document.")
    reason: str = column("Reason in one sentence.")


FAILURE_TABLE: Table[FailureRow] = Table(FailureRow, lambda row: [row], "Failures")


def failure_rows(jobs: Iterable[Job]) -> list[FailureRow]:
    """The failed items of jobs."""
    return [
        FailureRow(job.label, item, reason)
        for job in {job.key: job for job in jobs}.values()
        for item, reason in job.failures().items()
    ]
