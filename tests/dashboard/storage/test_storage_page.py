"""The Storage page and the commands about the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.evaluation.position_effect import position_ranks_method
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.interventions.segments import edits_method
from poslens.attribution.methods import make_method
from poslens.attribution.types import Attribution, TextPair, Token, TokenizedText
from poslens.cache.exchange.part_files import PartFolder, PartWriter
from poslens.cache.jobs.claims import Claims, claims_folder, using
from poslens.cache.kinds.embeddings import EmbeddingStore
from poslens.cache.kinds.faithfulness import faithfulness_tests
from poslens.cache.kinds.interventions import RankedPair, causes, position_ranks
from poslens.cache.storage import maintenance
from poslens.cache.storage.store import ModelKey, Store
from poslens.compute.compute import Compute, service
from poslens.dashboard.__main__ import app as commands
from poslens.dashboard.server import people
from poslens.dashboard.server.own_texts import Session
from poslens.storage import service as cache_service
from poslens.storage.service import Exports
from tests.support.pages import open_page

ROOT = Path(__file__).parents[3]
METHOD = make_method("saliency")
MODEL = ModelKey("M*", "0123456789abcdef")
OTHER = ModelKey("N", "f" * 16)
runner = CliRunner()


def result(name: str) -> tuple[TextPair, Attribution]:
    text = TokenizedText.of(tuple(Token(f"t{j}", j, j + 1) for j in range(20)), 20, 512)
    scores = np.random.default_rng(list(name.encode())).random(20, np.float32)
    pair = TextPair(name, "query", "x" * 20, dataset="set")
    return pair, Attribution("M", METHOD, name, 0.5, text, text, scores, scores)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The cache of a data folder, with results of two models."""
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("POSLENS_UPKEEP", "yes")
    pairs = tmp_path / "set.csv"
    pairs.write_text("query,document\nq,d\n")
    datasets.register("set", pairs)
    service.cache_clear()
    store = Store(tmp_path / "home" / "cache")
    store.put(MODEL, METHOD, [result(f"p{k}") for k in range(4)])
    store.put_failures(MODEL, METHOD, [(result("bad")[0], "it has no <b>token</b>")])
    store.put(MODEL, make_method("occlusion"), [result("p0")])
    store.put(OTHER, METHOD, [result("p0")])
    yield store
    service.cache_clear()


def damage(store: Store) -> None:
    """Flip a byte of one stored result."""
    with store.writing(MODEL, METHOD) as db:
        number, data = db.execute("SELECT id, payload FROM result WHERE reason IS NULL").fetchone()
        db.execute("UPDATE result SET payload = ? WHERE id = ?", (data[:-1] + b"\0", number))


# -- page --------------------------------------------------------------------------------------


def opened() -> AppTest:
    return open_page("storage").run()


def own(app: AppTest) -> Session:
    """The private state of the page's session."""
    return app.session_state["own texts"]


def clicked(app: AppTest, key: str) -> AppTest:
    """Click, wait for the work to end, and show the page again."""
    app.button(key=key).click().run()
    for run in (
        cache_service.current(service()),
        cache_service.current_export(service(), own(app).exports),
    ):
        if run is not None:
            run.wait()
    app.run()
    assert not app.exception
    return app


def pick(app: AppTest, method: str) -> AppTest:
    box = app.selectbox(key=f"cache.method.{MODEL.fingerprint}")
    return box.set_value(next(o for o in box.options if method in o)).run()


def test_the_page_lists_stored_results(store: Store) -> None:
    app = opened()
    assert not app.exception and [e.value for e in app.error] == []
    frame = app.dataframe[0].value
    assert sorted(zip(frame["model"], frame["results"], frame["failed"], strict=True)) == [
        ("M*", 1, 0),
        ("M*", 4, 1),
        ("N", 1, 0),
    ]
    assert any("Models: 2 · results: 6" in caption.value for caption in app.caption)
    assert str(store.root) not in str(app.main)


def test_deleting_asks_for_confirmation_and_states_what_is_deleted(store: Store) -> None:
    app = opened()
    app.button(key="cache.delete").click().run()
    shown = [text.value.replace("\\", "") for text in app.markdown]
    assert any(text.startswith("Delete M*: 5 results and 1 failure of") for text in shown)
    app.button(key="cache.keep").click().run()
    assert not [b for b in app.button if b.key == "cache.sure"] and len(opened().dataframe[0].value)
    app.button(key="cache.delete").click().run()
    clicked(app, "cache.sure")
    assert app.success[0].value.replace("\\", "").startswith("Deleted M*: 5 results and 1 failure")
    assert app.dataframe[0].value["model"].tolist() == ["N"]
    assert store.get(MODEL, METHOD, result("p0")[0]) is None
    assert store.get(OTHER, METHOD, result("p0")[0]) is not None


