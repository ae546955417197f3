"""The board of runs: what it shows for jobs that are idle, active, stopped, failed or elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.endpoint_cost import Cost
from poslens.attribution.text import OTHER_SCRIPT, require_sentences
from poslens.cache.jobs.loop import Progress
from poslens.compute.runs import Job, Report, Run, Runs, Sending
from tests.support.pages import SECONDS


class Setting:
    """Two jobs over four items each, whose state a test sets."""

    def __init__(self, owner: Path) -> None:
        self.runs, self.owner = Runs(lambda: self.limit), owner
        self.limit, self.elsewhere, self.error = 2, 0, ""
        self.done = {"A": 0, "B": 0}
        self.can_start = True
        self.sending: Sending | None = None
        self.stage = ""
        self.end = threading.Event()
        self.retried: list[bool] = []
        self.options: dict[str, str | bool | list[str]] = {}
        self.suffix = ".y"
        self.failed: dict[str, str] = {}
        self.failed_of_b: dict[str, str] = {}
        self.board, self.page_name, self.stopped = False, "other", threading.Event()
        self.sections: list[Callable[[], None]] = []
        self.section_alone, self.n_pages = False, 0

    def job(self, name: str) -> Job:
        def work(run: Run, report: Report) -> Progress:
            run.stage = self.stage
            self.retried.append(run.retry_failed)
            report(Progress(4, 1, 1, 0, 40.0))
            while not run.stopping and not self.end.wait(0.01):
                pass
            self.stopped.wait()
            if self.error:
                raise UserError(self.error)
            return run.progress

        return Job(
            self.runs,
            self.owner,
            (name, "", "", "", ""),
            name,
            4,
            work,
            n_done=lambda: self.done[name],
            n_elsewhere=lambda: self.elsewhere,
            can_start=self.can_start,
            sending=self.sending,
        )

    def shown(self) -> tuple[AppTest, str]:
        """The page, and its contents as one text."""
        page = AppTest.from_function(_page, kwargs={"setting": self}, default_timeout=SECONDS).run()
        return page, text_of(page)


def _page(setting):  # type: ignore[no-untyped-def]
    from poslens.dashboard.widgets.run_board import failed_items, run_board

    jobs = [setting.job(name) for name in setting.done]
    run_board(jobs, "x.", setting.suffix, **setting.options)
    failed = zip(jobs, (setting.failed, setting.failed_of_b), strict=False)
    failed_items(list(failed), "x.", unit="document")


def _strip(setting):  # type: ignore[no-untyped-def]
    from poslens.dashboard.widgets.run_board import run_board, run_strip

    run_strip(lambda: setting.runs.active({setting.owner}, upkeep=False), setting.page_name)
    if setting.board:
        run_board([setting.job("A")])


def _sections(setting):  # type: ignore[no-untyped-def]
    """A page with a watched section. With `setting.section_alone` only the section is rerun, like a
    Streamlit fragment after a click in it."""
    from functools import partial

    from poslens.dashboard.widgets import run_board

    job = setting.job("A")
    if setting.section_alone:
        setting.section_alone = False
        if job.run is not None:
            job.run.wait()
        setting.sections[-1]()
    else:
        setting.n_pages += 1
        run_board.watched(lambda: job.active, partial(run_board.run_board, [job], "x."))


def text_of(page: AppTest) -> str:
    assert not page.exception
    bars = [one.proto.text for one in page.get("progress")]
    said = [one.value for one in (*page.caption, *page.markdown, *page.error)]
    return " | ".join([*bars, *said, *(button.label for button in page.button)]).replace("\\", "")


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    made.stopped.set()
    yield made
    made.end.set()
    made.stopped.set()
    made.runs.end(tmp_path)


def until_told(setting: Setting) -> None:
    for name in setting.done:
        run = setting.job(name).run
        while run is not None and run.active and not run.progress.computed:
            threading.Event().wait(0.01)


def test_jobs_start_and_stop_together(setting: Setting) -> None:
    setting.options = {"unit": "results", "verb": "Test"}
    page, text = setting.shown()
    assert text == "0 of 8 results | Test"
    page.button(key="x.start.y").click().run()
    until_told(setting)
    setting.done["A"] = 1
    page.run()
    assert text_of(page) == "1 of 8 results · about 2 min left | Stop", "40 s an item, 3 are left"
    assert not page.button(key="x.stop.y").disabled
    setting.stopped.clear()
    page.button(key="x.stop.y").click().run()
    assert page.button(key="x.stop.y").disabled and "stopping | Stop" in text_of(page)
    setting.stopped.set()
    for name in setting.done:
        run = setting.job(name).run
        assert run is not None and run.stopping
        run.wait()
    page.run()
    assert text_of(page) == "1 of 8 results | Test remaining"
    setting.done = {"A": 4, "B": 4}
    assert setting.shown()[1] == "8 of 8 results"
    setting.options = {"label": "Model"}
    assert setting.shown()[1] == "8 of 8 | **Model** | complete"


def test_a_run_that_ends_before_its_section_is_drawn_reruns_the_page(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fragment(run_every: float | None) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def decorate(section: Callable[[], None]) -> Callable[[], None]:
            setting.sections.append(section)
            return section

        return decorate

    monkeypatch.setattr("poslens.dashboard.widgets.run_board.fragment", fragment)
    page = AppTest.from_function(_sections, kwargs={"setting": setting}, default_timeout=SECONDS)
    page.run()
    setting.section_alone = True
    page.run()
    assert setting.n_pages == 1, "a section alone reruns nothing else"
    setting.end.set()
    setting.section_alone = True
    page.button(key="x.start").click().run()
    assert setting.retried and setting.n_pages == 2
    setting.section_alone = True
    page.run()
    assert setting.n_pages == 2


def test_people_cannot_stop_other_peoples_runs(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from poslens.dashboard.server import access, people

    who = "anna"
    monkeypatch.setattr(people, "person", lambda: who)
    access.current = access.access_of(login=True)
    setting.runs.reader = people.reader
    page, _ = setting.shown()
    page.button(key="x.start.y").click().run()
    until_told(setting)
    assert text_of(page).endswith("| Stop")
    who = "bert"
    assert setting.shown()[1].endswith(" left | Another user started this run.")
    access.current = access.access_of()
    assert setting.shown()[1].endswith("| Stop"), "nobody logs in: everybody's"


def test_one_job_shows_its_rate_and_what_others_compute(setting: Setting) -> None:
    setting.done = {"A": 2}
    setting.elsewhere = 1
    assert setting.shown()[1] == "2 of 4 | Compute remaining"
    setting.options = {"others": True}
    assert setting.shown()[1] == "2 of 4 · computed by another process | Compute remaining"
    setting.options = {"rate_unit": "pairs"}
    run = setting.job("A").start()
    until_told(setting)
    assert setting.shown()[1] == "2 of 4 · 0.0 pairs/s · about 2 min left | Stop"
    run.stop()
    run.wait()
    setting.can_start, setting.elsewhere = False, 0
    assert setting.shown()[1] == "2 of 4 | from the cache"


def test_a_run_with_stages_shows_its_own_progress(setting: Setting) -> None:
    setting.done = {"A": 0}
    setting.options = {"idle": "Not ranked yet.", "verb": "Rank"}
    assert setting.shown()[1] == "Not ranked yet. | Rank"
    setting.stage = "Searching"
    setting.job("A").start()
    until_told(setting)
    assert setting.shown()[1] == "Searching · 1 of 4 · about 2 min left | Stop"


def test_errors_are_shown_once_and_can_be_retried(setting: Setting) -> None:
    setting.error = "The disk is full."
    setting.end.set()
    for name in setting.done:
        setting.job(name).start().wait()
    setting.suffix, setting.failed = "", {"p3": "It has no token."}
    page, text = setting.shown()
    assert "A; B: The disk is full." in text
    assert page.expander[0].label == "1 document of A failed"

    def press(label: str) -> str:
        next(one for one in page.button if one.label == label).click().run()
        return text_of(page)

    press("Retry")
    assert setting.retried == [False, False, True]
    setting.limit = 0
    for label in ("Compute", "Retry"):
        assert "Active runs: 0, as many as" in press(label)
        assert "Active runs: 0, as many as" not in text_of(page.run()), "said once"


def test_many_failures_are_counted_and_the_first_listed(setting: Setting) -> None:
    setting.failed = {f"p{n}": "It has no token." for n in range(1200)}
    page, text = setting.shown()
    assert page.expander[0].label == "1,200 documents of A failed"
    assert len(page.dataframe[0].value) == 1000 and "Showing the first 1,000 of 1,200." in text


def test_the_amount_that_a_retry_sends_is_shown_unless_it_runs(setting: Setting) -> None:
    setting.sending = Sending(
        "E5",
        lambda jobs, retry: Cost(2, 90, 1) if retry else None,
        lambda folder, counting: setting.job("a"),
    )
    setting.done, setting.failed = {"A": 4, "B": 4}, {"p3": "It has no token."}
    sentence = "PosLens will send E5 (A): 2 texts, 90 tokens, 1 request."
    assert setting.shown()[1].count(sentence) == 1
    setting.job("A").start(retry_failed=True)
    assert sentence not in setting.shown()[1]


def test_failed_items_are_not_counted_as_results(setting: Setting) -> None:
    setting.options = {"unit": "results", "failed": ["It has no token."] * 2}
    setting.done = {"A": 4, "B": 4}
    assert "6 of 8 results, 2 failed" in setting.shown()[1]
    setting.done = {"A": 4, "B": 3}
    assert "5 of 8 results, 2 failed" in setting.shown()[1]
    setting.options["failed"] = ["It has no token.", f"It is in Thai: {OTHER_SCRIPT}."]
    assert "5 of 8 results, 1 failed, 1 excluded" in setting.shown()[1]


def test_failures_of_several_jobs_are_in_one_table(setting: Setting) -> None:
    setting.failed, setting.failed_of_b = {"p1": "It has no token."}, {"p1": "It is empty."}
    page, _ = setting.shown()
    assert page.expander[0].label == "2 documents failed in 2 runs"
    table = page.dataframe[0].value
    assert list(table.columns) == ["run", "document", "reason"]
    assert table.to_numpy().tolist() == [
        ["A", "p1", "It has no token."],
        ["B", "p1", "It is empty."],
    ]


def test_the_strip_shows_active_runs_that_the_page_does_not(setting: Setting) -> None:
    page = AppTest.from_function(_strip, kwargs={"setting": setting}, default_timeout=SECONDS).run()
    assert text_of(page) == "", "nothing is drawn while nothing runs"
    for name in setting.done:
        setting.job(name).start()
    until_told(setting)
    assert text_of(page.run()) == (
        "25% · about 2 min left | 25% · about 2 min left | Stop A | Stop B"
    )
    # A page's own board shows its run, also during a rerun of the page.
    setting.board, setting.page_name = True, "own"
    page.run()
    assert text_of(page.run()).endswith("| Stop B | Stop")
    # So does a reloaded page, which begins another session.
    other = AppTest.from_function(_strip, kwargs={"setting": setting}, default_timeout=SECONDS)
    assert "Stop A" not in text_of(other.run())
    setting.board, setting.page_name = False, "other"
    page.run()
    setting.stopped.clear()
    (stop,) = [one for one in page.button if one.label == "Stop A"]
    stop.click().run()
    assert [b.label for b in page.button if b.disabled] == ["Stop A"]
    setting.stopped.set()
    stopped, running = setting.job("A").run, setting.job("B").run
    assert stopped is not None and stopped.stopping
    assert running is not None and not running.stopping
    stopped.wait()
    assert text_of(page.run()) == "25% · about 2 min left | Stop B"


def test_each_reason_is_shown_once_and_an_unsupported_script_is_not_retried(
    setting: Setting,
) -> None:
    with pytest.raises(UserError) as refused:
        require_sentences("น้ำแข็ง")
    script = str(refused.value)
    setting.failed = {"p1": script, "p2": "It has no token.", "p3": script}
    page, text = setting.shown()
    assert text.count(f"2 documents: {script}") == 1 and "1 document: It has no token." in text
    assert "Retry" in text
    labels = [each.label for each in page.expander]
    assert labels == ["2 documents of A excluded", "1 document of A failed"]
    setting.failed = {"p1": script, "p3": script}
    page, text = setting.shown()
    assert "Retry" not in text and "only from results that need sentences" in text
    assert [each.label for each in page.expander] == ["2 documents of A excluded"]
