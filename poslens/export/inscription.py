"""Writes a picture's title and provenance into its file.

`entries` are dicts, one for each model or method in the picture (`Provenance.entry`).
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape as html_escape
from typing import Any

from poslens.figures.captions import caption_text
from poslens.figures.palettes import printable

Entries = Sequence[Mapping[str, Any]]
_INCH_M = 0.0254


def inscribed(
    image: bytes, fmt: str, title: str, entries: Entries, dpi: float | None = None
) -> bytes:
    """A png, svg or pdf file with title and provenance added; a png also with its resolution."""
    if fmt == "png":
        return _png(image, title, entries, dpi)
    return (_svg if fmt == "svg" else _pdf)(image, title, entries)


def _png(image: bytes, title: str, entries: Entries, dpi: float | None) -> bytes:
    """Insert chunks after the header, so that the picture need not be compressed again (PNG
    specification, 11.3.4.3 and 11.3.4.5)."""
    chunks = b""
    if dpi is not None:
        dots = round(dpi / _INCH_M)  # dots per meter
        chunks += _chunk(b"pHYs", struct.pack(">IIB", dots, dots, 1))
    texts = {
        "Title": printable(title),
        "Description": printable(caption_text(entries)),
        "provenance": json.dumps(entries),
    }
    for name, text in texts.items():
        # keyword; not compressed; no language, no translated keyword; text, which ends the chunk
        chunks += _chunk(b"iTXt", name.encode("latin-1") + b"\0\0\0\0\0" + text.encode())
    header = 8 + 25  # the signature and IHDR, which every PNG starts with
    return image[:header] + chunks + image[header:]


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def _svg(image: bytes, title: str, entries: Entries) -> bytes:
    inside = "".join(
        f"<{tag}>{html_escape(printable(text), quote=False)}</{tag.split()[0]}>"
        for tag, text in (
            ("title", title),
            ("desc", caption_text(entries)),
            ('metadata id="provenance"', json.dumps(entries)),
        )
    )
    root = re.match(rb"<svg\b[^>]*>", image)
    if root is None:
        raise RuntimeError("the browser's SVG does not begin with <svg>")
    return image[: root.end()] + inside.encode() + image[root.end() :]


def _pdf(image: bytes, title: str, entries: Entries) -> bytes:
    """An incremental update (ISO 32000-1, 7.5.6) that appends an information dictionary.

    Chromium writes a classic cross-reference table, which is what this one chains to.
    """
    trailer = re.search(
        rb"trailer\s*<<(?P<keys>.*?)>>\s*startxref\s*(?P<at>\d+)\s*%%EOF\s*$", image, re.DOTALL
    )
    keys = trailer["keys"] if trailer else b""
    size, root = re.search(rb"/Size\s+(\d+)", keys), re.search(rb"/Root\s+\d+\s+\d+\s+R", keys)
    if trailer is None or size is None or root is None:
        raise RuntimeError("the browser's PDF has no classic trailer to append to")

    def text(value: str) -> bytes:
        # Hexadecimal UTF-16 with a byte order mark: any script, nothing to escape.
        return b"<FEFF" + printable(value).encode("utf-16-be").hex().upper().encode() + b">"

    number = int(size[1])
    body = image if image.endswith(b"\n") else image + b"\n"
    entry = b"%d 0 obj\n<</Title %s\n/Subject %s\n/Keywords %s\n/Creator %s>>\nendobj\n" % (
        number,
        text(title),
        text(caption_text(entries)),
        text(json.dumps(entries)),
        text("PosLens"),
    )
    table = b"xref\n0 1\n%010d 65535 f \n%d 1\n%010d 00000 n \n" % (0, number, len(body))
    end = b"trailer\n<</Size %d /%s /Info %d 0 R /Prev %s>>\nstartxref\n%d\n%%%%EOF\n" % (
        number + 1,
        root[0][1:],
        number,
        trailer["at"],
        len(body) + len(entry),
    )
    return body + entry + table + end
