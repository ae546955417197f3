"""Provenance as text: captions of figures and tables, and the line below them on a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from poslens.attribution.methods import METHODS
from poslens.attribution.types import Provenance, in_words

Provenances = Provenance | Sequence[Provenance]

_BRIEF = ("model", "method", "dataset", "selection", "n_pairs", "n_queries", "n_documents")
_LINE_CHARACTERS = 80
_OTHER_TITLES = {
    "bias_scores": "bias tests",
    "deletion_insertion": "faithfulness",
    "embedding": "text vectors and maps",
    "late_chunks": "late chunking",
    "needle": "needles",
    "others": "scores of other documents",
    "position_order": "words by position",
    "position_ranks": "position effect on rank",
    "random_order": "random orders",
    "reachability": "audit",
    "search": "rankings of one query",
    "umap": "map",
    "validation_effect": "position effect on validation texts",
}
"""Titles of results that are not attributions, where the name would not explain the result."""

_PARAMETERS = re.compile(r"(?<=\w)\([^()]*\)")


def provenance_entries(provenance: Provenances) -> list[dict[str, Any]]:
    """One dict for each provenance, with its known values in reading order."""
    listed = [provenance] if isinstance(provenance, Provenance) else provenance
    return [provenance.entry() for provenance in listed]


def caption_parts(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Provenance as texts: what all entries share, then the rest of each."""
    shared, rest = _parted(entries)
    return [_joined(group) for group in (shared, *rest) if group]


def caption_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """The parts of provenance in one text."""
    return "; ".join(caption_parts(entries))


def caption_line(entries: Sequence[Mapping[str, Any]]) -> str:
    """Provenance in one line: the differences between several entries, or the contents of a
    single one. Methods have their titles, without parameters."""
    _, rest = _parted(entries)
    brief = [_brief(entry, _BRIEF) for entry in rest]
    groups = brief if any(brief) else rest
    lines = dict.fromkeys(filter(None, map(_joined, groups)))
    # Methods that differ only in parameters have the same title, which distinguishes nothing.
    if len(lines) <= 1 and not any(set(group) - {"method"} for group in groups):
        whole = in_words(entries[0]) if entries else {}
        lines = dict.fromkeys([_joined(_brief(whole, ("model", "method", "dataset")))])
    return textwrap.shorten("; ".join(lines), _LINE_CHARACTERS, placeholder=" …")


def _brief(entry: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """These fields without labels: names of models, methods and data sets are known as such."""
    brief = {name: entry[name].removeprefix(f"{name}: ") for name in names if name in entry}
    if "method" in brief:
        brief["method"] = method_words(brief["method"])
    return brief


def method_words(text: str) -> str:
    """Methods without parameters and by their titles: `faithfulness of Gradient saliency` for
    `deletion_insertion(unit=word) of saliency(version=1)`."""
    while (shorter := _PARAMETERS.sub("", text)) != text:  # parameters can have parameters
        text = shorter
    return re.sub(r"\w+", lambda word: method_title(word[0]), text)


def method_title(name: str) -> str:
    """The title of a method, or of another kind of result."""
    if name in METHODS:
        return METHODS[name].title
    return _OTHER_TITLES.get(name, name.replace("_", " "))


def _parted(entries: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The fields, as text, that all entries share, and the remaining ones of each entry."""
    filled = [in_words(entry) for entry in entries]
    shared = {
        key: value
        for key, value in (filled[0] if filled else {}).items()
        if all(entry.get(key) == value for entry in filled)
    }
    return shared, [{k: v for k, v in entry.items() if k not in shared} for entry in filled]


def _joined(group: Mapping[str, str]) -> str:
    return " · ".join(group.values())
