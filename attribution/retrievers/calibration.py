"""The settings of attention calibration, and the suffix that states them in a model's name. Does
not import torch; `calibrated_attention` applies the settings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from poslens.attribution.errors import UserError

WORD = "calibrated"

_FORM = re.compile(rf"(.+)@{WORD}(?:\((.*)\))?", re.DOTALL)

STRENGTH, BLOCK = 0.5, 128

EARLIER_NAMES = {"basket": "block"}
"""Names of parameters in model names and exported folders of PosLens 0.1, and their names now."""

MAX_BLOCK = 1_000_000
"""Longer than any text, so that names stay short."""


_DECIMALS = 6


def rounded(strength: float) -> float:
    """A strength rounded to the six decimals of names and keys."""
    return round(strength, _DECIMALS) + 0.0  # no negative zero


def decimals(strength: float) -> str:
    """A rounded strength as text for names, such as `0.5`: never with an exponent, which names do
    not allow."""
    return f"{strength:.{_DECIMALS}f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Attention in the last `layers` layers (None: half of them, rounded down, at least one) is
    moved toward the same share for every block of `block` tokens. `strength` states how far: 0 is
    the plain model, 1 the same share for each block; it is rounded to six decimals.

    Source: Schuhmacher et al. 2026, arXiv 2601.16934; Michail et al. 2026, arXiv 2606.02737.

    Raises:
        UserError: a number out of range.
    """

    strength: float = STRENGTH
    block: int = BLOCK
    layers: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and 0 <= self.strength <= 1):
            raise UserError(f"The strength of a calibration must be 0 to 1, not {self.strength:g}.")
        object.__setattr__(self, "strength", rounded(self.strength))
        if not 1 <= self.block <= MAX_BLOCK:
            raise UserError(f"A token block must have at least 1 token, not {self.block}.")
        if self.layers is not None and self.layers < 1:
            raise UserError(f"At least 1 layer must be calibrated, not {self.layers}.")

    @property
    def suffix(self) -> str:
        """The suffix of a model's name: `@calibrated` with its non-default parameters."""
        settings = []
        if self.strength != STRENGTH:
            settings.append(f"strength={decimals(self.strength)}")
        if self.block != BLOCK:
            settings.append(f"block={self.block}")
        if self.layers is not None:
            settings.append(f"layers={self.layers}")
        return f"@{WORD}" + (f"({', '.join(settings)})" if settings else "")

    @property
    def words(self) -> str:
        """All settings, for captions."""
        return self._described("token blocks", "the last half of the layers")

    @property
    def key(self) -> str:
        """All settings, as part of the fingerprints under which results are stored."""
        # In the words of PosLens 0.1, so that its results stay valid.
        return self._described("baskets", "half of the layers")

    def _described(self, blocks: str, half: str) -> str:
        layers = half if self.layers is None else f"last {self.layers} layers"
        return f"strength {decimals(self.strength)}, {blocks} of {self.block}, {layers}"

    def first_of(self, n: int, name: str) -> int:
        """The first calibrated layer of `n`, from 0.

        Raises:
            UserError: the model `name` has fewer layers.
        """
        layers = max(1, n // 2) if self.layers is None else self.layers
        if layers > n:
            raise UserError(
                f"{name} has only {n} attention layers, so {layers} can't be calibrated: use "
                f"layers={n} or fewer."
            )
        return n - layers


def split(name: str) -> tuple[str, Calibration] | None:
    """The model's own name and the calibration of `MiniLM@calibrated(strength=0.5, block=128,
    layers=3)`; None for a name without one.

    Raises:
        UserError: the text in the parentheses is not a calibration.
    """
    match = _FORM.fullmatch(name)
    if match is None:
        return None
    base, inside = match[1], match[2]
    given: dict[str, str] = {}
    for part in (inside or "").split(","):
        if not part.strip():
            continue
        key, _, value = (piece.strip() for piece in part.partition("="))
        key = EARLIER_NAMES.get(key, key)
        if key not in ("strength", "block", "layers") or key in given:
            raise UserError(
                "A calibration accepts strength, block and layers, each at most once, not "
                f"{key[:40]!r}: write {base[:80]}@{WORD}(strength=0.5, block=128, layers=3)."
            )
        given[key] = value
    return base, Calibration(
        strength=_number(given.get("strength", str(STRENGTH)), "strength"),
        block=_whole(given.get("block", str(BLOCK)), "block"),
        layers=_whole(given["layers"], "layers") if "layers" in given else None,
    )


def _number(text: str, key: str) -> float:
    if re.fullmatch(r"[+-]?(\d{1,9}(\.\d{0,9})?|\.\d{1,9})", text, re.ASCII):
        return float(text)
    raise UserError(f"The {key} of a calibration must be a number like 0.5, not {text[:40]!r}.")


def _whole(text: str, key: str) -> int:
    if re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII):
        return int(text)
    raise UserError(f"The {key} of a calibration must be a whole number, not {text[:40]!r}.")
