"""The passport that a model is checked against, read from the JSON that `passport` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.studies.passport.answers import PairScoreEntry
from poslens.studies.passport.service import FORMAT

MAX_BYTES = 200_000_000
"""Maximum size of the file."""


@dataclass(frozen=True, slots=True)
class BaselineNumber:
    """A number of a passport, over items of `n_documents` distinct documents (0 if the passport
    does not say). `items` has the value of each item, by id and fingerprint; it is empty if the
    passport does not list them."""

    value: float
    n_documents: int = 0
    items: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """The contents of a stored passport: `numbers` by part and key; `selections`, the data that
    each part covers, as text; `absent`, the reason why a part has no number; and `scores` by pair
    id. `n_pairs` counts those of the whole data set."""

    model: str
    weights: str
    dataset: str
    n_pairs: int
    poslens: str
    numbers: Mapping[str, Mapping[str, BaselineNumber]]
    selections: Mapping[str, str]
    absent: Mapping[str, str]
    scores: Mapping[str, PairScoreEntry]

    @property
    def heading(self) -> str:
        """The model and the data set, in one line."""
        return (
            f"{self.model}, weights {self.weights}, {self.dataset} "
            f"({counted(self.n_pairs, 'pair')}), PosLens {self.poslens}"
        )

    def moved(self) -> set[str]:
        """The pairs whose evidence was moved."""
        return {
            pair_id
            for part in ("relocation", "position_effect")
            for number in self.numbers.get(part, {}).values()
            for pair_id, _ in number.items
        }


def read_baseline(file: Path, model: str) -> Baseline:
    """The passport of `model` in a file, or the only one there.

    Raises:
        UserError: the file contains no passport, or several, but not exactly one of `model`.
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UserError(
            f"{file.name} is larger than {MAX_BYTES // 1_000_000} MB, so it can't be a passport."
        )
    return parse(data, file.name, model)


def parse(data: bytes, name: str, model: str) -> Baseline:
    """As `read_baseline`, from the file's bytes.

    Raises:
        UserError: as in `read_baseline`.
    """
    try:
        passports = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        passports = None
    if not isinstance(passports, list) or not passports or not all(map(_is_entry, passports)):
        raise UserError(
            f"{name} isn't a passport: use a JSON file that `poslens passport --out` wrote."
        )
    if any(entry["format"] != FORMAT for entry in passports):
        raise UserError(
            f"{name} was written by another version of PosLens: write it again with `poslens "
            "passport`."
        )
    chosen = [entry for entry in passports if entry["model"] == model] or passports
    if len(chosen) > 1:
        raise UserError(
            f"{name} contains {len(passports):,} passports, but not exactly one of {model}: use a "
            "file with one passport."
        )
    return _baseline(chosen[0], name)


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and {"format", "model", "dataset", "parts"} <= set(value)


def _baseline(entry: Mapping[str, Any], name: str) -> Baseline:
    try:
        return Baseline(
            _text(entry["model"]),
            _text(entry.get("weights", "")),
            _text(entry["dataset"]),
            int(_number(entry.get("n_pairs", 0))),
            _text(entry.get("poslens", "")),
            {
                part: {key: _of_part(value) for key, value in about["numbers"].items()}
                for part, about in entry["parts"].items()
            },
            {
                part: "; ".join(
                    dict.fromkeys(
                        _text(origin.get("selection", "")) for origin in about.get("provenance", [])
                    )
                )
                for part, about in entry["parts"].items()
            },
            {part: _text(about.get("absent", "")) for part, about in entry["parts"].items()},
            {
                pair_id: {"texts": _text(pair["texts"]), "score": _number(pair["score"])}
                for pair_id, pair in entry.get("scores", {}).items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{name} is damaged: in the passport of {str(entry['model'])[:80]}, a number doesn't "
            "have the format that `poslens passport` writes."
        ) from error


def _of_part(number: Mapping[str, Any]) -> BaselineNumber:
    return BaselineNumber(
        _number(number["value"]),
        int(_number(number.get("n_resampled", 0))),
        {
            (item_id, _text(item["fingerprint"])): _number(item["value"])
            for item_id, item in number.get("items", {}).items()
        },
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("no number")
    return float(value)
