"""Chunk plans with a planted answer: the command, the call, the export and the page."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.datasets import Collection, DataSet, formats
from poslens.attribution.datasets.corpus import Document
from poslens.attribution.errors import Unavailable
from poslens.attribution.evaluation.audit_workload import plan_workload
from poslens.attribution.evaluation.chunk_plan import IndexSetting, settings_of
from poslens.attribution.evaluation.chunks import chunks_of
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds import embeddings
from poslens.cache.kinds.chunk_plan import ChunkPlanStore
from poslens.cache.storage.store import ModelKey
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.studies.chunks.run import run_plan
from poslens.studies.chunks.study import CHUNKS
from tests.support.nouns import NOUNS
from tests.support.pages import open_page

KEY = ModelKey("tiny", "0" * 16)
Tiny = Callable[..., DenseRetriever]
N = 24


def sentence(d: int, s: int) -> str:
    a, b = NOUNS[(d + s) % len(NOUNS)], NOUNS[(d * 7 + s * 5) % len(NOUNS)]
    return f"The {a} of number {d * 31 + s * 17} saw the {b} on day {d * 13 + s * 29}."


def text(d: int, sentences: int = 8) -> str:
    return " ".join(sentence(d, s) for s in range(sentences))


def rows(sentences: int = 8, n: int = N) -> list[dict[str, str]]:
    """Each document's query asks for its last sentence, which is its evidence."""
    return [
        {
            "pair_id": f"d{d}",
            "query": f"what did number {d * 31 + (sentences - 1) * 17} see",
            "document": text(d, sentences),
            "evidence": sentence(d, sentences - 1),
        }
        for d in range(n)
    ]


def write(path: Path, some: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in some))
    return str(path)


@pytest.fixture
def home(tmp_path: Path, own_service: None) -> Path:
    """A folder for files; results are stored in a separate data folder of this test."""
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["chunks", *arguments], catch_exceptions=False)


