"""The shipped table of what each attribution method prefers, and the sentence about it that every
curve of the method is shown with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.preferences import PlantedResponse, Preference
from poslens.attribution.types import Method

FILE = Path(__file__).parent / "preferences.json"
_DIGITS = 4


@cache
def certified() -> Mapping[str, Preference]:
    """The shipped preferences by the repr of their method, which includes its curve settings."""
    listed = json.loads(FILE.read_text(encoding="utf-8"))["preferences"]
    return {entry["method"]: _read(entry) for entry in listed}


def write(preferences: Iterable[Preference]) -> None:
    """Write the table that ships."""
    listed = [
        {**_rounded(asdict(each)), "method": repr(each.method), "name": each.method.name}
        for each in preferences
    ]
    lines = ",\n".join(json.dumps(entry) for entry in listed)
    FILE.write_text(f'{{"preferences": [\n{lines}\n]}}\n', encoding="utf-8")
    certified.cache_clear()


INDEX = "the method's primacy-recency index"
ORDER_BLIND = "on a model without position embeddings"


def words(order_blind: Estimate, form: str = "+.2f") -> str:
    """A clause that states the index that a method shows on the order-blind encoder."""
    return f"{ORDER_BLIND}, {INDEX} is {order_blind.text(form)}"


def short_verdict(method: Method) -> str:
    """What the method itself prefers, for captions: its primacy-recency index on a model that
    cannot see order, if it is certified with the same parameters. Empty for a method that fits no
    model with a known position bias."""
    if (entry := certified().get(repr(method))) is not None:
        index = entry.order_blind.text("+.2f")
        return f"{index} ({INDEX} {ORDER_BLIND}, {entry.n_documents} documents of the sample)"
    if any(each.method.name == method.name for each in certified().values()):
        return "not certified with these parameters"
    return ""


def verdict(method: Method) -> str:
    """`short_verdict` as a sentence, to be shown with every curve of the method."""
    if (entry := certified().get(repr(method))) is not None:
        measured = f"{words(entry.order_blind)} ({entry.n_documents} documents of the sample)"
        return f"Check of the method itself: {measured}."
    short = short_verdict(method)
    return f"What this method itself prefers is unknown: {short}." if short else ""


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items() if key != "method"}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def _read(entry: Mapping[str, Any]) -> Preference:
    planted = entry["planted"]
    return Preference(
        Method(entry["name"]),
        entry["n_documents"],
        Estimate(**entry["order_blind"]),
        None if planted is None else PlantedResponse(**{k: _field(v) for k, v in planted.items()}),
    )


def _field(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_field, value))
    return Estimate(**value) if isinstance(value, dict) else value
