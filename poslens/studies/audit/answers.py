"""What `audit` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Documents, High, Low, Model

Chunks = Annotated[str, "How documents stand in the index."]
Sentences = Annotated[int, "Sentences that were searched for."]
Dark = Annotated[float | None, "Share of sentences that do not find their document, 0 to 1."]
DarkShuffled = Annotated[float | None, "The same where each document's sentences are shuffled."]
Number = Annotated[int, "Number of the text, from 1."]

AuditRow = TypedDict(
    "AuditRow",
    {
        "model": Model,
        "chunks": Chunks,
        "documents": Documents,
        "left out": Annotated[int, "Documents that could not be searched for."],
        "cut": Annotated[int | None, "Documents that are not read to the end; null if unknown."],
        "sentences": Sentences,
        "searched for": Annotated[str, "sentence or question."],
        "top": Annotated[int, "A sentence is dark when its document is not among so many."],
        "dark": Dark,
        "dark low": Low,
        "dark high": High,
        "dark, shuffled": DarkShuffled,
        "dark, shuffled low": Low,
        "dark, shuffled high": High,
        "last third less first": Annotated[
            float | None, "Share in the documents' last third less that in the first, -1 to 1."
        ],
        "last third less first low": Low,
        "last third less first high": High,
        "last third less first, shuffled": Annotated[
            float | None, "The same where each document's sentences are shuffled."
        ],
        "last third less first, shuffled low": Low,
        "last third less first, shuffled high": High,
        "dark though read": Annotated[
            float | None, "Share among the sentences that the model reads whole, 0 to 1."
        ],
        "dark though read low": Low,
        "dark though read high": High,
        "dark, not read whole": Annotated[
            float | None, "Share among those that it does not; null where it reads all."
        ],
        "dark, not read whole low": Low,
        "dark, not read whole high": High,
        "won back": Annotated[
            float | None, "Share in the first index of the model less this one's; null of it."
        ],
        "won back low": Low,
        "won back high": High,
    },
)
"""An index: a model and how documents stand in it."""

AuditPositionRow = TypedDict(
    "AuditPositionRow",
    {
        "model": Model,
        "chunks": Chunks,
        "order": Annotated[str, "own, or shuffled: the order of the documents' sentences."],
        "from %": Annotated[float, "Where the place begins, in percent of the document."],
        "to %": Annotated[float, "Where it ends, in percent of the document."],
        "sentences": Sentences,
        "dark": Annotated[float | None, "Share of dark sentences there; null of no sentence."],
        "dark low": Low,
        "dark high": High,
    },
)
"""A place in the documents of an index."""

AuditGroupRow = TypedDict(
    "AuditGroupRow",
    {
        "model": Model,
        "chunks": Chunks,
        "by": Annotated[str, "language or length."],
        "group": Annotated[str, "The language, or the length in words."],
        "documents": Documents,
        "sentences": Sentences,
        "dark": Dark,
        "dark low": Low,
        "dark high": High,
        "dark, shuffled": DarkShuffled,
        "dark, shuffled low": Low,
        "dark, shuffled high": High,
    },
)
"""The documents of one language or length."""

AuditDocumentRow = TypedDict(
    "AuditDocumentRow",
    {
        "model": Model,
        "chunks": Chunks,
        "document": Annotated[str, "Id of the document."],
        "language": Annotated[str, "Its language; empty if unknown."],
        "words": Annotated[int, "Its words."],
        "dark sentences": Annotated[int, "Its sentences that do not find it."],
        "sentences": Annotated[int, "Its sentences that were searched for."],
    },
)
"""A document with dark sentences."""

TruncationRow = TypedDict(
    "TruncationRow",
    {
        "model": Model,
        "text": Number,
        "documents joined": Annotated[int, "Documents that the text was joined of."],
        "tokens": Annotated[int, "Tokens of the text."],
        "last token from": Annotated[int, "First token of the last word that counts, from 1."],
        "last token to": Annotated[int, "Last token of that word, from 1."],
        "claimed": Annotated[int, "Tokens that the model says it reads."],
        "read to the end": Annotated[bool, "Whether the text was read to its end."],
        "as claimed": Annotated[bool, "Whether as much is read as the model says."],
    },
)
"""A text on which it was tried where a model stops reading."""
