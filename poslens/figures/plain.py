"""Escapes text from users, addresses, files and models for Streamlit's Markdown.

Streamlit renders messages, captions, labels, tooltips and metric values as Markdown. All text from
outside must pass through `plain`: otherwise a link or image in it could make the reader's browser
send requests to other sites.
"""

from __future__ import annotations

import re

# Text that Streamlit replaces even if it is escaped: icon names; arrows, dashes and comparison
# signs between spaces; addresses, which become links.
_REDRAWN = re.compile(
    r":(?=material/|streamlit:)"
    r"|(?<!\S)(?:<(?=->(?!\S))|[-<>~](?=[-=>](?!\S)))"
    r"|https?(?=://)|www(?=\.)|@(?=[-\w]+\.[-.\w]*[^\W\d_])",
    re.IGNORECASE,
)
_CODE = re.compile(r"`([-\w ./'=\[\]]+)`")
_MARKS = frozenset(r"\`*_{}[]()#+-.!|<>$~:&=^@")


def parted(text: str) -> str:
    """`text` with a word joiner inside everything that Streamlit replaces even if escaped."""
    return _REDRAWN.sub("\\g<0>\u2060", text)


def plain(text: object) -> str:
    """`text` for Streamlit's Markdown, on one line, with no part of it interpreted as markup."""
    return _escaped(_one_line(text))


def with_code(text: object) -> str:
    """As `plain`, but a command between backticks is code, in which Markdown interprets
    nothing."""
    outside_and_inside = _CODE.split(_one_line(text))
    return "".join(
        f"`{part}`" if number % 2 else _escaped(part)
        for number, part in enumerate(outside_and_inside)
    )


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in _MARKS else c for c in parted(text))
