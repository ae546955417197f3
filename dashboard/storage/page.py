"""Cache: what is stored of which model, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import pandas as pd
import streamlit as st

from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.cache.storage.maintenance import StoredFile, failures, older_layouts
from poslens.compute.compute import service
from poslens.compute.runs import Run
from poslens.compute.settings import KEEP_OWN_TEXTS
from poslens.dashboard.cause.corpus import MEASURES
from poslens.dashboard.server import own_texts, rights
from poslens.dashboard.widgets import links, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import run_bar
from poslens.dashboard.widgets.tables import no_result
from poslens.storage import service as cache_service

ALL = "all methods"
CAUSE = ("Cause", "cause/page.py")
RETRIED: dict[str, tuple[str, str]] = {
    "": ("Curves", "curves/page.py"),
    "faithfulness": ("Faithfulness", "faithfulness/page.py"),
    "relocation": CAUSE,
    "ablation": CAUSE,
    **dict.fromkeys(MEASURES, CAUSE),
    "bias_scores": ("Bias tests", "bias/page.py"),
    "reachability": ("Audit", "audit/page.py"),
}
"""The page that tries again what failed of each kind; a ranking does so whenever it is made."""

files: list[StoredFile] = []
with panels.guarded():
    files = cache_service.stored(service())
allowed = False
with panels.guarded():
    allowed = rights.may_change()
shared_run = cache_service.current(service())
busy = shared_run is not None and shared_run.active
# Exports are the session's own: nobody else sees or downloads them.
exports = own_texts.session().exports
export_run = cache_service.current_export(service(), exports)
exporting = export_run is not None and export_run.active


def act(start: Callable[..., object], *arguments: object) -> None:
    """Begin something; what keeps it from beginning is said on the next run of the page."""
    st.session_state.pop("cache.confirming", None)
    try:
        if start is not cache_service.start_export and not rights.may_change():
            raise UserError(rights.REFUSED)
        start(service(), *arguments)
    except UserError as error:
        st.session_state["cache.error"] = str(error)


def method_title(file: StoredFile) -> str:
    """The method's name in words."""
    name = file.method.name
    return METHODS[name].title if name in METHODS else name.capitalize()


def overview() -> None:
    """Every file of the store, a row each."""
    frame = pd.DataFrame(
        {
            "model": [file.model.name for file in files],
            "method": [method_title(file) for file in files],
            "settings": [file.method.core for file in files],
            "results": [file.results for file in files],
            "failed": [file.failed for file in files],
            "size": [file.bytes / 1e6 for file in files],
            "last use": [datetime.fromtimestamp(file.last_used) for file in files],
            "fingerprint": [file.model.fingerprint[:8] for file in files],
            "problem": [file.problem for file in files],
        }
    )
    if not any(frame["problem"]):
        del frame["problem"]
    st.dataframe(
        frame,
        hide_index=True,
        key="cache.files",
        column_config={
            "size": st.column_config.NumberColumn(format="%.1f MB"),
            "last use": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm"),
            "results": st.column_config.NumberColumn(format="localized"),
        },
    )
    for file in files:
        if file.problem:
            st.warning(panels.plain(f"{file.model.name}, {file.method.name}: {file.problem}"))


def shipped() -> None:
    """What ships with PosLens and is read where the cache has nothing of it."""
    found = cache_service.shipped(service())
    if not found:
        return
    total = cache_service.size(sum(one.file.bytes for one in found))
    rows = sum(one.file.rows for one in found)
    st.markdown("**Shipped with PosLens**")
    st.caption(
        panels.plain(
            f"{rows:,} results of the embedded data sets, {total}. They are shown where nothing of "
            "your own is stored, and are no part of the cache: not exported, deleted or counted."
        )
    )
    frame = pd.DataFrame(
        {
            "model": [one.file.model for one in found],
            "method": [one.file.method for one in found],
            "data sets": [", ".join(one.file.datasets) for one in found],
            "results": [one.file.rows for one in found],
            "size": [one.file.bytes / 1e6 for one in found],
            "made by": [f"PosLens {one.file.poslens}" for one in found],
            "file": [one.file.name for one in found],
            "not shown": [one.reason for one in found],
        }
    )
    if not any(frame["not shown"]):
        del frame["not shown"]
    st.dataframe(
        frame,
        hide_index=True,
        key="poslens.cache.shipped",
        column_config={"size": st.column_config.NumberColumn(format="%.2f MB")},
    )


