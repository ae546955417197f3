"""The hyperparameters of a training."""

from __future__ import annotations

from dataclasses import dataclass

from poslens.attribution.evaluation.comparison import SCORE_MARGIN


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """Hyperparameters of debiasing. A model is not trained at all if both ends of the interval of
    its position effect on validation texts are within `margin` of 0: there is nothing to remove,
    and training could only cost quality. Training ends after `steps`, or earlier: once the effect
    is within that margin, is at most `tolerance` of its value before training, or has decreased by
    less than that since the previous check, the learning rate falls to 0 within `cooldown` more
    steps. A step reads about `tokens_per_step` tokens, in texts of
    `sentences_min` to `sentences_max` sentences."""

    seed: int = 7
    steps: int = 160
    check_every: int = 20
    cooldown: int = 20
    tolerance: float = 0.05
    margin: float = SCORE_MARGIN
    rank: int = 8
    alpha: int = 16
    learning_rate: float = 1e-3
    tokens_per_step: int = 1600
    sentences_min: int = 4
    sentences_max: int = 28
    sentence_weight: float = 20.0
    query_weight: float = 1.0
    validation_texts: int = 12

    @property
    def words(self) -> str:
        """The recipe in one line, which distinguishes trainings."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
