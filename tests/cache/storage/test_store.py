"""The store: round trips, misses, damage, two writers, and disk errors."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import poslens.cache.storage.blocks
import poslens.cache.storage.connections
from poslens.attribution.curves.positions import NORMALIZATIONS, RESAMPLINGS, document_curve
from poslens.attribution.curves.text_axis import curves_of, over_text
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.types import Attribution
from poslens.cache.storage.encoded import Computed, encoded
from poslens.cache.storage.store import ModelKey, Store
from tests.support.stored import everything

ROOT = Path(__file__).parents[3]
METHOD = make_method("saliency")
MODEL = ModelKey("M", "0123456789abcdef")


def equal(found: Attribution | None, stored: Attribution) -> bool:
    return (
        found is not None
        and found.document_scores.tobytes() == stored.document_scores.tobytes()
        and found.query_scores.tobytes() == stored.query_scores.tobytes()
        and (found.score, found.seconds, found.query, found.document, found.method, found.model)
        == (
            stored.score,
            stored.seconds,
            stored.query,
            stored.document,
            stored.method,
            stored.model,
        )
    )


def sql(store: Store, statement: str, *parameters: object) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(store.path(MODEL, METHOD))) as db, db:
        return db.execute(statement, parameters).fetchall()


# -- hits and misses ---------------------------------------------------------------------------


def test_stored_results_are_read_back_bit_for_bit(store: Store, result) -> None:
    stored = [result(f"p{n}") for n in range(5)]
    store.put(MODEL, METHOD, stored)
    for pair, attribution in stored:
        assert equal(store.get(MODEL, METHOD, pair), attribution)
        # Another process (another Store) sees the same.
        assert equal(Store(store.root).get(MODEL, METHOD, pair), attribution)


def test_a_relative_folder_works(result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSLENS_HOME may be relative."""
    monkeypatch.chdir(tmp_path)
    store = Store(Path("data") / "cache")
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    assert equal(store.get(MODEL, METHOD, pair), attribution)


@pytest.mark.parametrize("folder", ["with space", "100%", "a#b?c", "Zażółć 海"])
def test_any_folder_name_works(result, tmp_path: Path, folder: str) -> None:
    store = Store(tmp_path / folder)
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    assert equal(store.get(MODEL, METHOD, pair), attribution)
    assert store.missing(MODEL, METHOD, [pair]) == []


def test_an_empty_store_has_nothing(store: Store, result) -> None:
    pair, _ = result("p")
    assert store.get(MODEL, METHOD, pair) is None
    assert store.missing(MODEL, METHOD, [pair]) == [pair]
    found = store.curves(MODEL, METHOD, [pair])
    assert (found.pair_ids, found.curves.shape, found.scores.shape) == ((), (0, 100), (0,))
    assert (found.n_truncated, found.failed) == (0, {})
    assert not store.root.exists(), "reading creates nothing"


@pytest.mark.parametrize("change", [{"query": "another query"}, {"document": "another text"}])
def test_a_changed_text_is_a_miss(store: Store, result, change: dict) -> None:
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    other = replace(pair, evidence=None, **change)
    assert store.get(MODEL, METHOD, other) is None
    assert store.missing(MODEL, METHOD, [pair, other]) == [other]
    assert store.curves(MODEL, METHOD, [other]).pair_ids == ()


def test_another_model_method_or_data_set_is_a_miss(store: Store, result) -> None:
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    assert store.get(ModelKey("M", "f" * 16), METHOD, pair) is None
    assert store.get(MODEL, METHOD, replace(pair, dataset="other")) is None
    other = replace(METHOD, params={**METHOD.params, "version": 2})
    assert store.get(MODEL, other, pair) is None
    # The model's name is for display; the fingerprint is the key.
    renamed = store.get(ModelKey("N", MODEL.fingerprint), METHOD, pair)
    assert renamed is not None and renamed.model == "N"


def test_another_resampling_is_a_hit(store: Store, result) -> None:
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    point = make_method("saliency", {"resampling": "point"})
    found = store.get(MODEL, point, pair)
    assert found is not None and found.method == point
    assert equal(replace(found, method=METHOD), attribution)


