"""Panes and files of a heatmap from attribution results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.attribution.types import Provenance
from poslens.compute.compute import Explained
from poslens.figures.captions import provenance_entries
from poslens.figures.palettes import Style
from poslens.heatmap.data import MAX_COLUMNS, Head, Pane, Rail, View, pane
from poslens.heatmap.standalone import to_html, to_image


def labels(results: Sequence[Explained]) -> list[str]:
    """Labels of the columns: the attribution's model, with the data set if there are several."""
    several = len({result.pair.dataset for result in results}) > 1
    names = [result.attribution.model for result in results]
    if not several:
        return names
    return [f"{name} · {r.pair.dataset}" for name, r in zip(names, results, strict=True)]


def panes(
    results: Sequence[Explained], rails: Sequence[Rail] = (), heads: Sequence[Head] = ()
) -> list[Pane]:
    """A query and a document pane for each result, with its rail and head if given.

    Raises:
        UserError: there are more than `MAX_COLUMNS` results.
    """
    if len(results) > MAX_COLUMNS:
        raise UserError(
            f"A heatmap shows at most {MAX_COLUMNS} models, not {len(results)}: use fewer models, "
            "or export only the numbers."
        )
    drawn = []
    for number, (label, result) in enumerate(zip(labels(results), results, strict=True)):
        entry = METHODS[result.attribution.method.name]
        pair = result.pair
        for side, text in (("query", pair.query), ("document", pair.document)):
            is_document = side == "document"
            drawn.append(
                pane(
                    result.attribution,
                    side,  # type: ignore[arg-type]
                    text,
                    model=label,
                    language=pair.language if is_document else pair.asked_in,
                    evidence=pair.evidence if is_document else None,
                    signed=entry.signed,
                    unit=entry.unit,
                    rail=rails[number] if is_document and rails else None,
                    head=heads[number] if is_document and heads else None,
                )
            )
    return drawn


def heatmap_bytes(
    drawn: Sequence[Pane], provenance: Sequence[Provenance], view: View, fmt: str, style: Style
) -> bytes:
    """The bytes of a heatmap's file in the format `fmt`, with the provenance of every model."""
    lines = provenance_entries([replace(entry, units=view.units) for entry in provenance])
    if fmt == "html":
        return to_html(drawn, view, lines, style).encode()
    return to_image(drawn, view, lines, style, fmt)
