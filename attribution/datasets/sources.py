"""Data sets fetched by name: `hf:organisation/name` of the Hugging Face hub, `ir_datasets:ID`
(MacAvaney et al. 2021, arXiv 2103.02280), and `mteb:TASK`, or `mteb:TASK/SUBSET` of a task in
several languages (Muennighoff et al. 2023; Enevoldsen et al. 2025). They are named when the program
is started.

The hub's files are read as they are. A library's data set is written once as a folder in the BEIR
layout below the data folder, and read from there. The texts of ir_datasets are the library's
default text of each document and query. An MTEB task has a folder for each subset, with the split
`test` if the task has one, else the first split. Its documents are title, one space and text, and
its queries are text, one space and instruction, as the library joins them.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import beir
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.errors import UserError, printable
from poslens.attribution.retrievers.specs import data_folder

# Tables and lines of text, packed or not; no code, no archives and no pickles are fetched.
_FILES = [f"*.{ending}{gz}" for ending in ("parquet", "jsonl", "csv", "tsv") for gz in ("", ".gz")]
_SPLITS = ("test", "dev", "train")


def prefix_of(name: str) -> str:
    """The prefix that states the source of a data set; empty for a path."""
    return next((prefix for prefix in _FETCH if name.startswith(prefix)), "")


def short_name(name: str) -> str:
    """The name under which a data set with such a prefix is registered by default."""
    rest = name.removeprefix(prefix_of(name))
    return rest.rpartition("/")[2] or name if name.startswith(_HUB) else rest.replace("/", "-")


def folder_of(name: str) -> Path:
    """The folder or file of a data set, fetched if its name has the prefix of a source.

    Raises:
        UserError: there is no such data set, it has no texts, documents or judgments, its library
            is missing, or it cannot be fetched.
    """
    prefix = prefix_of(name)
    return _FETCH[prefix](name) if prefix else Path(name)


def fetch_from_hub(source: str) -> Path:
    """The folder of a data set's files, fetched if they are not in the hub's own cache.

    Raises:
        UserError: not an id, no such data set, or the hub cannot be reached.
    """
    name = source.removeprefix(_HUB)
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", name, re.ASCII):
        raise UserError(f"{source[:80]!r} is not hf:ORGANIZATION/NAME: use the id of a data set.")
    # Imported late: it takes a second that no other format needs.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        folder = snapshot_download(name, repo_type="dataset", allow_patterns=_FILES, etag_timeout=5)
    except RepositoryNotFoundError as error:
        raise UserError(
            f"The hub has no data set {name}, or it is not public: check its id."
        ) from error
    except HFValidationError as error:
        raise UserError(f"{name} is not a valid hub id: check it.") from error
    # What a broken connection raises depends on the hub library's own HTTP client.
    except Exception as error:
        raise UserError(
            f"The hub can't be reached to download {name}: download it on a machine with network "
            "access and use its folder instead."
        ) from error
    return Path(folder)


# -- ir_datasets -----------------------------------------------------------------------------------


def _fetch_from_ir_datasets(name: str) -> Path:
    identity = _checked(name, _IR_DATASETS, "ID")
    try:
        import ir_datasets
    except ImportError as error:
        raise _not_installed("ir_datasets") from error
    try:
        library_set = ir_datasets.load(identity)
    except KeyError as error:
        raise UserError(
            f"ir_datasets has no data set {identity}: its ids are listed at https://ir-datasets.com."
        ) from error
    if not library_set.has_docs():
        raise UserError(f"{identity} of ir_datasets has no documents: choose another.")
    judged = library_set.has_queries()
    if judged and not library_set.has_qrels():
        parts = sorted(part for part in ir_datasets.registry if part.startswith(f"{identity}/"))
        others = [part for part in parts if ir_datasets.load(part).has_qrels()][:5]
        hint = f"use a part of it, such as {', '.join(others)}" if others else "choose another"
        raise UserError(f"{identity} of ir_datasets has queries but no judgments: {hint}.")
    split = identity.rpartition("/")[2]
    with _reached(name):
        place = _place_of(_IR_DATASETS, identity, iso_639_3(library_set.docs_lang()))
        if not place.is_dir():
            part = _LibraryCorpus(
                ((row.doc_id, _default_text(row)) for row in library_set.docs_iter()),
                split if split in _SPLITS else "test",
            )
            if judged:
                part.queries = (
                    (row.query_id, _default_text(row)) for row in library_set.queries_iter()
                )
                part.judgments = (
                    (row.query_id, row.doc_id, row.relevance) for row in library_set.qrels_iter()
                )
            _write(place, [part])
    return place


def _default_text(row: Any) -> str:
    """The default text of a document or a query, or else its text fields, joined in order."""
    default = getattr(row, "default_text", None)
    if default is not None:
        return str(default())
    return " ".join(field for field in row[1:] if isinstance(field, str))


# -- MTEB ------------------------------------------------------------------------------------------


def _fetch_from_mteb(name: str) -> Path:
    identity, _, subset = _checked(name, _MTEB, "TASK or mteb:TASK/SUBSET").partition("/")
    try:
        import mteb
        from mteb.abstasks import AbsTaskRetrieval
    except ImportError as error:
        raise _not_installed("mteb") from error
    try:
        task = mteb.get_task(identity)
    except KeyError as error:
        raise UserError(
            f"mteb has no task {identity}: `mteb available-tasks` lists its tasks."
        ) from error
    if not isinstance(task, AbsTaskRetrieval) or "text" not in task.metadata.modalities:
        raise UserError(f"{identity} of mteb is not a text retrieval task: choose another.")
    languages = _languages(task)
    if subset and subset not in languages:
        raise UserError(
            f"{identity} of mteb has no subset {subset}: choose from {', '.join(languages)}."
        )
    chosen = [subset] if subset else list(languages)
    language = languages[chosen[0]] if len(chosen) == 1 else None
    place = _place_of(_MTEB, "/".join(filter(None, (identity, subset))), language)
    with _reached(name):
        if not place.is_dir():
            task.load_data()
            task.convert_v1_dataset_format_to_v2(num_proc=None)
            _write(place, [_subset(task, each, languages, len(chosen) > 1) for each in chosen])
    return place


def _languages(task: Any) -> Mapping[str, str | None]:
    """The subsets of a task, with the language of each; None if it has several."""
    given = task.metadata.eval_langs
    listed = given if isinstance(given, Mapping) else {"default": given}
    return {
        name: iso_639_3(codes[0]) if len(set(codes)) == 1 else None
        for name, codes in listed.items()
        if name in task.hf_subsets or not isinstance(given, Mapping)
    }


def _subset(
    task: Any, subset: str, languages: Mapping[str, str | None], several: bool
) -> _LibraryCorpus:
    splits = task.dataset[subset]
    split = "test" if "test" in splits else next(iter(splits))
    tables = splits[split]
    if "text" not in tables["corpus"].column_names or "text" not in tables["queries"].column_names:
        raise UserError(f"{task.metadata.name} of mteb has no texts: choose another task.")
    language = languages[subset]
    return _LibraryCorpus(
        (
            (row["id"], f"{row.get('title') or ''} {row['text'] or ''}".strip())
            for row in tables["corpus"]
        ),
        split,
        (f"{subset}-{language}" if language else subset) if several else "",
        _mteb_queries(tables["queries"], task.metadata.name),
        (
            (query, document, score)
            for query, judged in tables["relevant_docs"].items()
            for document, score in judged.items()
        ),
    )


def _mteb_queries(rows: Any, task: str) -> Iterator[tuple[str, str]]:
    for row in rows:
        text, instruction = row["text"], row.get("instruction")
        if not isinstance(text, str):
            raise UserError(
                f"The queries of {task} of mteb are conversations, not texts: choose another task."
            )
        yield row["id"], f"{text} {instruction}" if instruction else text


# -- data sets of libraries, as folders in the BEIR layout -----------------------------------------


@dataclass(slots=True)
class _LibraryCorpus:
    """A corpus from a library: ids and texts of documents and of queries, and judgments as query,
    document and grade; without judgments there are no queries. `split` is the split of the
    judgments, and `folder` the corpus's path below the data set's folder, empty for a single
    corpus."""

    documents: Iterable[tuple[str, str]]
    split: str
    folder: str = ""
    queries: Iterable[tuple[str, str]] | None = None
    judgments: Iterable[tuple[str, str, float]] = ()


def _checked(name: str, prefix: str, what: str) -> str:
    """The part of the name after the prefix.

    Raises:
        UserError: the name does not have the form `what`.
    """
    rest = name.removeprefix(prefix)
    if len(rest) > 200 or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", rest, re.ASCII):
        raise UserError(f"{name[:80]!r} is not of the form {prefix}{what}.")
    return rest


def _not_installed(library: str) -> UserError:
    return UserError(
        f"{library} is not installed: run `pip install {library}`, or `pip install '.[data]'` in a "
        "checkout of PosLens."
    )


@contextmanager
def _reached(name: str) -> Iterator[None]:
    """Turn any exception into a `UserError`: libraries raise their own kinds for a broken
    connection or a damaged download."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = printable(" ".join(str(error).split()))[:200] or type(error).__name__
        raise UserError(
            f"{name} can't be downloaded ({text}): download it on a machine with network access "
            "and use its folder instead."
        ) from error


