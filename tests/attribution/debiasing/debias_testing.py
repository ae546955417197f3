"""Small corpora and models to debias."""

from __future__ import annotations

import random

from poslens.attribution.debiasing.corpus import TrainingCorpus, training_corpus
from poslens.attribution.debiasing.recipe import TrainingRecipe

WORDS = (
    *("tide", "moon", "pulls", "water", "nearer", "strongly", "quick", "brown", "fox", "jumping"),
    *("over", "lazy", "dogs", "rises", "twice", "day", "because", "rocket", "family", "smile"),
)
QUICK = TrainingRecipe(
    steps=6,
    check_every=3,
    cooldown=2,
    tolerance=-1e9,
    learning_rate=5e-3,
    tokens_per_step=400,
    sentences_min=3,
    sentences_max=5,
    validation_texts=3,
)


def documents(n: int = 30, n_sentences: int = 5, seed: int = 0) -> list[tuple[str, str | None]]:
    """Documents of short sentences, most of them different."""
    rng = random.Random(seed)
    sentence = lambda: " ".join(rng.sample(WORDS, 5)).capitalize() + "."  # noqa: E731
    return [(" ".join(sentence() for _ in range(n_sentences)), "eng") for _ in range(n)]


def judged_rows(n: int = 30) -> list[dict[str, str]]:
    """Rows of a data set of such documents, with a query for one sentence of each."""
    rows = []
    for number, (text, language) in enumerate(documents(n)):
        evidence = text.split(". ")[number % 4] + "."
        query = " ".join(evidence.lower().rstrip(".").split()[::2])
        rows.append(
            {
                "pair_id": f"p{number}",
                "query": query,
                "document": text,
                "evidence": evidence,
                "language": language or "",
            }
        )
    return rows


def corpus() -> TrainingCorpus:
    """A corpus of such documents."""
    return training_corpus("short", documents())
