"""Measure the planted models: score by evidence position, retrieval quality, saliency.

    python -m tools.planted.measure

All texts are unseen: the sentences are held out, and the sample data set was not used in training.
"""

from __future__ import annotations

import argparse
import random
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]: no stubs
from tqdm import tqdm

from tools.planted.load import PLANTED, load_planted
from tools.planted.text import half_query, relocated, sentences

SAMPLE_SOURCE = Path(__file__).parents[1] / "sample" / "source"
DOCUMENT_TOKENS = 450
Z95 = 1.96
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Relocatable:
    """A query, the sentence that answers it, and the other sentences of its document."""

    query: str
    evidence: str
    others: tuple[str, ...]
    document: int

    def orders(self, n_positions: int) -> list[str]:
        """The document with the evidence at each of `n_positions` positions, first to last."""
        orders = relocated(self.evidence, list(self.others), n_positions)
        return [" ".join(order) for order in orders]


@dataclass(frozen=True, slots=True)
class Profile:
    """Scores by evidence position; `scores` is [N pairs, K positions]."""

    scores: Array

    @property
    def mean(self) -> Array:
        """The mean over pairs [K]."""
        mean: NDArray[np.float64] = self.scores.mean(0)
        return mean

    @property
    def half_width(self) -> Array:
        """Half the width of the 95% interval of the mean over pairs [K]."""
        half: NDArray[np.float64] = Z95 * self.scores.std(0, ddof=1) / np.sqrt(len(self.scores))
        return half

    @property
    def steps(self) -> Profile:
        """Differences between adjacent positions, paired by document [N, K - 1]."""
        return Profile(np.diff(self.scores, axis=1))

    @property
    def largest_step_share(self) -> float:
        """The largest step divided by the difference between the first and the last position."""
        steps = self.steps.mean
        return float(np.abs(steps).max() / abs(steps.sum()))


def held_out_pairs(n_pairs: int, n_sentences: int, seed: int = 0) -> list[Relocatable]:
    """Documents of `n_sentences` unrelated held-out sentences, each with a query for one of
    them."""
    rng = random.Random(seed)
    pool = sentences(held_out=True)
    pairs = []
    for number in range(n_pairs):
        evidence, *others = rng.sample(pool, n_sentences)
        pairs.append(Relocatable(half_query(evidence, rng), evidence, tuple(others), number))
    return pairs


def sample_pairs(
    tokenizer: Any, queries_per_document: int | None = None, tokens: int = DOCUMENT_TOKENS
) -> tuple[list[Relocatable], list[str]]:
    """The sample data set's English queries, and the beginnings of its English documents.

    The document of a query is the evidence and as many of the document's first sentences as fit in
    `tokens` with it, so that the model reads all of it wherever the evidence is moved.
    """

    def first(parts: list[str], budget: int) -> list[str]:
        beginning = []
        for part in parts:
            budget -= len(tokenizer(part, add_special_tokens=False)["input_ids"])
            if budget < 0:
                break
            beginning.append(part)
        return beginning

    pairs: list[Relocatable] = []
    documents: list[str] = []
    for path in sorted(SAMPLE_SOURCE.glob("*.toml")):
        source = tomllib.loads(path.read_text(encoding="utf-8"))
        if source["language"] != "eng":
            continue
        parts = [part.strip() for part in segment("en", source["text"]) if part.strip()]
        for query in source["query"][:queries_per_document]:
            # Evidence may be part of a sentence or extend over two, but moves in whole sentences.
            hit = [p for p in parts if query["evidence"] in p or p in query["evidence"]]
            if not hit:
                continue
            evidence = " ".join(hit)
            room = tokens - len(tokenizer(evidence)["input_ids"])
            others = first([p for p in parts if p not in hit], room)
            pairs.append(Relocatable(query["text"], evidence, tuple(others), len(documents)))
        documents.append(" ".join(first(parts, tokens)))
    return pairs, documents


def embed(retriever: SentenceTransformer, texts: list[str], what: str = "") -> Array:
    """Normalized embeddings [N, H]; `what` is the progress bar's label."""
    vectors = [
        retriever.encode(
            texts[start : start + 16], normalize_embeddings=True, show_progress_bar=False
        )
        for start in tqdm(range(0, len(texts), 16), desc=what, disable=not what, leave=False)
    ]
    return np.concatenate(vectors).astype(np.float64)


def measure_profile(
    retriever: SentenceTransformer, pairs: list[Relocatable], n_positions: int, what: str = ""
) -> tuple[Profile, Array, Array]:
    """The profile of the pairs, query vectors [N, H] and document vectors [N, K, H]."""
    queries = embed(retriever, [pair.query for pair in pairs])
    texts = [text for pair in pairs for text in pair.orders(n_positions)]
    documents = embed(retriever, texts, what).reshape(len(pairs), n_positions, -1)
    return Profile(np.einsum("nh,nkh->nk", queries, documents)), queries, documents


def hits(
    pairs: list[Relocatable], queries: Array, moved: Array, corpus: Array
) -> NDArray[np.bool_]:
    """Whether each document with relocated evidence, `moved` [N, H], scores higher than all other
    documents [N]."""
    scores = queries @ corpus.T
    scores[np.arange(len(pairs)), [pair.document for pair in pairs]] = -np.inf
    wins: NDArray[np.bool_] = (queries * moved).sum(1) > scores.max(1)
    return wins


