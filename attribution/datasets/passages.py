"""Formats whose files contain questions with their passages. Each distinct passage is stored once,
under the location of its first occurrence. The formats differ only in how rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.datasets.formats import Format
from poslens.attribution.datasets.judged_pairs import gather
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import (
    DataSet,
    Groups,
    Judgement,
    Passages,
    Rejection,
    collect,
    pairs_of,
)

Judge = Callable[[Sequence[File], str, Passages], Iterator[Judgement | Rejection]]
"""Reads files of a data set of this name row by row: each row is a judgment of its passage or a
rejection. It adds every passage, including those whose rows are all rejected."""


@dataclass(frozen=True, slots=True)
class PassageReader:
    """Reads a format by its `judge`; `title` is appended to a data set's name, and `groups` are the
    groups of its queries."""

    judge: Judge
    title: str
    groups: Groups | None = None

    def read(self, files: Sequence[File], name: str, title: str = "") -> DataSet:
        """The rows that are pairs; accepted + rejected = rows.

        Raises:
            UserError: a file cannot be read or is in another layout, or no row is a pair.
        """
        rows = pairs_of(self.judge(files, name, Passages()))
        return collect(name, self._titled(name, title), rows)

    def collection(self, files: Sequence[File], name: str, title: str = "") -> Collection:
        """The queries, and all passages to search.

        Raises:
            UserError: as `read`.
        """
        passages = Passages()
        rows = list(self.judge(files, name, passages))
        documents = tuple(Document(key, text) for key, text in passages)
        return gather(
            name,
            self._titled(name, title),
            rows,
            lambda: iter(documents),
            [file.content for file in files if isinstance(file.content, Path)],
            groups=self.groups,
        )

    def format(
        self, name: str, description: str, order: int, files: Callable[[Path], list[File]]
    ) -> Format:
        """The format of the files that `files` finds at a path; none where they are in another."""
        return Format(
            name=name,
            description=description,
            order=order,
            fits=lambda path: bool(files(path)),
            read=lambda path, name, title: self.read(files(path), name, title),
            collection=lambda path, name, title: self.collection(files(path), name, title),
        )

    def _titled(self, name: str, title: str) -> str:
        return title or f"{name} ({self.title})"
