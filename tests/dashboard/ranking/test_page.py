"""The Ranking and Published pages without a browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

import poslens
from poslens.attribution import datasets
from poslens.compute.compute import service
from poslens.dashboard.server import access
from poslens.dashboard.widgets.url_state import MAX_IN_LINK
from poslens.studies.ranking import service as ranking_service
from tests.support.pages import SECONDS, open_page, page_file

ROWS = "query,document,evidence\n" + "".join(
    f"what is {word},The {word} is {word}. Filler stands here.,The {word} is {word}.\n"
    for word in ("ice", "stone", "fog")
)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.csv").write_text(ROWS)
    datasets.register("mine", tmp_path / "mine.csv")
    return "mine"


def opened(view: str, **parameters: object) -> AppTest:
    app = AppTest.from_file(str(page_file(view)), default_timeout=SECONDS)
    for name, value in parameters.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


def measures_of(app: AppTest) -> pd.DataFrame:
    """The table of measures, one row per model."""
    return next(one.value for one in app.dataframe if "nothing retrieved" in one.value.columns)


def test_a_ranking_is_computed_and_shown_in_tables(mine: str) -> None:
    app = opened("ranking", tab="Rankings", dataset=mine, models=["BM25"])
    assert any("3 queries and 3 documents" in caption.value for caption in app.caption)
    app.button(key="rank.start").click().run()
    data = datasets.read(mine)
    setup = ranking_service.RankingSetup(ranking_service.collection_of(data))
    from poslens.dashboard.widgets.choices import spec

    run = ranking_service.job(service(), spec("BM25", mine), setup).run
    assert run is not None
    run.wait()
    app.run()
    assert not app.exception and not app.error
    measures = measures_of(app)
    assert measures["model"].tolist() == ["BM25"] and measures["nDCG@10"][0].startswith("1.000")
    kinds = [chart.proto.spec for chart in app.get("plotly_chart")]
    assert any("evidence_bins" in spec for spec in kinds)
    assert any("Position sensitivity" in one.value for one in app.markdown)
    frames = [frame.value for frame in app.dataframe]
    queries = next(frame for frame in frames if "rank" in frame.columns)
    assert len(queries) == 3
    # A link contains the filters.
    filters = "not in the top 10"
    link = opened("ranking", tab="Rankings", dataset=mine, models=["BM25"], filters=filters)
    assert any(caption.value.startswith("0 of 3 queries") for caption in link.caption)


def test_a_model_that_a_list_no_longer_offers_leaves_the_address(mine: str) -> None:
    for name in ("BM25", "MiniLM"):
        poslens.rank(name, mine)
    models = ["BM25", "MiniLM"]
    app = opened("ranking", tab="Rankings", dataset=mine, models=models, ranking_against="MiniLM")
    assert app.selectbox(key="ranking_against").value == "MiniLM"
    for name in reversed(models):
        app.selectbox(key="ranking_of").set_value(name).run()
    assert not app.selectbox(key="ranking_against").value
    assert "ranking_against" not in app.query_params and not app.exception


def linked(query: str, document: str, evidence: str = "") -> AppTest:
    """The Ranking page's link to a document that is no pair of the data set."""

    def part(query: str, document: str, evidence: str) -> None:
        from poslens.dashboard.widgets.links import text_link

        text_link("Explain it", query, document, "sample", ["BM25"], evidence=evidence)

    return AppTest.from_function(
        part, kwargs={"query": query, "document": document, "evidence": evidence}
    ).run()


def test_the_link_to_a_document_without_a_pair_opens_it() -> None:
    access.current = access.Access(base_path="tools/poslens")
    texts_linked = ("what melts", "Ice & snow melt. Stone does not.", "Ice & snow melt.")
    (link,) = linked(*texts_linked).get("link_button")
    path, _, texts = link.proto.url.partition("?")
    assert path == "/tools/poslens/"
    page = open_page("explain", **parse_qs(texts)).run()
    assert not page.exception and not page.error
    (drawn,) = page.get("bidi_component")
    assert "Ice & snow melt." in drawn.proto.json
    assert page.text_input(key="typed.evidence").value == "Ice & snow melt."


