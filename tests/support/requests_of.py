"""The number of requests in a device queue."""

from __future__ import annotations

from poslens.compute.queue import DeviceQueue


def n_requests(queue: DeviceQueue) -> int:
    """Number of page requests that are waiting or being computed."""
    return sum(request.wanted() for request in queue._requests.values())