def chosen() -> list[StoredFile]:
    """The files of the model and method that the reader means."""
    models = {file.model.fingerprint: file.model.name for file in files}
    twice = {name for name in models.values() if list(models.values()).count(name) > 1}

    def model_label(fingerprint: str) -> str:
        name = models.get(fingerprint, "")
        return f"{name} · {fingerprint[:8]}" if name in twice else name

    left, right = st.columns(2)
    fingerprint = left.selectbox("Model", list(models), format_func=model_label, key="cache.model")
    own = {cache_service.file_id(f): f for f in files if f.model.fingerprint == fingerprint}
    picked = right.selectbox(
        "Method",
        [ALL, *own],
        key=f"cache.method.{fingerprint}",
        format_func=lambda one: (
            f"{method_title(own[one])} · {own[one].method.core}" if one in own else one
        ),
    )
    return [own[picked]] if picked in own else list(own.values())


def actions(meant: list[StoredFile]) -> None:
    """Buttons for what can be done with the files meant."""
    st.caption(panels.plain(cache_service.summary(meant)))
    readable = not any(file.problem for file in meant)
    total = sum(file.bytes for file in meant)
    small = total <= cache_service.DOWNLOAD_MB * 1e6
    with st.container(horizontal=True):
        st.button(
            "Export",
            icon=":material/upload_file:",
            key="cache.export",
            on_click=act,
            args=(cache_service.start_export, meant, datasets.names(), exports),
            disabled=exporting or not readable or not small,
            help="A Parquet file that pandas, DuckDB and Polars open and another PosLens imports: "
            "what is stored of the data sets that this dashboard offers by name.",
        )
        if allowed:
            shared_actions(meant, readable)
    if not small:
        st.caption("More than a browser should load: export it on the command line.")
        named = f"--model {meant[0].model.fingerprint}"
        st.code(
            f"python -m dashboard cache export {named} FILE.parquet", language=None, wrap_lines=True
        )
    if st.session_state.get("cache.confirming") == [cache_service.file_id(f) for f in meant]:
        confirm(meant)


def shared_actions(meant: list[StoredFile], readable: bool) -> None:
    """What changes the cache for everybody."""
    st.button(
        "Verify",
        icon=":material/verified:",
        key="cache.verify",
        on_click=act,
        args=(cache_service.start_verify, meant),
        disabled=busy or not readable,
        help="Read every result against its checksum; damaged ones are taken out.",
    )
    st.button(
        "Compact",
        icon=":material/compress:",
        key="cache.compact",
        on_click=act,
        args=(cache_service.start_compact, meant),
        disabled=busy or not readable,
        help="Give the space of replaced and removed results back.",
    )
    if st.button("Delete", icon=":material/delete:", key="cache.delete", disabled=busy):
        st.session_state["cache.confirming"] = [cache_service.file_id(f) for f in meant]


def confirm(meant: list[StoredFile]) -> None:
    """Ask before anything is deleted, saying what and how much."""
    with st.container(border=True):
        st.markdown(f"Delete {panels.plain(cache_service.summary(meant))}?")
        st.caption("It is computed again when it is asked for, where the model's weights are here.")
        with st.container(horizontal=True):
            st.button(
                "Delete for good",
                type="primary",
                key="cache.sure",
                on_click=act,
                args=(cache_service.start_delete, meant),
                disabled=busy,
            )
            st.button(
                "Keep",
                key="cache.keep",
                on_click=lambda: st.session_state.pop("cache.confirming", None),
            )


