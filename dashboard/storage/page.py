"""The Storage page, which lists stored results by model and method, and exports, imports, verifies,
compacts and deletes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pandas as pd
import streamlit as st

from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.cache.storage.maintenance import StoredFile, failures, older_layouts
from poslens.compute.compute import service
from poslens.compute.runs import Run
from poslens.compute.settings import KEEP_OWN_TEXTS
from poslens.dashboard.server import own_texts, people
from poslens.dashboard.storage.failed_items import show_failed, title_of
from poslens.dashboard.widgets import panels, say
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import run_bar
from poslens.dashboard.widgets.tables import show_table
from poslens.storage import service as cache_service

ALL_MODELS, ALL = "all models", "all methods"
files: list[StoredFile] = []
with panels.guarded():
    files = cache_service.stored(service())
allowed = False
with panels.guarded():
    allowed = people.may_change()
shared_run = cache_service.current(service())
busy = shared_run is not None and shared_run.active
# Exports belong to the session: no other user sees or downloads them.
exports = own_texts.session().exports
export_run = cache_service.current_export(service(), exports)
exporting = export_run is not None and export_run.active


def act(start: Callable[..., object], *arguments: object) -> None:
    """Start an action; if it can't start, the next rerun of the page shows the reason."""
    st.session_state.pop("cache.confirming", None)
    try:
        if start is not cache_service.start_export and not people.may_change():
            raise UserError(people.REFUSED)
        start(service(), *arguments)
    except UserError as error:
        st.session_state["cache.error"] = str(error)


def listed(file: StoredFile) -> list[str]:
    """The data sets of a file that this reader sees: those that this dashboard lists by name, and
    for readers who may delete results, others too. Never typed and uploaded texts, which earlier
    versions also stored here."""
    return [
        name
        for name in file.datasets
        if name in datasets.names() or (allowed and not datasets.is_own(name))
    ]


def overview() -> None:
    """The table of stored files."""
    frame = pd.DataFrame(
        {
            "model": [file.model.name for file in files],
            "method": [title_of(file) for file in files],
            "settings": [file.method.core for file in files],
            "results": [file.results for file in files],
            "failed": [file.failed for file in files],
            "data sets": ["; ".join(listed(file)) for file in files],
            "size": [file.bytes / 1e6 for file in files],
            "last use": [datetime.fromtimestamp(file.last_used) for file in files],
            "fingerprint": [file.model.fingerprint[:8] for file in files],
            "problem": [file.problem for file in files],
        }
    )
    show_table(
        frame,
        key="cache.files",
        column_config={
            "size": st.column_config.NumberColumn(format="%.1f MB"),
            "last use": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm"),
            "results": st.column_config.NumberColumn(format="localized"),
        },
    )
    for file in files:
        if file.problem:
            say.warning(f"{file.model.name}, {file.method.name}: {file.problem}")


def shipped() -> None:
    """The table of results that are included in PosLens."""
    included = cache_service.shipped(service())
    if not included:
        return
    total = cache_service.size(sum(file.bytes for file, _ in included))
    rows = sum(file.rows for file, _ in included)
    st.markdown("**Included results**")
    say.caption(
        f"{rows:,} results of the bundled data sets, {total}. Pages use them unless you "
        "have stored results of your own. They are read-only."
    )
    frame = pd.DataFrame(
        {
            "model": [file.model for file, _ in included],
            "method": [file.method for file, _ in included],
            "data sets": ["; ".join(file.datasets) for file, _ in included],
            "results": [file.rows for file, _ in included],
            "size": [file.bytes / 1e6 for file, _ in included],
            "computed by": [f"PosLens {file.poslens}" for file, _ in included],
            "file": [file.name for file, _ in included],
            "not used": [reason for _, reason in included],
        }
    )
    show_table(
        frame,
        key="poslens.cache.shipped",
        column_config={"size": st.column_config.NumberColumn(format="%.2f MB")},
    )


