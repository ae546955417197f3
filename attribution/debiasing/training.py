"""Self-distillation: a model with a low-rank adapter learns to give a whole text the vector that
the model without the adapter gives when it reads sentence by sentence.

The student reads texts of sentences in random order, each also in reversed order, and half
sentences as queries. The teacher is the same model without the adapter, which reads each sentence
alone (`teacher.py`), so its vectors do not depend on order. No relevance judgments and no other
model are needed. Related: position-balanced contrastive training with labels (arXiv 2605.26578).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from poslens.attribution.checkpoints import stop_requested
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.debiasing.corpus import TrainingCorpus, by_language, half_query
from poslens.attribution.debiasing.lora import Adapter
from poslens.attribution.debiasing.position_effect import position_effect, validation_texts, within
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.debiasing.teacher import Teacher
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.text import joined

GRADIENT_NORM = 1.0
WARM_UP = 0.1
"""Part of the schedule in which the learning rate rises."""
_MIN_GROUP = 8
"""Minimum number of sentences of a language for training texts in it."""

Slot = Callable[[], AbstractContextManager[None]]


def distillation_loss(
    documents: Tensor,
    targets: Tensor,
    queries: Tensor,
    query_targets: Tensor,
    present: Tensor,
    recipe: TrainingRecipe,
    *,
    with_norms: bool,
) -> Tensor:
    """The loss of a step. It compares documents [B, D] with their order-invariant targets [B,
    D], queries [Q, D] with those of the frozen model [Q, D], and the documents' cosines with the
    sentences `present` [S, D] with the targets' cosines. Vectors need not be normalized;
    `with_norms` also compares lengths, which only matter if the model's score is not the cosine."""
    unit, target_unit = F.normalize(documents, dim=1), F.normalize(targets, dim=1)
    document = 1 - (unit * target_unit).sum(1).mean()
    query = 1 - F.cosine_similarity(queries, query_targets, dim=1).mean()
    sentence = F.mse_loss(unit @ present.T, target_unit @ present.T)
    loss: Tensor = document + recipe.query_weight * query + recipe.sentence_weight * sentence
    if with_norms:
        loss = loss + (_relative(documents, targets) + _relative(queries, query_targets))
    return loss


