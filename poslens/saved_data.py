"""Writes data sets in memory to files, which the readers of data sets check like any other."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from poslens import names
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import data_folder
from poslens.commands.result_files import written

Rows: TypeAlias = "pd.DataFrame | list[dict[str, Any]]"
Data: TypeAlias = "str | Path | Rows | dict[str, str | Path | Rows]"
"""A data set: its name, path or rows; a dictionary gives a path or rows a name."""


_NAME = len("data-12345678")


def data_name(dataset: Data) -> str:
    """The name of a data set given by name or path, or as rows in memory. Rows are written to a
    Parquet file in the data folder that is named after their digest, and so is the data set unless
    it is given as {name: rows}; {name: path} names a path.

    Raises:
        UserError: it is something else, or a table cannot hold the rows.
    """
    if isinstance(dataset, str | Path):
        return names.data_name(dataset)
    if isinstance(dataset, Mapping):
        if len(dataset) != 1 or not all(isinstance(name, str) and name for name in dataset):
            raise UserError(
                "A dictionary is a data set only as {name: path} or {name: rows}, with one name."
            )
        ((name, rows),) = dataset.items()
    else:
        name, rows = "", dataset
    path = Path(rows) if isinstance(rows, str | Path) else _written(rows)
    (registered, *_) = names.register_data({name or path.stem[:_NAME]: str(path)})
    return names.data_name(registered)


def _written(rows: Any) -> Path:
    """The file of the rows, which is written unless it exists."""
    in_rows = isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)
    if not in_rows and not isinstance(rows, pd.DataFrame):
        raise UserError(
            f"A data set can't be of type {type(rows).__name__}: use a name, a path, a pandas "
            "DataFrame or a list of dictionaries."
        )
    content = io.BytesIO()
    try:
        table = pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)
        # Without pandas's metadata, which doesn't belong to the rows.
        pq.write_table(table.replace_schema_metadata(), content)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        parts = error.args if isinstance(error, pa.ArrowException) else [error]
        reason = " ".join("; ".join(map(str, parts)).split())[:200]
        raise UserError(
            f"The rows can't be written as a table ({reason}): give the values of each column one "
            "type, and remove columns that docs/data.md doesn't list."
        ) from error
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    path = data_folder() / "collections" / "python" / f"data-{digest[:16]}.parquet"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        written(path, content.getvalue())
    return path
