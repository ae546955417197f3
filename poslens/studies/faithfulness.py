"""Faithfulness tests of pairs and of data sets, which are computed once and stored, and their
figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import (
    POSITION_ORDERS,
    ErasureParameters,
    Faithfulness,
    position_order,
)
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds.faithfulness import faithfulness_tests
from poslens.cache.kinds.faithfulness import run as run_tests
from poslens.cache.storage.results import Stored
from poslens.compute.compute import Compute
from poslens.compute.item_job import stored_job
from poslens.compute.queue import Place, ready
from poslens.compute.runs import Job
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import (
    band,
    canvas,
    faint,
    group,
    intervals,
    legend_name,
    marks,
    with_legend,
)
from poslens.figures.palettes import Style

DEFAULT_PAIRS = 30
"""Default number of pairs of a data set."""


def ask(
    compute: Compute,
    pair: TextPair,
    spec: RetrieverSpec,
    method: Method,
    parameters: ErasureParameters,
) -> Place[Faithfulness]:
    """A position in the device queue for the faithfulness test of a method on one pair, shared with
    identical requests. A new result is stored; it raises UserError if it cannot be computed.

    Raises:
        UserError: the model's files are not on this machine, or too many requests are waiting.
    """
    model, tests = compute.identify(spec).key, faithfulness_tests(compute.root, parameters)
    if (faithfulness := tests.get(model, method, pair)) is not None:
        return ready(faithfulness)

    def test(should_stop: Callable[[], bool]) -> Faithfulness:
        run_tests(
            compute.retriever(compute.identify(spec)),
            model,
            method,
            [pair],
            compute.store,
            parameters=parameters,
            options=RunOptions(
                should_stop, device_slot=compute.device_slot(spec), retry_failed=True
            ),
        )
        stored = tests.select(model, method, [pair])
        if not stored.results:
            raise UserError(next(iter(stored.failed.values()), "This pair has no result."))
        return stored.results[pair.pair_id]

    key = ("faithfulness", compute.root, model, repr(method), repr(parameters), pair)
    return compute.queue.ask(key, test)


def with_baselines(methods: Iterable[Method]) -> dict[str, Method]:
    """The methods by title, followed by the baselines that order words by position."""
    return {
        **{METHODS[method.name].title: method for method in methods},
        **{title.capitalize(): position_order(start) for start, title in POSITION_ORDERS.items()},
    }


def job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    scope: str,
    parameters: ErasureParameters,
) -> Job:
    """A job that tests a method on `pairs` and stores the results."""
    return stored_job(
        compute,
        spec,
        method,
        pairs,
        partial(faithfulness_tests, parameters=parameters),
        lambda own, retriever, model, options: run_tests(
            retriever, model, method, pairs, own.store, parameters=parameters, options=options
        ),
        scope=f"{scope} {parameters!r}",
        doing="faithfulness",
        label=f"{spec.name}, {method.name}",
    )


def stored(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    parameters: ErasureParameters,
) -> Stored[Faithfulness]:
    """The stored tests of a method on `pairs`."""
    model = compute.identify(spec).key
    tests = faithfulness_tests(compute.root, parameters)
    return tests.select(model, method, pairs)


# -- figures ---------------------------------------------------------------------------------------

_DASHES = {"front": "dash", "back": "dashdot"}


def scalable(results: Mapping[str, Faithfulness]) -> dict[str, Faithfulness]:
    """The results that can be scaled: those whose document scores differently with and without its
    words."""
    return {label: result for label, result in results.items() if result.gap is not None}


def deletion_insertion(
    results: Mapping[str, Faithfulness], kind: str, style: Style, provenance: Provenances = ()
) -> go.Figure:
    """One pair's curves: a line for each of `results` (label -> result), and the mean and standard
    deviation of random orders. Orders by position are drawn as baselines, without markers.

    `kind` is `deletion` (units removed, largest contribution first) or `insertion` (added back).
    Scores are scaled: 1 is the whole document, 0 the document without words. Results that cannot be
    scaled (`scalable`) are omitted.

    Raises:
        ValueError: no result can be scaled.
    """
    results = scalable(results)
    if not results:
        raise ValueError("no result that can be scaled")
    word = "removed" if kind == "deletion" else "restored"
    figure = canvas(
        f"{kind}_curve",
        style,
        f"Words {word} (%)",
        "Score (full document = 1, empty = 0)",
        provenance,
    )
    first = next(iter(results.values()))
    spread = getattr(first.random_orders, kind)
    shares = 100 * first.removed
    random = np.array([first.scaled(curve) for curve in spread])
    mean, std = random.mean(0), random.std(0)
    muted = style.colours.muted
    figure.add_trace(band(shares, mean - std, mean + std, faint(muted, 0.2)))
    figure.add_trace(
        go.Scatter(
            x=shares,
            y=mean,
            mode="lines",
            name="random order",
            line={"color": muted, "dash": "dot", "width": style.line_width},
        )
    )
    dashes = {position_order(start): dash for start, dash in _DASHES.items()}
    for index, (label, result) in enumerate(results.items()):
        dash = dashes.get(result.method)
        trace = go.Scatter(
            x=100 * result.removed,
            y=result.scaled(getattr(result, kind)),
            mode="lines" if dash else "lines+markers",
            name=legend_name(label, style),
            line={"color": muted, "dash": dash, "width": style.line_width}
            if dash
            else style.line(index),
            **({} if dash else marks(index, len(result.removed), style)),
        )
        figure.add_trace(group(trace, f"result {index}", label))
    figure.update_xaxes(range=[0, 100])
    return with_legend(figure, style)


def gains(
    rows: Sequence[tuple[str, Estimate]], title: str, style: Style, provenance: Provenances = ()
) -> go.Figure:
    """Estimates with their intervals, one row for each of `rows` (label, estimate), and a line at
    zero. Estimates from too few documents have no interval."""
    figure = canvas("gains", style, title, "", provenance)
    rows = rows[::-1]
    estimates = [estimate for _, estimate in rows]
    figure.add_trace(
        go.Scatter(
            x=[estimate.value for estimate in estimates],
            # Labels take two lines, to leave room for the points in a narrow window.
            y=[
                "<br>".join(legend_name(part, style) for part in label.rsplit(", ", 1))
                for label, _ in rows
            ],
            mode="markers",
            error_x={**intervals(estimates, style.colours.ink), "thickness": 1.2, "width": None},
            marker={"color": style.line(0)["color"], "size": 0.6 * style.font_size},
            showlegend=False,
        )
    )
    figure.add_vline(0, line={"color": style.colours.muted, "width": 1, "dash": "dot"})
    # Show all labels, however low the figure is.
    figure.update_yaxes(automargin=True, nticks=0)
    return figure
