"""JSON shapes of the `cache` commands."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from poslens.commands.answers import Model

CoreMethod = Annotated[str, "The method with the parameters that results are stored under."]
Problem = Annotated[str, "Why the file cannot be read, in a sentence."]
Rows = Annotated[int, "Number of results in the file or cache."]
Added = Annotated[int, "Number of results that were added to the cache."]
Conflicts = Annotated[
    int, "Number of skipped results: the cache has other texts under the same pair id."
]
Rejected = Annotated[int, "Number of skipped results: they are not valid results of their kind."]
Freed = Annotated[int, "Disk space that was freed, in bytes."]
Parts = Annotated[int, "Number of parts in the folder."]
Damaged = Annotated[int, "Number of damaged parts."]
Folder = Annotated[str, "The folder or address, as specified."]


class StoredAnswer(TypedDict):
    """Results of a model and a method."""

    model: Model
    fingerprint: Annotated[str, "Fingerprint of the model, in hexadecimal."]
    method: CoreMethod
    datasets: Annotated[
        dict[str, int],
        "Number of results and failures by data set; embeddings and maps belong to none.",
    ]
    results: Annotated[int, "Number of stored results."]
    failed: Annotated[int, "Number of failed pairs."]
    bytes: Annotated[int, "Size in bytes."]
    last_used: Annotated[str, "Time of the last use in UTC, such as 2026-01-31T14:05:00Z."]
    problem: NotRequired[Problem]


class ExportAnswer(TypedDict):
    """A file of results."""

    file: Annotated[str, "Path of the file."]
    rows: Rows
    bytes: Annotated[int, "Its size in bytes."]


class Imported(TypedDict):
    """Results imported from a file."""

    file: Annotated[str, "Path of the file."]
    rows: Rows
    added: Added
    conflicts: Conflicts
    rejected: Rejected


class Merged(TypedDict):
    """Results imported from another cache."""

    folder: Folder
    rows: Rows
    added: Added
    conflicts: Conflicts
    rejected: Rejected


class IngestAnswer(TypedDict):
    """Results imported from a folder of parts."""

    folder: Folder
    parts: Parts
    new: Annotated[int, "Number of parts that were not ingested before."]
    added: Added
    conflicts: Conflicts
    rejected: Rejected
    damaged: Damaged


class VerifiedFile(TypedDict):
    """Results whose checksums were verified."""

    model: Model
    method: CoreMethod
    checked: NotRequired[Annotated[int, "Number of results that were read."]]
    damaged: NotRequired[
        Annotated[list[str], "Ids of pairs whose results were damaged, and were removed."]
    ]
    problem: NotRequired[Problem]


class VerifiedParts(TypedDict):
    """Parts whose checksums were verified."""

    folder: Folder
    parts: Parts
    damaged: Damaged


class Compacted(TypedDict):
    """Disk space that was freed."""

    model: Model
    method: CoreMethod
    freed: Freed


class Deleted(TypedDict):
    """Results that were deleted."""

    files: Annotated[int, "Number of models and methods whose results were deleted."]
    freed: Freed
