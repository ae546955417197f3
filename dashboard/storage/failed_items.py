"""Items that failed, with links to the pages that retry them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from poslens.cache.storage.maintenance import Failure, StoredFile
from poslens.dashboard.cause.data_set import OF_DOCUMENTS
from poslens.dashboard.widgets import links, say
from poslens.dashboard.widgets.tables import no_result
from poslens.figures.captions import method_title
from poslens.heatmap.data import MAX_COLUMNS

CAUSE = ("Cause", "cause/page.py", "Data set")
RETRIED: dict[str, tuple[str, str, str]] = {
    "": ("Curves", "curves/page.py", ""),
    "faithfulness": ("Methods", "methods/page.py", "Data set"),
    "relocation": CAUSE,
    "ablation": CAUSE,
    **dict.fromkeys(OF_DOCUMENTS, CAUSE),
    "bias_scores": ("Bias tests", "cause/page.py", "Bias tests"),
    "position_ranks": ("Position effect", "ranking/page.py", "Position effect"),
    "why": ("Why", "why/page.py", "All misses"),
    "preferences": ("Preferences", "methods/page.py", "Preferences"),
    "chunk_plan": ("Audit", "audit/page.py", "Chunk planner"),
    "reachability": ("Audit", "audit/page.py", ""),
}
"""Title, page and tab that retry failed items of each kind. Rankings are missing, because every run
retries them."""


def title_of(file: StoredFile) -> str:
    """The method's display name."""
    title = method_title(file.method.name)
    return title[0].upper() + title[1:]


def show_failed(items: Sequence[tuple[StoredFile, Failure]]) -> None:
    """The table of failed items with the files that record them, and the links."""
    if not items:
        return
    frame = pd.DataFrame(
        {
            "model": [file.model.name for file, _ in items],
            "method": [title_of(file) for file, _ in items],
            "data set": [row.dataset for _, row in items],
            "of": [row.kind or "attribution" for _, row in items],
            "item": [row.item for _, row in items],
            "reason": [row.reason for _, row in items],
        }
    )
    # Each intervention without a query needs its own link, and so does each method on Curves.
    first: dict[tuple[str, str, str, str, str], list[tuple[str, str]]] = {}
    for file, row in items:
        if row.kind in RETRIED:
            title, page, tab = RETRIED[row.kind]
            measure = row.kind if row.kind in OF_DOCUMENTS else ""
            method = file.method.name if title in ("Curves", "Methods") else ""
            first.setdefault((title, page, tab, measure, method), []).append(
                (row.dataset, file.model.name)
            )
    same = [name for name in ("model", "method") if frame[name].nunique() == 1]
    with no_result(frame.drop(columns=same), unit="item", key="cache.failures"):
        methods = {method for *_, method in first if method}
        for (title, page, tab, measure, method), of_link in first.items():
            of = f" (documents, {measure})" if measure else ""
            if method and len(methods) > 1:
                of = f" ({method_title(method)})"
            say.caption(f"To retry, open {title}{of} and press Retry.")
            opened = of_link[0][0]
            names = list(dict.fromkeys(name for of_set, name in of_link if of_set == opened))
            asked: dict[str, str | Sequence[str]]
            asked = {"dataset": opened, "models": names[:MAX_COLUMNS]}
            if tab:
                asked["tab"] = tab
            if title == "Curves":
                asked["method"] = method
            elif title == "Methods":
                asked["methods"] = [method]
            elif measure:
                asked |= {"corpus": measure}
            links.page_link(page, f"Open {title}{of}", ":material/replay:", asked)
