"""Widgets for data set, pair, models and method, which return typed values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.compute.compute import service
from poslens.compute.selection import ANY, ANYWHERE, Filters, Selection, facets
from poslens.dashboard.server import opening, own_texts
from poslens.dashboard.widgets import say, url_state
from poslens.dashboard.widgets.method_choice import method as method
from poslens.dashboard.widgets.method_choice import methods as methods
from poslens.dashboard.widgets.model_notes import model_notes
from poslens.dashboard.widgets.tables import rejected_rows
from poslens.figures.plain import plain
from poslens.heatmap.data import MAX_COLUMNS
from poslens.names import posir_ranking_spec, posir_spec

Option = TypeVar("Option", bound=str)

_UPLOADED, _UPLOAD_ERROR, _REMOVED = "just uploaded", "upload error", "removed upload"
_MAX_UPLOADS = 3
STATISTICS = "statistics"
"""The name of the data set of BM25's statistics in the address."""


def data_set(default: str = datasets.SAMPLE, *, with_uploader: bool = True) -> DataSet:
    """Choose a data set or upload one. Pages that place the uploader elsewhere turn off
    `with_uploader`."""
    uploads = own_texts.uploads()
    default = opening.current.dataset or default
    names = [*datasets.names(), *uploads]
    if just_uploaded := st.session_state.pop(_UPLOADED, None):
        # Set here and not in the uploader: a page that watches a run reruns its fragments every
        # second, and a rerun requested before the new choice arrived would restore the old one.
        st.session_state["dataset"] = just_uploaded
    url_state.follow_default("dataset", default)
    name = url_state.option(
        "Data set",
        "dataset",
        names,
        lambda name: uploads[name].title if name in uploads else name,
        default=default,
    )
    if with_uploader:
        with st.expander("Your own file", expanded=_UPLOAD_ERROR in st.session_state):
            uploader()
    data_set = uploads[name] if name in uploads else datasets.read(name)
    if name in uploads:
        st.caption(
            f"{plain(data_set.title)}: {counted(len(data_set.pairs), 'row')} accepted, "
            f"{len(data_set.rejected):,} rejected"
        )
        rejected_rows(data_set.rejected, "Rejected rows")
    return data_set


def data_of(pair: TextPair) -> DataSet | None:
    """The data set that a pair was selected from; None for typed texts."""
    uploads = own_texts.uploads()
    if pair.dataset in uploads:
        return uploads[pair.dataset]
    return datasets.read(pair.dataset) if pair.dataset in datasets.names() else None


def uploader() -> None:
    """Upload a data set that only this user can access."""

    def take() -> None:
        st.session_state.pop(_UPLOAD_ERROR, None)
        st.session_state.pop(_REMOVED, None)
        # A browser may name a file that no longer exists, or one from a page that no longer has an
        # uploader.
        given = st.session_state.get("upload")
        if not isinstance(given, UploadedFile):
            return
        uploads = own_texts.session().uploads
        try:
            data_set = datasets.read_upload(given.name, given.getvalue(), uploads.values())
        except UserError as error:
            st.session_state[_UPLOAD_ERROR] = str(error)
            return
        uploads.pop(data_set.name, None)
        uploads[data_set.name] = data_set
        while len(uploads) > _MAX_UPLOADS:
            st.session_state[_REMOVED] = uploads.pop(next(iter(uploads))).title
        st.session_state[_UPLOADED] = data_set.name

    st.file_uploader(
        "CSV, TSV, JSONL or Parquet, optionally compressed with gzip (.gz)",
        key="upload",
        on_change=take,
        type=["csv", "tsv", "jsonl", "parquet", "gz"],
        max_upload_size=20,
        help=(
            "Required columns: query and document. Optional: evidence (a passage of the "
            "document) or evidence_start and evidence_end (character offsets from 0, end "
            "exclusive), language, query_language, domain, query_type, pair_id, query_id, "
            "document_id. The file is kept only for this browser session."
        ),
    )
    if _UPLOADED in st.session_state:
        # The list of data sets is outside this fragment.
        st.rerun(scope="app")
    if message := st.session_state.get(_UPLOAD_ERROR):
        say.error(message, icon=":material/error:")
    if removed := st.session_state.get(_REMOVED):
        say.caption(f"At most {_MAX_UPLOADS} uploads are available, so {removed} was removed.")


