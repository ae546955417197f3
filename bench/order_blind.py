"""How much a curve leans because of the text alone: methods on a model that cannot see order.

    python -m bench.order_blind [--pairs 16] [--first] [--method decomposition]

The model is MiniLM with its position embeddings set to zero. The pairs are English pairs of the
sample that MiniLM reads whole, with their sentences in the authors' order: spread evenly, or with
`--first` the first query of each document. Any lean is therefore content: where texts say what the
query asks for. Per method: the primacy-recency index, and the same index minus that of each null
control, with 95% intervals over documents.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.planted import chosen
from poslens.attribution import datasets
from poslens.attribution.curves.curve_summary import summarize
from poslens.attribution.curves.positions import document_curve, document_magnitudes
from poslens.attribution.interventions.displacement import position_table
from poslens.attribution.interventions.null_controls import Control, control, minus_null
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import Method, TextPair

NAMES = ("saliency", "input_x_gradient", "decomposition")
BATCH = 8
MANY = 10_000  # more pairs than the sample has
CONTROLS: tuple[Control, ...] = ("unrelated", "shuffled")
Values = NDArray[np.float64]


def measured(
    retriever: Retriever, method: Method, pairs: Sequence[TextPair]
) -> tuple[Values, Values]:
    """Curves [n, 100] of pairs and the magnitudes [n, 100] that indices are made of."""
    attributions = [
        attribution
        for at in range(0, len(pairs), BATCH)
        for attribution in METHODS[method.name].compute(retriever, method, pairs[at : at + BATCH])
    ]
    return (
        np.array([document_curve(attribution, method) for attribution in attributions], np.float64),
        np.array(
            [document_magnitudes(attribution, method) for attribution in attributions], np.float64
        ),
    )


def main() -> None:
    """Print a table with a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument(
        "--method", action="append", help=f"Repeat for several; {', '.join(NAMES)} by default."
    )
    parser.add_argument(
        "--first", action="store_true", help="The first query of each document instead."
    )
    options = parser.parse_args()
    pairs = chosen(options.pairs)
    if options.first:
        firsts: dict[str, TextPair] = {}
        for pair in chosen(MANY):
            firsts.setdefault(pair.document, pair)
        pairs = list(firsts.values())[: options.pairs]
    among = datasets.read("sample").pairs
    retriever = load(resolve("MiniLM"), "cpu")
    position_table(retriever).weight.data.zero_()
    documents = [pair.document for pair in pairs]
    print(f"{len(pairs)} pairs of {len(set(documents))} documents.\n")
    print("| method | index | " + " | ".join(f"minus {kind}" for kind in CONTROLS) + " |")
    print("|---" * (2 + len(CONTROLS)) + "|")
    for name in options.method or NAMES:
        method = make_method(name)
        own, weights = measured(retriever, method, pairs)
        index = summarize(
            own,
            documents,
            model="MiniLM without order",
            dataset="sample",
            method=method,
            n_truncated=0,
            n_failed=0,
            magnitudes=weights,
        ).primacy_recency_index
        cells = [name, "–" if index is None else index.text("+.3f")]
        for kind in CONTROLS:
            nulls = [control(kind, pair, among) for pair in pairs]
            null, of_null = measured(retriever, method, nulls)
            left = minus_null(kind, own, null, documents, (weights, of_null)).index
            cells.append("–" if left is None else left.text("+.3f"))
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
