"""A map from characters to texts, as a normalizer that a `tokenizer.json` can contain.

The only table that the tokenizers library can save is SentencePiece's: a double-array trie over
UTF-8 bytes (the layout of Darts-clone) whose leaves point into NUL-terminated texts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tokenizers import Regex, normalizers

SEPARATOR = "\x01"
"""Keeps characters apart while they are mapped; the map has to delete it."""

# Before a grapheme extender of less than four bytes, or the second half of a line break; not at the
# start, where tokenizers' Replace cannot insert.
_JOINS = r"(?!\A)(?=[\p{M}\n\x{200c}\x{200d}\x{e33}\x{eb3}\x{ff9e}\x{ff9f}])"

_BLOCK = 256
_NEAR = 4 * _BLOCK
_LEAF = 1 << 31


def character_normalizer(table: Mapping[str, str]) -> normalizers.Normalizer:
    """Replaces each character of a text with its text in `table`, regardless of other characters.

    tokenizers looks up a whole grapheme of up to five bytes by the first character in it that the
    table has, and drops the rest: a Hebrew presentation form would lose its vowel. So a separator
    goes before each character that joins the one before it, and is deleted afterwards.

    Args:
        table: one character each, and the text that replaces it; the separator has an empty one.
    """
    deleted = sorted(character for character, text in table.items() if not text)
    class_of_deleted = "".join(f"\\x{{{ord(character):x}}}" for character in deleted)
    replaced = {character: text for character, text in table.items() if text}
    return normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[{class_of_deleted}]"), ""),
            normalizers.Replace(Regex(_JOINS), SEPARATOR),
            normalizers.Precompiled(precompiled(replaced)),
            normalizers.Replace(SEPARATOR, ""),
        ]
    )


def precompiled(table: Mapping[str, str]) -> bytes:
    """SentencePiece's `precompiled_charsmap`: bytes of the trie as u32, the trie, the texts."""
    texts, values = bytearray(), {}
    for character, text in sorted(table.items()):
        values[character.encode()] = len(texts)
        texts += text.encode() + b"\0"
    units = _double_array(values)
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + bytes(texts)


def _double_array(values: Mapping[bytes, int]) -> list[int]:
    """Units of a double-array trie over keys without zero bytes.

    A unit holds the byte that leads to it (bits 0 to 7), whether a key ends there (bit 8) and, from
    bit 10, its own index XOR the base of its children; the child of byte b is at base XOR b, and
    the value of a key at its base.
    """
    units = [0] * _BLOCK
    taken, bases, first_free = {0}, {0}, 1

    def place(labels: Sequence[int]) -> int:
        """An unused base at which the places for the children of these bytes are free."""
        nonlocal first_free
        while first_free in taken:
            first_free += 1
        at = max(first_free, len(units) - _NEAR)  # earlier free places rarely fit
        while True:
            base = at ^ labels[0]
            if base not in bases and not any(base ^ label in taken for label in labels):
                break
            at += 1
        bases.add(base)
        taken.update(base ^ label for label in labels)
        # Readers look up the child of any byte, so there must be whole blocks.
        while base >= len(units):
            units.extend([0] * _BLOCK)
        return base

    waiting = [(0, sorted(values))]  # each node's index, and the keys below it
    depth_of = {0: 0}
    while waiting:
        index, keys = waiting.pop()
        depth = depth_of.pop(index)
        below: dict[int, list[bytes]] = {}
        for key in keys:
            below.setdefault(key[depth] if len(key) > depth else 0, []).append(key)
        base = place(list(below))
        units[index] |= (index ^ base) << 10
        for label, its_keys in below.items():
            if label == 0:
                units[index] |= 1 << 8
                units[base] = values[its_keys[0]] | _LEAF
                continue
            units[base ^ label] = label
            depth_of[base ^ label] = depth + 1
            waiting.append((base ^ label, its_keys))
    return units
