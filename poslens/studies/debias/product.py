"""Write the debiased or the recommended calibrated model to a folder, with its results on its
card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from poslens.attribution.debiasing.export import CARD, copy_model, model_card
from poslens.attribution.debiasing.folder import folder_of, read_manifest
from poslens.attribution.errors import UserError
from poslens.compute.compute import Compute
from poslens.studies.debias.summary import DebiasSummary

_ON_CARD = {
    "effect": ("relocation difference (change in its size)", "+.4f"),
    "rank_effect": ("position effect on rank (change in its size)", "+.3f"),
    "quality": ("nDCG@10", ".3f"),
    "share": ("unretrieved sentences", ".3f"),
    "saliency_index": ("saliency index (its change)", "+.3f"),
}
"""Title and form of each measure on the card of a debiased model."""


def write_calibrated(compute: Compute, summaries: Sequence[DebiasSummary], folder: Path) -> None:
    """Write the recommended calibrated model to a new folder.

    Raises:
        UserError: not exactly one model is recommended, or the folder exists.
    """
    from poslens.attribution.retrievers.calibrated_transformer import export

    recommended = [summary for summary in summaries if summary.recommended]
    if len(recommended) != 1:
        raise UserError(
            f"{len(recommended)} calibrated models are recommended, but a folder can contain only "
            "one, so nothing is written."
        )
    retriever = compute.retriever(recommended[0].model)
    with retriever.lock:
        export(retriever, folder)


def write_debiased(
    summaries: Sequence[DebiasSummary], verdict: Callable[[DebiasSummary], str], folder: Path
) -> None:
    """Write the debiased model, with the results on its card, to a new folder.

    Raises:
        UserError: there is not exactly one debiased model, or the folder exists.
    """
    trained = [summary for summary in summaries if summary.point.kind == "debiased"]
    if len(trained) != 1:
        raise UserError(
            f"{len(trained)} models were debiased, but a folder can contain only one: use one "
            "--model."
        )
    _write_card(trained[0], verdict(trained[0]))
    copy_model(folder_of(trained[0].model.spec), folder)


def _write_card(summary: DebiasSummary, verdict: str) -> None:
    """Write the results on the held-out half to the card of a debiased model."""
    folder = folder_of(summary.model.spec)
    manifest, plain, changes = read_manifest(folder), summary.plain, summary.changes
    if manifest is None or plain is None or changes is None:
        return
    rows = []
    for name, (title, form) in _ON_CARD.items():
        before, after, change = (getattr(each, name) for each in (plain, summary, changes))
        if before is not None and after is not None:
            change_text = change.text(form) if change else "–"
            rows.append((title, before.text(form), after.text(form), change_text))
    card = model_card(manifest, folder.name, rows, verdict)
    (folder / CARD).write_text(card, encoding="utf-8")
