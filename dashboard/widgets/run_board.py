"""Runs on a page: progress, estimated time, buttons, failed items, and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import plural
from poslens.attribution.text import OTHER_SCRIPT
from poslens.compute.runs import Job, Run, duration
from poslens.dashboard.server import people
from poslens.dashboard.widgets import say
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.tables import no_result
from poslens.figures.plain import plain

_PAGE, _ON_BOARDS = "page of boards", "runs on boards"
_pages = WeakKeyDictionary[Run, set[str]]()
"""The pages whose boards have shown each run, in any session."""
_STARTED = "a board started runs"
STRIP_S = 4.0
"""Refresh interval in seconds of the line at the top, which every page of every user shows."""


def any_active(jobs: Sequence[Job]) -> bool:
    """Whether any of the jobs is running in this process."""
    return any(job.active for job in jobs)


def watched(active: Callable[[], bool], draw: Callable[[], object], seconds: float = 2.0) -> bool:
    """Draw a section that is refreshed every `seconds` while something is `active`, and return
    whether it is. When that begins or ends, the whole page is rerun, because Streamlit fixes the
    interval until then."""
    st.session_state.pop(_STARTED, None)
    ticking = active()

    @fragment(run_every=seconds if ticking else None)
    def section() -> None:
        # A run that was just started may be over by now.
        if st.session_state.pop(_STARTED, False) or active() != ticking:
            st.rerun()
        draw()
        if active() != ticking:
            st.rerun()

    section()
    return ticking


def run_board(
    jobs: Sequence[Job],
    prefix: str = "",
    suffix: str = "",
    *,
    label: str = "",
    unit: str = "",
    rate_unit: str = "",
    verb: str = "Compute",
    idle: str = "",
    others: bool = False,
    failed: Sequence[str] = (),
) -> int:
    """Progress and button of `jobs`, which start and stop together. Returns the number of items
    that are stored or have failed.

    Widget keys are `prefix`, the action (start, stop), and `suffix`. Progress counts items in
    `unit`s; `failed` are the reasons of those that have no result. With `idle`, that text is shown
    while nothing runs, and progress is that of the run alone. `label` is shown in a column on the
    left, which is omitted without it. The button's label is `verb`, followed by "remaining" if some
    items are stored. With `others`, a note says if another process computes the same items.
    """
    error_key = f"{prefix}error{suffix}"
    runs = [run for job in jobs if (run := job.run) is not None and run.active]
    on_board(*runs)
    done, total = sum(job.n_done() for job in jobs), sum(job.total for job in jobs)
    bar, button = _columns(label)
    if idle and runs:
        _bar(bar, runs, *_own_counts(runs[0]), unit, rate_unit)
    elif idle:
        bar.caption(plain(idle))
    elif total and done >= total and not runs:
        # Everything is finished.
        bar.caption(plain(_counts(done, total, unit, failed)))
    else:
        elsewhere = others and done < total and any(job.active_elsewhere for job in jobs)
        note = "computed by another process" if elsewhere else ""
        _bar(bar, runs, done, total, unit, rate_unit, note, failed=failed)
    if runs and not all(map(people.may_stop, runs)):
        button.caption("Another user started this run.")
    elif runs:
        stop_button(button, runs, f"{prefix}stop{suffix}")
    elif (idle or done < total) and not any(job.can_start for job in jobs):
        button.markdown("from the cache")
    elif idle or done < total:
        button.button(
            plain(f"{verb} remaining" if done else verb),
            key=f"{prefix}start{suffix}",
            on_click=_start,
            args=(jobs, error_key),
            type="primary",
            width="stretch",
        )
    elif label:
        button.markdown("complete")
    if not runs and done < total:
        _costs(jobs)
    if error := st.session_state.pop(error_key, ""):
        say.error(error)
    _errors(jobs)
    return done


def results_unit(noun: str, n_runs: int) -> str:
    """What the progress of one or several runs counts."""
    return "results" if n_runs > 1 else plural(noun)


def start_once(jobs: Sequence[Job]) -> None:
    """Start jobs that are incomplete, unless they would send texts to an endpoint, have failed, or
    were stopped."""
    for job in jobs:
        if job.run is None and job.can_start and not job.sends and job.n_done() < job.total:
            with suppress(UserError):
                on_board(job.start())


def run_bar(run: Run, stop_key: str) -> None:
    """Progress of one active run with its current stage, and the button that stops it."""
    on_board(run)
    bar, button = _columns("")
    _bar(bar, [run], *_own_counts(run))
    if people.may_stop(run):
        stop_button(button, [run], stop_key)
    else:
        button.caption("Another user started this run.")


def on_board(*runs: Run) -> None:
    """Record that the page itself shows these runs, so that the strip at the top omits them."""
    st.session_state.setdefault(_ON_BOARDS, set()).update(runs)
    for run in runs:
        _pages.setdefault(run, set()).add(st.session_state.get(_PAGE, ""))


def run_strip(active: Callable[[], Sequence[Run]], page: str) -> None:
    """One line, with a Stop button, for each active run that the `page` doesn't show itself;
    nothing if there is none. It is drawn before the page, which may take long: until the page has
    drawn its boards, it omits what they have shown before, also in another session, because a
    reload begins a new one."""
    on_page = {run for run in active() if page in _pages.get(run, ())}
    st.session_state[_PAGE], st.session_state[_ON_BOARDS] = page, set()
    drawn = False

    @fragment(run_every=STRIP_S if active() else None)
    def lines() -> None:
        nonlocal drawn, on_page
        at_work = active()
        if drawn and not at_work:
            st.rerun()
        runs = [run for run in at_work if run not in on_page]
        on_page = st.session_state[_ON_BOARDS]
        drawn = bool(runs)
        for number, run in enumerate(runs):
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                st.button(
                    plain(f"Stop {run.label}"),
                    icon=":material/stop_circle:",
                    key=f"strip.stop.{number}.{run.label}",
                    on_click=run.stop,
                    disabled=run.stopping,
                    type="tertiary",
                )
                _bar(st.container(), [run], *_own_counts(run), share_alone=True)

    # The container exists even if it is empty: otherwise later elements would change position with
    # it, and the browser would show both for a while.
    with st.container(key="run_strip", gap=None):
        if active():
            lines()


def failed_items(
    failed: Sequence[tuple[Job, Mapping[str, str]]], prefix: str = "", *, unit: str = "pair"
) -> None:
    """The failed items of jobs with the reasons, the amount of text that a retry would send to
    endpoints, and a button that retries them. Items in a script that is not supported are listed
    as excluded. `prefix` is that of the jobs' board, which reports errors that keep the jobs from
    starting."""
    failed = [(job, reasons) for job, reasons in failed if reasons]
    if not failed:
        return
    several = len(failed) > 1
    rows = [(job.label, *row) for job, reasons in failed for row in reasons.items()]
    frame = pd.DataFrame(rows, columns=["run", unit, "reason"])
    frame = frame if several else frame.drop(columns="run")
    owner = "" if several else failed[0][0].label
    where = f"in {len(failed)} runs" if several else ""
    is_excluded = frame["reason"].str.contains(OTHER_SCRIPT, regex=False)
    if is_excluded.any():
        with no_result(frame[is_excluded], owner, unit, where=where, excluded=True):
            st.caption("They are excluded only from results that need sentences.")
    if is_excluded.all():
        return
    with no_result(frame[~is_excluded], owner, unit, where=where):
        _costs([job for job, _ in failed if not job.active], retry_failed=True)
        st.button(
            "Retry",
            key=f"{prefix}retry.{failed[0][0].key}",
            help="Compute them again. This helps only if the reason was not the text itself, but "
            "for example an endpoint.",
            on_click=_start,
            args=([job for job, _ in failed], f"{prefix}error", True),
        )


def _columns(label: str) -> tuple[DeltaGenerator, DeltaGenerator]:
    if not label:
        bar, button = st.columns([7, 3], vertical_alignment="center")
        return bar, button
    left, bar, button = st.columns([3, 4, 4], vertical_alignment="center")
    left.markdown(f"**{plain(label)}**")
    return bar, button


def _own_counts(run: Run) -> tuple[int, int]:
    return run.progress.done, run.progress.total


def _counts(done: int, total: int, unit: str, failed: Sequence[str] = ()) -> str:
    """How many of the items are stored, and how many of those `done` are excluded or have
    failed, for these reasons."""
    n_excluded = sum(OTHER_SCRIPT in reason for reason in failed)
    n_failed = len(failed) - n_excluded
    parts = [f"{done - len(failed):,} of {total:,} {unit}".rstrip()]
    parts += [f"{n_failed:,} failed"] if n_failed else []
    parts += [f"{n_excluded:,} excluded"] if n_excluded else []
    return ", ".join(parts)


def _bar(
    place: DeltaGenerator,
    runs: Sequence[Run],
    done: int,
    total: int,
    unit: str = "",
    rate_unit: str = "",
    note: str = "",
    *,
    failed: Sequence[str] = (),
    share_alone: bool = False,
) -> None:
    stage = runs[0].stage if runs else ""
    # A stage of unknown length has nothing to count.
    counts = "" if stage and not total else _counts(done, total, unit, failed)
    share = min(1.0, done / total) if total else float(not runs)
    inside = ""
    if len(runs) == 1 and runs[0].part is not None:
        # An item may take minutes, so its own progress is added to the count.
        share = runs[0].share
        if not share_alone:
            stage, inside = "", runs[0].counts
    if share_alone and counts:
        counts = f"{share:.0%}"
    rates = [run.progress.rate for run in runs]
    rate = rates[0] if len(rates) == 1 and rate_unit else None
    # The runs share the device, so each one's rate rises as others end: all end no later than the
    # longest estimate.
    left = [s for run in runs if (s := run.progress.remaining_seconds) is not None]
    parts = [
        stage,
        inside,
        counts,
        f"{rate:.1f} {rate_unit}/s" if rate else "",
        f"about {duration(max(left))} left" if left else "",
        "stopping" if runs and all(run.stopping for run in runs) else "",
        note,
    ]
    place.progress(share, text=plain(" · ".join(filter(None, parts))))


def _costs(jobs: Sequence[Job], retry_failed: bool = False) -> None:
    """The amount of text that would be sent to endpoints."""
    for job in jobs:
        if quote := job.quote(retry_failed):
            say.caption(quote)


def _errors(jobs: Sequence[Job]) -> None:
    """Errors that ended runs early, each sentence once with the jobs that it concerns."""
    labels: dict[str, list[str]] = {}
    for job in jobs:
        if job.error:
            labels.setdefault(job.error, []).append(job.label)
    for message, about in labels.items():
        say.error(message if len(jobs) == 1 else f"{'; '.join(about)}: {message}")


def _start(jobs: Sequence[Job], error_key: str, retry_failed: bool = False) -> None:
    for job in jobs:
        try:
            on_board(job.start(retry_failed=retry_failed))
            st.session_state[_STARTED] = True
        except UserError as error:
            st.session_state[error_key] = str(error)


def stop_button(place: DeltaGenerator, runs: Sequence[Run], key: str) -> None:
    """A button that stops the runs, disabled while all of them are stopping."""
    place.button(
        "Stop",
        key=key,
        on_click=_stop,
        args=(runs,),
        disabled=all(run.stopping for run in runs),
        width="stretch",
    )


def _stop(runs: Sequence[Run]) -> None:
    for run in runs:
        run.stop()
