"""What `models`, `models fetch`, `datasets` and `methods` print as JSON; see
`poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Model


class ModelEntry(TypedDict):
    """A model known by name."""

    name: Model
    title: Annotated[str, "What it is called in words."]
    installed: Annotated[bool, "Whether its weights are on this machine."]
    family: Annotated[str, "Its family, such as dense."]
    hub_id: Annotated[str | None, "Its Hugging Face id; null of one without."]
    pooling: Annotated[str | None, "How tokens become a vector; null of families without."]
    max_length: Annotated[int | None, "Tokens of a text that it reads at most; null of any."]
    configured_max_length: Annotated[
        int | None,
        "Tokens at which its own configuration truncates, where that differs from max_length.",
    ]
    size_mb: Annotated[int | None, "Its weights in float32, in MB; null if unknown."]
    license: Annotated[str | None, "Its licence; null if unknown."]


class FetchedModel(TypedDict):
    """A model whose weights are on this machine now."""

    model: Model
    folder: Annotated[str, "Path of its folder."]


class DataSetEntry(TypedDict):
    """A data set known by name."""

    name: Annotated[str, "Name of the data set."]
    title: Annotated[str, "What it is called in words."]
    pairs: Annotated[int, "Pairs that could be read."]
    rejected: Annotated[int, "Rows that are no pairs."]


class ListedMethod(TypedDict):
    """An attribution method."""

    name: Annotated[str, "Name of the method."]
    title: Annotated[str, "What it is called in words."]
    help: Annotated[str, "What a token gets, in a sentence."]
    caveat: Annotated[str, "What a curve by it does not show; empty where nothing."]
    families: Annotated[list[str], "Families of models that it works on."]
    parameters: Annotated[dict[str, list[str]], "Values of each parameter, the default first."]