@pytest.mark.parametrize("kind", ["", "relocation", "any"])
def test_results_are_not_deleted_while_a_run_adds_to_them(store: Store, kind: str) -> None:
    run = Claims(claims_folder(store.root, OTHER, METHOD))
    if kind == "relocation":
        method = relocation_method(11)
        items = causes(store.root, method)
        items.put_failures(OTHER, method, [(result("p0")[0], "no evidence")])
        run = Claims(claims_folder(store.root, OTHER, method, items.kind))
    elif kind == "any":
        run = using(store.root, OTHER.fingerprint)
    stored = len(cache_service.stored(service()))
    with run:
        app = opened()
        app.selectbox(key="cache.model").set_value(OTHER.fingerprint).run()
        app.button(key="cache.delete").click().run()
        (error,) = app.button(key="cache.sure").click().run().error
        assert "A run is using N: " in error.value.replace("\\", "")
        refused = runner.invoke(commands, ["cache", "delete", "--model", "N", "--yes"])
        assert refused.exit_code == 2 and "wait until it ends" in refused.stderr
        assert len(cache_service.stored(service())) == stored
        alone = runner.invoke(commands, ["cache", "delete", "--model", "M*", "--yes"])
        assert alone.exit_code == 0, "the run computes no result of this model"
    done = runner.invoke(commands, ["cache", "delete", "--model", "N", "--yes"])
    assert done.exit_code == 0 and not cache_service.stored(service())


def test_another_selection_cancels_a_confirmation(store: Store) -> None:
    app = opened()
    app.button(key="cache.delete").click().run()
    app.selectbox(key="cache.model").set_value(OTHER.fingerprint).run()
    app.selectbox(key="cache.model").set_value(MODEL.fingerprint).run()
    assert not [button for button in app.button if button.key == "cache.sure"]


