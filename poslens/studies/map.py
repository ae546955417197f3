"""Maps of texts and curves in two dimensions: reading stored maps, the job that computes them, and
their figure."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from poslens.attribution.curves.projection import Layout, comparable
from poslens.attribution.errors import UserError
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.base import Pooled
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Method, Side, TextPair
from poslens.cache.jobs.attributions import OneDevice, precompute
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.embeddings import EMBEDDING, embed, make_map, map_key
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.compute.runs import Job, Report, Run
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import canvas, with_legend
from poslens.figures.palettes import Style, escape, shorten


@dataclass(frozen=True, slots=True)
class StoredMap:
    """The items of a map and their points [n, 2], which are None until the map is fitted. `n_flat`
    further items have a vector of zeros or a flat curve and are not on the map. `n_truncated` of
    the items belong to a truncated document; None if that is unknown."""

    model: ModelIdentity
    items: tuple[str, ...]
    points: Array | None
    n_flat: int = 0
    n_truncated: int | None = None


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Items that have a vector, their vectors [n, dimensions], and whether the document of each was
    truncated [n], if that is stored."""

    items: list[str]
    vectors: Array
    truncated: Array | None = None


class TextMap:
    """The embeddings of texts; items are the texts themselves, which `scope` identifies."""

    def __init__(self, side: Side, texts: Sequence[str]) -> None:
        self.side = side
        self.texts = tuple(dict.fromkeys(texts))
        digest = hashlib.sha256("\0".join(self.texts).encode("utf-8", "replace")).hexdigest()
        self.scope = f"{side} {digest}"

    def __len__(self) -> int:
        return len(self.texts)

    def vectors(self, compute: Compute, model: ModelIdentity) -> _Vectors:
        """The texts that are embedded, and their vectors."""
        arrays = compute.embeddings.select(model.key, self.side, self.texts)
        texts = [text for text in self.texts if text in arrays]
        return _Vectors(texts, np.array([arrays[text] for text in texts], dtype=np.float32))

    def require_fit(self, compute: Compute, model: ModelIdentity) -> None:
        """Check that the model has a dense vector per text.

        Raises:
            UserError: it has none.
        """
        if family_of(model.spec).search != "vectors":
            raise UserError(
                f"{model.spec.name} doesn't have a dense vector per text: select a dense model, "
                "or a map of curves."
            )

    def compute(self, compute: Compute, model: ModelIdentity, options: RunOptions) -> Progress:
        """Embed the remaining texts.

        Raises:
            UserError: the model cannot be loaded.
        """
        return embed(
            cast(Pooled, compute.retriever(model)),
            model.key,
            self.side,
            self.texts,
            compute.embeddings,
            options=options,
        )


class CurveMap:
    """The position curves of pairs by a method; items are pair ids, which `scope` identifies."""

    def __init__(self, method: Method, pairs: Sequence[TextPair]) -> None:
        self.method = method
        # The same object if possible, because its columns are cached with it.
        self.pairs = pairs if isinstance(pairs, Pairs) else Pairs(pairs)
        digest = hashlib.sha256("\0".join(self.pairs.ids).encode()).hexdigest()
        self.scope = f"{method!r} {digest}"

    def __len__(self) -> int:
        return len(self.pairs)

    def vectors(self, compute: Compute, model: ModelIdentity) -> _Vectors:
        """The ids of the pairs whose curves are stored, and the curves [n, 100]."""
        stored = compute.store.curves(model.key, self.method, self.pairs)
        return _Vectors(list(stored.pair_ids), stored.curves, stored.truncated)

    def require_fit(self, compute: Compute, model: ModelIdentity) -> None:
        """Check that the method is not known to be unavailable for the model.

        Raises:
            UserError: it is.
        """
        compute.require_fit(model, self.method)

    def compute(self, compute: Compute, model: ModelIdentity, options: RunOptions) -> Progress:
        """Attribute the remaining pairs.

        Raises:
            UserError: the method does not fit the model, or the model cannot be loaded.
        """
        retriever = compute.fitting(model, self.method)
        device = OneDevice(retriever, self.method, options.device_slot)
        return precompute(
            device, model.key, self.method, self.pairs, compute.store, options=options
        )


MapSource = TextMap | CurveMap


def stored_map(
    compute: Compute, spec: RetrieverSpec, source: MapSource, layout: Layout
) -> StoredMap:
    """The stored part of a map: the items that have a vector, and their points if they were fitted;
    computes nothing."""
    model = compute.identify(spec)
    mapped, n_flat = _comparable(source.vectors(compute, model), layout)
    points = None
    if len(mapped.vectors):
        points = compute.embeddings.get_map(model.key, map_key(layout, mapped.vectors))
    n_truncated = None if mapped.truncated is None else int(mapped.truncated.sum())
    return StoredMap(model, tuple(mapped.items), points, n_flat, n_truncated)


def _comparable(all_vectors: _Vectors, layout: Layout) -> tuple[_Vectors, int]:
    """The vectors without those that have no distance to others (zero or flat), and how many were
    left out."""
    items, truncated = all_vectors.items, all_vectors.truncated
    if not items:
        return all_vectors, 0
    mask = comparable(all_vectors.vectors, layout.metric)
    left = [item for item, keep in zip(items, mask, strict=True) if keep]
    return _Vectors(
        left, all_vectors.vectors[mask], None if truncated is None else truncated[mask]
    ), len(items) - len(left)


