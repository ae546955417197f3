"""MultiClaim (Pikuliak et al. 2023): social media posts and the fact-checked claims they make.

`posts.csv` (post_id, instances, ocr, verdicts, text), `fact_checks.csv` (fact_check_id, claim,
instances, title) and `fact_check_post_mapping.csv` (fact_check_id, post_id). A text is a Python
tuple (original, English, [(language, share), ...]), and `ocr` is a list of such tuples. The query
is the post's text followed by the text of its pictures, joined by spaces as in the authors' code;
the document is the claim. `instances` of a post are (timestamp, platform) pairs; queries are split
by year and platform of the earliest one. Posts and claims are read in the original or in English;
each pair has the other version as well (`DataSet.version_of`).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from poslens.attribution.datasets.corpus import Document, documents_of
from poslens.attribution.datasets.formats import Format, named_files, register
from poslens.attribution.datasets.judged_pairs import Judged, RowsById
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.datasets.schema import (
    Column,
    Row,
    accepted,
    as_id,
    as_label,
    optional,
    required,
)
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.tables import csv_rows
from poslens.attribution.datasets.types import Judgment, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.text import clean
from poslens.attribution.types import TextPair

Version = Literal["original", "english"]

ENGLISH: Version = "english"
"""The variant with all texts in English; the data set's name ends in `-english`."""

FILES = POSTS, CLAIMS, MAPPING = "posts.csv", "fact_checks.csv", "fact_check_post_mapping.csv"

# A cell contains one post. A much longer one is not from this data set and would need much memory.
_MAX_CELL = 1_000_000


@dataclass(frozen=True, slots=True)
class _Text:
    """A text in the original and in English, and the original's language. For posts, `kind` states
    whether they have text, pictures or both, and `splits` their year and platform."""

    original: str
    english: str
    language: str | None
    kind: str | None = None
    splits: tuple[tuple[str, str], ...] = ()

    def of(self, version: Version) -> str:
        return self.english if version == "english" else self.original


def read(root: Path, name: str, title: str = "", variant: str = "") -> Judged:
    """Posts as queries with the claims that the mapping states; every fact-checked claim is a
    document, whether a post makes it or not.

    A pair's `language` is the claim's original language and its `query_language` the post's; both
    are `eng` in the English version. Its `domain` states whether the originals of post and claim
    have the same language, and its `query_type` whether the post is text, the text of pictures, or
    both. A collection has the languages of the originals even in the English version, because the
    paper's same-language bias and monolingual pools are defined by them.

    Raises:
        UserError: a file is missing.
    """
    version: Version = ENGLISH if variant == ENGLISH else "original"
    files = named_files(root, FILES)
    if len(files) < len(FILES):
        raise UserError(f"{root.name} is not MultiClaim: it needs {', '.join(FILES)}.")

    def document(row: Row) -> Document:
        claim = row[CLAIM]
        return Document(row[CLAIM_ID], claim.of(version), "", claim.language)

    def stream() -> Iterator[Document | Rejection]:
        rows = csv_rows(files[CLAIMS], (CLAIM_ID, CLAIM))
        return documents_of(files[CLAIMS], rows, document, set())

    others: dict[str, TextPair] = {}
    return Judged(
        name,
        title or f"{name} (MultiClaim, {version})",
        _judged(files, name, version, others),
        stream,
        [files[CLAIMS]],
        versions=others,
        version_name="Original" if version == ENGLISH else "English version",
    )


def _judged(
    files: Mapping[str, File], name: str, version: Version, others: dict[str, TextPair]
) -> Iterator[Judgment | Rejection]:
    """Every row of the mapping; the other version of each pair is added to `others`."""
    other: Version = "original" if version == "english" else "english"
    other_name = name.removesuffix(f"-{ENGLISH}") if version == ENGLISH else f"{name}-{ENGLISH}"

    def pair_of(pair_id: str, post: _Text, claim: _Text, dataset: str, which: Version) -> TextPair:
        return TextPair(
            pair_id,
            clean(post.of(which), "post"),
            clean(claim.of(which), "claim"),
            language="eng" if which == "english" else claim.language,
            domain=_domain(post.language, claim.language),
            dataset=dataset,
            query_type=post.kind,
            query_language="eng" if which == "english" else post.language or "",
        )

    rows = list(csv_rows(files[MAPPING], (CLAIM_ID, POST_ID)))
    posts = _texts("post", files[POSTS], POST_ID, rows, _post, (TEXT, PICTURES, INSTANCES))
    claims = _texts("claim", files[CLAIMS], CLAIM_ID, rows, lambda row: row[CLAIM], (CLAIM,))
    ids: set[str] = set()

    def judgment(row: Row) -> Judgment:
        post_id, claim_id = row[POST_ID], row[CLAIM_ID]
        post, claim = posts[post_id], claims[claim_id]
        pair_id = f"{post_id}/{claim_id}"
        if pair_id in ids:
            raise UserError(f"post {post_id} with claim {claim_id} occurs twice")
        pair = pair_of(pair_id, post, claim, name, version)
        ids.add(pair_id)
        # If a text is empty only in the other version, the pair has no other version.
        with suppress(UserError):
            others[pair_id] = pair_of(pair_id, post, claim, other_name, other)
        return Judgment(pair, post_id, claim_id, query_language=post.language, splits=post.splits)

    yield from accepted(files[MAPPING], rows, judgment)


