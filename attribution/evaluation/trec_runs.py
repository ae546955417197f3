"""Runs in TREC's format: rankings by another program, one result on each line, with query, `Q0`,
document, rank, score and the run's tag (https://trec.nist.gov/data/trec8_ranking.html).

Results are ordered as trec_eval does: by score, then by descending document id; the rank in
the line is ignored.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.datasets.schema import NOT_UTF8, as_id
from poslens.attribution.datasets.streams import File, has_foreign_bytes, open_text
from poslens.attribution.datasets.types import Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.search import DEPTH, Ranking
from poslens.attribution.names import Names
from poslens.attribution.nouns import counted

_FIELDS = 6
_PORTION = 4 * DEPTH
_MAX_REJECTED = 1000
_LARGEST = 1e38  # about the largest number in single precision
Results = tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class TrecRun:
    """A run. `results` are the best 101 (score, document id) of each query, best first: one more
    than DEPTH, because the document with the query's own id can be excluded. `digest` distinguishes
    it from another run of the same name. `rejected` are the first of the `n_rejected` lines that
    are not results, and `n_repeated` counts results among the best of a query whose document is
    there with a higher score."""

    name: str
    file: str
    digest: str
    results: Mapping[str, Results]
    rejected: tuple[Rejection, ...]
    n_rejected: int
    n_repeated: int = 0

    def fits(self, collection: Collection) -> bool:
        """Whether it has a query of the collection."""
        return any(query in collection.row_of for query in self.results)


@dataclass(frozen=True)
class PlacedRun:
    """A run matched to a collection: a ranking for each of the collection's queries, empty if the
    run does not have the query. `n_strange` queries of the run are not in the collection, and
    `n_lost` results name documents that the corpus lacks."""

    rankings: tuple[Ranking, ...]
    n_strange: int
    n_lost: int


def read_run(name: str, file: File) -> TrecRun:
    """Read a run; lines that are not results are skipped and counted.

    Raises:
        UserError: the file cannot be read, or none of its lines is a result.
    """
    results: dict[str, list[tuple[float, str]]] = {}
    rejected: list[Rejection] = []
    n_rejected = n_repeated = 0
    total = hashlib.sha256()
    with open_text(file) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            total.update(line.encode("utf-8", "surrogatepass"))
            try:
                query, document, score = _result(line)
            except UserError as error:
                n_rejected += 1
                if len(rejected) < _MAX_REJECTED:
                    rejected.append(Rejection(file.name, number, str(error)))
                continue
            results_of_query = results.setdefault(query, [])
            results_of_query.append((score, document))
            # A run may have a thousand results per query, but only the best are used.
            if len(results_of_query) >= _PORTION:
                results_of_query[:], n = _best(results_of_query)
                n_repeated += n
    if not results:
        hint = f"{rejected[0].reason} (line {rejected[0].row})" if rejected else "it has no lines"
        raise UserError(f"{file.name} is not a run in TREC's format: {hint}.")
    best: dict[str, Results] = {}
    for query, results_of_query in results.items():
        best[query], n = _best(results_of_query)
        n_repeated += n
    digest = total.hexdigest()[:16]
    return TrecRun(name, file.name, digest, best, tuple(rejected), n_rejected, n_repeated)


def _result(line: str) -> tuple[str, str, float]:
    if has_foreign_bytes(line):
        raise UserError(NOT_UTF8)
    fields = line.split()
    if len(fields) != _FIELDS:
        raise UserError(
            f"the line has {counted(len(fields), 'field')}, not query, Q0, document, rank, score "
            "and tag"
        )
    try:
        score = float(fields[4])
    except ValueError:
        score = math.nan
    if not abs(score) < _LARGEST:  # rejects NaN too
        raise UserError(f"the score {fields[4][:40]!a} is not a number below {_LARGEST:g}")
    return as_id(fields[0], "query"), as_id(fields[2], "document"), score


def _best(results: list[tuple[float, str]]) -> tuple[Results, int]:
    """The best results, each document once (see `TrecRun`), and how many repeat a document."""
    first: dict[str, float] = {}
    n_repeated = 0
    for score, document in heapq.nlargest(len(results), results):
        n_repeated += document in first
        first.setdefault(document, score)
        if len(first) == DEPTH + 1:
            break
    return tuple((score, document) for document, score in first.items()), n_repeated


def placed(run: TrecRun, collection: Collection) -> PlacedRun:
    """The run as rankings of a collection's queries, without documents that the corpus lacks and,
    if the collection excludes it (`skips_own_id`), without the document that has the query's own
    id. Reads the corpus once.

    Raises:
        UserError: the run has none of the queries, or the corpus cannot be read.
    """
    asked = {query: results for query, results in run.results.items() if query in collection.row_of}
    if not asked:
        in_run, in_collection = next(iter(run.results)), next(iter(collection.row_of))
        raise UserError(
            f"{run.name} has no query of {collection.title}: its first query id is "
            f"{in_run[:80]!r}, that of the data set {in_collection[:80]!r}. Use the same ids in "
            "both (in files of your own, the columns query_id and document_id)."
        )
    listed = {document for results in asked.values() for _, document in results}
    languages = {
        document.key: document.language
        for document in collection.documents()
        if document.key in listed
    }
    rankings, n_lost = [], 0
    for query in collection.row_of:
        results = asked.get(query, ())
        if collection.skips_own_id:
            results = tuple((score, document) for score, document in results if document != query)
        results = results[:DEPTH]
        present = [(score, document) for score, document in results if document in languages]
        n_lost += len(results) - len(present)
        keys = tuple(document for _, document in present)
        scores = np.array([score for score, _ in present], np.float32)
        rankings.append(Ranking(query, keys, scores, tuple(languages[key] for key in keys)))
    return PlacedRun(tuple(rankings), len(run.results) - len(asked), n_lost)


_registered: Names[TrecRun] = Names()


def register(name: str, path: Path) -> TrecRun:
    """Read a run and register it by name; a browser selects names, never paths.

    Raises:
        UserError: as `read_run`.
    """
    _registered[name] = read_run(name, File(path.name, path))
    return _registered[name]


def known() -> Mapping[str, TrecRun]:
    """The runs by name."""
    return _registered