def test_an_export_of_all_data_sets_has_the_embeddings(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    EmbeddingStore(store.root).put(MODEL, "document", [("a text", np.ones(3, np.float32))])
    app = opened()
    (made,) = own(clicked(app, "cache.export")).exports.offered()
    assert pq.read_table(made.path)["dataset"].to_pylist().count("") == 1
    monkeypatch.setattr(people, "may_change", lambda: False)
    app = clicked(opened(), "cache.export")
    made = own(app).exports.offered()[-1]
    assert "" not in pq.read_table(made.path)["dataset"].to_pylist()
    assert pick(app, "embedding").button(key="cache.export").disabled


def two_data_sets(store: Store, tmp_path: Path) -> tuple[TextPair, TextPair]:
    """A pair of `set` and one of `more`, both with results of MODEL."""
    datasets.register("more", tmp_path / "set.csv")
    (pair, found) = result("p0")
    other = replace(pair, dataset="more")
    store.put(MODEL, METHOD, [(other, found)])
    return pair, other


def test_the_results_of_one_data_set_are_deleted(store: Store, tmp_path: Path) -> None:
    pair, other = two_data_sets(store, tmp_path)
    app = opened()
    assert "more; set" in app.dataframe[0].value["data sets"].tolist()
    (box,) = (box for box in app.selectbox if box.label == "Data set")
    app = box.set_value("more").run()
    app.button(key="cache.delete").click().run()
    shown = [text.value.replace("\\", "") for text in app.markdown]
    assert any(text.startswith("Delete M*: 1 result of saliency") for text in shown), shown
    clicked(app, "cache.sure")
    assert store.get(MODEL, METHOD, other) is None and store.get(MODEL, METHOD, pair) is not None


def test_the_command_deletes_the_results_of_one_data_set(store: Store, tmp_path: Path) -> None:
    pair, other = two_data_sets(store, tmp_path)
    done = runner.invoke(commands, ["cache", "delete", "--dataset", "more", "--yes"])
    assert json.loads(done.stdout)["files"] == 1, done.stderr
    assert store.get(MODEL, METHOD, other) is None and store.get(MODEL, METHOD, pair) is not None
    again = runner.invoke(commands, ["cache", "delete", "--dataset", "more", "--yes"])
    assert again.exit_code == 2 and "no results of the data set more" in again.stderr


def test_an_export_restores_deleted_results(store: Store) -> None:
    app = clicked(opened(), "cache.export")
    assert "Exported 6 rows" in app.success[0].value
    made = own(app).exports.offered()[0]
    data = made.path.read_bytes()
    assert made.name == "M_all-methods_results.parquet"
    app.button(key="cache.delete").click().run()
    clicked(app, "cache.sure")
    app.file_uploader(key="cache.upload").set_value(("again.parquet", data, "")).run()
    clicked(app, "cache.import")
    assert "6 of 6 rows are new and were added" in app.success[-1].value.replace("\\", "")
    found = store.get(MODEL, METHOD, result("p0")[0])
    assert found is not None
    assert found.document_scores.tobytes() == result("p0")[1].document_scores.tobytes()


def test_the_import_stays_open_while_it_has_a_file(store: Store) -> None:
    def is_open(app: AppTest) -> bool:
        return next(one.proto.expanded for one in app.expander if one.label == "Import")

    app = opened()
    assert not is_open(app)
    app.file_uploader(key="cache.upload").set_value(("x.parquet", b"PAR1" * 99, "")).run()
    assert is_open(app)
    assert is_open(clicked(app, "cache.import"))


def test_a_foreign_upload_is_refused_in_one_sentence(store: Store) -> None:
    app = opened()
    app.file_uploader(key="cache.upload").set_value(("x.parquet", b"PAR1" * 99, "")).run()
    clicked(app, "cache.import")
    assert [e.value.replace("\\", "") for e in app.error] == [
        "x.parquet is damaged or not a Parquet file: copy or export it again."
    ]
    assert len(app.dataframe[0].value) == 3


def test_verify_and_compact(store: Store) -> None:
    app = clicked(opened(), "cache.verify")
    assert app.success[0].value == "All 6 entries, results and failures, are intact\\."
    damage(store)
    app = clicked(app, "cache.verify")
    assert "1 of 6 entries were damaged and were removed" in app.success[0].value
    app = clicked(app, "cache.compact")
    assert app.success[0].value.startswith("Compacting freed")
    assert len(store.missing(MODEL, METHOD, [result(f"p{k}")[0] for k in range(4)])) == 1


def test_failures_are_listed_with_how_to_retry_them(store: Store) -> None:
    app = pick(opened(), "saliency")
    assert app.expander[0].label == "1 item failed"
    rows = app.dataframe[1].value
    assert rows.values.tolist() == [["set", "attribution", "bad", "it has no <b>token</b>"]]
    assert not app.exception


def test_failures_of_tests_and_interventions_are_listed_too(store: Store) -> None:
    pair = result("bad")[0]
    tests = faithfulness_tests(store.root, ErasureParameters())
    tests.put_failures(MODEL, METHOD, [(pair, "it is too short")])
    moved = relocation_method()
    causes(store.root, moved).put_failures(MODEL, moved, [(pair, "it has no evidence")])
    app = pick(open_page("storage").run(), "relocation")
    assert [row[1:] for row in app.dataframe[1].value.values.tolist()] == [
        ["relocation", "bad", "it has no evidence"]
    ]
    assert any("To retry, open Cause" in one.value for one in app.caption)
    put_in = edits_method("insertion")
    causes(store.root, put_in).put_failures(MODEL, put_in, [(pair, "it is too short")])
    app = pick(open_page("storage").run(), "insertion")
    (link,) = (one for one in app.get("page_link") if "Open Cause" in one.proto.label)
    assert "corpus=insertion" in link.proto.query_string
    ranks = position_ranks_method(11)
    position_ranks(store.root).put_failures(
        MODEL, ranks, [(RankedPair(pair, "corpus"), "no evidence")]
    )
    app = pick(open_page("storage").run(), "position_ranks")
    (link,) = (one for one in app.get("page_link") if "Position effect" in one.proto.label)
    assert link.proto.page == "ranking" and "tab=Position+effect" in link.proto.query_string
    app = pick(app, "saliency")
    assert app.dataframe[1].value["of"].tolist() == ["attribution", "faithfulness"]
    said = " ".join(one.value for one in app.caption)
    assert "To retry, open Curves" in said and "To retry, open Methods" in said
    assert not app.exception


def test_an_unreadable_file_is_reported_and_can_be_deleted(store: Store) -> None:
    path = store.path(MODEL, make_method("integrated_gradients"))
    path.write_bytes(b"not a database" * 200)
    app = opened()
    assert not app.exception and len(app.warning) == 1
    assert app.button(key="cache.export").disabled
    pick(app, "integrated_gradients")
    app.button(key="cache.delete").click().run()
    clicked(app, "cache.sure")
    assert not path.exists() and len(app.warning) == 0
    assert len(app.dataframe[0].value) == 3


def test_an_empty_cache_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path))
    service.cache_clear()
    app = opened()
    assert not app.exception and app.info[0].value.startswith("Nothing is stored yet")
    service.cache_clear()


