"""The query x document matrix of a column, packed so that the browser can link its two panes."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from poslens.attribution.types import Attribution, as_array

MAX_CELLS = 1 << 20
"""Largest matrix that is sent (128 x 8,192, 5.6 MB); the panes of a larger one are not linked."""


@dataclass(frozen=True, slots=True)
class Link:
    """Share of the score of each pair of a query token and a document token, without special
    tokens.

    `values` holds `rows` x `columns` little-endian float32, row by row; a row is a token of the
    model's query pane, a column one of the document pane that has the link. Bytes, because the
    same numbers as JSON, at four digits, are twice as long and thirty times as slow to write.
    """

    rows: int
    columns: int
    values: bytes

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or len(self.values) != 4 * self.rows * self.columns:
            raise ValueError(
                f"link: {len(self.values)} bytes for {self.rows} x {self.columns} shares"
            )

    def to_dict(self) -> dict[str, Any]:
        """The link as the browser gets it: its shape, and the values in base64."""
        values = base64.b64encode(self.values).decode("ascii")
        return {"rows": self.rows, "columns": self.columns, "values": values}


def link_of(attribution: Attribution) -> Link | None:
    """The attribution's matrix [Q, D] without its special tokens.

    None if it has no matrix, if a side has only special tokens, or above `MAX_CELLS` cells.
    """
    if attribution.matrix is None:
        return None
    content = attribution.matrix[attribution.query.content][:, attribution.document.content]
    if not 0 < content.size <= MAX_CELLS:
        return None
    rows, columns = content.shape
    return Link(
        rows, columns, as_array(content, (rows, columns), "a matrix").astype("<f4").tobytes()
    )
