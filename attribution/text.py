"""Cleaning texts and splitting them into words and sentences by character offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import regex
from numpy.typing import NDArray
from sentencex import get_sentence_boundaries

from poslens.attribution.errors import UserError, printable
from poslens.attribution.types import EvidenceSpan, TokenizedText

MAX_CHARACTERS = 2_000_000
"""Maximum length of a text: 250 times the context limit of the longest model here."""

# No rule finds words in scripts written without spaces. There, a unit is one user-perceived
# character, over which every tokenizer's pieces can be summed.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_WORD = regex.compile(
    rf"(?:(?=[{_UNSPACED}])\X)|(?:(?![{_UNSPACED}])[\p{{L}}\p{{M}}\p{{N}}\u200c\u200d]"
    rf"(?:['’.,·\-](?=[\p{{L}}\p{{N}}]))?)+|[^\s]",
    regex.VERSION1,
)

_RUN = regex.compile(
    rf"(?=[{_UNSPACED}])\X[^\s\p{{L}}\p{{M}}\p{{N}}]*|(?:(?![{_UNSPACED}])\S)+", regex.VERSION1
)

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STARTS_UNSPACED = regex.compile(rf"[{_UNSPACED}]", regex.VERSION1)
_WIDE_MARKS = r"\u3001-\u303f\uff01-\uff65"
_NO_SPACE_BEFORE = regex.compile(rf"[{_UNSPACED}{_WIDE_MARKS}]", regex.VERSION1)
_NO_SPACE_AFTER = regex.compile(
    rf"[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}{_WIDE_MARKS}][\p{{Pe}}\p{{Pf}}\"']*$", regex.VERSION1
)

# Scripts for which no rule finds sentences: Thai and Lao do not mark them, and the segmenter does
# not know the marks of Khmer and Tibetan. A space ends a phrase as often as a sentence there.
_UNMARKED = ("Thai", "Lao", "Khmer", "Tibetan")
_SCRIPTS = {name: regex.compile(rf"\p{{{name}}}") for name in _UNMARKED}
_LETTER = regex.compile(r"\p{L}")

# ISO 639-3 codes, as in data sets, to the codes of sentencex, of languages with their own rules.
_SENTENCEX = dict(
    code.split(":")
    for code in (
        "eng:en pol:pl slk:sk spa:es cmn:zh zho:zh ara:ar tha:th deu:de fra:fr ita:it jpn:ja "
        "kor:ko por:pt rus:ru ces:cs hin:hi bul:bg cat:ca dan:da ell:el fin:fi hye:hy kaz:kk "
        "mal:ml nld:nl tam:ta ukr:uk"
    ).split()
)
_REVISED = frozenset("bul cat dan ell fin hin hye jpn kaz kor mal nld tam ukr".split())


def clean(text: str, what: str) -> str:
    """The text with U+FFFD in place of characters that are not text (lone surrogates, NUL).

    All other characters and therefore all offsets stay the same.

    Raises:
        UserError: the text has only white space or over 2,000,000 characters; `what` names it.
    """
    if not text.strip():
        raise UserError(f"The {what} is empty: it needs at least one word.")
    if len(text) > MAX_CHARACTERS:
        raise UserError(
            f"The {what} has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}: shorten it."
        )
    return printable(text)


def listed(words: Sequence[str], conjunction: str = "and") -> str:
    """Words as an enumeration: `a, b and c`."""
    return f" {conjunction} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def starts_unspaced(text: str) -> bool:
    """Whether the text begins with a character of a script without spaces between words."""
    return _STARTS_UNSPACED.match(text) is not None


def joined(parts: Sequence[str]) -> str:
    """Parts of a text, such as sentences, as one text: separated by spaces where there is no white
    space between them and the script uses spaces. Chinese and Japanese don't, not even before a
    quotation mark or a number."""
    text = ""
    for part in parts:
        spaced = not text or text[-1].isspace() or _NO_SPACE_BEFORE.match(part)
        text += part if spaced or _NO_SPACE_AFTER.search(text[-8:]) else f" {part}"
    return text


@lru_cache(maxsize=256)
def words(text: str) -> tuple[tuple[int, int], ...]:
    """Character spans [start, end) of the words, in order.

    A word is a run of letters, digits and marks, including apostrophes, hyphens and decimal points
    inside it. A punctuation mark is a word. In scripts without spaces (Chinese, Japanese, Thai,
    ...) each user-perceived character is one.
    """
    return tuple(match.span() for match in _WORD.finditer(text))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the words that are not punctuation marks, in order."""
    return [(a, b) for a, b in words(text) if any(map(str.isalnum, text[a:b]))]