def test_only_the_last_exports_are_kept(store: Store, tmp_path: Path) -> None:
    compute, exports, paths = Compute(store.root.parent), Exports(tmp_path / "exports"), []
    files = cache_service.stored(compute)
    for meant in (files[:1], files[:1], files, files[1:2], files[2:]):
        run = cache_service.start_export(compute, meant, ["set"], exports)
        run.wait()
        assert run.error == ""
        paths.append(exports.offered()[0].path)
    # An export of the same name replaces the previous one.
    assert [path.exists() for path in paths] == [False, False, True, True, True]


def test_private_texts_from_earlier_versions_are_neither_exported_nor_listed(store: Store) -> None:
    for name in ("typed", "upload-x-1"):
        pair, attribution = result(f"secret {name}")
        store.put(OTHER, METHOD, [(replace(pair, dataset=name), attribution)])
        store.put_failures(OTHER, METHOD, [(replace(pair, pair_id="secret", dataset=name), "no")])
    app = opened()
    app.selectbox(key="cache.model").set_value(OTHER.fingerprint).run()
    app.selectbox(key=f"cache.method.{OTHER.fingerprint}").select_index(1).run()
    assert "secret" not in str(app.main)
    app = clicked(app, "cache.export")
    (made,) = own(app).exports.offered()
    assert b"secret" not in made.path.read_bytes()
    assert pq.read_table(made.path)["dataset"].unique().to_pylist() == ["set"]


