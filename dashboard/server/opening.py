"""Initial selections of pages: the models and the data set that `run` was given, and the page that
fits that data set."""

from __future__ import annotations

from dataclasses import dataclass

from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted


@dataclass(frozen=True)
class Opening:
    """Models and a data set by name; empty if each page uses its own defaults."""

    models: tuple[str, ...] = ()
    dataset: str | None = None


current = Opening()
"""The initial selections of this process's pages, which `serve` sets. Read it from the module."""


def first_page(name: str) -> tuple[str, str]:
    """The page that fits the data set of this name best, by its URL path, and the reason: what the
    data set contains, and what can be analyzed with it.

    Raises:
        UserError: there is no such data set, or its files can't be read.
    """
    data = datasets.read(name)
    pairs = f"{counted(len(data.pairs), 'pair')} of a query and a document"
    if not datasets.judged(name):
        return _first_of_unjudged(name, data, pairs)
    marked = data.pairs.n_with_evidence
    if not marked:
        return (
            "why",
            f"{name} has {pairs}, but no evidence. Why uses the sentence that scores highest on "
            "its own as evidence; Explain, Curves and Audit need no evidence. Relocation on Cause "
            "and position effects on Ranking need it.",
        )
    return "why", f"{name} has {pairs}, {marked:,} with evidence."


def _first_of_unjudged(name: str, data: DataSet, pairs: str) -> tuple[str, str]:
    try:
        queries = len(datasets.corpus_of(name).queries)
    except UserError:  # a query with two documents, as in ColDeR
        return (
            "explain",
            f"{name} has {pairs}, but no corpus to search. Explain, Curves and Cause with its bias "
            "tests work; Why, Audit and Ranking need a corpus.",
        )
    documents = counted(data.pairs.n_documents, "document")
    if not queries:
        return (
            "audit",
            f"{name} has {documents} and no queries. Audit searches for their own sentences; on "
            "Why you can type a query. Ranking and most methods on Explain and Curves need "
            "queries.",
        )
    return (
        "why",
        f"{name} has {counted(queries, 'query')} and {documents}, but no judgments. Why ranks the "
        "documents for a query and explains the rank of any of them; Audit works too. Ranking and "
        "the table of all misses need judgments.",
    )
