"""Export of results to Parquet, import from it, and merging of two caches.

Results are copied without being decoded or recomputed, so they are restored bit for bit. Results
that a cache already has are never replaced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from poslens.attribution.checkpoints import stop_requested
from poslens.attribution.curves.positions import curve_params
from poslens.attribution.curves.text_axis import is_over_text
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.isolated import Reader
from poslens.attribution.paths import open_regular
from poslens.attribution.types import Method
from poslens.cache.exchange.atomic_file import replacing
from poslens.cache.exchange.incoming import LIMITS, require_readable, require_whole
from poslens.cache.exchange.parquet_file import RowSource, SealedWriter, opened
from poslens.cache.exchange.rows import add, stored
from poslens.cache.storage.maintenance import StoredFile, listing
from poslens.cache.storage.rows import ATTRIBUTION
from poslens.cache.storage.store import Store

Report = Callable[[int, int], None]
_ROWS = 4000


@dataclass(frozen=True, slots=True)
class Taken:
    """Outcome of an import. `added` counts rows that are new to the cache, `conflicts` rows skipped
    because the cache has another text under the same data set and pair, and `rejected` rows that
    are not valid results of their kind."""

    rows: int = 0
    added: int = 0
    conflicts: int = 0
    rejected: int = 0

    def __add__(self, other: Taken) -> Taken:
        return Taken(*map(operator.add, astuple(self), astuple(other)))

    def sentence(self) -> str:
        """The counts as a sentence."""
        duplicates = self.rows - self.added - self.conflicts - self.rejected
        text = f"{self.added:,} of {self.rows:,} rows are new and were added"
        if duplicates:
            text += f", {duplicates:,} were already stored"
        if self.conflicts:
            text += (
                f", {self.conflicts:,} were skipped: the cache has other texts under the same data "
                "set and pair id"
            )
        if self.rejected:
            text += f", {self.rejected:,} were rejected: they are not valid results of their kind"
        return text + "."


def method_of(file: StoredFile) -> Method:
    """The file's method with the first set of curve parameters for which it stores curves, or else
    with the defaults. Curves over whole texts are not exported: they are derived from the
    results."""
    given = (Method(file.method.name, file.method.params, variant) for variant in file.variants)
    usual = Method(file.method.name, file.method.params, curve_params())
    return next((method for method in given if not is_over_text(method)), usual)


def rows_of(store: Store, file: StoredFile) -> Iterator[tuple[RowSource, pa.RecordBatch]]:
    """All rows of one file of the store."""
    for rows in stored(store, file.model, method_of(file), _ROWS):
        yield RowSource(file.model, file.method), rows


def export(
    store: Store,
    files: Sequence[StoredFile],
    target: Path,
    *,
    poslens: str,
    datasets: Sequence[str] = (),
    report: Report = lambda done, total: None,
) -> int:
    """Write the results of `files`, or only those of some data sets (embeddings and maps have an
    empty name), to one Parquet file. Returns the number of rows. The file is written atomically.
    `poslens` is the version of this program.

    Raises:
        UserError: there is nothing to write, or the file can't be written.
        Stopped: the work was stopped.
    """
    total, n_read = sum(file.results + file.failed for file in files), 0
    names = pa.array(datasets, pa.string())
    sources = [RowSource(file.model, file.method) for file in files]
    with replacing(target) as stream, SealedWriter(stream, sources, poslens) as writer:
        for source, rows in chain.from_iterable(rows_of(store, file) for file in files):
            if stop_requested():
                raise Stopped("Stopped. No file was written.")
            chosen = rows.filter(pc.is_in(rows.column("dataset"), names)) if datasets else rows
            writer.write(source, chosen)
            n_read += rows.num_rows
            report(min(n_read, total), total)
        if not writer.rows:
            raise UserError(
                f"The cache has no results of the data set {' or '.join(datasets)}: choose another."
                if any(datasets)
                else "The cache has no results to export."
            )
    return writer.rows


def take(
    store: Store,
    source: RowSource,
    offered: pa.RecordBatch,
    part: str = "",
    *,
    fits: NDArray[np.bool_] | None = None,
) -> Taken:
    """Add the rows (schema ROW, checked by `require_whole`) that the store lacks, in one
    transaction. If `fits` [N] is given, only the rows marked in it are added. With `part`, they are
    added only once under that name.

    Raises:
        UserError: the store can't be written.
    """
    rows = offered if fits is None else offered.filter(pa.array(fits))
    taken = Taken(offered.num_rows, rejected=offered.num_rows - rows.num_rows)
    if rows.num_rows or part:
        taken += Taken(0, *add(store, source.model, source.method, [rows], part))
    return taken


def take_stream(
    store: Store,
    stream: BinaryIO,
    name: str,
    *,
    fits: NDArray[np.bool_] | None = None,
    report: Report = lambda done, total: None,
) -> Taken:
    """Add what the store lacks from an exported file, open as `stream`. `name` is its name in error
    messages; `fits` is the result of `require_readable`.

    Raises:
        UserError: the file is damaged or of another program (in which case nothing was added,
            unless a single row was tampered with), or the store can't be written.
        Stopped: the work was stopped; rows added before remain.
    """
    taken = Taken()
    with opened(stream, name) as sealed:
        for source, rows in sealed.batches():
            if stop_requested():
                raise Stopped("Stopped. The results that were added are kept.")
            require_whole(rows, name)
            some = None if fits is None else fits[taken.rows : taken.rows + rows.num_rows]
            taken += take(store, source, rows, fits=some)
            report(taken.rows, sealed.rows)
    return taken


def import_file(store: Store, path: Path, *, report: Report = lambda done, total: None) -> Taken:
    """Add what the store lacks from an exported file at `path`. A child process reads the file to
    its end first, because a damaged Parquet file can crash the process that reads it.

    Raises:
        UserError: as `take_stream`; or the file can't be opened.
    """
    with Reader(LIMITS) as reader:
        fits = require_readable(reader, path, path.name)
    try:
        with open_regular(path) as stream:
            return take_stream(store, stream, path.name, fits=fits, report=report)
    except OSError as error:
        raise UserError(f"{path.name} cannot be read ({error.strerror}).") from error


def merge(
    store: Store, other: Store, *, report: Report = lambda done, total: None
) -> tuple[Taken, list[str]]:
    """Add what `store` lacks of another cache, which is not changed. Also returns an error message
    for each file that can't be read.

    Raises:
        UserError: the other folder is not a cache or is the same one, or the store can't be
            written.
    """
    if store.root.resolve() == other.root.resolve():
        raise UserError("This is the current cache: use the folder of another one.")
    files = listing(other)
    if not files:
        raise UserError(
            f"{other.root} is not a cache: use the folder `cache` of another POSLENS_HOME."
        )
    taken, total = Taken(), sum(file.results + file.failed for file in files)
    for file in files:
        if file.problem:
            continue
        for source, rows in rows_of(other, file):
            attributions = pc.equal(rows.column("kind"), ATTRIBUTION)
            require_whole(rows.filter(attributions), file.path.name)
            taken += take(store, source, rows, fits=_fitting(source, rows))
            report(min(taken.rows, total), total)
    return taken, [file.problem for file in files if file.problem]


def _fitting(source: RowSource, rows: pa.RecordBatch) -> NDArray[np.bool_] | None:
    """Which rows are valid results of their kind [N]; None if all are attributions."""
    if all(kind == ATTRIBUTION for kind in rows.column("kind").to_pylist()):
        return None
    from poslens.cache.exchange.fitting import fits  # imports torch, as adding these rows does

    return fits(source, rows)
