"""Initial selections of pages: the models and the data set that `run` was given, and the page that
fits that data set."""

from __future__ import annotations

from collections.abc import Sequence
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

    def models_or(self, default: Sequence[str], maximum: int) -> list[str]:
        """The initial models of a page: at most `maximum` of those given to `run`, else
        `default`."""
        return list(self.models[:maximum] or default)

    def model_or(self, default: str, at: int | None) -> str:
        """The initial model of a list: number `at` of those given to `run`, if there is one, else
        `default`."""
        return self.models[at] if at is not None and at < len(self.models) else default


_current = Opening()


def current() -> Opening:
    """The initial selections of this process's pages."""
    return _current


def use(opening: Opening) -> None:
    """Set the initial selections of this process's pages."""
    global _current
    _current = opening


@dataclass(frozen=True)
class FirstPage:
    """The page to open first, by its URL path, and the reason: what the data set contains, and what
    can be analyzed with it."""

    path: str
    reason: str


def first_page(name: str) -> FirstPage:
    """The page that fits the data set of this name best.

    Raises:
        UserError: there is no such data set, or its files can't be read.
    """
    data = datasets.read(name)
    pairs = f"{counted(len(data.pairs), 'pair')} of a query and a document"
    if not datasets.judged(name):
        return _first_of_unjudged(name, data, pairs)
    marked = data.pairs.n_with_evidence
    if not marked:
        return FirstPage(
            "why",
            f"{name} has {pairs}, but no evidence. Why uses the sentence that scores highest on "
            "its own as evidence; Explain, Curves and Audit need no evidence. Relocation on Cause "
            "and position effects on Ranking need it.",
        )
    return FirstPage("why", f"{name} has {pairs}, {marked:,} with evidence.")


def _first_of_unjudged(name: str, data: DataSet, pairs: str) -> FirstPage:
    try:
        queries = len(datasets.corpus_of(name).queries)
    except UserError:  # a query with two documents, as in ColDeR
        return FirstPage(
            "explain",
            f"{name} has {pairs}, but no corpus to search. Explain, Curves and Cause with its bias "
            "tests work; Why, Audit and Ranking need a corpus.",
        )
    documents = counted(data.pairs.n_documents, "document")
    if not queries:
        return FirstPage(
            "audit",
            f"{name} has {documents} and no queries. Audit searches for their own sentences; on "
            "Why you can type a query. Ranking and most methods on Explain and Curves need "
            "queries.",
        )
    return FirstPage(
        "why",
        f"{name} has {counted(queries, 'query')} and {documents}, but no judgments. Why ranks the "
        "documents for a query and explains the rank of any of them; Audit works too. Ranking and "
        "the table of all misses need judgments.",
    )
