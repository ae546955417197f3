"""JSON shapes of `models`, `models fetch`, `datasets` and `methods`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Model


class ModelEntry(TypedDict):
    """A model known by name."""

    name: Model
    title: Annotated[str, "Title of the model."]
    installed: Annotated[bool, "Whether its weights are on this machine."]
    family: Annotated[str, "Family of the model, such as dense."]
    hub_id: Annotated[str | None, "Hugging Face id; null if it has none."]
    pooling: Annotated[
        str | None, "Pooling of tokens into a vector; null for families without pooling."
    ]
    max_length: Annotated[
        int | None,
        "Context limit in tokens (of an endpoint, in words); null if unlimited or unknown.",
    ]
    configured_max_length: Annotated[
        int | None,
        "Tokens at which the model's own configuration truncates, if different from max_length.",
    ]
    size_mb: Annotated[int | None, "Size of its weights in float32, in MB; null if unknown."]
    license: Annotated[str | None, "License; null if unknown."]
    dequantized_bits: Annotated[
        int | None,
        "Bits per weight that the float32 weights were converted from; null if as published.",
    ]


class FetchedModel(TypedDict):
    """A model whose weights are on this machine now."""

    model: Model
    folder: Annotated[str, "Path of the model's folder."]


class RejectedRow(TypedDict):
    """A row of a file that is not a valid pair."""

    file: Annotated[str, "Name of the file."]
    row: Annotated[int, "Number of the row, from 1."]
    reason: Annotated[str, "Why it was rejected."]


class DataSetEntry(TypedDict):
    """A data set known by name."""

    name: Annotated[str, "Name of the data set."]
    title: Annotated[str, "Title of the data set."]
    pairs: Annotated[int, "Number of valid pairs, or of documents if there are no queries."]
    rejected: Annotated[int, "Number of rejected rows."]
    rejected_rows: Annotated[list[RejectedRow], "All rejected rows, in order."]


class ListedMethod(TypedDict):
    """An attribution method."""

    name: Annotated[str, "Name of the method."]
    title: Annotated[str, "Title of the method."]
    help: Annotated[str, "What the method computes for a token, in one sentence."]
    caveat: Annotated[str, "What the method's curve doesn't show; empty if nothing."]
    families: Annotated[list[str], "Families of models that the method works with."]
    parameters: Annotated[dict[str, list[str]], "Values of each parameter, the default first."]
