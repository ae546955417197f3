"""What `benchmark needle` prints as JSON; see `poslens/commands/answers.py`. The other benchmarks
print what `rank` does."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import High, Low, Model

Needles = Annotated[int, "Needles, and so texts, of a cell."]
Accuracy = Annotated[float | None, "Share of needles that were found, 0 to 1."]
ByChance = Annotated[float, "The share that chance alone finds."]

CellRow = TypedDict(
    "CellRow",
    {
        "model": Model,
        "length": Annotated[int, "Tokens of the texts that were asked for."],
        "depth": Annotated[float, "Where the needle stands, in percent of the text."],
        "needles": Needles,
        "accuracy": Accuracy,
        "low": Low,
        "high": High,
        "by chance": ByChance,
        "tokens": Annotated[float, "Mean tokens of the texts as they are."],
        "repeated": Annotated[int, "Texts that repeat sentences to be long enough."],
    },
)
"""A cell of the grid."""

NeedleRow = TypedDict(
    "NeedleRow",
    {
        "model": Model,
        "limit": Annotated[int | None, "Tokens that the model reads at most; null of any."],
        "length": Annotated[str, "Tokens of the texts, or all."],
        "needles": Needles,
        "cells": Annotated[int, "Cells that are averaged."],
        "by chance": ByChance,
        "accuracy": Accuracy,
        "accuracy low": Low,
        "accuracy high": High,
        "late less early": Annotated[
            float | None, "Accuracy in the last third of depths less that in the first."
        ],
        "late less early low": Low,
        "late less early high": High,
    },
)
"""The texts of one length."""