def test_a_result_replaces_the_previous_one_and_its_curves(store: Store, result) -> None:
    pair, first = result("p")
    _, second = result("q")
    second = replace(second, pair_id="p")
    store.put(MODEL, METHOD, [(pair, first)])
    max_method = make_method("saliency", {"normalization": "max"})
    store.curves(MODEL, max_method, [pair])
    store.put(MODEL, METHOD, [(pair, second)])
    assert equal(store.get(MODEL, METHOD, pair), second)
    for method in (METHOD, max_method):
        found = store.curves(MODEL, method, [pair])
        np.testing.assert_array_equal(found.curves[0], document_curve(second, method))


# -- curves ------------------------------------------------------------------------------------


def test_curves_with_any_settings_equal_directly_computed_ones(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [result(f"p{n}", n_full=900 if n % 2 else None) for n in range(5)]
    stored = [(replace(pair, document=2 * pair.document), a) for pair, a in stored]
    pairs = [pair for pair, _ in stored]
    store.put(MODEL, METHOD, stored)
    for normalization in NORMALIZATIONS:
        for resampling in RESAMPLINGS:
            method = make_method(
                "saliency", {"normalization": normalization, "resampling": resampling}
            )
            expected = [document_curve(attribution, method) for _, attribution in stored]
            for _ in range(2):  # derived, then read
                found = store.curves(MODEL, method, pairs)
                assert found.pair_ids == tuple(pair.pair_id for pair in pairs)
                np.testing.assert_array_equal(found.curves, expected)
                assert found.scores.tolist() == [a.score for _, a in stored]
                assert found.n_truncated == 2 and found.failed == {}
            whole = over_text(method)
            for _ in range(2):
                found = store.curves(MODEL, whole, pairs)
                expected = [curves_of(a, whole, len(pair.document))[0] for pair, a in stored]
                np.testing.assert_array_equal(found.curves, expected)
                assert found.magnitudes is found.curves and np.isnan(found.curves[1]).any()
    assert sql(store, "SELECT count(DISTINCT name), sum(n) FROM block WHERE name != 'summary'") == [
        (12, 60)
    ]
    # Now all are stored, so nothing is derived again.
    monkeypatch.setattr(
        "poslens.cache.storage.store.curve_columns", lambda *_: pytest.fail("made again")
    )
    store.curves(MODEL, make_method("saliency", {"resampling": "point"}), pairs)


def test_curves_are_in_the_order_of_the_requested_pairs(store: Store, result) -> None:
    stored = {pair.pair_id: (pair, a) for pair, a in (result(f"p{n}") for n in range(6))}
    store.put(MODEL, METHOD, list(stored.values()))
    asked = [stored[key][0] for key in ("p4", "p1", "p2")] + [result("absent")[0]]
    found = store.curves(MODEL, METHOD, asked)
    assert found.pair_ids == ("p4", "p1", "p2")
    for pair_id, curve in zip(found.pair_ids, found.curves, strict=True):
        np.testing.assert_array_equal(curve, document_curve(stored[pair_id][1], METHOD))


def test_encoded_results_are_stored_alike_and_the_last_of_a_pair_counts(
    store: Store, result, tmp_path: Path
) -> None:
    stored = [result(name) for name in ("a", "b", "a")]
    stored[2] = (stored[0][0], replace(stored[1][1], pair_id="a"))
    sent = encoded(stored, METHOD)
    halves = Computed.merged([encoded(stored[:2], METHOD), encoded(stored[2:], METHOD)])
    for name, given in (("whole", sent), ("halves", halves)):
        other = Store(tmp_path / name)
        other.put_encoded(MODEL, METHOD, given)
        assert equal(other.get(MODEL, METHOD, stored[0][0]), stored[2][1])
        assert equal(other.get(MODEL, METHOD, stored[1][0]), stored[1][1])
        found = other.curves(MODEL, METHOD, [stored[0][0]])
        np.testing.assert_array_equal(found.curves[0], document_curve(stored[2][1], METHOD))


# -- failures ----------------------------------------------------------------------------------


def test_failures_are_stored_and_can_be_retried(store: Store, result) -> None:
    (good, attribution), (bad, _) = result("good"), result("bad")
    store.put(MODEL, METHOD, [(good, attribution)])
    store.put_failures(MODEL, METHOD, [(bad, "it has no token")])
    pairs = [good, bad]
    assert store.get(MODEL, METHOD, bad) is None
    assert store.missing(MODEL, METHOD, pairs) == []
    assert store.missing(MODEL, METHOD, pairs, retry=True) == [bad]
    found = store.curves(MODEL, METHOD, pairs)
    assert found.pair_ids == ("good",) and found.failed == {"bad": "it has no token"}
    # A changed text has not failed.
    changed = replace(bad, document="another text")
    assert store.missing(MODEL, METHOD, [changed]) == [changed]
    assert store.curves(MODEL, METHOD, [changed]).failed == {}
    # A result replaces the failure, and vice versa.
    store.put(MODEL, METHOD, [(bad, attribution)])
    assert store.curves(MODEL, METHOD, pairs).failed == {}
    store.put_failures(MODEL, METHOD, [(bad, "again")])
    assert store.get(MODEL, METHOD, bad) is None
    assert store.curves(MODEL, METHOD, pairs).pair_ids == ("good",)


# -- damage ------------------------------------------------------------------------------------


def test_a_damaged_payload_is_a_miss_and_never_a_wrong_result(store: Store, result) -> None:
    pair, attribution = result("p")
    other, untouched = result("q")
    store.put(MODEL, METHOD, [(pair, attribution), (other, untouched)])
    ((whole,),) = sql(store, "SELECT payload FROM result WHERE item = 'p'")
    places = [*range(12), 13, 20, len(whole) // 2, len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 0x80
        sql(store, "UPDATE result SET payload = ? WHERE item = 'p'", bytes(damaged))
        assert store.get(MODEL, METHOD, pair) is None, f"byte {place}"
        assert equal(store.get(MODEL, METHOD, other), untouched)
    sql(store, "UPDATE result SET payload = ? WHERE item = 'p'", whole[: len(whole) // 2])
    assert store.get(MODEL, METHOD, pair) is None
    store.put(MODEL, METHOD, [(pair, attribution)])
    assert equal(store.get(MODEL, METHOD, pair), attribution)


def test_a_damaged_payload_is_computed_again(store: Store, result) -> None:
    """As documented in `get`: deriving another curve detects the damage, which must be reported."""
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    sql(store, "UPDATE result SET payload = x'00'")
    point = make_method("saliency", {"resampling": "point"})
    assert store.curves(MODEL, point, [pair]).pair_ids == ()
    assert store.missing(MODEL, point, [pair]) == [pair]


@pytest.mark.parametrize("place", [0, 3, 7, 201, 399])
def test_a_damaged_curve_is_derived_again_and_never_shown(store: Store, result, place: int) -> None:
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    ((points,),) = sql(store, "SELECT data FROM block WHERE name != 'summary'")
    damaged = bytearray(points)
    damaged[place] ^= 0x40
    sql(store, "UPDATE block SET data = ? WHERE name != 'summary'", bytes(damaged))
    np.testing.assert_array_equal(
        store.curves(MODEL, METHOD, [pair]).curves, [document_curve(attribution, METHOD)]
    )


def test_a_truncated_curve_is_derived_again(store: Store, result) -> None:
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    sql(store, "UPDATE block SET data = substr(data, 1, 396) WHERE name != 'summary'")
    np.testing.assert_array_equal(
        store.curves(MODEL, METHOD, [pair]).curves, [document_curve(attribution, METHOD)]
    )


def explained(store: Store, result, sentence: str) -> None:
    """Assert that reading and writing both fail with this one sentence, without a path."""
    pair, attribution = result("p")
    for use in (
        lambda: store.get(MODEL, METHOD, pair),
        lambda: store.missing(MODEL, METHOD, [pair]),
        lambda: store.curves(MODEL, METHOD, [pair]),
        lambda: store.put(MODEL, METHOD, [(pair, attribution)]),
        lambda: store.put_failures(MODEL, METHOD, [(pair, "no")]),
    ):
        with pytest.raises(UserError, match=sentence) as caught:
            use()
        assert str(store.root) not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"not a database at all" * 50, b"\x89PNG\r\n\x1a\n" * 200])
def test_a_foreign_file_in_place_of_the_store_is_refused(
    store: Store, result, content: bytes
) -> None:
    path = store.path(MODEL, METHOD)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    explained(store, result, r"is damaged or not a cache file: move it away")
    assert path.read_bytes() == content, "somebody's file was touched"


def test_a_database_of_another_program_is_refused(store: Store, result) -> None:
    path = store.path(MODEL, METHOD)
    path.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE result (other TEXT)")
    explained(store, result, r"^The cache can't be used, because ")


def test_an_empty_file_is_initialized(store: Store, result) -> None:
    path = store.path(MODEL, METHOD)
    path.parent.mkdir(parents=True)
    path.touch()
    pair, attribution = result("p")
    assert store.get(MODEL, METHOD, pair) is None
    store.put(MODEL, METHOD, [(pair, attribution)])
    assert equal(store.get(MODEL, METHOD, pair), attribution)


def test_a_damaged_database_never_gives_wrong_results(store: Store, result) -> None:
    """Overwriting random pages gives right numbers, a miss, or one sentence."""
    stored = [result(f"p{n}") for n in range(120)]
    store.put(MODEL, METHOD, stored)
    store.release()
    path = store.path(MODEL, METHOD)
    assert not path.with_name(path.name + "-wal").exists(), "the log was moved into the database"
    whole = path.read_bytes()
    curves = {pair.pair_id: document_curve(a, METHOD).tobytes() for pair, a in stored}
    generator = np.random.default_rng(1)
    sentences = wrong = 0
    for n in range(60):
        store.release()
        damaged = bytearray(whole)
        start = int(generator.integers(0, len(whole) - 64))
        damaged[start : start + 64] = generator.bytes(64)
        path.write_bytes(damaged[: start + 64] if n % 5 == 4 else damaged)
        for pair, attribution in stored[::17]:
            try:
                found = store.get(MODEL, METHOD, pair)
            except UserError:
                sentences += 1
            else:
                assert found is None or equal(found, attribution)
        with contextlib.suppress(UserError):
            some = store.curves(MODEL, METHOD, [pair for pair, _ in stored])
            assert len(set(some.pair_ids)) == len(some.pair_ids)
            for pair_id, curve in zip(some.pair_ids, some.curves, strict=True):
                wrong += curve.tobytes() != curves[pair_id]
    assert sentences > 0 and wrong == 0


# -- disk errors -------------------------------------------------------------------------------


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, result) -> None:
    (tmp_path / "cache").write_text("a file")
    store = Store(tmp_path / "cache")
    pair, attribution = result("p")
    assert store.get(MODEL, METHOD, pair) is None
    for put in (
        lambda: store.put(MODEL, METHOD, [(pair, attribution)]),
        lambda: store.put_failures(MODEL, METHOD, [(pair, "no")]),
    ):
        with pytest.raises(UserError, match="check its permissions, or set POSLENS_HOME") as caught:
            put()
        assert str(tmp_path) not in str(caught.value)


def test_a_full_disk_is_reported_in_one_sentence_and_loses_nothing(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    store.release()
    path = store.path(MODEL, METHOD)
    pages = path.stat().st_size // 65536
    real = sqlite3.connect

    def small(*args, **kwargs):
        db = real(*args, **kwargs)
        db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    monkeypatch.setattr(sqlite3, "connect", small)
    many = [result(f"q{n}") for n in range(200)]
    with pytest.raises(UserError) as caught:
        store.put(MODEL, METHOD, [*many, (pair, attribution)])
    assert str(caught.value) == (
        "The cache can't be used, because the disk is full: free some space."
    )
    monkeypatch.undo()
    store.release()
    assert equal(store.get(MODEL, METHOD, pair), attribution)
    assert len(store.missing(MODEL, METHOD, [p for p, _ in many])) == 200, "all or none"
    store.put(MODEL, METHOD, many)
    assert store.missing(MODEL, METHOD, [p for p, _ in many]) == []


def test_a_locked_store_is_reported_in_one_sentence(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked by an unrelated program, or by a writer that hangs."""
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    store.release()
    monkeypatch.setattr(poslens.cache.storage.connections, "_TIMEOUT_S", 0.05)
    with contextlib.closing(sqlite3.connect(store.path(MODEL, METHOD))) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="another process has locked it: wait"):
            store.put(MODEL, METHOD, [(pair, attribution)])
        assert equal(store.get(MODEL, METHOD, pair), attribution), "reading waits for nobody"
        other.rollback()
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with poslens.cache.storage.connections.locked(store.path(MODEL, METHOD)):
            holding.set()
            done.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(60)
    with pytest.raises(UserError, match="another process has locked it: wait"):
        store.put(MODEL, METHOD, [(pair, attribution)])
    assert equal(store.get(MODEL, METHOD, pair), attribution)
    done.set()
    thread.join()
    store.release()


def test_a_put_is_all_or_nothing(store: Store, result, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])

    def breaks(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(poslens.cache.storage.blocks, "append_curves", breaks)
    with pytest.raises(KeyboardInterrupt):
        store.put(MODEL, METHOD, [result("q"), (pair, result("r")[1])])
    monkeypatch.undo()
    assert equal(store.get(MODEL, METHOD, pair), attribution)
    assert store.get(MODEL, METHOD, result("q")[0]) is None


# -- other processes ---------------------------------------------------------------------------

# Without torch and a model: the store only needs tokens and numbers.
PREAMBLE = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    import numpy as np
    import poslens.cache.storage.store
    from poslens.attribution.curves.positions import curve_params
    from poslens.attribution.types import Attribution, Method, TextPair, Token, TokenizedText
    from poslens.cache.storage.store import ModelKey, Store

    METHOD = Method("saliency", {"version": 1}, curve_params())
    MODEL = ModelKey("M", "0123456789abcdef")
    store, who = Store(Path(sys.argv[1])), sys.argv[2]

    def result(n, size=20):
        text = TokenizedText.of(tuple(Token(f"t{j}", j, j + 1) for j in range(size)), size, 512)
        scores = np.random.default_rng(n).random(size)
        pair = TextPair(f"{who}{n}", "query", "x" * size, dataset="set")
        return pair, Attribution("M", METHOD, pair.pair_id, float(n), text, text, scores, scores)
""")


def child(store: Store, who: str, body: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(body), str(store.root), who],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_writing_at_once_lose_nothing(store: Store, result) -> None:
    """50 puts each into a store that doesn't exist yet, with a concurrent reader."""
    body = """
        for n in range(50):
            store.put(MODEL, METHOD, [result(n)])
    """
    children = [child(store, who, body) for who in ("a", "b")]
    reader_failed: list[BaseException] = []
    pair, _ = result("absent")
    done = threading.Event()

    def read() -> None:
        try:
            while not done.wait(0.02):
                store.curves(MODEL, METHOD, [pair])
        except BaseException as error:
            reader_failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        outputs = [c.communicate(timeout=300) for c in children]
    finally:
        done.set()
        reader.join()
        for one in children:
            one.kill()
            one.wait()
    assert [c.returncode for c in children] == [0, 0], outputs
    assert reader_failed == []
    found = everything(store, MODEL, METHOD)
    assert sorted(found.pair_ids) == sorted(f"{who}{n}" for who in "ab" for n in range(50))
    assert all(
        float(pair_id[1:]) == score
        for pair_id, score in zip(found.pair_ids, found.scores.tolist(), strict=True)
    )
    assert sql(store, "SELECT count(*) FROM result") == [(100,)]
    assert sql(store, "PRAGMA integrity_check") == [("ok",)]


def test_two_threads_writing_at_once_lose_nothing(store: Store, result) -> None:
    stored = [[result(f"{who}{n}") for n in range(20)] for who in "ab"]
    failures: list[BaseException] = []

    def run(part) -> None:
        try:
            for one in part:
                store.put(MODEL, METHOD, [one])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in stored]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for pair, attribution in itertools.chain(*stored):
        assert equal(store.get(MODEL, METHOD, pair), attribution)


def test_a_process_killed_during_a_put_leaves_the_store_usable(store: Store, result) -> None:
    """The write has partly reached the disk (more than SQLite keeps in memory), and then a reader
    opens the store, like a page or a resumed run."""
    pair, attribution = result("p")
    store.put(MODEL, METHOD, [(pair, attribution)])
    body = """
        def killed(*_):
            os._exit(9)
        poslens.cache.storage.blocks.append_curves = killed
        store.put(MODEL, METHOD, [result(n, size=20_000) for n in range(20)])
    """
    process = child(store, "k", body)
    output = process.communicate(timeout=120)
    assert process.returncode == 9, output
    path = store.path(MODEL, METHOD)
    log = path.with_name(path.name + "-wal")
    assert log.is_file() and log.stat().st_size > 1 << 20, "nothing had reached the disk"
    assert equal(store.get(MODEL, METHOD, pair), attribution)
    assert store.missing(MODEL, METHOD, [pair]) == []
    assert store.curves(MODEL, METHOD, [pair]).pair_ids == ("p",)
    store.put(MODEL, METHOD, [result("q")])
    assert sql(store, "PRAGMA integrity_check") == [("ok",)]
    assert sql(store, "SELECT count(*) FROM result") == [(2,)]