def runs(text: str) -> list[tuple[int, int]]:
    """Character spans [start, end) between which a text can be cut: runs without white space and,
    in scripts without spaces, each character with the marks after it."""
    return [match.span() for match in _RUN.finditer(text)]


@lru_cache(maxsize=256)
def script_without_sentences(text: str) -> str:
    """Thai, Lao, Khmer or Tibetan if most letters are in that script, otherwise an empty string.
    PosLens cannot split such texts into sentences, so `sentences` returns paragraphs."""
    if text.isascii():
        return ""
    n = len(_LETTER.findall(text))
    return next((s for s in _UNMARKED if 2 * len(_SCRIPTS[s].findall(text)) > n), "")


OTHER_SCRIPT = "choose a document in another script"
"""What the reasons of failures due to a script contain, also those stored by earlier versions."""


def require_sentences(text: str) -> None:
    """Refuse texts that cannot be split into sentences.

    Raises:
        UserError: most of the text is in such a script.
    """
    if script := script_without_sentences(text):
        raise UserError(
            f"The document is in {script} script, which PosLens cannot split into sentences: "
            f"{OTHER_SCRIPT}."
        )


_BEFORE_PERIOD = regex.compile(r"[^\S\x00-\x7f](?=\s*\.)")
"""White space of several bytes, such as a no-break space. Between a capital letter and a period it
makes sentencex panic."""

_IN_SENTENCE = regex.compile(
    r"(?<=\p{Nd}[.．])(?=\p{Nd})"  # 3．5
    r"|(?<=[\p{Pe}\p{Pf}\"'])(?=\p{Hangul})"  # "..."라고
    r"|(?<=」)(?=と|って)"
)
"""Where sentencex ends a sentence too early: inside a decimal number, and between a quotation and
the particle that attaches it to its sentence in Korean and Japanese."""


def revision(language: str | None) -> str:
    """What keys of stored results add to the language of a text: it is not empty for languages
    whose texts were split into other sentences by earlier versions."""
    return "/2" if language in _REVISED else ""


@lru_cache(maxsize=256)
def sentences(text: str, language: str | None = None) -> tuple[tuple[int, int], ...]:
    """Character spans [start, end) of the sentences, without surrounding white space.

    The segmenter is sentencex. `language` is an ISO 639-3 code; English rules apply to languages
    without rules of their own. For scripts without sentence marks (`script_without_sentences`), the
    spans are paragraphs.
    """
    code = _SENTENCEX.get(language or "eng", "en")
    text = _BEFORE_PERIOD.sub(" ", text)
    spans: list[tuple[int, int]] = []
    cursor = 0
    for boundary in get_sentence_boundaries(code, text):
        # Offsets count bytes in some versions and characters in others; the texts are exact.
        piece = boundary["text"]
        stripped = piece.strip()
        if not stripped:
            continue
        start = text.find(stripped, cursor)
        if start < 0:
            raise ValueError("the sentence segmenter changed the text")
        cursor = start + len(stripped)
        if spans and spans[-1][1] == start and _IN_SENTENCE.match(text, start):
            start = spans.pop()[0]
        spans.append((start, cursor))
    return tuple(spans)


def unit_of(text: TokenizedText, spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Index [T] of the span (a word, say) that each token belongs to; -1 for special tokens, and
    for all tokens if there are no spans.

    A token belongs to the span in which it starts. If it starts between two spans (white space, or
    a token with a leading space), it belongs to the next one; after all spans, to the last one.
    """
    units = np.searchsorted([end for _, end in spans], text.starts, side="right")
    return np.where(text.content, np.minimum(units, len(spans) - 1), -1)


def inside(text: TokenizedText, span: EvidenceSpan) -> NDArray[np.bool_]:
    """Mask [T] of the tokens that share a character with the span, without special tokens."""
    return (text.starts < span.end) & (text.ends > span.start) & text.content


def overlapping(spans: Sequence[tuple[int, int]], span: EvidenceSpan) -> list[int]:
    """Indices of the spans that share a character with `span`, in order."""
    return [i for i, (start, end) in enumerate(spans) if start < span.end and end > span.start]


def with_typeset_numbers(text: str) -> str:
    """The text with minus signs instead of hyphens before numbers, and powers of ten instead of
    exponents: `4.5·10⁻⁸`."""
    changed: str = regex.sub(r"(?<![\w}-])-(?=\d)", "\u2212", text)
    changed = regex.sub(r"(?<![\w.-])(\d+(?:\.\d+)?)e([+-]\d+)(?!\w)", _with_power, changed)
    return changed


def _with_power(number: regex.Match[str]) -> str:
    return f"{number[1]}·10{str(int(number[2])).translate(_SUPERSCRIPTS)}"