def chosen() -> tuple[list[StoredFile], str]:
    """The files of the selected models, methods and data set, and the data set, empty for all."""
    models = {file.model.fingerprint: file.model.name for file in files}
    twice = {name for name in models.values() if list(models.values()).count(name) > 1}

    def model_label(fingerprint: str) -> str:
        # A deleted model, which the browser still names, must not have the label of an option:
        # then Streamlit would keep it selected.
        name = models.get(fingerprint, fingerprint) or ALL_MODELS
        return f"{name} · {fingerprint[:8]}" if name in twice else name

    left, middle, right = st.columns(3)
    fingerprint = left.selectbox(
        "Model", ["", *models], index=1, format_func=model_label, key="cache.model"
    )
    of_model = [file for file in files if fingerprint in ("", file.model.fingerprint)]
    titles = {file.path.stem: f"{title_of(file)} · {file.method.core}" for file in of_model}
    picked = middle.selectbox(
        "Method",
        [ALL, *titles],
        key=f"cache.method.{fingerprint}",
        format_func=lambda option: titles.get(option, option),
    )
    meant = [file for file in of_model if picked in (ALL, file.path.stem)]
    names = dict.fromkeys(name for file in meant for name in listed(file))
    dataset = right.selectbox(
        "Data set",
        ["", *names],
        key=f"cache.dataset.{fingerprint}.{picked}",
        format_func=lambda name: name or "all data sets",
        help="Export and Delete are restricted to its results. Embeddings and maps belong to no "
        "data set.",
    )
    return [file for file in meant if not dataset or dataset in file.datasets], dataset


def actions(meant: list[StoredFile], dataset: str) -> None:
    """Buttons for the selected files."""
    say.caption(cache_service.summary(meant, dataset))
    readable = not any(file.problem for file in meant)
    total = sum(file.bytes for file in meant)
    small = total <= cache_service.DOWNLOAD_MB * 1e6
    with st.container(horizontal=True):
        st.button(
            "Export",
            icon=":material/upload_file:",
            key="cache.export",
            on_click=act,
            args=(
                cache_service.start_export,
                meant,
                exported(meant, dataset),
                exports,
            ),
            disabled=exporting or not readable or not small or not exported(meant, dataset),
            help="A Parquet file that pandas, DuckDB, Polars and another PosLens can read. It has "
            "the results of the listed data sets"
            + (" and, for all data sets, embeddings and maps." if allowed else "."),
        )
        if allowed:
            shared_actions(meant, readable, dataset)
    if not small:
        st.caption("Too large for a browser: export it on the command line.")
        fingerprints = {file.model.fingerprint for file in meant}
        named = f"--model {fingerprints.pop()} " if len(fingerprints) == 1 else ""
        st.code(
            f"python -m poslens cache export {named}FILE.parquet", language=None, wrap_lines=True
        )
    if st.session_state.get("cache.confirming") == confirmed(meant, dataset):
        confirm(meant, dataset)
    else:  # another selection has canceled it
        st.session_state.pop("cache.confirming", None)


def exported(meant: list[StoredFile], dataset: str) -> list[str]:
    """The data sets whose results an export has; an empty name stands for embeddings and maps,
    which belong to none. Readers who may not delete results don't get those: they could be of texts
    that this dashboard doesn't list."""
    names = dict.fromkeys(name for file in meant for name in listed(file))
    if dataset:
        return [name for name in names if name == dataset]
    return ["", *names] if allowed else list(names)


def shared_actions(meant: list[StoredFile], readable: bool, dataset: str) -> None:
    """Actions that change the cache for everyone."""
    st.button(
        "Verify",
        icon=":material/verified:",
        key="cache.verify",
        on_click=act,
        args=(cache_service.start_verify, meant),
        disabled=busy or not readable,
        help="Check every result against its checksum and remove damaged ones.",
    )
    st.button(
        "Compact",
        icon=":material/compress:",
        key="cache.compact",
        on_click=act,
        args=(cache_service.start_compact, meant),
        disabled=busy or not readable,
        help="Free the space of replaced and removed results.",
    )
    if st.button("Delete", icon=":material/delete:", key="cache.delete", disabled=busy):
        st.session_state["cache.confirming"] = confirmed(meant, dataset)


def confirmed(meant: list[StoredFile], dataset: str) -> list[str]:
    """What is to be deleted; another selection needs another confirmation."""
    return [dataset, *map(cache_service.file_id, meant)]


