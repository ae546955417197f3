"""Failures are listed and retried on the page that computed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.evaluation.audit import audit_method
from poslens.attribution.evaluation.bias_pairs import pairs_for
from poslens.attribution.evaluation.chunks import WHOLE
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.interventions.segments import documents_of, edits_method
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.kinds import bias as bias_scores
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.kinds.bias import BIAS_SCORES
from poslens.cache.kinds.faithfulness import faithfulness_tests
from poslens.cache.kinds.interventions import causes
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import Compute, service
from poslens.dashboard.widgets.choices import spec
from poslens.failures import failure_rows
from poslens.studies.audit.study import AUDIT
from poslens.studies.audit.summary import whole_corpus
from poslens.studies.cause.edits import EDIT_STUDY
from poslens.studies.ranking.service import store_of
from poslens.study_plan import plan
from tests.support.pages import open_page

TERMS = make_method("terms")
WHY = "The disk was on fire."
ROWS = "query,document,evidence\n" + "".join(
    f"what is {word},The {word} is grey. Filler stands here. Nobody saw more.,The {word} is grey.\n"
    for word in ("ice", "stone", "fog")
)


def bias(compute: Compute, model: ModelKey, data: DataSet) -> None:
    item = pairs_for(data, "position", "end", 250).pairs[0]
    bias_scores.store(compute.root).put_failures(model, BIAS_SCORES, [(item, WHY)])


def faithfulness(compute: Compute, model: ModelKey, data: DataSet) -> None:
    tests = faithfulness_tests(compute.root, ErasureParameters())
    tests.put_failures(model, TERMS, [(data.pairs[0], WHY)])


def cause(compute: Compute, model: ModelKey, data: DataSet) -> None:
    moved = relocation_method()
    # Not the first pair, which the page computes automatically.
    causes(compute.root, moved).put_failures(model, moved, [(data.pairs[-1], WHY)])


def edits(compute: Compute, model: ModelKey, data: DataSet) -> None:
    put_in = edits_method("insertion")
    item = documents_of(data.pairs)[-1]
    causes(compute.root, put_in).put_failures(model, put_in, [(item, WHY)])


def audit(compute: Compute, model: ModelKey, data: DataSet) -> None:
    settings = AUDIT.parameters.settings({"top": 1})
    audited = AUDIT.corpus(data, settings)
    (index,) = AUDIT.subjects(compute, spec("BM25", data.name), audited, settings)
    AUDIT.job(compute, index).start().wait()
    store = store_of(AuditStore, compute, audited)
    store.ranks.put_failures(model, audit_method(WHOLE), [(store.items[0], WHY)])


def whole_audit(compute: Compute, model: ModelKey, data: DataSet) -> None:
    store = store_of(AuditStore, compute, whole_corpus(data))
    failed = [(item, WHY) for item in store.items]
    store.ranks.put_failures(model, audit_method(WHOLE), failed)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataSet]:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    (tmp_path / "mine.csv").write_text(ROWS)
    datasets.register("mine", tmp_path / "mine.csv")
    service.cache_clear()
    yield datasets.read("mine")
    service.cache_clear()


SET = "Data set"


@pytest.mark.parametrize(
    ("fail", "name", "model", "asked"),
    [
        (bias, "cause", "BM25", {"tab": "Bias tests", "tests": ["position"]}),
        (faithfulness, "methods", "BM25", {"tab": SET, "methods": ["terms"]}),
        (cause, "cause", "BM25", {"tab": SET}),
        (edits, "cause", "MiniLM", {"tab": SET, "corpus": "insertion"}),
        (audit, "audit", "BM25", {"top": "1"}),
        (whole_audit, "audit", "BM25", {"top": "1"}),
    ],
)
def test_failures_are_listed_and_retried(
    fail: Callable[[Compute, ModelKey, DataSet], None],
    name: str,
    model: str,
    asked: dict[str, object],
    mine: DataSet,
) -> None:
    compute = service()
    fail(compute, compute.identify(spec(model, mine.name)).key, mine)
    page = open_page(name, dataset=mine.name, models=[model], **asked).run()
    assert not page.exception
    assert any("failed" in one.label for one in page.expander)
    if fail in (audit, whole_audit):
        counted = "2 of 3 documents, 1 failed" if fail is audit else "0 of 3 documents, 3 failed"
        assert any(counted in one.value for one in page.caption)
    assert any("reason" in f.value and WHY in list(f.value["reason"]) for f in page.dataframe)
    before = set(compute.runs._runs)
    next(one for one in page.button if one.label == "Retry").click().run()
    (key,) = set(compute.runs._runs) - before or before
    run = compute.runs._runs[key]
    assert run.retry_failed
    run.wait()
    assert not run.error
    page.run()
    assert not any(one.label == "Retry" for one in page.button)


@pytest.mark.parametrize("own", [True, False])
def test_failed_documents_have_their_ids(own: bool, tmp_path: Path) -> None:
    named = (
        ',document_id\nwhat is ice,Ice is cold. It melts.,d7\nand fog,"Fog is grey. It goes.",d9\n'
    )
    rows = f"query,document{named}" if own else ROWS
    data = datasets.read_upload("ids.csv", rows.encode())
    compute = Compute(tmp_path)
    edits(compute, compute.identify(resolve("MiniLM")).key, data)
    settings = EDIT_STUDY.parameters.settings()
    found = plan(
        EDIT_STUDY, compute, [resolve("MiniLM")], EDIT_STUDY.corpus(data, settings), settings
    )
    failed = [row.item for row in failure_rows(found.jobs)]
    assert failed == ["d9" if own else data.pairs[-1].pair_id]
