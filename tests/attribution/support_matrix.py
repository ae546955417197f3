"""Which method works on which architecture, found out by running it.

    python -m tests.attribution.support_matrix docs/support.md

Every architecture is a two-layer random model (tiny_models.py, tiny_families.py), loaded as a
user's folder is, checked, and then attributed by every method on one pair alone and in a padded
batch of three.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from transformers.utils import logging

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, attribute_batches, make_method
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, TextPair
from tests.support import tiny_families, tiny_models

PAIRS = (
    TextPair("p", "tide rises", "The tide rises twice a day because the Moon pulls the water."),
    TextPair("long", "lazy dogs", "A quick brown fox, jumping over lazy dogs. " * 3),
    TextPair("short", "fox", "a fox"),
)
HEAD = """\
# What works on what

Made by `python -m tests.attribution.support_matrix docs/support.md`: each architecture is a
two-layer random model of its configuration class, loaded and checked as a user's folder is, and
attributed by every method, one pair alone and in a padded batch of three.

Numbers are the largest difference between a pair alone and in the batch, relative to the largest
value of a token (float32, CPU). After the slash stands the completeness error relative to the sum
of the absolute shares, of methods that claim completeness. "–" is a method that is not for the
family; "no" one that the model refuses, with its reason below. A real model of the same
architecture goes through the same check when it is loaded, and what it fails is not offered.
Integrated gradients add up as far as 512 steps bring them, and Integrated Jacobians as far as 256;
on random weights with RMSNorm that is not far, and each result says how far.
"""


def models(root: Path, names: Collection[str] | None = None) -> Iterator[tuple[str, RetrieverSpec]]:
    """Label and spec of each, or of those of `names`, built below `root`."""

    @cache
    def dense(name: str) -> Path:
        return tiny_models.build(name, root / name)

    def raw(name: str) -> Path:
        return dense(name).parent / "raw"

    families: dict[str, tuple[str, Callable[[Path], Path]]] = {
        "late interaction (BERT)": (
            "late_interaction",
            lambda at: tiny_families.late_interaction(raw("bert"), at),
        ),
        "sparse (BERT)": ("sparse", lambda at: tiny_families.sparse(raw("bert"), at)),
        "cross-encoder (BERT)": (
            "cross_encoder",
            lambda at: tiny_families.cross_encoder(raw("bert"), at),
        ),
        "cross-encoder (Qwen3, yes/no)": (
            "cross_encoder",
            lambda at: tiny_families.generative(raw("qwen3-left"), at),
        ),
        "cross-encoder (T5, sequence to sequence)": (
            "cross_encoder",
            lambda at: tiny_families.seq2seq(at),
        ),
        "cross-encoder (mT5, sequence to sequence)": (
            "cross_encoder",
            lambda at: tiny_families.seq2seq(at, "mt5", tie_word_embeddings=False),
        ),
    }
    for name in tiny_models.TINY:
        if names is None or name in names:
            yield name, RetrieverSpec(name, name, "dense", f"folder:{dense(name)}")
    for number, (label, (family, build)) in enumerate(families.items()):
        if names is None or label in names:
            folder = build(root / f"family{number}")
            yield label, RetrieverSpec(label, label, family, f"folder:{folder}")
    if names is None or "BM25" in names:
        yield "BM25", RetrieverSpec("BM25", "BM25", "lexical", "builtin:bm25")


def cell(retriever: object, name: str, reasons: list[str]) -> str:
    """What a method gives on a model."""
    method = make_method(name)
    found: dict[tuple[str, bool], Attribution] = {}
    for alone in (True, False):
        groups = [[pair] for pair in PAIRS] if alone else [list(PAIRS)]
        for group in groups:
            for batch in attribute_batches(retriever, method, group):  # type: ignore[arg-type]
                for outcome in batch:
                    if outcome.attribution is None:
                        reasons.append(f"{name}: {outcome.reason}")
                        return "no"
                    found[outcome.pair.pair_id, alone] = outcome.attribution
    differences, errors = [], []
    for pair in PAIRS:
        one, many = found[pair.pair_id, True], found[pair.pair_id, False]
        scale = max(float(np.abs(one.document_scores).max()), 1e-12)
        differences.append(float(np.abs(one.document_scores - many.document_scores).max()) / scale)
        if one.completeness_error is not None:
            parts = float(np.abs(one.document_scores).sum()) + abs(one.bias_share or 0)
            errors.append(abs(one.completeness_error) / max(parts, 1e-12))
    text = f"{max(differences):.0e}"
    return f"{text} / {max(errors):.0e}" if errors else text


def main() -> None:
    """Write the table to the file that is named."""
    # Not to standard output: libraries print progress there.
    rows = "\n".join(table())
    Path(sys.argv[1]).write_text(f"{HEAD}\n{rows}\n", encoding="utf-8")


def table() -> list[str]:
    """Rows and notes."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # Names with spaces wrap, so the table fits its column on the site.
    titles = " | ".join(name.replace("_", " ") for name in METHODS)
    lines = [f"| model | {titles} |", "|---" * (len(METHODS) + 1) + "|"]
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for label, spec in models(Path(folder)):
            reasons: list[str] = []
            row = [label]
            try:
                retriever = load(spec, device="cpu")
                checked = check_retriever(retriever)
            except UserError as error:
                notes.append(f"- **{label}**: {error}")
                lines.append(f"| {label} |" + " no |" * len(METHODS))
                continue
            for name, entry in METHODS.items():
                if not entry.fits(family_of(spec)):
                    row.append("–")
                elif name in checked.unfit:
                    row.append("no")
                    reasons.append(f"{name}: {checked.unfit[name]}")
                else:
                    row.append(cell(retriever, name, reasons))
            lines.append("| " + " | ".join(row) + " |")
            notes += [f"- **{label}**, {reason}" for reason in dict.fromkeys(reasons)]
    return [*lines, "", *notes] if notes else lines


if __name__ == "__main__":
    main()