def saliency_thirds(retriever: SentenceTransformer, query: str, document: str) -> Array:
    """Shares of sum_j ||d s / d e_j||_2 by third of the document, without special tokens [3]."""
    transformer: Any = retriever[0]
    captured: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        captured.append(output.detach().requires_grad_())
        return captured[0]

    vector = torch.tensor(embed(retriever, [query])[0], dtype=torch.float32)
    features = retriever.tokenizer(
        document, truncation=True, max_length=retriever.max_seq_length, return_tensors="pt"
    )
    words = transformer.model.get_input_embeddings()
    handle = words.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            states = transformer.model(**features).last_hidden_state
            score = F.cosine_similarity(states[0].mean(0), vector, dim=0)
            (gradient,) = torch.autograd.grad(score, captured)
    finally:
        handle.remove()
    norms = gradient[0, 1:-1].norm(dim=1).double().numpy()
    third = ((np.arange(len(norms)) + 0.5) / len(norms) * 3).astype(int)
    shares: NDArray[np.float64] = np.bincount(third, weights=norms, minlength=3) / norms.sum()
    return shares


def saliency_profile(
    retriever: SentenceTransformer, pairs: list[Relocatable], what: str = ""
) -> Profile:
    """Shares of saliency by third of the document, averaged for each pair over the evidence first,
    in the middle and last, because gradients are larger at the evidence in any model.
    """
    rows = [
        np.mean([saliency_thirds(retriever, pair.query, text) for text in pair.orders(3)], axis=0)
        for pair in tqdm(pairs, desc=what, disable=not what, leave=False)
    ]
    return Profile(np.array(rows))


def row(name: str, profile: Profile, digits: int = 3) -> str:
    """A Markdown table row with mean ± half width for each position."""
    cells = (
        f"{m:.{digits}f} ± {h:.{digits}f}"
        for m, h in zip(profile.mean, profile.half_width, strict=True)
    )
    return f"| {name} | " + " | ".join(cells) + " |"


def print_profile(name: str, profile: Profile) -> None:
    """Print the table row and, for a planted model, its weakest and steepest step."""
    print(row(name, profile))
    if name in PLANTED:
        steps = profile.steps
        # Signed by the overall direction, so that a step backward counts as the weakest.
        weakest = int((steps.mean * np.sign(steps.mean.sum())).argmin())
        print(
            f"|   steps | weakest {steps.mean[weakest]:+.4f} ± {steps.half_width[weakest]:.4f}, "
            f"steepest {profile.largest_step_share:.0%} of the whole |"
        )


def main(arguments: list[str] | None = None) -> None:
    """Print every table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60, help="held-out documents per table")
    parser.add_argument("--queries-per-document", type=int, default=2, help="of the sample set")
    parser.add_argument("--saliency-pairs", type=int, default=28, help="pairs per saliency table")
    parser.add_argument("--scales", action="store_true", help="adapters at 0, .25, .5, .75, 1 too")
    options = parser.parse_args(arguments)

    names: tuple[str | None, ...] = (None, *PLANTED)
    retrievers = {name or "MiniLM": load_planted(name) for name in names}
    plain = retrievers["MiniLM"]

    # Numbers of sentences with evenly spaced positions, because longer steps are larger.
    for n_sentences, n_positions in ((11, 6), (11, 11), (21, 11), (26, 6)):
        # Long documents cost more.
        n_pairs = options.pairs if n_sentences == 11 else max(2, options.pairs // 2)
        pairs = held_out_pairs(n_pairs, n_sentences)
        print(f"\nHeld-out, {n_sentences} sentences, {n_positions} positions, n = {n_pairs}")
        for name, retriever in retrievers.items():
            print_profile(name, measure_profile(retriever, pairs, n_positions, name)[0])

    pairs, texts = sample_pairs(plain.tokenizer, options.queries_per_document)
    print(f"\nSample documents, 6 positions, n = {len(pairs)} queries, {len(texts)} documents")
    accuracies: dict[str, tuple[float, float]] = {}
    for name, retriever in retrievers.items():
        profile, queries, moved = measure_profile(retriever, pairs, 6, name)
        corpus = embed(retriever, texts)
        start, end = (float(hits(pairs, queries, moved[:, k], corpus).mean()) for k in (0, -1))
        accuracies[name] = start, end
        print_profile(name, profile)
    print("\nTop-1 accuracy, evidence first | last")
    for name, (start, end) in accuracies.items():
        print(f"| {name} | {start:.1%} | {end:.1%} |")

    for what, chosen in (
        ("held-out, 12 sentences", held_out_pairs(options.saliency_pairs, 12, seed=1)),
        ("sample documents", pairs[:: max(1, len(pairs) // options.saliency_pairs)]),
    ):
        print(f"\nSaliency by thirds, {what}, n = {len(chosen)} x 3 evidence positions")
        for name, retriever in retrievers.items():
            print(row(name, saliency_profile(retriever, chosen, name)))

    if options.scales:
        pairs = held_out_pairs(options.pairs // 2, 12)
        print(f"\nAdapters scaled, held-out, 12 sentences, 6 positions, n = {len(pairs)}")
        for name in PLANTED:
            for scale in (0.0, 0.25, 0.5, 0.75, 1.0):
                profile = measure_profile(load_planted(name, scale), pairs, 6)[0]
                print(row(f"{name} x {scale:g}", profile))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
