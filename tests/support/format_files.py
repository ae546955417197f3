"""Writes the rows of data sets as the files of their formats."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[Any]


def write(folder: Path, files: dict[str, Rows], *, packed: bool = False) -> Path:
    """Write rows to each file in the format of its ending, and return the folder. A row of a text
    file that is text is a line as it is; rows of `.json` are questions about SQuAD's passage
    `context`, the first row."""
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
            continue
        if path.suffix == ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, quoting=csv.QUOTE_ALL)
                writer.writerows([list(rows[0]), *(list(row.values()) for row in rows)])
        elif path.suffix == ".json":
            paragraph = {"context": rows[0], "qas": rows[1:]}
            data = {"data": [{"title": "Weather", "paragraphs": [paragraph]}]}
            path.write_text(json.dumps(data), encoding="utf-8")
        else:
            lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        if packed:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    return folder