def _domain(post: str | None, claim: str | None) -> str | None:
    if post is None or claim is None:
        return None
    return "one language" if post == claim else "two languages"


def _texts(
    what: str,
    file: File,
    key: Column[str],
    mapping: Sequence[Row],
    read: Callable[[Row], _Text],
    columns: Sequence[Column[Any]],
) -> RowsById[_Text]:
    """The texts of a file with the ids in the mapping's column `key`."""
    ids = set()
    for row in mapping:
        with suppress(UserError):
            ids.add(row[key])
    table: RowsById[_Text] = RowsById(what)
    table.add(file, csv_rows(file, (key, *columns)), key, read, ids)
    return table


def _post(row: Row) -> _Text:
    pictures, whole = row[PICTURES], row[TEXT]
    if pictures is not None and not isinstance(pictures, list):
        raise UserError("ocr is not a list of texts")
    parts = [_versions(part) for part in (whole, *(pictures or ())) if part]
    # A post has the language of its longest part, because shares of its parts do not add up.
    language = max(parts, key=lambda part: len(part.original)).language if parts else None
    kind = "text" if not pictures else "text and pictures" if whole else "pictures"
    original, english = (
        " ".join(text for part in parts if (text := part.of(version)).strip())
        for version in get_args(Version)
    )
    splits = row[INSTANCES]
    return _Text(original, english, language, kind if parts else None, splits or ())


def _claim(value: str, name: str) -> _Text:
    claim = _parsed(value, name)
    if not claim:
        raise UserError("it has no claim")
    return _versions(claim)


def _instances(value: str, name: str) -> tuple[tuple[str, str], ...]:
    """Year and platform of the earliest of a post's instances, each (timestamp, platform), without
    those that are missing."""
    instances = _parsed(value, name) or []
    if not isinstance(instances, list) or not all(
        isinstance(each, tuple)
        and len(each) == 2
        and isinstance(each[0], int | float | None)
        and isinstance(each[1], str | None)
        for each in instances
    ):
        raise UserError(f"{name} is not a list of (timestamp, platform)")
    dated = [(time, platform) for time, platform in instances if time is not None]
    time, platform = min(dated, default=(instances or [(None, None)])[0], key=lambda each: each[0])
    try:
        year = "" if time is None else str(datetime.fromtimestamp(time, UTC).year)
    except (ValueError, OverflowError, OSError) as error:
        raise UserError(f"{name} has the timestamp {time!r:.40}, which is not a date") from error
    labels = ("year", year), ("platform", as_label(platform, name) if platform else "")
    return tuple((by, value) for by, value in labels if value)


def _number(value: str, name: str) -> str:
    # pandas writes ids as 7.0 if their column has gaps.
    return as_id(value.strip().removesuffix(".0"), name)


def _parsed(cell: str, name: str) -> Any:
    """The Python literal in a cell, or None if it is empty. No code is run."""
    if not cell.strip():
        return None
    if len(cell) > _MAX_CELL:
        raise UserError(f"{name} has {len(cell):,} characters; the limit is {_MAX_CELL:,}")
    try:
        with warnings.catch_warnings():
            # Python warns about backslashes in texts that begin no escape sequence.
            warnings.simplefilter("ignore", SyntaxWarning)
            # Strings in the files contain line breaks, which Python accepts only as \\n.
            return ast.literal_eval(cell.replace("\r", "\\r").replace("\n", "\\n").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise UserError(f"{name} is not a Python tuple of texts") from error


def _versions(value: Any) -> _Text:
    if (
        not isinstance(value, tuple)
        or len(value) != 3
        or not all(isinstance(text, str) for text in value[:2])
        or not isinstance(value[2], list)
    ):
        raise UserError("a text is not (original, English, [(language, share), ...])")
    shares = [
        (share[1], share[0])
        for share in value[2]
        if isinstance(share, tuple)
        and len(share) == 2
        and isinstance(share[0], str)
        and isinstance(share[1], int | float)
    ]
    language = iso_639_3(as_label(max(shares)[1], "language")) if shares else None
    return _Text(value[0], value[1], language)


CLAIM_ID, POST_ID = required("fact_check_id", _number), required("post_id", _number)
CLAIM = required("claim", _claim)
INSTANCES = optional("instances", _instances)
TEXT, PICTURES = required("text", _parsed), required("ocr", _parsed)


register(
    Format(
        name="multiclaim",
        description="MultiClaim (posts.csv, fact_checks.csv, fact_check_post_mapping.csv)",
        order=20,
        fits=lambda path: path.is_dir() and len(named_files(path, FILES)) == len(FILES),
        read=read,
        has_variants=True,
        also=(ENGLISH,),
    )
)
