"""The training data for debiasing: sentences from one half of a corpus, and the texts composed of
them.

A corpus is split by document: one half for training, the other half held out for evaluation. Part
of the training half is used for validation, so that the length of training is chosen on texts that
are neither trained on nor evaluated.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.attribution.text import (
    script_without_sentences,
    sentences,
    word_spans,
    words,
)

MIN_DOCUMENTS = 8
"""With fewer documents, the halves are too small."""
MIN_SENTENCES = 60
"""Minimum number of training sentences; a few hundred are better."""
MAX_SENTENCES = 20_000
"""Maximum number of sentences, taken from documents in the order of their fingerprints; training
would not draw more."""
MIN_WORDS = 4
VALIDATED = 5
"""One in this many documents of the training half is used for validation."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and the language of its document (ISO 639-3, None if unknown)."""

    text: str
    language: str | None = None


@dataclass(frozen=True)
class TrainingCorpus:
    """Sentences for training and for validation, from disjoint documents, and the fingerprints
    of all documents in the training half. `digest` identifies the corpus."""

    name: str
    train: tuple[Sentence, ...]
    validate: tuple[Sentence, ...]
    training_half: frozenset[str]
    n_documents: int

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the sentences, in order."""
        total = hashlib.blake2b(digest_size=8)
        for part in (self.train, self.validate):
            for sentence in part:
                total.update(f"{sentence.language}\0{sentence.text}\0".encode())
            total.update(b"\1")
        return total.hexdigest()

    def held_out(self, text: str) -> bool:
        """Whether no part of this document is used for training or validation."""
        return fingerprint(text) not in self.training_half


def fingerprint(text: str) -> str:
    """Fingerprint of a document's text, so that identical texts are on the same side of a split."""
    return hashlib.blake2b(b"debias\0" + text.encode(), digest_size=12).hexdigest()


def training_corpus(name: str, documents: Iterable[tuple[str, str | None]]) -> TrainingCorpus:
    """Split documents (text, language) into two halves by fingerprint, and split the training half
    into sentences.

    Raises:
        UserError: there are too few documents or sentences.
    """
    texts = {fingerprint(text): (text, language) for text, language in documents}
    order = sorted(texts)
    half = order[: len(order) // 2]
    n_validated = max(1, len(half) // VALIDATED)
    if len(order) < MIN_DOCUMENTS:
        raise UserError(
            f"The data set has {counted(len(order), 'document')}, but debiasing needs at least "
            f"{MIN_DOCUMENTS}, half of them for evaluation: use a larger corpus."
        )
    seen: set[str] = set()
    validate = _sentences([texts[key] for key in half[:n_validated]], seen)
    train = _sentences([texts[key] for key in half[n_validated:]], seen)
    if min(len(train), len(validate) * (VALIDATED - 1)) < MIN_SENTENCES:
        raise UserError(
            f"The data set has too few sentences to debias a model: {len(train)} for training and "
            f"{len(validate)} for validation, but at least {MIN_SENTENCES} and "
            f"{MIN_SENTENCES // (VALIDATED - 1)} are needed. Use a larger corpus."
        )
    return TrainingCorpus(name, train, validate, frozenset(half), len(order))


def _sentences(documents: Sequence[tuple[str, str | None]], seen: set[str]) -> tuple[Sentence, ...]:
    """The documents' distinct sentences; texts in scripts without sentence marks have none."""
    listed: list[Sentence] = []
    for text, language in documents:
        if len(listed) >= MAX_SENTENCES:
            break
        if script_without_sentences(text):
            continue
        for start, end in sentences(text, language):
            sentence = " ".join(text[start:end].split())
            if sentence not in seen and len(words(sentence)) >= MIN_WORDS:
                seen.add(sentence)
                listed.append(Sentence(sentence, language))
    return tuple(listed[:MAX_SENTENCES])


def by_language(pool: Sequence[Sentence], least: int) -> list[list[int]]:
    """Indices of the sentences of each language that has at least `least` of them, because a
    training text is in one language."""
    groups: dict[str | None, list[int]] = {}
    for number, sentence in enumerate(pool):
        groups.setdefault(sentence.language, []).append(number)
    return [group for group in groups.values() if len(group) >= least]


def half_query(sentence: str, rng: random.Random) -> str:
    """A random half of a sentence's words in their original order, without the final punctuation
    mark."""
    spans = word_spans(sentence) or list(words(sentence))
    chosen = sorted(rng.sample(range(len(spans)), (len(spans) + 1) // 2))
    query = ""
    for previous, number in zip([None, *chosen], chosen, strict=False):
        start, end = spans[number]
        gap = previous is not None and any(map(str.isspace, sentence[spans[previous][1] : start]))
        query += (" " if gap else "") + sentence[start:end]
    return query
