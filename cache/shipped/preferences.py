"""The shipped table of what each attribution method prefers, and the sentence about it that every
curve of the method is shown with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.preferences import Preference
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.storage.files import ModelKey
from poslens.cache.storage.schema import Owner, Schema

FILE = Path(__file__).parent / "preferences.json"
_DIGITS = 4
_SCHEMA = Schema(
    Preference,
    given=lambda owner: {"method": owner.method},
    unstored=frozenset({"method"}),
)


@cache
def certified() -> Mapping[str, Preference]:
    """The shipped preferences by the repr of their method, which includes its curve settings."""
    listed = json.loads(FILE.read_text(encoding="utf-8"))["preferences"]
    certified = {}
    for entry in listed:
        method, owner = entry.pop("method"), Owner(ModelKey("", ""), Method(entry.pop("name")), "")
        certified[method] = _SCHEMA.unpack(entry, owner)
    return certified


def write(preferences: Iterable[Preference]) -> None:
    """Write the table that ships."""
    listed = [
        {**_SCHEMA.pack(each), "method": repr(each.method), "name": each.method.name}
        for each in preferences
    ]
    rounded = json.loads(
        json.dumps(listed), parse_float=lambda number: round(float(number), _DIGITS)
    )
    lines = ",\n".join(map(json.dumps, rounded))
    FILE.write_text(f'{{"preferences": [\n{lines}\n]}}\n', encoding="utf-8")
    certified.cache_clear()


INDEX = "the method's primacy-recency index"
ORDER_BLIND = "on an encoder that ignores word order"


def words(order_blind: Estimate) -> str:
    """A clause that states the index that a method shows on an encoder that ignores word
    order."""
    return f"{ORDER_BLIND}, {INDEX} is {order_blind.text('+.2f')}"


def preference(method: Method) -> Preference | None:
    """The shipped preference of a method with the same parameters. Which matrix it also computes
    does not matter: the tokens' values are the same."""
    by_values = {_values_of(text): each for text, each in certified().items()}
    return by_values.get(_values_of(repr(method)))


def _values_of(method: str) -> str:
    return re.sub(r"matrix=\w+", "matrix", method)


def short_verdict(method: Method, spec: RetrieverSpec) -> str:
    """What the method itself prefers, for captions: its primacy-recency index on an encoder that
    cannot see order, if that was measured with the same parameters and as texts are changed for
    this model. Empty for a method that fits no model with a known position bias."""
    if (entry := _preference(method, spec)) is not None:
        index = entry.order_blind.text("+.2f")
        return f"{index} ({INDEX} {ORDER_BLIND}, {entry.n_documents} documents of the sample)"
    if preference(method) is not None:
        return f"measured only where padding replaces words; for {spec.name}, words are deleted"
    if any(each.method.name == method.name for each in certified().values()):
        return "not measured with these parameters"
    return ""


def verdict(method: Method, specs: Iterable[RetrieverSpec]) -> str:
    """`short_verdict` in sentences, to be shown with every curve of the method by these models."""
    sentences = []
    for spec in specs:
        if (entry := _preference(method, spec)) is not None:
            measured = f"{words(entry.order_blind)} ({entry.n_documents} documents of the sample)"
            sentences.append(f"Check of the method itself: {measured}.")
        elif short := short_verdict(method, spec):
            sentences.append(f"What this method itself prefers is unknown: {short}.")
    return " ".join(dict.fromkeys(sentences))


def _preference(method: Method, spec: RetrieverSpec) -> Preference | None:
    # Models without files read no padding: words are deleted, and the text after them moves
    # forward.
    return None if spec.without_files else preference(method)