def _place_of(prefix: str, name: str, language: str | None) -> Path:
    """Where a library's data set is stored as files; the folder's name states a language."""
    plain = name.replace("/", "--") + (f"-{language}" if language else "")
    return data_folder() / "collections" / prefix.rstrip(":") / plain


def _write(place: Path, parts: Iterable[_LibraryCorpus]) -> None:
    """Fill the folder `place` with parts in the BEIR layout; an interruption leaves no files."""
    place.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{place.name[:60]}-", dir=place.parent))
    try:
        for part in parts:
            folder = new / part.folder
            folder.mkdir(exist_ok=True)
            _write_rows(folder / "corpus.jsonl", ("_id", "text"), part.documents)
            if part.queries is None:
                continue
            _write_rows(folder / "queries.jsonl", ("_id", "text"), part.queries)
            (folder / "qrels").mkdir()
            columns = ("query-id", "corpus-id", "score")
            _write_rows(folder / "qrels" / f"{part.split}.jsonl", columns, part.judgments)
            (folder / beir.KEEPS_OWN_IDS).touch()
        try:
            new.replace(place)
        except OSError:
            if not place.is_dir():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write_rows(file: Path, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
    with file.open("w", encoding="utf-8") as out:
        for row in rows:
            # Escaped, so that any text that a library returns can be written.
            out.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")


_HUB, _IR_DATASETS, _MTEB = "hf:", "ir_datasets:", "mteb:"
_FETCH: Mapping[str, Callable[[str], Path]] = {
    _HUB: fetch_from_hub,
    _IR_DATASETS: _fetch_from_ir_datasets,
    _MTEB: _fetch_from_mteb,
}
"""How a data set is fetched, by the prefix of its name."""