def test_results_of_data_sets_that_are_not_registered_are_reachable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a file given by its path, for example; a visitor does not see them."""
    pair, attribution = result("p9")
    store.put(OTHER, METHOD, [(replace(pair, dataset="by-path"), attribution)])
    store.put_failures(OTHER, METHOD, [(replace(pair, pair_id="lost", dataset="by-path"), "no")])

    def of_other() -> AppTest:
        return opened().selectbox(key="cache.model").set_value(OTHER.fingerprint).run()

    app = of_other()
    assert "by-path; set" in app.dataframe[0].value["data sets"].tolist()
    assert app.dataframe[1].value["item"].tolist() == ["lost"]
    (box,) = (box for box in app.selectbox if box.label == "Data set")
    app = clicked(box.set_value("by-path").run(), "cache.export")
    (made,) = own(app).exports.offered()
    assert pq.read_table(made.path)["dataset"].unique().to_pylist() == ["by-path"]
    monkeypatch.setenv("POSLENS_UPKEEP", "no")
    assert "by-path" not in str(of_other().main)


def test_all_models_are_exported_and_their_failures_listed_together(store: Store) -> None:
    store.put_failures(OTHER, METHOD, [(result("worse")[0], "it is empty")])
    app = opened()
    assert app.selectbox(key="cache.model").value == MODEL.fingerprint, "Delete starts with one"
    app.selectbox(key="cache.model").set_value("").run()
    assert not app.exception
    listed = app.dataframe[1].value
    assert sorted(zip(listed["model"], listed["item"], strict=True)) == [
        ("M*", "bad"),
        ("N", "worse"),
    ]
    app = clicked(app, "cache.export")
    (made,) = own(app).exports.offered()
    assert made.name.startswith("all-models_all-methods")
    assert len(pq.read_table(made.path)) == 8


@pytest.mark.parametrize("setting", ["no", "auto"])
def test_visitors_from_other_machines_can_only_export(
    store: Store, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("POSLENS_UPKEEP", setting)
    monkeypatch.setattr(people, "_on_this_machine", lambda: False)
    app = opened()
    assert {button.key for button in app.button} == {"cache.export"}
    assert not app.get("file_uploader")
    assert any("Only the administrator can do this" in caption.value for caption in app.caption)
    monkeypatch.setenv("POSLENS_UPKEEP", "yes")
    assert "cache.delete" in {button.key for button in opened().button}


def test_exports_of_one_session_are_offered_to_no_other(store: Store) -> None:
    first, second = opened(), opened()
    clicked(first, "cache.export")
    second.run()
    assert own(first).exports.offered() and not own(second).exports.offered()
    assert "Exported" not in " ".join(one.value for one in second.success)
    assert len(first.get("download_button")) == 1 and not second.get("download_button")


def test_a_stopped_verification_is_reported(store: Store) -> None:
    compute = Compute(store.root.parent)
    run = cache_service.start_verify(compute, cache_service.stored(compute))
    run.stop()
    run.wait()
    assert run.error.startswith("Stopped") or "intact" in run.stage
    damaged = replace(cache_service.stored(compute)[0], problem="Bad.")
    run = cache_service.start_compact(compute, [damaged])
    run.wait()
    assert run.error == "Bad. Delete it, or select other results."


def test_delete_stops_between_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, begun, end = Compute(store.root.parent), Event(), Event()
    drop = maintenance.drop_file

    def slowly(file: maintenance.StoredFile) -> int:
        begun.set()
        end.wait(60)
        return drop(file)

    monkeypatch.setattr(maintenance, "drop_file", slowly)
    run = cache_service.start_delete(compute, cache_service.stored(compute))
    begun.wait(60)
    run.stop()
    end.set()
    run.wait()
    assert run.error == "Stopped before all files were processed."
    assert len(cache_service.stored(compute)) == 2


def test_a_log_deleted_during_listing_causes_no_error(store: Store) -> None:
    # A dangling link is listed, but its target does not exist.
    log = store.path(OTHER, METHOD).with_suffix(".db-wal")
    log.unlink(missing_ok=True)
    log.symlink_to("gone")
    assert len(cache_service.stored(Compute(store.root.parent))) == 3


# -- commands ----------------------------------------------------------------------------------


def run(*arguments: str, given: str = "", code: int = 0) -> list[dict]:
    done = runner.invoke(commands, ["cache", *arguments], input=given, catch_exceptions=False)
    assert done.exit_code == code, done.output
    # The runner echoes its input to stdout.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def said(*arguments: str, code: int = 2) -> str:
    done = runner.invoke(commands, ["cache", *arguments], catch_exceptions=False)
    assert done.exit_code == code
    return done.stderr


def test_a_model_is_exported_and_imported(store: Store, tmp_path: Path) -> None:
    assert [(row["model"], row["results"]) for row in run("list")] == [
        ("M*", 1),
        ("M*", 4),
        ("N", 1),
    ]
    path = tmp_path / "out.parquet"
    (row,) = run("export", str(path), "--model", "012345", "--method", "saliency")
    assert row["rows"] == 5 and row["bytes"] == path.stat().st_size
    assert run("delete", "--model", "M*", given="n\n", code=1) == []
    assert len(run("list")) == 3
    (row,) = run("delete", "--model", "M*", "--yes")
    assert row["files"] == 2 and row["freed"] > 0 and len(run("list")) == 1
    assert [row["added"] for _ in range(2) for row in run("import", str(path))] == [5, 0]
    assert [row["checked"] for row in run("verify")] == [5, 1]
    assert len(run("compact", "--model", "N")) == 1


def test_a_damaged_cache_has_its_own_exit_code(store: Store) -> None:
    damage(store)
    assert sum(len(row["damaged"]) for row in run("verify", code=2)) == 1
    assert not any(row["damaged"] for row in run("verify")), "they are taken out"


def test_caches_are_merged_and_parts_ingested(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.put(OTHER, METHOD, [result("p0"), result("p9")])
    (row,) = run("merge", str(other.root))
    assert (row["rows"], row["added"]) == (2, 1)
    folder = tmp_path / "parts"
    PartWriter(PartFolder(folder), tmp_path, "1").put(OTHER, METHOD, [result("p9"), result("q")])
    (row,) = run("ingest", str(folder))
    assert (row["parts"], row["new"], row["added"], row["damaged"]) == (1, 1, 1, 0)
    assert run("verify", "--parts", str(folder)) == [
        {"folder": str(folder), "parts": 1, "damaged": 0}
    ]
    (part,) = folder.rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-5])
    assert run("verify", "--parts", str(folder), code=2)[0]["damaged"] == 1


def test_invalid_input_is_refused_in_one_sentence(store: Store, tmp_path: Path) -> None:
    assert "The cache has no results of nobody:" in said("verify", "--model", "nobody")
    assert "gone.parquet cannot be read" in said("import", str(tmp_path / "gone.parquet"))
    assert "is not a cache" in said("merge", str(tmp_path / "none"))
    assert "cannot be written" in said("export", str(tmp_path / "none" / "f.parquet"))
    assert "can't be used for parts" in said("ingest", "gopher://x")
    for asked in (("ingest",), ("verify", "--parts")):
        assert "none contains no parts: use the folder" in said(*asked, str(tmp_path / "none"))
    assert "f.csv doesn't have a supported suffix: use .parquet" in said("export", "f.csv")
