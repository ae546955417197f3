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

import re
import resource
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from pydoc_data import topics
from typing import Annotated

import numpy as np
import torch

from bench.encoders import dense
from bench.options import run
from bench.timing import timed
from poslens import PositionEvaluator
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.debiasing.corpus import TrainingCorpus, training_corpus
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.debiasing.training import Training
from poslens.attribution.retrievers.dense import DenseRetriever
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


def main(
    model: tuple[str, ...] = ("MiniLM-primacy", "MiniLM"),
    corpus: tuple[str, ...] = (SAMPLE, PLANTED),
    seed: tuple[int, ...] = (7,),
    steps: tuple[int, ...] = (TrainingRecipe().steps,),
    whole: Annotated[bool, {"help": "no early stopping: run all steps"}] = False,
) -> None:
    """Train each combination and print a Markdown table."""
    torch.set_num_threads(1)
    evaluator = PositionEvaluator(pairs=30, write_csv=False)
    columns = ("model", "corpus", "seed", "steps", "minutes", "peak MB", *MEASURES, "order")
    print(f"| {' | '.join(columns)} | position effect by step |")
    print("|---" * (len(columns) + 1) + "|")
    plain: dict[str, tuple[dict[str, float], Estimate | None]] = {}
    for name, dataset, number, dose in product(model, corpus, seed, steps):
        retriever = dense(name, precision="float32")
        recipe = TrainingRecipe(seed=number, steps=dose)
        if whole:
            recipe = replace(recipe, tolerance=-1e9, margin=-1.0)
        training = Training(retriever, corpus_of(dataset), recipe)
        trained, seconds, _ = timed(training.run)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        training.adapter.merge()
        if name not in plain:
            untrained = dense(name, precision="float32")
            plain[name] = evaluator(untrained.model), order_share(untrained)
        before, order_before = plain[name]
        judged = dataset != SAMPLE
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
            dataset,
            str(number),
            str(trained.step),
            f"{seconds / 60:.1f}",
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
    run(main)