def confirm(meant: list[StoredFile], dataset: str) -> None:
    """Ask for confirmation before deleting these results."""
    with st.container(border=True):
        st.markdown(f"Delete {panels.plain(cache_service.summary(meant, dataset))}?")
        st.caption(
            "PosLens computes these results again when a page needs them and the model's "
            "weights are on this machine."
        )
        with st.container(horizontal=True):
            st.button(
                "Delete permanently",
                type="primary",
                key="cache.sure",
                on_click=act,
                args=(cache_service.start_delete, meant, dataset),
                disabled=busy,
            )
            st.button(
                "Cancel",
                key="cache.keep",
                on_click=lambda: st.session_state.pop("cache.confirming", None),
            )


def imports() -> None:
    """Import an exported file."""
    # Open as long as it has a file: an import that adds the first results would close it.
    selected = st.session_state.get("cache.upload") is not None
    with st.expander("Import", expanded=selected or not files):
        given = st.file_uploader(
            "Exported Parquet file",
            type=["parquet"],
            key="cache.upload",
            max_upload_size=cache_service.UPLOAD_MB,
            help="An import never replaces stored results; importing a file twice adds nothing.",
        )
        if given is not None:
            st.button(
                "Import",
                key="cache.import",
                type="primary",
                on_click=act,
                disabled=busy,
                args=(cache_service.start_import, given.name[:100], given.getvalue()),
            )
        st.caption("Import larger files, other caches and folders of parts on the command line:")
        st.code(
            "python -m poslens cache import FILE.parquet\n"
            "python -m poslens cache merge FOLDER\n"
            "python -m poslens cache ingest FOLDER",
            language=None,
            wrap_lines=True,
        )


@fragment(run_every=1.0 if busy or exporting else None)
def state(imported: bool) -> None:
    """The current or last action: the import, which has its own place, or any other."""
    if not imported:
        if error := st.session_state.pop("cache.error", ""):
            say.error(error)
        now = cache_service.current_export(service(), exports)
        show(now, exporting, "cache.export.stop")
    run = cache_service.current(service())
    # The run names files of the user who started it.
    if allowed and run is not None and imported == (run.label == cache_service.IMPORTING):
        show(run, busy, "cache.stop")


def show(now: Run | None, was_active: bool, key: str) -> None:
    """The progress of a run, or its outcome."""
    if now is None:
        return
    if now.active:
        run_bar(now, key)
    if now.active != was_active:
        st.rerun()
    if not now.active and now.error:
        say.error(now.error)
    elif not now.active:
        say.success(now.stage, icon=":material/check:")


def downloads() -> None:
    """Buttons to download completed exports."""
    for number, exported in enumerate(exports.offered()):
        if exported.bytes > cache_service.DOWNLOAD_MB * 1e6:
            continue
        st.download_button(
            panels.plain(f"Download {exported.name} ({cache_service.size(exported.bytes)})"),
            data=exported.path.read_bytes,
            file_name=exported.name,
            icon=":material/download:",
            mime="application/vnd.apache.parquet",
            key=f"cache.download.{number}",
            on_click="ignore",
        )


st.markdown(
    "# Storage: which results are stored?\n"
    "Pages read these results instead of computing them again."
)
if older := older_layouts(service().store):
    say.warning(older)
if files:
    used = sum(file.bytes for file in files)
    n_models = len({file.model.fingerprint for file in files})
    results = sum(file.results for file in files)
    st.caption(
        f"Models: {n_models:,} · results: {results:,} · {panels.plain(cache_service.size(used))}"
    )
    overview()
    meant, dataset = chosen()
    with panels.guarded():
        actions(meant, dataset)
    with panels.guarded():
        show_failed(
            [
                (file, row)
                for file in meant
                if file.failed and not file.problem
                for row in failures(service().store, file.model, file.method)
                if row.dataset in listed(file) and dataset in ("", row.dataset)
            ]
        )
else:
    st.info(
        "Nothing is stored yet. Explain and Curves store what they compute; you can also "
        "import an export."
    )
st.caption(
    "Results of texts that you type or upload are not listed: they belong to your browser session "
    "and are deleted with it."
    if KEEP_OWN_TEXTS.get() == "no"
    else "Results of texts that you type or upload are stored here too."
)
state(imported=False)
with panels.guarded():
    downloads()
with panels.guarded():
    shipped()
if allowed:
    imports()
    state(imported=True)
else:
    say.caption(f"Deleting, importing, verifying and compacting: {people.REFUSED}")
