"""Damaged addresses and damaged widget states over every page, run in this process.

    python -m tests.fuzz.addresses --n 2000

Each address is a plausible one of its page with one to four changes: invalid options, numbers out
of range, unknown names, parameters of other pages, markup, thousands of characters. For each, a
page must show itself or one sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from streamlit.proto.WidgetStates_pb2 import WidgetState, WidgetStates
from streamlit.testing.v1 import AppTest

from tests.support.pages import open_page

ROOT = Path(__file__).parents[2]
Query = dict[str, str | list[str]]

PAGES: dict[str, Query] = {
    "explain": {"models": ["tiny"], "method": "saliency", "dataset": "few"},
    "compare": {"a": "tiny", "b": "BM25", "method": "occlusion", "dataset": "few"},
    "curves": {
        "models": ["tiny", "BM25"],
        "method": "saliency",
        "posir": "false",
        "null": "off",
        "band": "quartiles",
        "published": ["NV-Embed-v2"],
        "axis": "whole text",
        "dataset": "few",
    },
    "ranking": {
        "models": ["BM25", "tiny"],
        "posir": "true",
        "searched": "all documents",
        "first": "BM25",
        "runs": ["engine"],
        "dataset": "few",
    },
    "map": {
        "model": "tiny",
        "of": "curves",
        "color": "score",
        "method": "saliency",
        "dataset": "few",
    },
    "methods": {
        "tab": "Data set",
        "models": ["tiny"],
        "methods": ["saliency"],
        "dataset": "few",
    },
    "cause": {
        "tab": "Data set",
        "corpus": "evidence",
        "by": "mask",
        "dataset": "few",
        "models": ["tiny"],
        "tests": ["brevity"],
        "pairs": "4",
        "measure": "t",
        "place": "end",
        "test": "brevity",
        "under": "tiny",
        "item": "x",
    },
    "debias": {
        "dataset": "few",
        "models": ["tiny"],
        "steps": "0",
        "pairs": "0",
        "strengths": "0.5",
        "blocks": "64",
        "layers": ["half"],
    },
    "audit": {
        "dataset": "few",
        "models": ["tiny", "BM25"],
        "top": "1",
        "chunks": ["whole", "windows:16:4"],
        "search_for": "question",
    },
    "passport": {"dataset": "few", "models": ["tiny", "BM25"]},
    "why": {
        "dataset": "few",
        "models": ["tiny", "BM25"],
        "top": "1",
        "tab": "All misses",
        "query": "what melts",
        "document": "x",
    },
    "storage": {},
}
SHARED: Query = {
    "text": "Own text",
    "q": "what melts",
    "d": "Ice melts. Stone stays.",
    "pair": "x",
    "search": "ice",
    "domain": "any",
    "language": "any",
    "bucket": "Q1",
    "query_type": "any",
    "evidence": ["10", "60"],
    "order": "score",
    "normalization": "p99",
    "resampling": "point",
    "versions": "true",
    "unit": "words",
    "scale": "each",
    "matrix": "yes",
    "biases": "explicit",
}
MODELS = [
    "tiny",
    "tiny@last",
    "BM25",
    "tiny@max",
    "nope",
    "organization/model",
    "MiniLM@",
    "@last",
    "MiniLM@cls",
    "MiniLM@nope",
    "BM25@last",
    "MiniLM-recency@0.5",
    "MiniLM-recency@1e9",
    "MiniLM@0.5",
    "MiniLM#1234",
    "../MiniLM",
    "/etc",
    "mpnet",
    "a/b@last",
    "MiniLM@last@cls",
    "minilm",
    "organization/model@0.5",
    "bge-m3",
]
METHODS = ["saliency", "occlusion", "terms", "maxsim", "decomposition", "input_x_gradient", "nope"]
VALUES = [
    "One pair",
    "Agreement with interventions",
    "Bias tests",
    "",
    " ",
    "nope",
    "0",
    "-1",
    "1",
    "2",
    "1e999",
    "nan",
    "inf",
    "99999999999999999999",
    "true",
    "false",
    "None",
    "null",
    "[]",
    "{}",
    "[1,",
    "any",
    "a,b",
    "10,60",
    "5-1",
    "\0",
    "\ufffd",
    "\u202e",
    "\u200b",
    "😀",
    "ß" * 40,
    "x" * 9000,
    "![x](http://outside.invalid)",
    "<b>x</b>",
    "$x$",
    ":red[x]",
    "%",
    "%00",
    "../../etc/passwd",
    "C:\\x",
    "=1+1",
    "'",
    '"',
    "0.5",
    "1,2,3",
    "upload-1",
    "sample",
    "sample-bias",
    "MiniLM",
    "saliency",
    "2026-01-01",
]
STRANGE = [
    "",
    "=",
    "$$ID-x",
    "$$ID-1-None",
    "$$STREAMLIT",
    "page",
    "url.pair",
    "upload",
    "next",
    "runs on boards",
    "curves.bin",
    "cause.place",
    "embed",
    "embed_options",
    "__proto__",
    "explain.heatmap",
    "x" * 300,
    "ice cream",
    "\0",
    "pair[]",
    "models[0]",
    "filter.sample.domain",
    "typed.query",
    "curves.error",
    "curves.clicked",
    "run",
    "app.page",
    "formsubmitter",
]


@dataclass(frozen=True)
class Fault:
    """A page that showed neither itself nor one sentence."""

    page: str
    address: str
    what: str


def prepare(folder: Path) -> None:
    """Register a small random model `tiny` and a few short pairs `few`, so that pages compute fast
    and many addresses can be tested."""
    from poslens.attribution import datasets
    from poslens.attribution.retrievers import resolve
    from tests.support import tiny_models

    (folder / "model").mkdir()
    resolve.register_folder("tiny", tiny_models.build("bert", folder / "model"))
    text = "Ice melts in spring. The tide rises twice a day. Stone stays where it is."
    rows = [
        {
            "query": f"what {word}",
            "document": text,
            "evidence": text.split(". ")[k],
            "pair_id": word,
            "domain": word,
            "language": "eng",
        }
        for k, word in enumerate(("melts", "rises", "stays"))
    ]
    file = folder / "few.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("few", file)


def opened(page: str, query: Query, state: dict[str, Any] | None = None) -> AppTest:
    """A page in a new session of the app."""
    app = open_page(page, **query)
    for key, value in (state or {}).items():
        app.session_state[key] = value
    app.run()
    assert app.session_state["app.page"] == page, "another page is shown"
    return app


def damaged(page: str, random: random.Random) -> Query:
    """An address of this page, damaged."""
    everything = {k: v for query in (*PAGES.values(), SHARED) for k, v in query.items()}
    query: Query = dict(PAGES[page])
    for name in random.sample(list(SHARED), random.choice([0, 0, 1, 2])):
        query[name] = SHARED[name]
    for _ in range(random.randint(1, 4)):
        kind = random.random()
        name = random.choice(list(query) or list(everything))
        if kind < 0.15:
            name = random.choice(STRANGE)
        elif kind < 0.35:
            name = random.choice(list(everything))
        value: str | list[str]
        if name in ("models", "a", "b", "model", "first", "under") and random.random() < 0.7:
            value = random.choice(MODELS)
        elif name in ("method", "methods", "against") and random.random() < 0.7:
            value = random.choice(METHODS)
        else:
            value = random.choice(VALUES)
        if random.random() < 0.15:
            value = [value, *random.choices([*VALUES, *MODELS], k=random.choice([1, 2, 8]))]
        if random.random() < 0.1:
            query.pop(name, None)
        else:
            query[name] = value
    return query


def problem(app: AppTest) -> str:
    """What a page wrongly shows; empty if all is well."""
    for one in app.exception:
        return f"{one.message}: {' '.join(one.stack_trace[-3:])}"[:600] or "an exception"
    for one in app.error:
        if "unexpected" in one.value or "Traceback" in one.value or len(one.value) > 2000:
            return one.value[:300]
    return ""


def fuzz(n: int, seed: int = 0, pages: list[str] | None = None) -> Iterator[tuple[str, Query, str]]:
    """Open `n` damaged addresses, pages in turn; yields the problems."""
    chance = random.Random(seed)
    names = pages or list(PAGES)
    for number in range(n):
        page = names[number % len(names)]
        query = damaged(page, chance)
        yield page, query, problem(opened(page, query))


# -- widgets ---------------------------------------------------------------------------------------


# What a browser may send for a table, a chart or a component whose contents have changed meanwhile.
ROWS = [[], [0], [1], [7], [99_999]]
POINTS = [[], [{}], [{"customdata": 0}], [{"customdata": 99_999}], [{"customdata": [3]}]]
VIEWS = [None, {}, {"unit": "nope"}, {"scale": "each", "unit": "sentences"}, {"tip": {"a": 1}}]


def _damage(state: WidgetState, proto: Any, chance: random.Random) -> None:
    """Give a widget another value that a browser can send for it."""
    kind = proto.DESCRIPTOR.name
    if kind == "Dataframe":
        selected = {"rows": chance.choice(ROWS), "columns": [], "cells": []}
        state.string_value = json.dumps({"selection": selected})
    elif kind == "PlotlyChart":
        points = chance.choice(POINTS)
        selected = {"points": points, "point_indices": [], "box": [], "lasso": []}
        state.string_value = json.dumps({"selection": selected})
    elif kind == "BidiComponent":
        state.json_value = json.dumps({"view": chance.choice(VIEWS)})
    elif kind == "Selectbox":
        state.string_value = chance.choice(list(proto.options) or [""])
    elif kind in ("MultiSelect", "ButtonGroup"):
        options = [getattr(option, "content", option) for option in proto.options]
        if kind == "MultiSelect" and proto.accept_new_options:
            options += VALUES
        single = kind == "ButtonGroup" and proto.click_mode == proto.SINGLE_SELECT
        most = 1 if single else getattr(proto, "max_selections", 0) or len(options)
        n = chance.randint(0, min(most, len(options)))
        state.string_array_value.data[:] = chance.sample(options, n)
    elif kind in ("TextInput", "TextArea"):
        state.string_value = chance.choice(VALUES)[: proto.max_chars or None]
    elif kind == "NumberInput":
        state.double_value = chance.choice([proto.min, proto.max, proto.default])
    elif kind == "Slider" and proto.type == proto.SELECT_SLIDER:
        ends = sorted(chance.randrange(len(proto.options)) for _ in proto.default)
        state.string_array_value.data[:] = [proto.options[at] for at in ends]
    elif kind == "Slider":
        ends = sorted(chance.choice([proto.min, proto.max]) for _ in proto.default)
        state.double_array_value.data[:] = ends
    elif kind == "Checkbox":
        state.bool_value = not state.bool_value
    elif kind in ("Button", "DownloadButton"):
        state.trigger_value = True
    # Not for a file uploader: an empty state is one without files.


def widgets(app: AppTest) -> list[tuple[WidgetState, Any]]:
    """The state and the description of every widget of a page, including those without a class in
    AppTest."""
    found = []
    for node in app._tree:
        state = getattr(node, "_widget_state", None)
        proto = getattr(node, "proto", None)
        if state is None and getattr(proto, "id", "").startswith("$$ID"):
            state = WidgetState(id=proto.id)
        if state is not None and not getattr(proto, "disabled", False):
            found.append((state, proto))
    return found


def fuzz_widgets(
    n: int, seed: int = 0, pages: list[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Send `n` damaged states of single widgets, pages in turn; yields the problems."""
    chance = random.Random(seed)
    names = pages or list(PAGES)
    for number in range(n):
        page = names[number % len(names)]
        app = opened(page, dict(PAGES[page]))
        known = widgets(app)
        if not known:
            continue
        state, proto = chance.choice(known)
        _damage(state, proto, chance)
        yield page, f"{state}", problem(app._run(widget_state=WidgetStates(widgets=[state])))


def main() -> None:
    """Run the fuzzer and print every problem as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="append", choices=list(PAGES))
    parser.add_argument("--widgets", action="store_true", help="widget states, not addresses")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    started, faults, done = time.perf_counter(), 0, 0
    with tempfile.TemporaryDirectory() as home:
        os.environ["POSLENS_HOME"] = home
        prepare(Path(home))
        run = fuzz_widgets if options.widgets else fuzz
        for page, given, what in run(options.n, options.seed, options.page):
            done += 1
            if what:
                faults += 1
                shown = given if isinstance(given, str) else urlencode(given, doseq=True)[:400]
                print(json.dumps({"page": page, "address": shown, "what": what}), flush=True)
            if done % 100 == 0:
                print(
                    f"{done} done, {faults} faults, {time.perf_counter() - started:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    print(
        json.dumps(
            {"addresses": done, "faults": faults, "seconds": round(time.perf_counter() - started)}
        )
    )
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
