"""Everything that a page computes for one pair goes through the device's queue, where requests are
bounded, shared, and canceled when the page is closed."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_pairs import pairs_for
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.sparse import SparseRetriever
from poslens.compute.compute import Compute, service
from poslens.dashboard.widgets import choices
from poslens.studies.bias.study import BIAS_STUDY
from poslens.studies.cause import service as interventions
from poslens.study import Asked
from tests.support import tiny_families
from tests.support.pages import open_page
from tests.support.requests_of import n_requests

MOVE = relocation_method()


pytestmark = pytest.mark.usefixtures("own_service")


@pytest.fixture
def words(tmp_path: Path) -> str:
    rows = [
        {
            "query": f"who answered {n}",
            "document": f"Number {n} was asked. Somebody answered {n}. Everything remained.",
            "evidence": f"Somebody answered {n}.",
            "pair_id": f"p{n}",
        }
        for n in range(3)
    ]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("words", tmp_path / "words.jsonl")
    return "words"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads in which models were requested."""
    found: list[str] = []
    retriever = Compute.retriever

    def noted(self: Compute, model: object) -> object:
        # Counting the tokens that a model reads also loads it.
        if sys._getframe(1).f_globals["__name__"] != "poslens.compute.coverage":
            found.append(threading.current_thread().name)
        return retriever(self, model)  # type: ignore[arg-type]

    monkeypatch.setattr(Compute, "retriever", noted)
    return found


def shown(page: AppTest) -> AppTest:
    assert not page.exception and not page.error
    return page


def test_everything_that_cause_computes_for_a_pair_goes_through_the_queue(
    words: str, threads: list[str]
) -> None:
    query = {"dataset": words, "pair": "p1", "models": ["BM25"], "method": "terms"}
    shown(open_page("cause", rank="true", displace="true", **query).run())
    assert len(threads) >= 4 and set(threads) == {"request"}


def test_a_contrast_goes_through_the_queue(words: str, threads: list[str]) -> None:
    pairs = pairs_for(datasets.read(words), "brevity", limit=2)
    BIAS_STUDY.job(
        service(), Asked(choices.spec("BM25", words), (pairs,), BIAS_STUDY.parameters.settings())
    ).start().wait()
    threads.clear()
    item = pairs.pairs[0].item_id
    query = {"dataset": words, "models": ["BM25"], "tests": ["brevity"], "item": item}
    page = shown(open_page("cause", tab="Bias tests", test="brevity", under="BM25", **query).run())
    assert any(one.label == "s(d1) − s(d2)" for one in page.metric)
    assert threads == ["request", "request"]


def test_shared_terms_go_through_the_queue_and_are_encoded_once(
    words: str,
    threads: list[str],
    tiny_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tiny_families.sparse(tiny_folder("bert").parent / "raw", tmp_path / "tiny")
    resolve.register_folder("mine", folder)
    page = open_page("explain", dataset=words, pair="p1", models=["mine"], method="terms").run()
    shown(page)
    encoded: list[object] = []
    terms = SparseRetriever.terms
    monkeypatch.setattr(
        SparseRetriever, "terms", lambda self, pair: (encoded.append(pair), terms(self, pair))[1]
    )
    shown(page.toggle(key="terms0.shown").set_value(True).run())
    assert len(page.dataframe) and len(encoded) == 1
    shown(page.run())
    shown(page.toggle(key="terms0.shown").set_value(False).run())
    shown(page.toggle(key="terms0.shown").set_value(True).run())
    assert len(encoded) == 1 and set(threads) == {"request"}


def test_an_intervention_is_shared_counted_and_canceled(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, spec = service(), choices.spec("BM25", words)
    first, second, third = datasets.read(words).pairs
    begun, stopped = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        try:
            while True:
                checkpoint()  # raises once nobody waits any more
                threading.Event().wait(0.01)
        finally:
            stopped.set()

    monkeypatch.setattr(interventions, "intervene", slow)
    compute.queue.reader = lambda: "reader"
    monkeypatch.setenv("POSLENS_REQUESTS_EACH", "2")
    places = [interventions.ask(compute, pair, spec, MOVE) for pair in (first, first, second)]
    assert begun.wait(30) and n_requests(compute.queue) == 2, "equal requests are one"
    with pytest.raises(UserError, match="of your requests are already waiting"):
        interventions.ask(compute, third, spec, MOVE)
    for place in places:
        place.leave()
    assert stopped.wait(30)
