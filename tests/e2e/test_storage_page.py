"""The Storage page in a real browser: results are exported, deleted, and imported again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from poslens.attribution import datasets
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import Compute
from tests.e2e.conftest import App, Visit, idle, press
from tests.e2e.test_app import no_error, ready, select
from tests.e2e.waiting import expect


def test_a_models_results_are_exported_deleted_and_imported(
    start_app: Callable[..., App], visit: Visit, tmp_path: Path
) -> None:
    app = start_app()
    ready(visit(f"{app.url}/?pair=food-sourdough-q2")).close()  # open, it could compute again

    def curves(stored: bool) -> None:
        page = visit(f"{app.url}/curves?models=MiniLM")
        button = page.get_by_role(
            "button", name="Compute remaining" if stored else "Compute", exact=True
        )
        expect(button).to_be_visible()
        expect(page.get_by_text("MiniLM has curves for 1 of 304 pairs")).to_have_count(int(stored))
        page.close()

    curves(True)
    page = visit(f"{app.url}/storage")
    expect(page.get_by_text("Models: 1 · results: 1")).to_be_visible()
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible()

    idle(page).get_by_role("button", name="Export").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download MiniLM_saliency_results").click()
    exported = tmp_path / "results.parquet"
    waiting.value.save_as(exported)

    select(page, "Data set", "sample")
    idle(page).get_by_role("button", name="Delete", exact=True).click()
    confirmation = page.get_by_text(re.compile(r"Delete MiniLM: 1 result of saliency.* on sample"))
    expect(confirmation).to_be_visible()
    idle(page).get_by_role("button", name="Delete permanently").click()
    expect(page.get_by_text("Nothing is stored yet")).to_be_visible()
    curves(False)

    page.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(exported)
    idle(page).get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_text("1 of 1 rows are new and were added")).to_be_visible()
    expect(page.get_by_text("Models: 1 · results: 1")).to_be_visible()
    no_error(page)
    curves(True)


def test_another_model_is_selected_after_one_is_deleted(
    start_app: Callable[..., App], visit: Visit
) -> None:
    """The browser still sends the label of the deleted one."""
    app = start_app()
    pair = datasets.read(datasets.SAMPLE).pairs[0]
    for number, name in enumerate(("First", "Second")):
        failure = (pair, "it has no token")
        Compute(app.home).store.put_failures(
            ModelKey(name, f"{number}" * 16), make_method("saliency"), [failure]
        )
    page = visit(f"{app.url}/storage")
    expect(page.get_by_text(re.compile("^First: 0 results and 1 failure"))).to_be_visible()
    idle(page).get_by_role("button", name="Delete", exact=True).click()
    idle(page).get_by_role("button", name="Delete permanently").click()
    expect(page.get_by_text("Deleted First: 0 results and 1 failure")).to_be_visible()
    expect(page.get_by_text(re.compile("^Second: 0 results and 1 failure"))).to_be_visible()
    no_error(page)


def test_failed_pairs_open_in_curves(start_app: Callable[..., App], visit: Visit) -> None:
    app = start_app()
    compute = Compute(app.home)
    model = compute.identify(resolve("MiniLM")).key
    pair = datasets.read(datasets.SAMPLE).pairs[0]
    compute.store.put_failures(model, make_method("saliency"), [(pair, "it has no token")])
    # Start from a page with another data set in its address, as a reader would.
    page = visit(f"{app.url}/curves?models=MiniLM-primacy&dataset=sample-bias")
    expect(page.get_by_test_id("stMultiSelect").first).to_be_visible()
    press(page.get_by_role("link", name="Storage"), lambda: "/storage" in page.url)
    link = page.get_by_role("link", name="Open Curves")
    press(page.get_by_text("1 item failed"), link.is_visible)
    press(link, lambda: "/curves" in page.url)
    expect(page.get_by_text("1 pair of MiniLM failed")).to_be_visible()
    no_error(page)