def test_a_link_contains_as_much_text_as_servers_accept() -> None:
    wide = MAX_IN_LINK // 9 * "文"  # nine bytes each
    assert linked("", wide).get("link_button") and not linked("what melts", wide).get("link_button")


def test_each_query_searches_the_documents_in_its_language(tmp_path: Path) -> None:
    rows = "ice one,pol ice one,pol\nice two,spa ice three,spa\nfog,spa fog,spa\n"
    (tmp_path / "langs.csv").write_text(f"query,document,language\n{rows}")
    datasets.register("langs", tmp_path / "langs.csv")
    app = opened("ranking", dataset="langs", models=["BM25"])
    app.toggle(key="monolingual").set_value(True).run()
    assert any("documents of its own language" in one.value for one in app.caption)
    app.button(key="rank.start").click().run()
    from poslens.dashboard.widgets.choices import ranking_spec

    collection = ranking_service.monolingual(ranking_service.collection_of(datasets.read("langs")))
    setup = ranking_service.RankingSetup(collection, own_corpus=True)
    run = ranking_service.job(service(), ranking_spec("BM25", "langs"), setup).run
    assert run is not None
    run.wait()
    app.run()
    assert not app.exception and not app.error
    languages = next(f.value for f in app.dataframe if "pairs" in f.value.columns)
    assert languages[["language", "queries"]].values.tolist() == [["spa", 2], ["pol", 1]]
    assert languages["S@10 per pair"].str.startswith("1.000").all()


def test_a_set_without_judgments_is_reported(tmp_path: Path) -> None:
    row = '{"query": "q", "document_1": "a", "document_2": "b"}\n'
    (tmp_path / "foil.jsonl").write_text(row)
    datasets.register("colder", tmp_path / "foil.jsonl")
    app = opened("ranking", dataset="colder", models=["BM25"])
    assert not app.info
    assert "no relevance judgments" in app.error[0].value


def test_every_prompt_is_ranked_separately(mine: str) -> None:
    # app.error is not checked: AppTest knows only one page, so the link to Curves is an error.
    app = opened("ranking", tab="Rankings", dataset=mine, models=["MiniLM", "MiniLM-recency"])
    assert app.toggle(key="posir").value is False
    collection = ranking_service.collection_of(datasets.read(mine))
    setup = ranking_service.RankingSetup(collection)
    from poslens.dashboard.widgets.choices import ranking_spec

    own, posir = ranking_spec("MiniLM", mine), ranking_spec("MiniLM", mine, posir=True)
    ranking_service.job(service(), own, setup).start().wait()
    app.run()
    assert measures_of(app)["model"].tolist() == ["MiniLM"]
    app.toggle(key="posir").set_value(True).run()
    assert not app.exception
    assert app.button(key="rank.start").label == "Compute", "nothing is ranked with the prompt"
    app.button(key="rank.start").click().run()
    for spec in (posir, ranking_spec("MiniLM-recency", mine, posir=True)):
        run = ranking_service.job(service(), spec, setup).run
        assert run is not None
        run.wait()
    app.run()
    assert not app.exception
    assert measures_of(app)["model"].tolist() == ["MiniLM", "MiniLM-recency"]
    assert any("retrieve relevant passages that answer" in one.value for one in app.caption)
    assert not any(button.key == "rank.start" for button in app.button)
    ranked = [ranking_service.ranked(service(), one, setup) for one in (own, posir)]
    assert ranked[0] is not None and ranked[1] is not None
    scores = [np.concatenate([r.scores for r in one.rankings]) for one in ranked]
    assert not np.array_equal(*scores)