def _relative(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared relative difference of lengths."""
    lengths = targets.norm(dim=1)
    change: Tensor = (vectors.norm(dim=1) - lengths) / lengths
    return change.square().mean()


def one_cycle(recipe: TrainingRecipe) -> list[tuple[float, float]]:
    """Learning rate and first momentum of each step: the one-cycle policy (Smith and Topin 2018,
    arXiv 1708.07120) with cosine annealing."""
    peak = recipe.learning_rate
    optimizer = torch.optim.AdamW([torch.zeros(1)], lr=peak)
    total = recipe.steps + 1
    # The rate needs a step to rise: 0.1 of 10 steps would divide by 0.
    rising = max(WARM_UP, 2 / total)
    schedule = OneCycleLR(optimizer, peak, total_steps=total, pct_start=rising)
    (group,) = optimizer.param_groups
    rates = []
    for _ in range(recipe.steps):
        rates.append((group["lr"], group["betas"][0]))
        optimizer.step()
        schedule.step()
    return rates


@dataclass(frozen=True, slots=True)
class ValidationCheck:
    """The position effect on the validation texts after `step` steps, and the mean loss since
    the previous check."""

    step: int
    loss: float
    effect: Estimate | None


@dataclass(slots=True)
class Reached:
    """How far a training is: the last step (0 for a model without a position effect, which stays
    as it is), the number of steps completed, the checks so far, of which the first is before
    training, and the sum of losses since the last check."""

    end: int
    step: int = 0
    checks: list[ValidationCheck] = field(default_factory=list)
    loss: float = 0.0


class Training:
    """One training of one model. It resumes from its last checkpoint, and the result is
    bit-identical to an uninterrupted training (on one device with one number of threads)."""

    def __init__(
        self,
        retriever: DenseRetriever,
        corpus: TrainingCorpus,
        recipe: TrainingRecipe,
        checkpoint: Path | None = None,
        slot: Slot = nullcontext,
    ) -> None:
        """
        Raises:
            UserError: the model cannot be trained, or the corpus has too few sentences of any one
                language.
        """
        if retriever.asymmetric:
            raise UserError(
                f"{retriever.name} has separate encoders for queries and documents, which "
                "debiasing does not support: choose a model with one encoder."
            )
        self._retriever, self._corpus, self._recipe = retriever, corpus, recipe
        self._groups = by_language(corpus.train, _MIN_GROUP)
        if not self._groups:
            raise UserError(
                f"No language has at least {_MIN_GROUP} training sentences: use a larger corpus."
            )
        self._checkpoint, self._slot = checkpoint, slot
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.adapter = Adapter(retriever.backbone, retriever.name, recipe.rank, recipe.alpha)
        self._teacher = Teacher(retriever, self.adapter.disabled)
        self._optimizer = torch.optim.AdamW(
            self.adapter.weights.values(), lr=recipe.learning_rate, weight_decay=0.0
        )
        self._schedule = one_cycle(recipe)
        self._limit = min(retriever.max_length, recipe.tokens_per_step)

    def run(
        self,
        on_step: Callable[[int, int], None] = lambda step, steps: None,
    ) -> Reached:
        """Train to the end. `on_step` receives the number of completed steps and the maximum
        number.

        Raises:
            Stopped: the work was stopped; a checkpoint is written if there is a file for it.
        """
        recipe = self._recipe
        texts = validation_texts(
            self._corpus.validate, self._teacher, self._limit, recipe.validation_texts, recipe.seed
        )
        at = self._resumed()
        if not at.checks:
            at.checks.append(ValidationCheck(0, 0.0, self._effect(texts)))
            if self._negligible(at.checks[0].effect):
                at.end = 0
        on_step(at.step, at.end)
        while at.step < at.end:
            if stop_requested():
                self._write(at)
                raise Stopped("Stopped before training was complete.")
            with self._slot():
                at.loss += self._step(at.step, at.end)
            at.step += 1
            if at.step % recipe.check_every == 0 or at.step == at.end:
                mean = at.loss / (at.step - at.checks[-1].step)
                at.checks.append(ValidationCheck(at.step, mean, self._effect(texts)))
                at.loss = 0.0
                at.end = self._end(at)
                self._write(at)
            on_step(at.step, at.end)
        return at

    def _effect(self, texts: list[tuple[str, ...]]) -> Estimate | None:
        return position_effect(self._retriever, self._teacher, texts, self._slot)

    def _end(self, at: Reached) -> int:
        """The last step, after a check."""
        before, now = at.checks[0].effect, at.checks[-1].effect
        cooled = at.step + self._recipe.cooldown
        if at.end < self._recipe.steps or cooled >= at.end or before is None or now is None:
            return at.end
        least = self._recipe.tolerance * abs(before.value)
        last = at.checks[-2].effect
        stalled = last is not None and abs(last.value) - abs(now.value) < least
        return cooled if self._negligible(now) or abs(now.value) <= least or stalled else at.end

    def _negligible(self, effect: Estimate | None) -> bool:
        """Whether both ends of the effect's interval are within the margin of 0."""
        if effect is None or effect.interval is None:
            return False
        low, high = effect.interval
        return max(-low, high) <= self._recipe.margin

    def batch_loss(self, step: int) -> Tensor:
        """The loss of a step's batch, with its gradient graph."""
        texts, queries = self._batch(step)
        targets = torch.stack([self._teacher.target(text) for text in texts])
        query_targets = self._teacher.queries(queries)
        drawn = sorted({sentence for text in texts for sentence in text})
        present = torch.stack([self._teacher.reading(part).vector for part in drawn])
        retriever = self._retriever
        return distillation_loss(
            retriever.embed(
                retriever.encode_plain([joined(text) for text in texts], "document")
            ).float(),
            targets,
            retriever.embed(retriever.encode_plain(queries, "query")).float(),
            query_targets,
            present,
            self._recipe,
            with_norms=retriever.model.similarity_fn_name != "cosine",
        )

    def _step(self, step: int, end: int) -> float:
        """Perform one optimizer step; returns its loss."""
        loss = self.batch_loss(step)
        self._optimizer.zero_grad()
        loss.backward()
        weights = list(self.adapter.weights.values())
        torch.nn.utils.clip_grad_norm_(weights, GRADIENT_NORM)
        rate, momentum = self._schedule[step]
        if end < self._recipe.steps:  # training ends early
            rate *= (end - step) / self._recipe.cooldown
        for group in self._optimizer.param_groups:
            group["lr"], group["betas"] = rate, (momentum, group["betas"][1])
        self._optimizer.step()
        return float(loss.detach())

    def _batch(self, step: int) -> tuple[list[list[str]], list[str]]:
        """The texts of a step, as lists of sentences, and a query for each. The sample depends
        only on the seed and the step, so that a training can resume at any step."""
        recipe, pool = self._recipe, self._corpus.train
        rng = random.Random(f"step {recipe.seed} {step}")
        (group,) = rng.choices(self._groups, [len(group) for group in self._groups])
        low, high = recipe.sentences_min, min(recipe.sentences_max, len(group))
        n = max(2, round(low * (high / low) ** rng.random()))
        texts: list[list[str]] = []
        tokens = 0
        while not texts or tokens + tokens // len(texts) <= recipe.tokens_per_step:
            drawn = [pool[i].text for i in rng.sample(group, min(n, len(group)))]
            text = within(self._teacher, drawn, self._limit)
            texts += [text, text[::-1]]  # the same words: only their positions differ
            tokens += 2 * sum(self._teacher.reading(part).tokens for part in text)
        return texts, [half_query(rng.choice(text), rng) for text in texts]

    @torch.no_grad()
    def _resumed(self) -> Reached:
        """What the checkpoint states, or the beginning if no checkpoint fits."""
        stored = read_checkpoint(self._checkpoint, self._owner) if self._checkpoint else None
        if stored is None:
            return Reached(self._recipe.steps)
        reached, tensors = stored
        for key, value in tensors.items():
            name, _, path = key.partition("/")
            weight = self.adapter.weights[path]
            if name == _WEIGHT:
                weight.copy_(value)
            else:
                self._optimizer.state[weight][name] = (
                    value if name == "step" else value.to(weight.device)
                )
        return reached

    def _write(self, at: Reached) -> None:
        if self._checkpoint:
            tensors = {
                f"{name}/{path}": value
                for path, weight in self.adapter.weights.items()
                for name, value in {_WEIGHT: weight, **self._optimizer.state[weight]}.items()
            }
            write_checkpoint(self._checkpoint, self._owner, at, tensors)

    @property
    def _owner(self) -> str:
        """Identifies the training that a checkpoint must belong to."""
        return f"{self._recipe.words}; corpus {self._corpus.digest}"


# -- checkpoints: adapter, optimizer and checks in one safetensors file ----------------------------


_WEIGHT = "weight"


def write_checkpoint(
    path: Path, owner: str, reached: Reached, tensors: Mapping[str, Tensor]
) -> None:
    """Replace the file atomically; `owner` identifies the training. `tensors` are the adapter's
    weights, `weight/PATH`, and the optimizer's moments, `NAME/PATH`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    stored = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(stored, new, {"owner": owner, "state": json.dumps(asdict(reached))})
    new.replace(path)


def read_checkpoint(path: Path, owner: str) -> tuple[Reached, dict[str, Tensor]] | None:
    """How far the training is, and the tensors; None if the file is missing, damaged, or belongs to
    another training."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("owner") != owner:
                return None
            state = json.loads(about["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state["checks"] = [
            ValidationCheck(
                check["step"],
                check["loss"],
                Estimate(**check["effect"]) if check["effect"] else None,
            )
            for check in state["checks"]
        ]
        return Reached(**state), tensors
    except (OSError, SafetensorError, ValueError, LookupError, TypeError):
        return None
