"""Cost and effect of debiasing by self-distillation, by model, corpus, seed and number of steps.

    python -m bench.debias [--model M ...] [--corpus C ...] [--seed S ...] [--steps N ...]

The corpus `planted` has the sentences on which the planted adapters were trained, ten per document;
`python` is Python's language reference (`pydoc_data.topics`) without code. Each row is a training
with its position effect on validation texts at each check, and the measures of
`poslens.PositionEvaluator` on the sample before and after. These are omitted if the sample itself
is the corpus; `poslens debias` evaluates that on held-out documents. Uses one thread.

`order`: share of 80 queries such as "the valve was opened after the pump was stopped" for which the
text that reports both events in that order scores higher than the text with its two sentences
swapped, which reports the opposite in the same words. 0.5 is chance.
"""

from __future__ import annotations

import argparse
import re
import resource
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from pydoc_data import topics

import numpy as np
import torch

from poslens import PositionEvaluator
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.debiasing.corpus import TrainingCorpus, training_corpus
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.debiasing.training import Training
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from tools.planted.text import sentences

SAMPLE, PLANTED, REFERENCE = "sample", "planted", "python"
SENTENCES = 10
MEASURES = ("ndcg@10_worst", "first_minus_last", "relocation_difference", "unretrieved_sentences")
EVENTS = Path(__file__).with_name("events.tsv")


def corpus_of(name: str) -> TrainingCorpus:
    """The training corpus of a data set, of the planted sentences, or of Python's reference."""
    if name == REFERENCE:
        return training_corpus(name, [(text, "eng") for text in map(prose, topics.topics.values())])
    if name != PLANTED:
        documents = datasets.corpus_of(name).documents()
        return training_corpus(name, [(document.text, document.language) for document in documents])
    pool = sentences(held_out=False)
    texts = [" ".join(pool[i : i + SENTENCES]) for i in range(0, len(pool), SENTENCES)]
    return training_corpus(PLANTED, [(text, "eng") for text in texts])


def prose(topic: str) -> str:
    """The paragraphs of a topic that are complete sentences, without headings, code or grammar."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", topic) if part[:1] > " ")
    return " ".join(text for text in paragraphs if text.endswith(".") and "::=" not in text)


def order_cases() -> Iterator[tuple[list[str], str, str]]:
    """Two queries about the order of two events, which name them in either order; the text that
    reports the events in that order; and the same text with its sentences swapped."""
    for line in EVENTS.read_text(encoding="utf-8").splitlines():
        first, second = line.split("\t")
        queries = [f"{second} after {first}", f"{first} before {second}"]
        in_order, swapped = (
            " ".join(f"{event[0].upper()}{event[1:]}." for event in events)
            for events in ((first, second), (second, first))
        )
        yield queries, in_order, swapped


@torch.no_grad()
def order_share(retriever: DenseRetriever) -> Estimate | None:
    """Share of the queries of `order_cases` for which the text with the events in order scores
    higher; the interval resamples pairs of events."""
    model = retriever.model
    wins = []
    for queries, in_order, swapped in order_cases():
        vectors = model.encode_query(queries, normalize_embeddings=True)
        texts = model.encode_document([in_order, swapped], normalize_embeddings=True)
        right, wrong = texts @ vectors.T
        wins.append([float(np.mean((right > wrong) + 0.5 * (right == wrong)))])
    return estimate(np.array(wins))


def main(arguments: list[str] | None = None) -> None:
    """Train each combination and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", nargs="+", default=["MiniLM-primacy", "MiniLM"])
    parser.add_argument("--corpus", nargs="+", default=["sample", PLANTED])
    parser.add_argument("--seed", nargs="+", type=int, default=[7])
    parser.add_argument("--steps", nargs="+", type=int, default=[TrainingRecipe().steps])
    parser.add_argument("--whole", action="store_true", help="no early end: the dose is the steps")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    evaluator = PositionEvaluator(pairs=30, write_csv=False)
    columns = ("model", "corpus", "seed", "steps", "minutes", "peak MB", *MEASURES, "order")
    print(f"| {' | '.join(columns)} | position effect by step |")
    print("|---" * (len(columns) + 1) + "|")
    plain: dict[str, tuple[dict[str, float], Estimate | None]] = {}
    for name, corpus, seed, steps in product(
        options.model, options.corpus, options.seed, options.steps
    ):
        retriever = load(resolve(name), "cpu", "float32")
        assert isinstance(retriever, DenseRetriever)
        recipe = TrainingRecipe(seed=seed, steps=steps)
        if options.whole:
            recipe = TrainingRecipe(seed=seed, steps=steps, tolerance=-1e9, margin=-1.0)
        training = Training(retriever, corpus_of(corpus), recipe)
        started = time.perf_counter()
        trained = training.run()
        minutes = (time.perf_counter() - started) / 60
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        training.adapter.merge()
        if name not in plain:
            untrained = load(resolve(name), "cpu", "float32")
            assert isinstance(untrained, DenseRetriever)
            plain[name] = evaluator(untrained.model), order_share(untrained)
        before, order_before = plain[name]
        judged = corpus != SAMPLE
        after = evaluator(retriever.model) if judged else {}
        changes = [
            f"{_of(before, measure)} → {_of(after, measure)}" if judged else ""
            for measure in MEASURES
        ]
        effects = ", ".join(
            f"{check.step}: {check.effect.value:+.4f}" for check in trained.checks if check.effect
        )
        cells = (
            name,
            corpus,
            str(seed),
            str(trained.steps),
            f"{minutes:.1f}",
            f"{memory:.0f}",
            *changes,
            f"{_text(order_before)} → {_text(order_share(retriever))}",
            effects,
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def _of(measures: dict[str, float], name: str) -> str:
    ends = [measures[f"{name}_{end}"] for end in ("low", "high") if f"{name}_{end}" in measures]
    interval = " [{:+.4f}, {:+.4f}]".format(*ends) if ends else ""
    return f"{measures[name]:+.4f}{interval}"


def _text(share: Estimate | None) -> str:
    return share.text(".2f") if share else ""


if __name__ == "__main__":
    main()