_LENGTHS = (
    "PosIR's classes of document length, not quartiles: Q1 up to 512 tokens, Q2 up to 1,024, Q3 up "
    "to 1,536, Q4 above. The token counts are those given in the data set, not those of the "
    "selected models' tokenizers."
)


def filters(data: DataSet) -> Selection:
    """Filter the data set by domain, language, query type, length, evidence position and words."""
    counted = facets(data)

    def pick(label: str, name: str, about: str | None = None) -> tuple[str, str]:
        counts = counted.counts[name]
        return name, url_state.option(
            label,
            name,
            [ANY, *sorted(counts)],
            lambda value: f"{value} ({counts[value]:,})" if value in counts else value,
            key=f"filter.{data.name}.{name}",
            help=about and plain(about),
        )

    search = st.text_input(
        "Search",
        key="search",
        bind="query-params",
        placeholder="words in the query or document",
        live=True,
    )
    columns = st.columns(2)
    with columns[0]:
        domain, bucket = pick("Domain", "domain"), pick("Length", "bucket", _LENGTHS)
    with columns[1]:
        wanted = [domain, pick("Language", "language"), bucket]
        # Few data sets have query types; without any, the list is omitted.
        if counted.counts["query_type"]:
            wanted.append(pick("Query type", "query_type"))
        evidence = st.slider(
            "Evidence position (%)",
            *ANYWHERE,
            ANYWHERE,
            step=5,
            key="evidence",
            bind="query-params",
            help="Midpoint of the evidence, as a percentage of the document's characters.",
        )
    return counted.select(Filters(tuple(wanted), evidence, search or ""))


def one_of(
    label: str,
    options: Sequence[Option],
    key: str,
    default: Option | None = None,
    *,
    bind: Literal["query-params"] | None = "query-params",
    **details: Any,
) -> Option:
    """One of `options` from a row of buttons: at first `default`, or else the first. The selection
    is in the address unless `bind` is None. `details` are those of `st.segmented_control`."""
    default = default or options[0]
    chosen = st.segmented_control(
        plain(label),
        options,
        default=default,
        key=key,
        bind=bind,
        required=True,
        format_func=plain,
        wrap=True,
        **details,
    )
    return chosen or default


def model_names() -> list[str]:
    """The models that lists offer: presets, registered folders, calibrated variants of shipped
    models, models with stored results whose weights are not on this machine, and last, presets to
    download. Without other labels than their names, because the address contains the labels."""
    specs = resolve.known()
    here = [name for name, spec in specs.items() if resolve.installed(spec)]
    given = opening.current.models
    offered = (*here, *given, *resolve.shipped_calibrated(), *service().stored_only(), *specs)
    return list(dict.fromkeys(offered))


def models(default: Sequence[str]) -> list[str]:
    """Choose one to `MAX_COLUMNS` models: presets, registered folders, or a Hugging Face hub id
    typed in."""
    default = list(opening.current.models[:MAX_COLUMNS] or default)
    url_state.follow_default("models", default)
    names = st.multiselect(
        "Models",
        model_names(),
        default=default,
        max_selections=MAX_COLUMNS,
        accept_new_options=True,
        key="models",
        bind="query-params",
        help="Presets, folders configured at startup, or any Hugging Face id (organization/model) "
        "if the hub is reachable. Models to download are last in the list. A suffix changes a "
        "model, as in MiniLM@last. @cls, @mean, @weightedmean, @last and @max set the pooling. "
        "@64d truncates vectors to 64 dimensions. @configured truncates texts at the length in "
        "the model's own configuration. @calibrated spreads "
        "a dense model's attention evenly over blocks of tokens (attention calibration); "
        "@calibrated(strength=0.5, block=128, layers=3) also sets its strength, the number of "
        "tokens per block, and how many of the last layers it changes.",
    )
    model_notes(names, lambda chosen: st.session_state.update(models=chosen), "models")
    models = distinct(names)
    if again := [name for name in names if name not in models]:
        say.caption(f"Selected under two names, shown once: {', '.join(again)}.")
    return models


