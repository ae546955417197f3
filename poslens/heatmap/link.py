"""The query x document matrix of a column, with which the browser links its two panes."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from poslens.attribution.types import Attribution, as_array

MAX_CELLS = 1 << 20
"""Maximum number of cells sent to the browser (128 x 8,192 are 5.6 MB); panes with a larger matrix
are not linked."""


@dataclass(frozen=True, slots=True)
class Link:
    """The contribution of each pair of a query token and a document token to the score, without
    special tokens.

    `values` are `rows` x `columns` little-endian float32, row by row: a row for each token of the
    model's query pane, a column for each token of its document pane. They are bytes because the
    same numbers as JSON with four digits are twice as long and take thirty times as long to write.

    Raises:
        ValueError: the number of bytes does not match the shape.
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
        """The link as JSON for the browser: its shape, and the values in base64."""
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
