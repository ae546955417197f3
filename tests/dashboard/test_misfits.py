"""Rows in the store that don't fit their kind of result, which older imports accepted: pages and
commands treat them as missing."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.methods import make_method
from poslens.cache.exchange.transfer import take_stream
from poslens.cache.kinds.faithfulness import FAITHFULNESS
from poslens.cache.shipped.manifest import FOLDER
from poslens.cache.storage.codec import pack_fields, pack_floats, unpack_fields
from poslens.cache.storage.results import pair_key
from poslens.cache.storage.rows import EMBEDDING, OTHER, insert
from poslens.cache.storage.store import Store
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.dashboard.widgets.choices import spec
from tests.support.pages import open_page

pytestmark = pytest.mark.usefixtures("own_service")

KINDS = (
    *("ablation", "bias_scores", "embedding", "evidence_read", "needle", "ranking", "reachability"),
    *("relocation", "segments", "segments-shuffled", "truncation"),
)
TESTED = {
    "pair_id": "p",
    "n_units": 9,
    "truncated": False,
    "deletion": [0.5],
    "insertion": [0.5],
    "baseline": {"deletion": [], "insertion": []},
    "enrichment": None,
    "attribution_seconds": [],
    "seconds": 0.2,
}


def misfit(fields: dict[str, Any], number: int) -> dict[str, Any]:
    """The fields with one of them, different for each row, changed to another type."""
    name = sorted(fields)[number % len(fields)]
    return fields | {name: {} if isinstance(fields[name], list) else []}


@pytest.fixture
def spoiled(own_service: None) -> None:
    """All shipped results of MiniLM, each changed so that it doesn't fit its kind."""
    compute = service()
    store = Store(compute.root)
    for kind in KINDS:
        name = f"MiniLM-{kind}.parquet"
        take_stream(store, io.BytesIO((FOLDER / name).read_bytes()), name)
    model = compute.identify(spec("MiniLM", "sample")).key
    saliency = make_method("saliency")
    kind, payload = f"{OTHER}{FAITHFULNESS}{ErasureParameters()!r}", pack_fields(TESTED)
    with store.writing(model, saliency) as db:
        pairs = datasets.read("sample").pairs
        insert(db, [(kind, *pair_key(pair), None, payload) for pair in pairs])
    store.release()
    found = set()
    narrow = pack_floats([1.0, 2.0, 3.0])
    for path in sorted(Path(compute.root).rglob("*.db")):
        with sqlite3.connect(path) as db:
            rows = db.execute(
                "SELECT id, kind, payload FROM result WHERE kind LIKE ? AND payload NOT NULL",
                (f"{OTHER}%",),
            )
            for number, (row, kind, payload) in enumerate(rows.fetchall()):
                fields = unpack_fields(payload)
                assert fields is not None
                found.add(kind)
                payload = pack_fields(misfit(fields, number))
                db.execute("UPDATE result SET payload = ? WHERE id = ?", (payload, row))
            db.execute(
                "UPDATE result SET payload = ? WHERE kind LIKE ? AND item < '8'",
                (narrow, f"{EMBEDDING}%"),
            )
    assert len(found) >= 9, found


@pytest.mark.parametrize(
    ("name", "asked", "missing"),
    [
        ("cause", {"tab": "Bias tests"}, "No results have been computed"),
        ("methods", {"methods": ["saliency"]}, "0 of 3 tests of this pair are stored"),
        ("cause", {"tab": "Data set"}, "No results have been computed"),
        ("passport", {}, "Not computed yet"),
        ("audit", {}, "Nothing to show yet"),  # failure reasons of two documents remain
        ("ranking", {"tab": "Rankings"}, "No results have been computed"),
        ("map", {}, "of 68 documents are not computed yet"),
    ],
)
def test_pages_treat_misfits_as_missing(
    name: str, asked: dict[str, Any], missing: str, spoiled: None
) -> None:
    page = open_page(name, models=["MiniLM"], **asked).run()
    assert not page.exception
    assert [one.value for one in page.error] == []
    told = [one.value for one in (*page.info, *page.caption, *page.markdown)]
    assert any(missing in one for one in told), told


def test_bias_scores_misfits_again(spoiled: None) -> None:
    command = ["bias", "--model", "MiniLM", "--test", "position", "--pairs", "2"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    (row,) = json.loads(found.stdout)["rows"]
    assert (row["n"], row["missing"]) == (2, 0) and row["mean_difference"] > 0


def test_cause_computes_misfits_again(spoiled: None) -> None:
    found = CliRunner().invoke(
        app, ["cause", "--model", "MiniLM", "--pairs", "2", "--intervention", "relocation"]
    )
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["rows"]
    assert [(row["n"], row["failed"]) for row in rows] == [(2, 0)]


def test_a_passport_of_only_misfits_has_no_numbers(spoiled: None) -> None:
    found = CliRunner().invoke(app, ["passport", "--model", "MiniLM", "--stored"])
    assert found.exit_code == 0, found.output
    (card,) = json.loads(found.stdout)
    assert not any(part["numbers"] for part in card["parts"].values())
