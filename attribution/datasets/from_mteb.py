"""Retrieval tasks of MTEB (Muennighoff et al. 2023; Enevoldsen et al. 2025), named `mteb:TASK`, or
`mteb:TASK/SUBSET` of a task in several languages.

The library fetches and reads them; what it gives is written once as a folder in the BEIR layout
below the data folder, and read from there: a folder for each subset, and of the splits that the
task evaluates `test`, else the first one. A document is its title, one space and its text, a query
its text and its instruction, as the library joins them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import sources
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.errors import UserError

PREFIX = "mteb:"


def fetch(name: str) -> Path:
    """The folder of a task, written if it is not there.

    Raises:
        UserError: no such task or subset, one that searches no texts, the library is missing, or it
            cannot fetch its files.
    """
    identity, _, subset = sources.checked_name(name, PREFIX, "TASK or mteb:TASK/SUBSET").partition(
        "/"
    )
    try:
        import mteb
        from mteb.abstasks import AbsTaskRetrieval
    except ImportError as error:
        raise sources.not_installed("mteb") from error
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
    place = sources.place_of(PREFIX, "/".join(filter(None, (identity, subset))), language)
    try:
        if not place.is_dir():
            task.load_data()
            task.convert_v1_dataset_format_to_v2(num_proc=None)
            sources.written(
                place, [_part(task, each, languages, len(chosen) > 1) for each in chosen]
            )
        return place
    except UserError:
        raise
    # What a broken connection or a damaged download raises is the library's own.
    except Exception as error:
        raise sources.unreachable(name, error) from error


def _languages(task: Any) -> Mapping[str, str | None]:
    """The subsets of a task with the language of each, where it has one."""
    given = task.metadata.eval_langs
    listed = given if isinstance(given, Mapping) else {"default": given}
    return {
        name: iso_639_3(codes[0]) if len(set(codes)) == 1 else None
        for name, codes in listed.items()
        if name in task.hf_subsets or not isinstance(given, Mapping)
    }


def _part(
    task: Any, subset: str, languages: Mapping[str, str | None], several: bool
) -> sources.LibraryCorpus:
    splits = task.dataset[subset]
    split = "test" if "test" in splits else next(iter(splits))
    held = splits[split]
    if "text" not in held["corpus"].column_names or "text" not in held["queries"].column_names:
        raise UserError(f"{task.metadata.name} of mteb has no texts: choose another task.")
    language = languages[subset]
    return sources.LibraryCorpus(
        lambda: _documents(held["corpus"]),
        lambda: _queries(held["queries"], task.metadata.name),
        lambda: (
            (query, document, score)
            for query, judged in held["relevant_docs"].items()
            for document, score in judged.items()
        ),
        split,
        (f"{subset}-{language}" if language else subset) if several else "",
    )


def _documents(rows: Any) -> Iterator[tuple[str, str]]:
    for row in rows:
        title, text = row.get("title") or "", row["text"] or ""
        yield row["id"], f"{title} {text}".strip()


def _queries(rows: Any, task: str) -> Iterator[tuple[str, str]]:
    for row in rows:
        text, instruction = row["text"], row.get("instruction")
        if not isinstance(text, str):
            raise UserError(
                f"The queries of {task} of mteb are conversations, not texts: choose another task."
            )
        yield row["id"], f"{text} {instruction}" if instruction else text


sources.register(sources.Source(PREFIX, fetch, sources.short_name(PREFIX)))
