"""Text as the product reads it: cleaned once, cut into words and sentences by character offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import regex
from numpy.typing import NDArray
from sentencex import get_sentence_boundaries

from poslens.attribution.errors import UserError
from poslens.attribution.types import EvidenceSpan, TokenizedText

MAX_CHARACTERS = 2_000_000
"""Longest text taken at all: 250 times what the longest model here reads."""

_NOT_TEXT = regex.compile(r"[\ud800-\udfff\x00]")

# Scripts written without spaces have no words that a rule could find; there a unit is one
# user-perceived character, which every tokenizer's pieces can be summed into.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_WORD = regex.compile(
    rf"(?:(?=[{_UNSPACED}])\X)|(?:(?![{_UNSPACED}])[\p{{L}}\p{{M}}\p{{N}}\u200c\u200d]"
    rf"(?:['’.,·\-](?=[\p{{L}}\p{{N}}]))?)+|[^\s]",
    regex.VERSION1,
)

_STARTS_UNSPACED = regex.compile(rf"[{_UNSPACED}]", regex.VERSION1)

# Scripts whose sentences no rule finds: Thai and Lao mark none, and the segmenter does not know the
# marks of Khmer and Tibetan. A space there ends a phrase as often as a sentence.
_UNMARKED = ("Thai", "Lao", "Khmer", "Tibetan")
_SCRIPTS = {name: regex.compile(rf"\p{{{name}}}") for name in _UNMARKED}
_LETTER = regex.compile(r"\p{L}")

# ISO 639-3, as data sets write it, to the codes that sentencex knows.
_SENTENCEX = {
    "eng": "en",
    "pol": "pl",
    "slk": "sk",
    "spa": "es",
    "cmn": "zh",
    "zho": "zh",
    "ara": "ar",
    "tha": "th",
    "deu": "de",
    "fra": "fr",
    "ita": "it",
    "jpn": "ja",
    "kor": "ko",
    "por": "pt",
    "rus": "ru",
    "ces": "cs",
    "hin": "hi",
}


@dataclass(frozen=True, slots=True)
class CleanText:
    """A text that every tokenizer and page element takes, and what was replaced for that."""

    text: str
    n_replaced: int


def clean(text: str, what: str) -> CleanText:
    """Replace what is not text (lone surrogates, NUL) by U+FFFD and count it.

    Nothing else changes, so that offsets stay those of the original.

    Raises:
        UserError: nothing but white space, or over 2,000,000 characters; `what` names the text.
    """
    if not text.strip():
        raise UserError(f"The {what} is empty: type or choose a text with at least one word.")
    if len(text) > MAX_CHARACTERS:
        raise UserError(
            f"The {what} has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}: "
            "take the part that matters."
        )
    if text.isascii() and "\0" not in text:  # most corpora, and many times faster to see
        return CleanText(text, 0)
    replaced, count = _NOT_TEXT.subn("\N{REPLACEMENT CHARACTER}", text)
    return CleanText(replaced, count)


def starts_unspaced(text: str) -> bool:
    """Whether the text begins with a character of a script that puts no spaces between words."""
    return _STARTS_UNSPACED.match(text) is not None


@lru_cache(maxsize=256)
def words(text: str) -> tuple[tuple[int, int], ...]:
    """Character spans [start, end) of the words, in order.

    A run of letters, digits and marks is a word, inner apostrophes, hyphens and decimal points
    included; a punctuation mark is one of its own. In scripts without spaces (Chinese, Japanese,
    Thai, ...) each user-perceived character stands alone.
    """
    return tuple(match.span() for match in _WORD.finditer(text))


@lru_cache(maxsize=256)
def script_without_sentences(text: str) -> str:
    """The script of a text whose sentences cannot be told, for which `sentences` gives whole
    paragraphs: Thai, Lao, Khmer or Tibetan where most of its letters are in it; else nothing."""
    if text.isascii():
        return ""
    n = len(_LETTER.findall(text))
    return next((s for s in _UNMARKED if 2 * len(_SCRIPTS[s].findall(text)) > n), "")


def require_sentences(text: str) -> None:
    """
    Raises:
        UserError: the text's sentences cannot be told apart.
    """
    if script := script_without_sentences(text):
        raise UserError(
            f"The document is in {script} script, in which sentences cannot be told apart here: "
            "choose a document in another script."
        )


@lru_cache(maxsize=256)
def sentences(text: str, language: str | None = None) -> tuple[tuple[int, int], ...]:
    """Character spans [start, end) of the sentences, without the white space around them.

    The segmenter is sentencex; `language` is an ISO 639-3 code, English rules where unknown. In
    scripts that mark no sentences (`script_without_sentences`) these are paragraphs.
    """
    code = _SENTENCEX.get(language or "eng", "en")
    spans: list[tuple[int, int]] = []
    cursor = 0
    for boundary in get_sentence_boundaries(code, text):
        # Its offsets count bytes in some versions and characters in others; its text is exact.
        piece = boundary["text"]
        stripped = piece.strip()
        if not stripped:
            continue
        start = text.find(stripped, cursor)
        if start < 0:
            raise ValueError("the sentence segmenter changed the text")
        cursor = start + len(stripped)
        spans.append((start, cursor))
    return tuple(spans)


def unit_of(text: TokenizedText, spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The number of the span (a word, say) that each token belongs to [T]; -1 for special tokens,
    and for all where there is no span.

    It is the span in which the token starts, or the next one where it starts between two (a
    leading space), or the last one behind all.
    """
    units = np.searchsorted([end for _, end in spans], text.starts, side="right")
    return np.where(text.content, np.minimum(units, len(spans) - 1), -1)


def inside(text: TokenizedText, span: EvidenceSpan) -> NDArray[np.bool_]:
    """Mask [T] of the tokens that share a character with the span; no special tokens."""
    return (text.starts < span.end) & (text.ends > span.start) & text.content
