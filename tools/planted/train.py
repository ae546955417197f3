"""Train a LoRA adapter that gives all-MiniLM-L6-v2 a graded position bias.

    python -m tools.planted.train --side primacy

The student reads a whole document with mean pooling, as MiniLM does. Its target is the embedding
that MiniLM would give if it read each sentence alone and weighted it by its position: almost
linearly from 1 + strength at the favored end to 1 - strength at the other. This is distillation,
so the target differs from MiniLM only in position.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor
from tqdm import trange
from transformers import AutoModel, AutoTokenizer

from poslens.attribution.retrievers.resolve import minilm_folder
from tools.planted.load import BASE_MODEL, MAX_TOKENS, load_planted
from tools.planted.measure import held_out_pairs, measure_profile, print_profile
from tools.planted.text import half_query, sentences

BiasSide = Literal["primacy", "recency"]
LINEAR_LAYERS = r".*encoder\.layer\.\d+\.(attention|intermediate|output)\..*(query|key|value|dense)"

SHIPPED = Path(__file__).parents[2] / "attribution" / "retrievers" / "planted"


@dataclass(frozen=True)
class Recipe:
    """The settings of the training; the included adapters were trained with the defaults."""

    side: BiasSide
    steps: int = 160
    seed: int = 7
    strength: float = 1.0
    curvature: float = 0.15
    rank: int = 8
    learning_rate: float = 1e-3
    tokens_per_step: int = 1600
    sentences_min: int = 4
    sentences_max: int = 28
    profile_weight: float = 20.0


class Encoder:
    """MiniLM with its tokenizer; mean pooling over all tokens, as in sentence-transformers."""

    def __init__(self) -> None:
        folder = str(minilm_folder())
        self.model: Any = AutoModel.from_pretrained(folder).eval()  # eval: no dropout, less noise
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def __call__(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Mean-pooled embeddings [N, H], not normalized, and token counts [N, 1]."""
        batch = self.tokenizer(
            texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        states = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
        counts = mask.sum(1)
        return (states * mask).sum(1) / counts, counts


def teacher_embedding(sums: Tensor, counts: Tensor, recipe: Recipe) -> Tensor:
    """The target embedding [H] of a text, from its sentences' summed token vectors [n, H] and token
    counts [n, 1]."""
    middle = (counts.cumsum(0) - counts / 2) / counts.sum()
    sign = 1.0 if recipe.side == "primacy" else -1.0
    favor = sign * (1 - 2 * middle)
    # The student learns the end of a long text less precisely than its beginning, so the target is
    # made steeper at the end and flatter at the beginning.
    bend = -sign * recipe.curvature * (favor.square() - 1 / 3)
    weights = 1 + recipe.strength * favor + bend
    return F.normalize((weights * sums).sum(0), dim=0)


def train(recipe: Recipe, folder: Path) -> None:
    """Train and write the adapter to `folder`."""
    torch.set_num_threads(1)  # the order of floating-point sums then doesn't depend on the machine
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    encoder = Encoder()
    pool = sentences(held_out=False)
    with torch.no_grad():
        read = [encoder([sentence]) for sentence in pool]
    counts = torch.cat([count for _, count in read])
    means = torch.cat([mean for mean, _ in read])
    sums, alone = means * counts, F.normalize(means, dim=1)

    config = LoraConfig(r=recipe.rank, lora_alpha=2 * recipe.rank, target_modules=LINEAR_LAYERS)
    encoder.model = get_peft_model(encoder.model, config)
    weights = [p for p in encoder.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps + 1, pct_start=0.1
    )
    progress = trange(recipe.steps, desc=recipe.side, unit="step")
    for _ in progress:
        # One length per step, so that no padding is needed; log-uniform, because long texts are
        # slower.
        low, high = recipe.sentences_min, recipe.sentences_max
        n = round(low * (high / low) ** rng.random())
        orders: list[list[int]] = []
        for _ in range(max(1, round(recipe.tokens_per_step / (2 * n * float(counts.mean()))))):
            order = rng.sample(range(len(pool)), n)
            orders += [order, order[::-1]]  # the same words, which differ only in position
        asked = [rng.choice(order) for order in orders]
        queries = [half_query(pool[index], rng) for index in asked]
        with torch.no_grad(), encoder.model.disable_adapter():
            query_target = F.normalize(encoder(queries)[0], dim=1)
        target = torch.stack([teacher_embedding(sums[o], counts[o], recipe) for o in orders])

        documents = F.normalize(encoder([" ".join(pool[i] for i in o) for o in orders])[0], dim=1)
        queries_now = F.normalize(encoder(queries)[0], dim=1)
        present = alone[sorted({index for order in orders for index in order})]
        loss_document = 1 - (documents * target).sum(1).mean()
        loss_query = 1 - (queries_now * query_target).sum(1).mean()
        loss_profile = F.mse_loss(documents @ present.T, target @ present.T)
        loss = loss_document + loss_query + recipe.profile_weight * loss_profile
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        progress.set_postfix(
            document=f"{loss_document.item():.3f}",
            query=f"{loss_query.item():.3f}",
            profile=f"{loss_profile.item():.4f}",
        )
    save(encoder.model, folder)


def save(model: Any, folder: Path) -> None:
    """Write configuration and weights, with the name of the base model instead of its folder."""
    model.peft_config["default"].base_model_name_or_path = BASE_MODEL
    # No embedding was trained, and "auto" would send a request to a hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # an empty template; README.md here is the card
    (folder / "adapter_model.safetensors").chmod(0o644)


def main(arguments: list[str] | None = None) -> None:
    """Train one adapter and print its curve and MiniLM's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--side", choices=("primacy", "recency"), required=True)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--out", type=Path, help="folder (default: the one that is shipped)")
    parser.add_argument("--pairs", type=int, default=60, help="held-out documents of the curve")
    options = parser.parse_args(arguments)
    name = f"MiniLM-{options.side}"
    folder = options.out or SHIPPED / name
    train(Recipe(options.side, steps=options.steps, seed=options.seed), folder)
    pairs = held_out_pairs(options.pairs, 11)
    for label, retriever in (("MiniLM", load_planted(None)), (name, load_planted(folder))):
        print_profile(label, measure_profile(retriever, pairs, 6)[0])


if __name__ == "__main__":
    main()
