"""Minutes and memory of a training, and what is left of the position effect: by model, corpus, seed
and dose.

    python -m bench.debias [--model M ...] [--corpus C ...] [--seed S ...] [--steps N ...]

The corpus `planted` is the sentences that the planted adapters were trained on, ten a document. A
row is a training with its position effect on validation texts at each check; `poslens debias`
judges a model on held-out documents. One thread.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import product

import torch

from poslens.attribution import datasets
from poslens.attribution.debiasing.corpus import TrainingCorpus, training_corpus
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.debiasing.training import Training
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from tools.planted.text import sentences

PLANTED = "planted"
SENTENCES = 10


def corpus_of(name: str) -> TrainingCorpus:
    """The corpus of a data set, or of the planted sentences."""
    if name != PLANTED:
        documents = datasets.corpus_of(name).documents()
        return training_corpus(name, [(one.text, one.language) for one in documents])
    pool = sentences(held_out=False)
    texts = [" ".join(pool[i : i + SENTENCES]) for i in range(0, len(pool), SENTENCES)]
    return training_corpus(PLANTED, [(text, "eng") for text in texts])


def main(arguments: list[str] | None = None) -> None:
    """Train each combination and print a row of Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", nargs="+", default=["MiniLM-primacy", "MiniLM"])
    parser.add_argument("--corpus", nargs="+", default=["sample", PLANTED])
    parser.add_argument("--seed", nargs="+", type=int, default=[7])
    parser.add_argument("--steps", nargs="+", type=int, default=[TrainingRecipe().steps])
    parser.add_argument("--whole", action="store_true", help="no early end: the dose is the steps")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| model | corpus | seed | steps | minutes | peak MB | position effect by step |")
    print("|---|---|---|---|---|---|---|")
    for name, corpus, seed, steps in product(
        options.model, options.corpus, options.seed, options.steps
    ):
        retriever = load(resolve(name), "cpu", "float32")
        assert isinstance(retriever, DenseRetriever)
        recipe = TrainingRecipe(seed=seed, steps=steps)
        if options.whole:
            recipe = TrainingRecipe(seed=seed, steps=steps, tolerance=-1e9)
        started = time.perf_counter()
        found = Training(retriever, corpus_of(corpus), recipe).run()
        minutes = (time.perf_counter() - started) / 60
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        effects = ", ".join(
            f"{one.step}: {one.effect.value:+.4f}" for one in found.checks if one.effect
        )
        print(
            f"| {name} | {corpus} | {seed} | {found.steps} | {minutes:.1f} | {memory:.0f} | "
            f"{effects} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
