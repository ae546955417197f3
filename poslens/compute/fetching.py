"""Downloads a model for a page: size estimate, and the download as a job."""

from __future__ import annotations

import time

from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.retrievers import fetch, resolve
from poslens.attribution.retrievers.hub import Size
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.jobs.loop import Progress
from poslens.compute.compute import Compute
from poslens.compute.runs import Job, Report, Run
from poslens.compute.settings import FETCH_LIMIT_GB


def absent(name: str) -> RetrieverSpec | None:
    """The model of this name if it can be downloaded and is not on this machine; otherwise None."""
    try:
        spec = resolve.resolve(name)
    except UserError:
        return None
    return spec if fetch.can_fetch(spec) and not resolve.installed(spec) else None


def size_of(spec: RetrieverSpec) -> Size:
    """Size of the download of `spec`; for models of the Hugging Face Hub, it queries the hub.

    Raises:
        UserError: the hub does not answer, or the model exceeds the limit for downloads from a
            page.
    """
    size = fetch.size_of(spec)
    size.require(_limit())
    return size


def job(compute: Compute, spec: RetrieverSpec) -> Job:
    """A job that downloads a model; when stopped, it ends after the current block."""

    def work(run: Run, report: Report) -> Progress:
        started = time.perf_counter()

        def show(step: str, done: int, total: int | None) -> None:
            if run.stopping:
                raise Stopped("Stopped. The download resumes where it was.")
            run.stage = step
            report(Progress(total or 0, done, done, 0, time.perf_counter() - started))

        fetch.fetch(spec.base, show, _limit())
        return run.progress

    return compute.job(
        ("fetch", spec.base, "", "", ""), spec.base, 0, work, doing="fetching", upkeep=True
    )


def _limit() -> float:
    return FETCH_LIMIT_GB.get() * 1e9
