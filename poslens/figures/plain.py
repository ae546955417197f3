"""Text of users, addresses, files and models, made fit for Streamlit's Markdown.

Streamlit renders messages, captions, labels, tooltips and figures of metrics as Markdown. Whatever
the program did not write itself goes through `plain` on its way there: a link or an image of
somebody else's would make the reader's browser fetch from outside.
"""

from __future__ import annotations

import re

# What is redrawn after escapes were resolved, so that no escape keeps it from happening: icons by
# name; arrows, dashes and comparisons that stand between spaces; addresses, which become links.
_REDRAWN = re.compile(
    r":(?=material/|streamlit:)"
    r"|(?<!\S)(?:<(?=->(?!\S))|[-<>~](?=[-=>](?!\S)))"
    r"|https?(?=://)|www(?=\.)|@(?=[-\w]+\.[-.\w]*[^\W\d_])",
    re.IGNORECASE,
)
_MARKS = frozenset(r"\`*_{}[]()#+-.!|<>$~:&=^@")


def parted(text: str) -> str:
    """`text` with a word joiner inside whatever Streamlit redraws however it is escaped."""
    return _REDRAWN.sub("\\g<0>\u2060", text)


def plain(text: object) -> str:
    """`text` for Streamlit's Markdown, on one line, with nothing in it read as markup."""
    one_line = parted(" ".join(str(text).split()))
    return "".join(f"\\{c}" if c in _MARKS else c for c in one_line)
