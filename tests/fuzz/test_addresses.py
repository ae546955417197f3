"""A sample of tests/fuzz/addresses.py, and addresses that once caused a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.addresses import PAGES, Query, fuzz, fuzz_widgets, opened, prepare, problem


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> None:
    from poslens.attribution import datasets

    if "few" not in datasets.names():
        prepare(tmp_path_factory.mktemp("addresses"))


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("explain", {"": "x"}),
        ("explain", {"$$ID-x": "1"}),
        ("storage", {"$$ID-1-None": "1"}),
        ("map", {"model": "nope", "dataset": "few"}),
        ("map", {"model": "tiny@0.5"}),
        ("curves", {"models": ["nope", "tiny@nope"], "dataset": "nope"}),
        ("cause", {"tab": "Bias tests", "models": ["tiny"], "pairs": "1e999"}),
        ("explain", {"runs on boards": "1", "app.page": "x"}),
    ],
)
def test_addresses_that_once_failed_are_answered(page: str, query: Query) -> None:
    app = opened(page, query)
    assert problem(app) == ""


def test_a_link_drops_no_session_state() -> None:
    kept = {"runs on boards": set(), "url.pair": "stays"}
    app = opened("storage", dict.fromkeys(kept, "gone"), kept)
    assert {name: app.session_state[name] for name in kept} == kept


@pytest.mark.parametrize("page", ["curves", "map"])
def test_a_deleted_data_set_is_reported_in_one_sentence(page: str, tmp_path: Path) -> None:
    from poslens.attribution import datasets

    file = tmp_path / "gone.jsonl"
    file.write_text('{"query": "a", "document": "b"}')
    datasets.register("gone", file)
    file.unlink()
    app = opened(page, {**PAGES[page], "dataset": "gone"})
    assert not app.exception
    said = [one.value.replace("\\", "") for one in app.error]
    assert len(said) == 1 and "The files of gone can't be read" in said[0]
    assert str(tmp_path) not in said[0]


def test_a_sample_of_damaged_addresses_is_answered() -> None:
    assert [fault for *where, what in fuzz(20, seed=7) if what for fault in [(*where, what)]] == []


def test_a_sample_of_damaged_widget_states_is_answered() -> None:
    faults = [(*where, what) for *where, what in fuzz_widgets(10, seed=7) if what]
    assert faults == []


@pytest.mark.usefixtures("own_service")  # so that the model is loaded here
def test_a_model_that_exits_fails_only_its_own_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from poslens.compute import model_pool

    def ends(*_: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(model_pool, "load", ends)
    app = opened("explain", {**PAGES["explain"], "models": ["tiny@max"], "pair": "rises"})
    assert not app.exception
    assert "would end the program" in app.error[0].value.replace("\\", "")
