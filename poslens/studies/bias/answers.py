"""What `bias` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Documents, Model

BiasRow = TypedDict(
    "BiasRow",
    {
        "model": Model,
        "test": Annotated[str, "Name of the test."],
        "n": Annotated[int, "Pairs of documents tested."],
        "documents": Documents,
        "t": Annotated[float | None, "Paired t statistic; null where it is not defined."],
        "p": Annotated[float | None, "Its two-sided p value."],
        "p (Holm)": Annotated[float | None, "The same after Holm's correction over all rows."],
        "mean difference": Annotated[float | None, "Mean of s(d1) - s(d2), in the model's score."],
        "low": Annotated[float | None, "Lower end of its 95% t interval."],
        "high": Annotated[float | None, "Upper end of its 95% t interval."],
        "d_z": Annotated[float | None, "Mean difference in standard deviations of differences."],
        "d1 preferred": Annotated[float | None, "Share of pairs with s(d1) > s(d2), 0 to 1."],
        "resistance (mteb)": Annotated[
            float | None,
            "Share of pairs in which the document that mteb prefers scores higher, 0 to 1.",
        ],
        "mteb prefers": Annotated[
            str, "d1 or d2: the document with the answer, or the one that the bias does not favor."
        ],
        "mean s(d1)": Annotated[float | None, "Mean score of the first documents."],
        "mean s(d2)": Annotated[float | None, "Mean score of the second documents."],
        "identical": Annotated[int, "Pairs left out because their documents are the same."],
        "truncated": Annotated[int, "Pairs with a document that is longer than the model reads."],
        "evidence not read whole": Annotated[int, "Pairs left out because of the model's limit."],
        "mean difference there": Annotated[float | None, "Mean of s(d1) - s(d2) over those."],
        "failed": Annotated[int, "Pairs that gave no result."],
        "missing": Annotated[int, "Pairs that are not computed."],
        "t > 0 means": Annotated[str, "What a positive t says of the model."],
        "pairs": Annotated[str, "What the pairs were made of."],
        "remarks": Annotated[str, "Why a number is not defined, in sentences; else empty."],
    },
)
"""A bias test of one model."""