def failed(meant: list[StoredFile]) -> None:
    """Pairs without a result, with the way to try them again."""
    if len(meant) != 1 or not meant[0].failed:
        return
    (file,) = meant
    # Of data sets that everybody may see: earlier versions kept own texts here too.
    rows = [
        row
        for row in failures(service().store, file.model, file.method)
        if row.dataset in datasets.names()
    ]
    if not rows:
        return
    frame = pd.DataFrame(
        {
            "data set": [row.dataset for row in rows],
            "of": [row.kind or "attribution" for row in rows],
            "item": [row.item for row in rows],
            "reason": [row.reason for row in rows],
        }
    )
    # A link leads to one measure of documents at a time.
    first: dict[tuple[str, str, str], str] = {}
    for row in rows:
        if row.kind in RETRIED:
            measure = row.kind if row.kind in MEASURES else ""
            first.setdefault((*RETRIED[row.kind], measure), row.dataset)
    with no_result(frame, unit="item", key="cache.failures"):
        for (title, page, measure), dataset in first.items():
            of = f" (documents, {measure})" if measure else ""
            st.caption(
                panels.plain(f"{title} tries them again{of}: open it and press Try them again.")
            )
            asked: dict[str, str | Sequence[str]]
            asked = {"dataset": dataset, "models": [file.model.name]}
            if title == "Curves":
                asked["method"] = file.method.name
            elif title == "Faithfulness":
                asked["methods"] = [file.method.name]
            elif measure:
                asked |= {"documents": "true", "corpus": measure}
            links.page_link(page, f"Open {title}{of}", ":material/replay:", asked)


def imports() -> None:
    """Take an exported file over."""
    with st.expander("Import", expanded=not files):
        given = st.file_uploader(
            "An exported Parquet file",
            type=["parquet"],
            key="cache.upload",
            max_upload_size=cache_service.UPLOAD_MB,
            help="What is stored already is never replaced; a second import adds nothing.",
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
        st.caption("Larger files, other caches and folders of parts go in on the command line:")
        st.code(
            "python -m dashboard cache import FILE.parquet\n"
            "python -m dashboard cache merge FOLDER\n"
            "python -m dashboard cache ingest FOLDER",
            language=None,
            wrap_lines=True,
        )


@fragment(run_every=1.0 if busy or exporting else None)
def state() -> None:
    """What is being done or was done last."""
    if error := st.session_state.pop("cache.error", ""):
        st.error(panels.plain(error))
    now = cache_service.current_export(service(), exports)
    show(now, exporting, "cache.export.stop")
    if allowed:  # what it says names files of whoever asked
        show(cache_service.current(service()), busy, "cache.stop")


def show(now: Run | None, was_active: bool, key: str) -> None:
    """One run's progress, or how it ended."""
    if now is None:
        return
    if now.active:
        run_bar(now, key)
    if now.active != was_active:
        st.rerun()
    if not now.active and now.error:
        st.error(panels.plain(now.error))
    elif not now.active:
        st.success(panels.plain(now.stage), icon=":material/check:")


def downloads() -> None:
    """Exports that are ready."""
    for number, made in enumerate(exports.offered()):
        if made.bytes > cache_service.DOWNLOAD_MB * 1e6:
            continue
        st.download_button(
            panels.plain(f"Download {made.name} ({cache_service.size(made.bytes)})"),
            data=made.path.read_bytes,
            file_name=made.name,
            icon=":material/download:",
            mime="application/vnd.apache.parquet",
            key=f"cache.download.{number}",
            on_click="ignore",
        )


st.markdown(
    "# Cache: what is stored?\nResults by model and method: nothing of this is computed again."
)
if older := older_layouts(service().store):
    st.warning(panels.plain(older))
if files:
    used = sum(file.bytes for file in files)
    n_models = len({file.model.fingerprint for file in files})
    results = sum(file.results for file in files)
    st.caption(
        f"Models: {n_models:,} · results: {results:,} · {panels.plain(cache_service.size(used))}"
    )
    overview()
    meant = chosen()
    with panels.guarded():
        actions(meant)
    with panels.guarded():
        failed(meant)
else:
    st.info("Nothing is stored yet: Explain and Curves fill the cache, or import an export.")
st.caption(
    "Results of texts that you type or upload are not listed here: they stay with your browser "
    "session and end with it."
    if KEEP_OWN_TEXTS.get() == "no"
    else "Results of texts that you type or upload are kept here too."
)
state()
with panels.guarded():
    downloads()
with panels.guarded():
    shipped()
if allowed:
    imports()
else:
    st.caption(panels.plain(f"Delete, import, verify and compact: {rights.REFUSED}"))
