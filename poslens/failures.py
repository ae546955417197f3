"""The table of items without a result, which every command that records them can print."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poslens.attribution.errors import UserError
from poslens.rows import Table, column

if TYPE_CHECKING:
    from poslens.attribution.retrievers.specs import RetrieverSpec
    from poslens.attribution.types import Method, Provenance
    from poslens.compute.compute import Compute
    from poslens.compute.runs import Job

FAILURES = "failures"


@dataclass(frozen=True)
class FailureRow:
    """An item without a result, or a model without any."""

    model: str = column("Name of the model, with the setting if several were computed.")
    item: str | None = column(
        "Id of the item, such as a pair, query or document; null if the model has no result at all."
    )
    reason: str = column("Reason in one sentence.")


FAILURE_TABLE: Table[FailureRow] = Table(FailureRow, lambda row: [row], "Failures")


def failure_rows(jobs: Iterable[Job]) -> list[FailureRow]:
    """The failed items of jobs."""
    return [
        FailureRow(job.label, item, reason)
        for job in {job.key: job for job in jobs}.values()
        for item, reason in job.failures().items()
    ]


def failure_provenance(
    compute: Compute, specs: Iterable[RetrieverSpec], method: Method | str, dataset: str
) -> list[Provenance]:
    """Provenance of a table of failures. Models that can't be identified have none."""
    from poslens.compute.provenance import of_model

    provenance = []
    for spec in specs:
        with suppress(UserError):
            provenance.append(of_model(compute.identify(spec), method, dataset))
    return provenance
