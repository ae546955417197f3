"""Explain and Compare without a browser: titles and provenance of a pair's figures and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers import resolve
from poslens.compute.compute import service
from poslens.dashboard.explain.subject import ExplainedSubject
from poslens.dashboard.widgets import choices
from tests.support.pages import heatmap_panes, open_page

OCCLUSION = make_method("occlusion")
NULL = "unrelated query"


pytestmark = pytest.mark.usefixtures("own_service")


@pytest.fixture
def stones(tmp_path: Path, tiny_folder: Callable[..., Path]) -> str:
    """Twelve pairs, of which both models have results for the last eleven."""
    resolve.register_folder("tiny", tiny_folder("bert"))
    rows = [
        {
            "query": f"when does fog {n} lift",
            "document": f"Fog {n} lifts at noon. Stone {n} stays where it is.",
            "pair_id": f"p{n}",
        }
        for n in range(12)
    ]
    (tmp_path / "stones.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("stones", tmp_path / "stones.jsonl")
    pairs = datasets.read("stones").pairs
    for name, some in (("tiny", pairs), ("BM25", pairs[1:])):
        spec = choices.spec(name, "stones")
        run = service().attribution_job(spec, OCCLUSION, some, "x").start()
        run.wait()
        assert not run.error
    return "stones"


def opened(name: str, pair: str = "p3", **query: object) -> AppTest:
    page = open_page(name, dataset="stones", pair=pair, method="occlusion", **query).run()
    assert not page.exception
    return page


def figures(page: AppTest) -> list[dict]:
    return [json.loads(each.proto.spec) for each in page.get("plotly_chart")]


def y_title(figure: dict) -> str:
    return figure["layout"]["yaxis"]["title"]["text"].replace("<br>", " ")


def test_a_mean_difference_states_its_pairs_whatever_control_the_pair_subtracts(
    stones: str,
) -> None:
    page = opened("compare", a="tiny", b="BM25", control=NULL)
    assert not page.error
    means = [one["layout"]["meta"] for one in figures(page) if one["layout"].get("meta")]
    (said,) = [meta["provenance"] for meta in means if "has too" in str(meta["provenance"])]
    assert [(one["model"], one["n_pairs"], one["selection"]) for one in said] == [
        ("tiny", 11, "pairs that BM25 has too"),
        ("BM25", 11, "pairs that tiny has too"),
    ]
    assert not any("control" in one for one in said), "it is of plain curves"
    assert any(
        one.value == "Controls aren't subtracted from differences between models."
        for one in page.caption
    )


def test_positions_of_models_that_read_different_parts_are_not_subtracted(
    tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    resolve.register_folder("short", tiny_folder("bert", tokenizer_limit=32))
    resolve.register_folder("long", tiny_folder("bert"))
    rows = [
        {
            "query": f"what melts {n}",
            "document": "Stone stays. " * (30 if n < 3 else 1) + f"Ice {n} melts.",
            "pair_id": f"p{n}",
        }
        for n in range(12)
    ]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("mixed", tmp_path / "mixed.jsonl")
    pairs = datasets.read("mixed").pairs
    for name in ("short", "long"):
        service().attribution_job(choices.spec(name, "mixed"), OCCLUSION, pairs, "x").start().wait()

    def shown(pair: str) -> tuple[AppTest, dict]:
        page = open_page(
            "compare", dataset="mixed", pair=pair, method="occlusion", a="short", b="long",
            paint="A − B",
        ).run()  # fmt: skip
        assert not page.exception and not page.error
        return page, next(pane for pane in heatmap_panes(page) if pane["side"] == "document")

    page, document = shown("p0")
    assert document["rail"] is None
    assert "no curve: the models read different parts" in str(document["head"])
    assert any("3 pairs are left out because" in each.value for each in page.caption)
    page, document = shown("p5")
    assert document["rail"] is not None and "no curve" not in str(document["head"])


def test_a_pairs_curve_names_the_subtracted_control(stones: str) -> None:
    page = opened("explain", models=["BM25"], control=NULL)
    assert not page.error
    curves = figures(page)[0]
    assert y_title(curves).endswith(f"minus {NULL}")
    (said,) = curves["layout"]["meta"]["provenance"]
    assert said["control"] == f"{NULL}, subtracted" and said["selection"] == "pair p3"
    assert any(
        f"control: {NULL}, subtracted" in one.value.replace("\\", "") for one in page.caption
    )


def test_a_curve_whose_control_was_refused_is_not_cached_as_controlled(
    stones: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise UserError("8 of your requests are already waiting. Try again in a moment.")

    with monkeypatch.context() as patch:
        patch.setattr(ExplainedSubject, "_control", refused)
        page = opened("explain", "p5", models=["BM25"], control=NULL)
        assert page.error
        before = figures(page)[0]
    after = figures(opened("explain", "p5", models=["BM25"], control=NULL))[0]
    assert NULL in y_title(after) and NULL not in y_title(before)
    assert after["data"] != before["data"]


def test_a_query_of_two_hundred_words_keeps_its_matrix(tmp_path: Path) -> None:
    row = {"query": " ".join(f"word{n}" for n in range(200)), "document": "word7 is a word."}
    (tmp_path / "posts.jsonl").write_text(json.dumps(row), encoding="utf-8")
    datasets.register("posts", tmp_path / "posts.jsonl")
    page = open_page("explain", dataset="posts", models=["BM25"], method="terms").run()
    assert not page.exception and not page.error
    assert any(
        "Score of each query word by document position" in one.value for one in page.markdown
    )


@pytest.mark.parametrize(
    ("method", "options"), [("bilrp", {}), ("decomposition", {"matrix": "yes"})]
)
def test_the_matrix_calls_only_the_bias_share_by_that_name(
    stones: str, method: str, options: dict[str, str]
) -> None:
    """Only in decomposition is the bias share that of the document's constants."""
    asked = make_method(method, options)
    pair = datasets.read(stones).pair("p3")
    result = service().explain(pair, choices.spec("tiny", stones), asked).attribution
    page = open_page(
        "explain", dataset=stones, pair="p3", method=method, models=["tiny"], **options
    )
    page.run()
    assert not page.exception and result.matrix is not None and result.bias_share is not None
    rest = result.score - float(result.matrix.sum())
    assert any(
        f"no pair of tokens ({rest:+z.4f}, of which the bias share is {result.bias_share:+z.4f})"
        in one.value
        for one in page.caption
    )


def test_a_stopped_pair_is_computed_on_the_next_request(stones: str) -> None:
    """Its page neither computes it again automatically nor loses the others."""
    pair = datasets.read(stones).pair("p0")
    page = open_page("explain", dataset=stones, pair="p0", method="occlusion", models=["BM25"])
    page.session_state[f"stopped.BM25.{OCCLUSION.core}.{hash(pair)}"] = True
    page.run()
    assert not page.exception
    assert any("Stopped before the result" in one.value for one in page.caption)
    (again,) = [one for one in page.button if one.label == "Compute"]
    again.click().run()
    assert not page.exception
    assert not any("Stopped before the result" in one.value for one in page.caption)