def distinct(names: Sequence[str]) -> list[str]:
    """The names without duplicates of the same model; invalid names are kept."""
    chosen: dict[str, str] = {}
    for name in names:
        resolved = name
        with suppress(UserError):
            resolved = resolve.resolve(name).name
        chosen.setdefault(resolved, name)
    return list(chosen.values())


def model(label: str, key: str, default: str, at: int | None = 0) -> str:
    """Choose one model; the default is model number `at` of those given to `run`, if there is one,
    else `default`."""
    names = model_names()
    given = opening.current.models
    default = given[at] if at is not None and at < len(given) else default
    name = st.selectbox(
        plain(label),
        names,
        index=names.index(default),
        key=key,
        bind="query-params",
        accept_new_options=True,
    )
    name = name or default
    model_notes([name], lambda chosen: st.session_state.update({key: chosen[0]}), key)
    return name


def posir_protocol() -> bool:
    """Whether to follow the PosIR paper's protocol exactly."""
    return st.toggle(
        "PosIR protocol",
        key="posir",
        bind="query-params",
        help=(
            "The setup of PosIR's published curves: English documents of 1,024 tokens or more with "
            "the evidence in the middle fifth, the paper's query prompt, queries truncated at 512 "
            "and documents at 2,048 tokens, normalization to the 99th percentile, and point "
            "resampling."
        ),
    )


def statistics(models: Sequence[str], dataset: str) -> None:
    """Choose the data set whose word statistics BM25 uses for texts outside the registered data
    sets. Draws nothing if BM25 is not among `models`."""
    if dataset in datasets.names():
        return
    if not _need_statistics(models):
        return
    offered = datasets.names()
    chosen = st.selectbox(
        "BM25 statistics",
        offered,
        index=offered.index(statistics_of(dataset)),
        key="statistics.corpus",
        help=(
            "The data set that BM25 takes its document frequencies and lengths from. Two texts "
            "alone don't show how rare a word is."
        ),
    )
    url_state.put(STATISTICS, chosen or datasets.SAMPLE, datasets.SAMPLE)


def _need_statistics(models: Sequence[str]) -> bool:
    specs = resolve.known()
    return any(name in specs and family_of(specs[name]).has_statistics for name in models)


def statistics_in_link(models: Sequence[str], dataset: str) -> dict[str, str]:
    """The parameter of a link to texts of this data set as typed texts, if a model needs it."""
    name = statistics_of(dataset)
    needed = name != datasets.SAMPLE and _need_statistics(models)
    return {STATISTICS: name} if needed else {}


def statistics_of(dataset: str) -> str:
    """The data set whose word statistics BM25 uses for texts of this data set: the one selected in
    `statistics` for typed and uploaded texts."""
    if dataset in datasets.names():
        return dataset
    asked = url_state.get(STATISTICS, datasets.SAMPLE)
    return asked if asked in datasets.names() else datasets.SAMPLE


def spec(name: str, dataset: str, *, posir: bool = False) -> RetrieverSpec:
    """The retriever of this name for pairs of this data set, optionally with the PosIR protocol's
    prompt and lengths. BM25 uses the word statistics of `statistics_of`."""
    spec = resolve.resolve(name)
    if family_of(spec).has_statistics:
        spec = with_corpus(spec, statistics_of(dataset))
    return posir_spec(spec) if posir else spec


def specs(names: Sequence[str], dataset: str, *, posir: bool = False) -> list[RetrieverSpec]:
    """`spec` of each of these names; names of no model, which are reported where the model is used,
    are left out."""
    chosen = []
    for name in names:
        with suppress(UserError):
            chosen.append(spec(name, dataset, posir=posir))
    return chosen


def ranking_spec(name: str, dataset: str, *, posir: bool = False) -> RetrieverSpec:
    """The retriever of this name for ranking this data set, optionally with PosIR's prompt and
    ranking lengths."""
    plain = spec(name, dataset)
    return posir_ranking_spec(plain) if posir else plain
