"""Runs on a page: how far they are and how long they take, their button, what failed, and what went
wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from poslens.attribution.errors import UserError
from poslens.compute.runs import Job, Run, duration
from poslens.dashboard.server import people
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.tables import no_result
from poslens.figures.plain import plain

_ON_BOARDS = "runs on boards"
STRIP_S = 4.0
"""How often the line at the top is drawn again: it stands on every page of everybody."""


def any_active(jobs: Sequence[Job]) -> bool:
    """Whether any of them is computed now, in this process."""
    return any(job.active for job in jobs)


def run_board(
    jobs: Sequence[Job],
    prefix: str = "",
    suffix: str = "",
    *,
    label: str = "",
    unit: str = "",
    rate_unit: str = "",
    verb: str = "Compute",
    stop: str = "Stop",
    idle: str = "",
    others: bool = False,
) -> int:
    """Progress and button of `jobs`, which start and stop together; how many items are stored.

    Keys of widgets are `prefix`, what the widget does (start, stop), and `suffix`. Progress counts
    what is stored, in `unit`s. With `idle`, that stands there while nothing runs, and progress is
    the run's own. `label` names them on the left; without it there is no such column. The button
    says `verb`, of the rest where something is stored. With `others` it is said where another
    process computes.
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
        # Nothing is left to watch.
        bar.caption(plain(f"{done:,} of {total:,} {unit}".rstrip()))
    else:
        elsewhere = others and done < total and any(job.active_elsewhere for job in jobs)
        note = "computed by another process" if elsewhere else ""
        _bar(bar, runs, done, total, unit, rate_unit, note)
    if runs and not all(map(people.may_stop, runs)):
        button.caption("Another user started this run.")
    elif runs:
        button.button(
            plain(stop), key=f"{prefix}stop{suffix}", on_click=_stop, args=(jobs,), width="stretch"
        )
    elif (idle or done < total) and not any(job.can_start for job in jobs):
        button.markdown("from the cache")
    elif idle or done < total:
        button.button(
            plain(f"{verb.removesuffix(' all')} remaining" if done else verb),
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
        st.error(plain(error))
    _errors(jobs)
    return done


def start_once(jobs: Sequence[Job]) -> None:
    """Start what is not complete, unless it would be sent to an endpoint, has failed or was
    stopped."""
    for job in jobs:
        if job.run is None and job.can_start and not job.sends and job.n_done() < job.total:
            with suppress(UserError):
                on_board(job.start())


def run_bar(run: Run, stop_key: str) -> None:
    """Progress of one active run that says what it is at, and the button that stops it."""
    on_board(run)
    bar, button = _columns("")
    _bar(bar, [run], *_own_counts(run))
    if people.may_stop(run):
        button.button("Stop", key=stop_key, on_click=run.stop, width="stretch")
    else:
        button.caption("Another user started this run.")


def on_board(*runs: Run) -> None:
    """Say that the page itself shows these: the strip need not."""
    st.session_state.setdefault(_ON_BOARDS, set()).update(runs)


def run_strip(active: Callable[[], Sequence[Run]], *, other_page: bool) -> None:
    """A line for each of the active runs that the page does not show itself, with what stops it;
    nothing while there is none. Stands before the page, which may take long: until the page has
    drawn its boards, those that it drew before count, unless it is an `other_page`."""
    known: set[Run] = set() if other_page else st.session_state.get(_ON_BOARDS, set())
    st.session_state[_ON_BOARDS] = set()
    drawn = False

    @fragment(run_every=STRIP_S if active() else None)
    def lines() -> None:
        nonlocal drawn, known
        at_work = active()
        if drawn and not at_work:
            st.rerun()
        runs = [run for run in at_work if run not in known]
        known = st.session_state[_ON_BOARDS]
        drawn = bool(runs)
        for number, run in enumerate(runs):
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                st.button(
                    plain(f"Stop {run.label}"),
                    icon=":material/stop_circle:",
                    key=f"strip.stop.{number}.{run.label}",
                    on_click=run.stop,
                    type="tertiary",
                )
                _bar(st.container(), [run], *_own_counts(run), share_alone=True)

    # Its place is there also while it is empty: what stands below would change places with it, and
    # the browser would for a while keep both.
    with st.container(key="run_strip", gap=None):
        if active():
            lines()


def failed_items(
    failed: Sequence[tuple[Job, Mapping[str, str]]], prefix: str = "", *, unit: str = "pair"
) -> None:
    """The items of jobs that gave no result, why, and the button that tries them again; `prefix`
    is that of the jobs' board, which reports what keeps them from starting."""
    failed = [(job, reasons) for job, reasons in failed if reasons]
    if not failed:
        return
    several = len(failed) > 1
    rows = [(job.label, *row) for job, reasons in failed for row in reasons.items()]
    frame = pd.DataFrame(rows, columns=["computed for", unit, "reason"])
    frame = frame if several else frame.drop(columns="computed for")
    with no_result(frame, "" if several else failed[0][0].label, unit):
        st.button(
            "Retry",
            key=f"{prefix}retry.{failed[0][0].key}",
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


def _bar(
    place: DeltaGenerator,
    runs: Sequence[Run],
    done: int,
    total: int,
    unit: str = "",
    rate_unit: str = "",
    note: str = "",
    *,
    share_alone: bool = False,
) -> None:
    stage = runs[0].stage if runs else ""
    # A stage of unknown length has nothing to count.
    counts = "" if stage and not total else f"{done:,} of {total:,} {unit}".rstrip()
    share = min(1.0, done / total) if total else float(not runs)
    inside = ""
    if len(runs) == 1 and runs[0].part is not None:
        # A part may take minutes: it says how far it is, beside how many are done.
        share = runs[0].share
        if not share_alone:
            stage, inside = "", runs[0].counts
    if share_alone and counts:
        counts = f"{share:.0%}"
    rates = [run.progress.rate for run in runs]
    rate = rates[0] if len(rates) == 1 and rate_unit else None
    # Each rate is one beside the others, and rises as these end: all end with the longest at most.
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


def _costs(jobs: Sequence[Job]) -> None:
    """What would be sent to endpoints."""
    for job in jobs:
        if quote := job.quote():
            st.caption(plain(quote))


def _errors(jobs: Sequence[Job]) -> None:
    """What ended runs too early, each sentence once with the jobs that it is about."""
    labels: dict[str, list[str]] = {}
    for job in jobs:
        if job.error:
            labels.setdefault(job.error, []).append(job.label)
    for message, about in labels.items():
        st.error(plain(message if len(jobs) == 1 else f"{'; '.join(about)}: {message}"))


def _start(jobs: Sequence[Job], error_key: str, retry_failed: bool = False) -> None:
    for job in jobs:
        try:
            on_board(job.start(retry_failed=retry_failed))
        except UserError as error:
            st.session_state[error_key] = str(error)


def _stop(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.stop()