def job(compute: Compute, spec: RetrieverSpec, source: MapSource, layout: Layout) -> Job:
    """A job that computes the missing vectors of a map and fits it.

    Raises:
        UserError: the model has no such vectors.
    """
    model = compute.identify(spec)
    source.require_fit(compute, model)

    def work(run: Run, report: Report) -> Progress:
        run.stage = "Computing"
        progress = source.compute(compute, model, compute.run_options(model.spec, run, report))
        if progress.stopped:
            return progress
        mapped, n_flat = _comparable(source.vectors(compute, model), layout)
        if n_flat and not mapped.items:
            raise UserError(
                f"All {n_flat:,} vectors are zero or constant, so none is nearer to another: "
                "select another model or method."
            )
        run.stage = "Computing the layout"

        def fitted(done: int, total: int) -> None:
            if run.stopping:
                raise UserError("The layout was stopped. The vectors are kept.")
            report(Progress(total, done, done, 0, time.perf_counter() - started))

        report(Progress(0, 0, 0, 0, 0.0))  # numba compiles before the first epoch
        started = time.perf_counter()
        make_map(model.key, mapped.vectors, layout, compute.embeddings, fitted)
        return progress

    def vectors_alone(other: Compute) -> Job:
        def embedding(run: Run, report: Report) -> Progress:
            return source.compute(other, model, other.run_options(model.spec, run, report))

        return replace(job(other, spec, source, layout), work=embedding)

    scope = f"{source.scope} {layout!r}"
    map_job = compute.model_job(
        model, EMBEDDING, scope, len(source), work, vectors_alone, doing="map"
    )
    # If all vectors are stored, the layout needs no model.
    return replace(map_job, can_start=True)


# -- figure ----------------------------------------------------------------------------------------

MANY = 2000
"""Number of points above which pages draw with WebGL, because panning SVG becomes slow."""

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star")
OTHERS = "others"


def point_map(
    points: ArrayLike,
    colors: Sequence[str] | ArrayLike,
    labels: Sequence[str],
    color_title: str,
    style: Style,
    *,
    diverging: bool = False,
    webgl: bool = False,
    provenance: Provenances = (),
) -> go.Figure:
    """Points [n, 2] colored by words (the most frequent ones have a color and a symbol each) or by
    numbers [n], with gray for NaN. `diverging` centers the scale at zero. The customdata of a point
    is its index.

    With `webgl` all points are small discs, because other symbols and outlines halve the frame rate
    (bench.map) and cannot be recognized at 3 pixels.

    Raises:
        ValueError: the numbers of points, colors and labels differ.
    """
    xy = np.asarray(points, dtype=np.float64)
    n = len(labels)
    if xy.shape != (n, 2) or len(colors) != n:  # type: ignore[arg-type]
        raise ValueError(f"points {xy.shape}, {len(colors)} colors, {n} labels")  # type: ignore[arg-type]
    figure = canvas("map", style, "", "", provenance)
    figure.update_xaxes(showticklabels=False, ticks="", showline=False, zeroline=False)
    figure.update_yaxes(
        showticklabels=False, ticks="", showline=False, zeroline=False, showgrid=False
    )
    kind = go.Scattergl if webgl else go.Scatter
    size = 0.7 * style.font_size if n < MANY else 4
    if webgl:
        size = 3

    def add(chosen: np.ndarray, name: str, marker: Mapping[str, object], legend: bool) -> None:
        figure.add_trace(
            kind(
                x=xy[chosen, 0],
                y=xy[chosen, 1],
                mode="markers",
                name=escape(shorten(name, 40)),
                customdata=chosen,
                hovertext=[escape(shorten(labels[i], 120)) for i in chosen],
                hovertemplate="%{hovertext}<extra></extra>",
                marker={"size": size, "opacity": 0.8, **marker},
                showlegend=legend,
            )
        )

    grey: dict[str, object] = {"color": style.colors.muted}
    if not webgl:
        grey["symbol"] = "circle-open"
    if n and isinstance(colors[0], str):  # type: ignore[index]
        words = [str(word) for word in colors]  # type: ignore[union-attr]
        counts = Counter(words)
        room = len(SYMBOLS)
        shown = [word for word, _ in counts.most_common(room if len(counts) <= room else room - 1)]
        for index, word in enumerate(shown):
            chosen = np.array([i for i, each in enumerate(words) if each == word])
            marker = {"color": style.line(index)["color"]}
            if not webgl:
                marker["symbol"] = SYMBOLS[index]
            add(chosen, word or "not known", marker, True)
        rest = np.array([i for i, each in enumerate(words) if each not in shown], dtype=int)
        if len(rest):
            add(rest, OTHERS, grey, True)
        return with_legend(figure.update_layout(hovermode="closest"), style)
    values = np.asarray(colors, dtype=np.float64)
    finite = np.flatnonzero(np.isfinite(values))
    unknown = np.flatnonzero(~np.isfinite(values))
    if len(unknown):
        add(unknown, "not known", grey, False)
    if len(finite):
        largest = float(np.abs(values[finite]).max()) or 1.0
        ends = (
            (-largest, largest)
            if diverging
            else (float(values[finite].min()), float(values[finite].max()))
        )
        marker = {
            "color": values[finite],
            "colorscale": list(map(list, style.diverging() if diverging else style.shades())),
            "cmin": ends[0],
            "cmax": ends[1],
            "line": {"color": style.colors.muted, "width": 0 if webgl else 0.4},
            "colorbar": {
                "title": {"text": escape(color_title), "side": "right"},
                "thickness": style.font_size,
                "outlinewidth": 0,
                "tickfont": {"size": style.small},
            },
        }
        add(finite, color_title, marker, False)
    return figure.update_layout(hovermode="closest")
