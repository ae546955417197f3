"""An audit that stops once its interval is narrow enough, and shows results so far."""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import poslens
from poslens.arguments import specs_of
from poslens.attribution import datasets
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.datasets import formats
from poslens.attribution.evaluation.audit_precision import Precision
from poslens.attribution.evaluation.chunks import WHOLE
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.studies.audit.run import run_audit
from poslens.studies.audit.study import AUDIT
from poslens.study_plan import stored
from tests.support.nouns import NOUNS
from tests.support.pages import open_page

N = 240
KEY = ModelKey("BM25", "0" * 16)
BOILERPLATE = "All rights reserved by the harbour office."


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Documents with four distinct sentences and up to three that all share, which retrieve only
    the first documents."""
    draw = random.Random(1)
    file = tmp_path / "offices.jsonl"
    rows = []
    for number in range(N):
        own = [f"Office {number} counted {number * 7 + i} {draw.choice(NOUNS)}." for i in range(4)]
        text = " ".join([*own, *[BOILERPLATE] * draw.choice((0, 0, 0, 1, 3))])
        rows.append(json.dumps({"_id": f"o{number}", "language": "en", "text": text}) + "\n")
    file.write_text("".join(rows))
    return file


def searched(path: Path, root: Path, width: float, **options: object) -> AuditStore:
    store = AuditStore(root, formats.corpus(path, "offices"))
    run_audit(
        store,
        load(resolve("BM25")),
        KEY,
        WHOLE,
        precision=Precision("sentence", 10, width),
        **options,  # type: ignore[arg-type]
    )
    return store


def test_a_run_stops_once_the_interval_is_narrow_and_resumes_for_a_narrower_one(
    path: Path, tmp_path: Path
) -> None:
    whole = searched(path, tmp_path / "whole", 0.0).select(KEY, WHOLE).results
    assert len(whole) == N
    part = searched(path, tmp_path / "part", 0.15).select(KEY, WHOLE).results
    assert 20 <= len(part) < N
    assert Precision("sentence", 10, 0.15).reached(list(part.values()))
    # Ranks equal those of a complete audit, because the index has the whole corpus.
    for key, one in part.items():
        assert one.ranks.tolist() == whole[key].ranks.tolist()
    # From the whole corpus, not just its beginning.
    numbers = [int(key[1:]) for key in part]
    assert min(numbers) < N / 4 and max(numbers) > 3 * N / 4
    more = searched(path, tmp_path / "part", 0.1).select(KEY, WHOLE).results
    assert set(part) < set(more) and len(more) < N


def test_the_stage_states_the_share_and_its_interval_so_far(path: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    searched(path, tmp_path, 0.0, options=RunOptions(on_stage=stages.append))
    widths = []
    for stage in stages:
        if "unretrieved so far" in stage:
            low, high = re.findall(r"([\d.]+)%", stage)[1:]
            widths.append(float(high) - float(low))
    assert len(widths) > 5 and widths[-1] < widths[0] / 2


def test_the_order_does_not_depend_on_where_a_run_was_stopped(path: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def report(progress: object) -> None:
        if getattr(progress, "computed", 0) >= 40:
            stop.set()

    with stoppable(stop.is_set):
        part = searched(path, tmp_path, 0.15, options=RunOptions(report))
    first = len(part.select(KEY, WHOLE).results)
    again = searched(path, tmp_path, 0.15).select(KEY, WHOLE).results
    through = searched(path, tmp_path / "other", 0.15).select(KEY, WHOLE).results
    assert first <= len(again) and set(through) <= set(again)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["audit", "--model", "BM25", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_stops_at_the_width_and_states_the_sample(
    path: Path, own_service: None
) -> None:
    code, out, err = run("--dataset", str(path), "--width", "15")
    assert code == 0, err
    answer = json.loads(out)
    (row,) = answer["rows"]
    n = row["documents"]
    assert n < N and row["unretrieved_high"] - row["unretrieved_low"] <= 0.15
    assert f"Searched for: {n} of {N} documents, in random order." in err
    assert f"{n} of {N} documents, in random order" in json.dumps(answer["provenance"])
    # Repeating the command computes nothing; requesting all documents computes the rest.
    again = run("--dataset", str(path), "--width", "15")
    assert json.loads(again[1])["rows"] == [row]
    code, out, err = run("--dataset", str(path))
    assert json.loads(out)["rows"][0]["documents"] == N and "in random order" not in err
    too_few = "too few for an interval of at most"
    assert too_few not in err + again[2]
    code, _, err = run("--dataset", str(path), "--width", "1")
    assert code == 0 and f"but they are {too_few} 1 percentage point." in err
    assert too_few not in run("--dataset", str(path), "--width", "15")[2]
    code, out, err = run("--dataset", str(path), "--width", "101")
    assert code == 2 and "whole number from 1 to 100" in err


def test_the_python_call_accepts_the_width(path: Path, own_service: None) -> None:
    result = poslens.audit("BM25", path, width=20)
    (verdict,) = result.verdicts
    assert "documents, in random order" in verdict


@pytest.fixture
def offices(path: Path, own_service: None) -> str:
    datasets.register("offices", path)
    return "offices"


def partly(name: str, n: int) -> None:
    """Stop an audit of all documents after about `n`."""
    settings = AUDIT.parameters.settings()
    data = AUDIT.read(name)
    (spec,) = specs_of("BM25", data)
    (subject,) = AUDIT.subjects(service(), spec, AUDIT.corpus(data, settings), settings)
    job = AUDIT.job(service(), subject)
    run = job.start(lambda progress: progress.computed >= n and job.stop())
    run.wait()
    assert n <= job.n_done() < job.total
    assert AUDIT.summarize(service(), subject) is None
    assert not stored(AUDIT, service(), [subject])


def test_the_page_shows_an_incomplete_audit_as_a_sample(offices: str) -> None:
    partly(offices, 40)
    page = open_page("audit", dataset=offices, models=["BM25"]).run()
    assert not page.exception and not page.error
    shown = " ".join(one.value for one in page.markdown)
    assert f"of {N} documents, in random order" in shown
    assert page.button(key="audit.start").label == "Compute remaining"
    assert page.get("plotly_chart")
    # With a wide interval as the target, it is complete.
    page = open_page("audit", dataset=offices, models=["BM25"], width="30").run()
    assert not [one for one in page.button if one.key == "audit.start"]
    assert f"of {N} documents, in random order" in " ".join(one.value for one in page.markdown)


def test_samples_too_small_for_an_interval_are_not_shown(offices: str) -> None:
    partly(offices, 3)
    page = open_page("audit", dataset=offices, models=["BM25"]).run()
    assert any("Nothing to show yet" in one.value for one in page.info)
