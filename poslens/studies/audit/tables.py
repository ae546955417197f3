"""Tables of an audit, for pages, commands and exports."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.audit import N_BINS, ORDERS
from poslens.compute.estimates import estimate_columns
from poslens.studies.audit.answers import AuditDocumentRow, AuditPositionRow
from poslens.studies.audit.service import Audit

WORST = 200
"""Documents listed at most."""


def summary_frame(found: Sequence[Audit]) -> pd.DataFrame:
    """A row an index: shares of dark sentences with the ends of their intervals."""
    rows = []
    for one in found:
        rows.append(
            {
                "model": one.index.spec.name,
                "chunks": str(one.index.chunks),
                "documents": len(one.found),
                "left out": len(one.failed),
                "cut": one.n_cut,
                "sentences": one.n_sentences,
                "searched for": one.setup.probe,
                "top": one.setup.top,
                **estimate_columns("dark", one.shares["own"]),
                **estimate_columns("dark, shuffled", one.shares["shuffled"]),
                **estimate_columns("last third less first", one.leans["own"]),
                **estimate_columns("last third less first, shuffled", one.leans["shuffled"]),
                **estimate_columns("dark though read", one.dark_though_read),
                **estimate_columns("dark, not read whole", one.dark_unread),
                **estimate_columns("won back", one.won_back),
            }
        )
    return pd.DataFrame(rows)


def _cell(one: Estimate | None, form: str = ".3f") -> str:
    return one.text(form) if one else ""


def summary_text(found: Sequence[Audit]) -> pd.DataFrame:
    """The same for the eye: each share with its interval in one cell."""
    return pd.DataFrame(
        [
            {
                "index": one.name,
                "dark": _cell(one.shares["own"]),
                "dark, shuffled": _cell(one.shares["shuffled"]),
                "last third less first": _cell(one.leans["own"], "+.3f"),
                "the same, shuffled": _cell(one.leans["shuffled"], "+.3f"),
                "dark though read": _cell(one.dark_though_read),
                "won back": _cell(one.won_back, "+.3f"),
                "documents": len(one.found),
                "cut": one.n_cut,
                "left out": len(one.failed),
                "sentences": one.n_sentences,
            }
            for one in found
        ]
    )


def positions_frame(found: Sequence[Audit]) -> pd.DataFrame:
    """A row for each index, order and bin of the place."""
    rows: list[AuditPositionRow] = []
    for one in found:
        for order in ORDERS:
            curve = one.curves[order]
            for b in range(N_BINS):
                rows.append(
                    {
                        "model": one.index.spec.name,
                        "chunks": str(one.index.chunks),
                        "order": order,
                        "from %": 100 * b / N_BINS,
                        "to %": 100 * (b + 1) / N_BINS,
                        "sentences": int(curve.n[b]),
                        "dark": float(curve.share[b]),
                        "dark low": None if curve.low is None else float(curve.low[b]),
                        "dark high": None if curve.high is None else float(curve.high[b]),
                    }
                )
    return pd.DataFrame(rows)


def groups_frame(found: Sequence[Audit]) -> pd.DataFrame:
    """A row for each index and language or length."""
    return pd.DataFrame(
        [
            {
                "model": one.index.spec.name,
                "chunks": str(one.index.chunks),
                "by": group.by,
                "group": group.name,
                "documents": group.n_documents,
                "sentences": group.n_sentences,
                **estimate_columns("dark", group.own),
                **estimate_columns("dark, shuffled", group.shuffled),
            }
            for one in found
            for group in one.groups
        ]
    )


def groups_text(found: Sequence[Audit]) -> pd.DataFrame:
    """The same for the eye: each share with its interval in one cell."""
    return pd.DataFrame(
        [
            {
                "index": one.name,
                "by": group.by,
                "group": group.name,
                "dark": _cell(group.own),
                "dark, shuffled": _cell(group.shuffled),
                "documents": group.n_documents,
                "sentences": group.n_sentences,
            }
            for one in found
            for group in one.groups
        ]
    )


def worst_frame(found: Sequence[Audit], limit: int | None = WORST) -> pd.DataFrame:
    """A row for each index and document with dark sentences, those with most first."""
    rows: list[AuditDocumentRow] = [
        {
            "model": one.index.spec.name,
            "chunks": str(one.index.chunks),
            "document": reach.document_id,
            "language": reach.language or "",
            "words": reach.n_words,
            "dark sentences": n,
            "sentences": of,
        }
        for one in found
        for reach, n, of in one.worst[:limit]
    ]
    columns = ["model", "chunks", "document", "language", "words", "dark sentences", "sentences"]
    return pd.DataFrame(rows, columns=columns)


def truncation_frame(found: Sequence[Audit]) -> pd.DataFrame:
    """A row for each model and text on which it was tried where it stops reading."""
    rows: dict[tuple[str, int], dict[str, object]] = {}
    for one in found:
        for number, tried in enumerate(one.truncations, start=1):
            rows[one.index.spec.name, number] = {
                "model": one.index.spec.name,
                "text": number,
                "documents joined": tried.documents,
                "tokens": tried.n_tokens,
                "last token from": tried.first,
                "last token to": tried.last,
                "claimed": tried.claimed,
                "read to the end": tried.reads_all,
                "as claimed": tried.as_claimed,
            }
    columns = [
        "model",
        "text",
        "documents joined",
        "tokens",
        "last token from",
        "last token to",
        "claimed",
        "read to the end",
        "as claimed",
    ]
    return pd.DataFrame(list(rows.values()), columns=columns)