def plan_and_settings(*asked: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    done = run(*asked)
    assert done.exit_code == 0, done.stderr
    tables = {
        name: json.loads(run(*asked, "--table", name).stdout)["rows"]
        for name in ("plan", "settings")
    }
    (plan,) = tables["plan"]
    return plan, tables["settings"], done.stderr


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `shared_home`."""
    return tmp_path_factory.mktemp("plans")


@pytest.fixture
def shared_home(plans: Path, own_service: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Like `home`, but the same for all tests of one plan, which takes seconds to compute."""
    monkeypatch.setenv("POSLENS_HOME", str(plans / "home"))
    return plans


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a MiniLM that reads 32 tokens: the first sentence and some of the second."""
    retriever = load(resolve("MiniLM"), device="cpu")
    assert isinstance(retriever, DenseRetriever)
    retriever.model.max_seq_length = 32
    folder = tmp_path_factory.mktemp("models") / "short"
    retriever.model.save_pretrained(str(folder))
    return str(folder)


def test_windows_are_recommended_for_a_model_that_reads_only_the_first_sentence(
    shared_home: Path, short: str
) -> None:
    data = write(shared_home / "mine.jsonl", rows())
    asked = ("--model", short, "--dataset", data, "--windows", "24", "--top", "3")
    plan, settings, stderr = plan_and_settings(*asked)
    assert plan["recommended"] and plan["setting"].startswith("windows:24")
    assert (plan["chunk_size"], plan["unit"], plan["late_chunking"]) == (24, "tokens", False)
    assert "the share of unretrieved sentences is lower" in plan["reason"]
    by_setting = {row["setting"]: row for row in settings}
    whole, windows = by_setting["whole"], by_setting[plan["setting"]]
    assert (whole["role"], windows["role"]) == ("reference", "chosen")
    # The evidence is the last sentence, which is truncated in whole documents.
    assert whole["cut"] == 1
    assert windows["unretrieved"] < whole["unretrieved"] - 0.3
    assert whole["vectors"] == N and windows["vectors"] > 3 * N
    assert whole["documents"] == N // 2 and whole["seconds_per_document"] > 0
    assert "use windows of 24 tokens" in stderr and "rather than whole documents" in stderr
    assert "settings, " in stderr and "about" in stderr, "an estimate comes first"


def test_each_querys_rank_is_listed_by_setting(shared_home: Path, short: str) -> None:
    data = write(shared_home / "mine.jsonl", rows())
    plan = poslens.chunks(short, data, windows=[24], kinds=["windows"], top=3)
    queries = plan.to_frame("queries")
    assert len(queries) == N * queries["setting"].nunique() and set(queries["query"]) == {
        f"d{number}" for number in range(N)
    }
    held_out = queries[queries["part"] == "held out"]
    ranks = held_out.groupby("setting")["rank"].agg(lambda each: (1 / each).mean())
    settings = plan.to_frame("settings").set_index("setting")
    assert ranks.to_dict() == pytest.approx(settings["reciprocal_rank"].to_dict())
    cut = held_out.groupby("setting")["cut"].mean()
    assert cut.astype(float).to_dict() == pytest.approx(settings["cut"].to_dict())
    assert held_out["document"].nunique() == settings["documents"].iloc[0]


def test_documents_shorter_than_every_window_show_no_difference(
    home: Path, tiny_folder: Callable[..., Path]
) -> None:
    data = write(home / "short.jsonl", rows(sentences=1))
    asked = ("--model", str(tiny_folder("bert")), "--dataset", data, "--windows", "100,120")
    plan, settings, stderr = plan_and_settings(*asked, "--top", "1")
    assert not plan["recommended"] and plan["setting"] == "whole"
    assert plan["chunk_size"] is None and plan["chunk_overlap"] is None
    assert "no difference that this corpus can show" in stderr
    assert re.search(" Changes from .+ to whole documents: ", stderr)
    assert "every measure is equivalent within its margin" in stderr  # one index, not by chance
    assert {row["vectors"] for row in settings} == {N}
    assert len({row["unretrieved"] for row in settings}) == 1


def test_settings_that_do_not_fit_are_left_out_with_a_reason(
    home: Path, tiny_folder: Callable[..., Path]
) -> None:
    data = write(home / "mine.jsonl", rows(4, 12))
    folder = str(tiny_folder("bert-cls"))
    asked = ("--model", folder, "--dataset", data, "--windows", "30,500", "--top", "3")
    done = run(*asked, "--table", "settings")
    assert [row["setting"] for row in json.loads(done.stdout)["rows"]] == [
        "whole",
        "windows:30",
        "windows:30:8",
    ]
    assert "Left out windows:500, windows:500:125: Windows of 500 tokens don't fit" in done.stderr
    assert (
        "Left out late:500, late:30: " in done.stderr
        and "does not support late chunks" in done.stderr
    )
    assert "No document has a title" in done.stderr
    words = run("--model", "BM25", *asked[2:])
    assert json.loads(words.stdout)["rows"][0]["unit"] == "words"
    assert "BM25 has no tokens, so its windows count words and punctuation marks" in words.stderr


def test_titles_come_from_the_file(home: Path) -> None:
    data = home / "titled.jsonl"
    data.write_text(
        "".join(
            json.dumps({"_id": f"d{d}", "title": f"Log {d}", "text": text(d)}) + "\n"
            for d in range(12)
        )
    )
    first = next(iter(formats.corpus(data, "titled").documents()))
    assert first.title == "Log 0" and first.text.startswith("Log 0 The ")
    asked = ("--model", "BM25", "--dataset", str(data), "--windows", "20", "--overlaps", "0")
    done = run(*asked, "--top", "1", "--table", "settings")
    found = {row["setting"]: row for row in json.loads(done.stdout)["rows"]}
    assert list(found) == ["whole", "windows:20", "windows:20+title"]
    assert found["windows:20"]["vectors"] == found["windows:20+title"]["vectors"] > 12
    assert found["whole"]["cut"] is None and found["whole"]["reciprocal_rank"] is None
    assert "There are no queries" in done.stderr


def test_titles_in_a_file_of_pairs_are_ignored_and_not_recommended(home: Path) -> None:
    data = write(home / "pairs.jsonl", [row | {"title": "Log"} for row in rows(4, 12)])
    asked = ("--model", "BM25", "--dataset", data, "--windows", "20", "--overlaps", "0")
    done = run(*asked, "--top", "1", "--table", "settings")
    settings = [row["setting"] for row in json.loads(done.stdout)["rows"]]
    assert settings == ["whole", "windows:20"]
    assert "in files of pairs, this column is ignored" in done.stderr
    assert "add a column" not in done.stderr


def corpus(n: int = 12) -> Collection:
    documents = [Document(f"d{d}", text(d), language="eng") for d in range(n)]
    return Collection("set", "set", (), lambda: iter(documents))


def answered(n: int, text: Callable[[int], str], query: str, span: tuple[int, int]) -> Collection:
    """Documents with one query each, whose evidence is at the same position in all."""
    rows = [
        TextPair(f"d{d}", query.format(d), text(d), evidence=EvidenceSpan(*span), dataset="set")
        for d in range(n)
    ]
    return datasets.from_pairs(DataSet("set", "set", Pairs(rows)))


def test_evidence_counts_as_cut_if_no_window_contains_all_of_it(tmp_path: Path) -> None:
    # "c d e" is characters 4 to 9: not in a-d, d-g or g-j, but in a-e.
    found = answered(3, lambda d: f"a b c d e f g h i j{d}", "j{}", (4, 9))
    settings = [IndexSetting(chunks_of(name)) for name in ("windows:4:1", "windows:5", "whole")]
    store = ChunkPlanStore(tmp_path, found)
    run_plan(store, load(resolve("BM25"), device="cpu"), KEY, settings, device="cpu")
    tried, _ = store.tried(KEY, settings, "cpu")
    assert [one.documents["d1"].cut.tolist() for one in tried] == [[1], [0], [0]]
    assert [one.documents["d1"].vectors for one in tried] == [3, 2, 1]
    assert [one.documents["d1"].query_ranks.tolist() for one in tried] == [[1]] * 3


def test_the_order_of_judgments_does_not_decide_to_which_document_a_query_belongs(
    tmp_path: Path,
) -> None:
    plain = answered(3, lambda d: f"a b c{d}", "c{}", (0, 1))
    judged = replace(plain.queries[0], evidence=None, span=None, evidence_pair="")
    stores = [
        ChunkPlanStore(tmp_path, replace(plain, queries=(replace(judged, relevant=relevant),)))
        for relevant in ({"d2": 1, "d1": 2}, {"d1": 2, "d2": 1})
    ]
    assert [list(store.queries) for store in stores] == [["d1"]] * 2
    assert stores[0].fingerprint == stores[1].fingerprint


def test_titles_distinguish_windows(tmp_path: Path) -> None:
    """Four titles times three facts: a fact's window contains the title only if it is added."""
    names = [(title, fact) for title in NOUNS[:4] for fact in ("red", "green", "blue")]
    documents = [
        Document(f"d{d}", f"{title} one two three four {fact} six seven", title=title)
        for d, (title, fact) in enumerate(names)
    ]
    plain = answered(12, lambda d: documents[d].text, "{}", (0, 3)).queries
    queries = tuple(
        replace(query, text=" ".join(pair)) for query, pair in zip(plain, names, strict=True)
    )
    found = Collection("set", "set", queries, lambda: iter(documents))
    chunks = chunks_of("windows:5")
    settings = [IndexSetting(chunks), IndexSetting(chunks, titled=True)]
    store = ChunkPlanStore(tmp_path, found)
    run_plan(store, load(resolve("BM25"), device="cpu"), KEY, settings, device="cpu")
    (without, titled), _ = store.tried(KEY, settings, "cpu")
    ranks = [
        [rank for one in each.documents.values() for rank in one.query_ranks.tolist()]
        for each in (without, titled)
    ]
    assert len(ranks[0]) == 12 and max(ranks[0]) > 1 and ranks[1] == [1] * 12


def test_a_stopped_plan_is_resumed_and_encodes_queries_once(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, settings = tiny("bert"), settings_of((30,), (0,), titled=False)
    whole = ChunkPlanStore(tmp_path / "whole", corpus())
    done = run_plan(whole, retriever, KEY, settings, device="cpu")
    assert (done.total, done.done, done.computed) == (36, 36, 36)

    encoded: list[str] = []
    embed = embeddings.read_texts

    def counted(reader: Any, texts: list[str], side: str, **options: Any) -> Any:
        encoded.extend(texts if side == "query" else [])
        return embed(reader, texts, side, **options)

    monkeypatch.setattr(embeddings, "read_texts", counted)
    parts, stop = ChunkPlanStore(tmp_path / "parts", corpus()), threading.Event()

    def report(progress: Any) -> None:
        if progress.done >= 24:
            stop.set()

    with stoppable(stop.is_set):
        half = run_plan(parts, retriever, KEY, settings, device="cpu", options=RunOptions(report))
    assert half.stopped and 12 <= half.done < 36
    again = ChunkPlanStore(tmp_path / "parts", corpus())
    n_missing = sum(len(again.missing(KEY, one)) for one in settings)
    rest = run_plan(again, retriever, KEY, settings, device="cpu")
    assert rest.computed == n_missing and rest.done == 36
    assert len(encoded) == len(set(encoded)) == 12 * 8
    actual, expected = (store.tried(KEY, settings, "cpu")[0] for store in (again, whole))
    for mine, other in zip(actual, expected, strict=True):
        assert list(mine.documents) == list(other.documents) and mine.time is not None
        for key, document in mine.documents.items():
            assert document.ranks.tolist() == other.documents[key].ranks.tolist()
            assert document.vectors == other.documents[key].vectors


def test_a_model_that_is_unavailable_ends_the_plan_with_its_reason(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, store = tiny("bert"), ChunkPlanStore(tmp_path, corpus())

    def down(texts: list[str], side: str) -> Any:
        raise Unavailable("It does not answer.")

    monkeypatch.setattr(retriever, "encode_plain", down)
    with pytest.raises(Unavailable, match="does not answer"):
        run_plan(store, retriever, KEY, settings_of((30,), (0,)), device="cpu")


def test_ranks_equal_those_of_the_audit(home: Path, tiny_folder: Callable[..., Path]) -> None:
    """Compare sentences in both; the audit encodes them separately."""
    data, folder = write(home / "mine.jsonl", rows(4, 12)), str(tiny_folder("bert"))
    asked = ("--model", folder, "--dataset", data, "--top", "3")
    chunks = poslens.chunks([folder], data, top=3, windows=[30], overlaps=[0], kinds=["windows"])
    for tried in chunks.summaries[0].tried:
        audit = CliRunner().invoke(
            app, ["audit", *asked, "--chunks", str(tried.setting)], catch_exceptions=False
        )
        (row,) = json.loads(audit.stdout)["rows"]
        ranks = [rank for one in tried.documents.values() for rank in one.ranks.tolist()]
        lost = sum(rank > 3 for rank in ranks) / len(ranks)
        assert lost == pytest.approx(row["unretrieved"]) and len(ranks) == row["sentences"] == 48


# -- the export ------------------------------------------------------------------------------------


@pytest.fixture
def exported(shared_home: Path, short: str) -> dict[str, Any]:
    """The setting in the file that docs/audit.md loads."""
    data, out = write(shared_home / "mine.jsonl", rows()), shared_home / "plan.json"
    asked = ("--model", short, "--dataset", data, "--windows", "24", "--overlaps", "20")
    done = run(*asked, "--top", "3", "--kinds", "windows", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    plan: dict[str, Any] = json.loads(out.read_text())["rows"][0]
    return plan


def test_the_export_has_the_options_of_text_splitters(exported: dict[str, Any]) -> None:
    reason = exported.pop("reason")
    assert exported == {
        "model": "short",
        "recommended": True,
        "setting": "windows:24:5",
        "chunk_size": 24,
        "chunk_overlap": 5,  # 20% of 24 tokens are 4.8
        "unit": "tokens",
        "tokenizer": None,  # a folder has no name on the hub
        "title_prefix": False,
        "late_chunking": False,
    }
    assert reason.startswith("On held-out documents, ")


def needs(module: str, package: str) -> pytest.MarkDecorator:
    """Skip where the package is not installed."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{package} is not installed")


@needs("langchain_text_splitters", "langchain-text-splitters")
def test_the_export_loads_in_langchain(exported: dict[str, Any], short: str) -> None:
    splitters = import_module("langchain_text_splitters")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(short)
    splitter = splitters.RecursiveCharacterTextSplitter.from_huggingface_tokenizer(
        tokenizer, chunk_size=exported["chunk_size"], chunk_overlap=exported["chunk_overlap"]
    )
    parts = splitter.split_text(text(0))
    assert len(parts) > 1 and max(len(tokenizer.tokenize(part)) for part in parts) <= 24


@needs("llama_index", "llama-index-core")
def test_the_export_loads_in_llamaindex(exported: dict[str, Any], short: str) -> None:
    parsers = import_module("llama_index.core.node_parser")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(short)
    splitter = parsers.TokenTextSplitter(
        chunk_size=exported["chunk_size"],
        chunk_overlap=exported["chunk_overlap"],
        tokenizer=tokenizer.tokenize,
    )
    parts = splitter.split_text(text(0))
    assert len(parts) > 1 and max(len(tokenizer.tokenize(part)) for part in parts) <= 24


# -- bad input, the figure and the page ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--windows", "2"], "from 4 to 100,000"),
        (["--overlaps", "100"], "from 0 to 90"),
        (["--kinds", "hexagons"], "choose from windows, titled, late"),
        (["--top", "12"], "includes all"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(
    home: Path, arguments: list[str], expected: str
) -> None:
    data = write(home / "mine.jsonl", rows(4, 12))
    done = run("--dataset", data, "--model", "BM25", *arguments)
    assert done.exit_code == 2 and done.stdout == ""
    assert expected in done.stderr and "Traceback" not in done.stderr


def test_the_figure_marks_the_recommended_setting(home: Path) -> None:
    data = write(home / "mine.jsonl", rows())
    result = poslens.chunks(["BM25"], data, top=3, windows=[10], overlaps=[0])
    (summary,) = result.summaries
    figure = CHUNKS.figures[0].draw([summary], Style())
    names = [trace.name for trace in figure.data]
    assert names == ["BM25, whole documents", "BM25, windows", "BM25, use whole documents"]
    ring = figure.data[-1]
    assert list(ring.x) == [summary.plan.n_vectors / N]
    assert "windows of 10 words" in str(figure.data[1].customdata)


def test_a_ring_is_in_the_panel_of_its_setting_and_in_the_legend(home: Path) -> None:
    data = write(home / "mine.jsonl", rows())
    result = poslens.chunks(["BM25"], data, top=3, windows=[10], overlaps=[0])
    both = [result.summaries[0], *(replace(result.summaries[0]) for _ in range(2))]
    figure = CHUNKS.draw(both, Style())
    rings = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert len(rings) == 3 and all(ring.showlegend is None for ring in rings)
    marked = {(trace.yaxis, trace.x[0]) for trace in figure.data if trace.marker.symbol == "square"}
    assert {(ring.yaxis, ring.x[0]) for ring in rings} == marked and len(marked) == 3


def test_tables_after_the_first_name_their_intervals(home: Path) -> None:
    data = write(home / "mine.jsonl", rows())
    result = poslens.chunks(["BM25"], data, top=3, windows=[10], overlaps=[0])
    texts = {
        shown: CHUNKS.provenances(result.summaries, shown)[0].interval
        for shown in ("plan", "settings", "changes", "queries", CHUNKS.figures[0].title)
    }
    assert texts["plan"] == texts["queries"] == ""
    held_out = f"{len(result.summaries[0].held_out)} documents"
    for shown in ("settings", "changes", CHUNKS.figures[0].title):
        assert texts[shown].startswith("95%, ") and held_out in texts[shown], shown
    latex = result.save(home / "settings.tex", "settings").read_text()
    assert "bootstrap over" in latex


def test_the_figure_of_an_undecided_plan_names_no_setting_to_use(home: Path) -> None:
    data = write(home / "mine.jsonl", rows(2, 12))
    result = poslens.chunks(["BM25"], data, top=3, windows=[100], overlaps=[0])
    (summary,) = result.summaries
    assert not summary.recommendation.recommended
    ring = CHUNKS.figures[0].draw([summary], Style()).data[-1]
    assert ring.name == "BM25, keep: nothing better shown"
    assert list(ring.x) == [1]


def test_the_workload_counts_windows_that_settings_share_once() -> None:
    document = "x" * 4 * 92  # 100 tokens by estimate
    collection = Collection("one", "One", (), lambda: iter([Document("d", document)]))
    settings = settings_of([40], [0, 50], titled=False, late=True)
    work = plan_workload(collection, settings, 512)
    # Read whole, for late chunks, as 3 windows, and as 4 overlapping ones; both begin with the
    # same 40 tokens.
    assert (work.document_tokens, work.document_texts) == (200, 2 + 3 + 3)
    assert work.window_tokens == 100 + (100 + 3 * 20 - 40)


def test_the_workload_counts_words_for_models_whose_windows_do() -> None:
    document = "word " * 99 + "word"  # 100 words; 132 tokens by estimate
    collection = Collection("one", "One", (), lambda: iter([Document("d", document)]))
    settings = settings_of([40], [0, 50], titled=False, late=True)
    work = plan_workload(collection, settings, None, True)
    # Read whole, as 3 windows, and as 4 overlapping ones; both begin with the same 40 words. Late
    # chunks need a model's tokens.
    assert (work.document_tokens, work.document_texts) == (132, 1 + 3 + 3)
    assert work.window_tokens == round(1.32 * (100 + 100 + 3 * 20 - 40))


def test_the_pages_tab_computes_nothing_before_a_click(home: Path) -> None:
    data = home / "mine.jsonl"
    write(data, rows(4, 12))
    datasets.register("mine", data)
    asked = {"dataset": "mine", "models": ["BM25"], "top": "2", "tab": "Chunk planner"}
    page = open_page("audit", **asked, windows="10").run()
    assert not page.exception and not page.error
    assert "No results have been computed" in page.info[0].value
    done = run("--dataset", "mine", "--model", "BM25", "--top", "2", "--windows", "10")
    assert done.exit_code == 0, done.stderr
    page = open_page("audit", **asked, windows="10").run()
    assert not page.exception and not page.error
    assert any("held-out documents" in one.value.replace("\\", "") for one in page.markdown)
    columns = [set(one.value.columns) for one in page.dataframe]
    assert any("cut evidence" in some for some in columns)
