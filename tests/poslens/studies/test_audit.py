"""Audit: summaries, tables, figure and verdict; the call, the command and the page."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import poslens
import poslens.api
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import Collection, formats
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit_workload import workload
from poslens.attribution.evaluation.chunks import chunks_of
from poslens.attribution.evaluation.truncation import Truncation
from poslens.attribution.retrievers.resolve import register_folder, resolve
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.studies.audit.study import AUDIT
from poslens.studies.audit.summary import AuditIndex, AuditSummary, unretrieved_sentence
from tests.support.nouns import NOUNS
from tests.support.pages import open_page

ROWS = "".join(
    json.dumps(
        {
            "_id": noun,
            "language": "en",
            "text": " ".join(
                f"The {noun} of number {n} and {NOUNS[(n * 5) % 12]} is {color}."
                for n, color in enumerate(("red", "green", "blue", "grey", "white", "black"))
            ),
        }
    )
    + "\n"
    for noun in NOUNS
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "things.jsonl"
    file.write_text(ROWS)
    return file


def index(collection: Collection, name: str, chunks: str, top: int = 3) -> AuditIndex:
    return AuditIndex(resolve(name), chunks_of(chunks), collection, top, "sentence")


@pytest.fixture(scope="module")
def summaries(path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AuditSummary]:
    """Audits of one corpus with BM25 and MiniLM, with whole documents and windows."""
    compute = Compute(tmp_path_factory.mktemp("audit"))
    collection = formats.corpus(path, "things")
    done: list[AuditSummary] = []
    for name, chunks in (("BM25", "whole"), ("BM25", "windows:12:4"), ("MiniLM", "whole")):
        subject = index(collection, name, chunks)
        assert AUDIT.summarize(compute, subject) is None
        run = AUDIT.job(compute, subject).start()
        run.wait()
        assert run.error == ""
        summary = AUDIT.summarize(compute, subject)
        assert summary is not None and AUDIT.summarize(compute, subject) is summary
        done.append(summary)
    together = AUDIT.together(done)
    again = AUDIT.together(done)
    assert all(one is other for one, other in zip(together, again, strict=True))
    return together


def test_tables_count_every_document_and_sentence(summaries: list[AuditSummary]) -> None:
    tables = AUDIT.tables
    frame = tables["summary"].frame(summaries)
    assert frame["documents"].tolist() == [12] * 3 and frame["sentences"].tolist() == [72] * 3
    for summary, row in zip(summaries, frame.to_dict("records"), strict=True):
        counts = [float(r.unretrieved("original", "sentence", 3).sum()) for r in summary.documents]
        assert row["unretrieved"] == pytest.approx(sum(counts) / 72)
        assert row["unretrieved_low"] <= row["unretrieved"] <= row["unretrieved_high"]
    assert frame["recovered"][1] == pytest.approx(frame["unretrieved"][0] - frame["unretrieved"][1])
    assert frame["recovered"].isna().tolist() == [True, False, True]
    positions = tables["positions"].frame(summaries)
    assert len(positions) == 3 * 2 * 10
    assert positions.groupby(["model", "chunks", "order"])["sentences"].sum().tolist() == [72] * 6
    groups = tables["groups"].frame(summaries)
    assert set(groups["by"]) == {"language", "length"} and "eng" in set(groups["group"])
    # A group of fewer than ten documents has no interval.
    shown = tables["groups"].text_frame(summaries)["unretrieved"]
    assert ["[" in text for text in shown] == groups["unretrieved_low"].notna().tolist()
    # Pages show shares in percent, as the sentences do.
    (top, *_) = tables["summary"].text_frame(summaries).to_dict("records")
    share = summaries[0].shares["original"]
    assert share is not None and top["unretrieved"] == share.text(".1%")
    assert top["last minus first"].endswith("] points")
    assert "0 to 1" not in " ".join(tables["summary"].meanings().values())
    listed = tables["worst"].frame(summaries)
    assert listed["unretrieved_sentences"].sum() == round(72 * frame["unretrieved"].sum())
    assert set(tables["truncation"].frame(summaries)["model"]) == {"MiniLM"}


def test_the_verdict_states_result_interval_and_meaning(summaries: list[AuditSummary]) -> None:
    verdicts = [AUDIT.verdict(one) for one in summaries]
    for verdict, summary in zip(verdicts, summaries, strict=True):
        share = summary.shares["original"]
        missed = r"[\d.]+% \[[\d., ]+\] of sentences, used as queries, don't retrieve their own"
        if share is not None and share.value == 0:
            missed = "every sentence, used as a query, retrieves its own"
        assert re.search(
            rf": {missed} document in the top 3; with each document's sentences shuffled, "
            r"(all do|[\d.]+% \[.+\] don't) \(72 sentences of 12 documents\)\.",
            verdict,
        )
        assert "more than one document" not in verdict
    none, few = Estimate(0.0, 0.0, 0.0), Estimate(0.0002, 0.0001, 0.001)
    assert "top 3; with each document's sentences shuffled, all do (72 sentences" in (
        unretrieved_sentence(summaries[0], none, none)
    )
    assert ": 0.02% [0.01%, 0.10%] of sentences, used" in unretrieved_sentence(
        summaries[0], few, none
    )
    recovered = re.search(r"Recovered compared with BM25: [+-][\d.]+ (.*)", verdicts[1])
    assert recovered and re.search(
        r"points\. (Higher|Too few|Equivalent|Not significant)", recovered[1]
    )
    assert "Recovered" not in verdicts[0] and "truncates" not in verdicts[0]
    assert re.search("MiniLM (truncates at|reads texts of)", verdicts[2])


def test_sentences_of_several_documents_are_counted(tmp_path: Path) -> None:
    compute = Compute(tmp_path / "home")
    shared = ["All rights of this page are reserved.", "Cookies help us to improve it."]
    file = tmp_path / "pages.jsonl"
    rows = [{"_id": n, "text": " ".join([f"The {n} is here today.", *shared])} for n in NOUNS[:8]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    subject = index(formats.corpus(file, "pages"), "BM25", "whole", 2)
    AUDIT.job(compute, subject).start().wait()
    summary = AUDIT.summarize(compute, subject)
    assert summary is not None
    row = AUDIT.tables["summary"].frame([summary]).iloc[0]
    assert (row["sentences"], row["repeated"]) == (24, 16)
    # Each shared sentence retrieves two of its eight documents.
    assert (
        "16 of 24 sentences occur in more than one document, so no search can tell these documents "
        "apart by them; they include 12 of 12 unretrieved sentences."
    ) in AUDIT.verdict(summary)
    # While an audit runs, a page shows a new part of it each second, too often to read the corpus.
    part = replace(summary, missing=1)
    assert AUDIT.tables["summary"].frame([part])["repeated"].isna().all()
    assert "more than one document" not in AUDIT.verdict(part)


def test_a_models_truncation_is_stated_with_its_limit(summaries: list[AuditSummary]) -> None:
    whole = replace(summaries[2], truncations=(Truncation(1, 900, 400, 1000, 512, 513, 512),))
    assert AUDIT.verdict(whole).endswith("MiniLM truncates at 512 tokens, its context limit.")
    other = replace(whole, truncations=(Truncation(1, 900, 400, 1000, 256, 257, 512),))
    limit = "MiniLM truncates at 256 to 257 tokens, not at its context limit of 512."
    assert AUDIT.verdict(other).endswith(limit)
    assert "truncates" not in AUDIT.verdict(replace(whole, truncations=()))


def test_provenance_states_documents_top_k_and_control(summaries: list[AuditSummary]) -> None:
    entry = AUDIT.provenances(summaries[:1])[0].entry()
    assert entry["n_documents"] == 12
    shares, differences = entry["interval"].split("; ")  # every sentence was retrieved
    assert shares == "95%, Agresti-Coull for 12 documents"
    assert differences == (
        "last minus first and last minus first (shuffled): 95%, Clopper-Pearson for 12 documents"
    )
    assert entry["method"] == "reachability(chunks=whole, version=1)"
    assert "top 3" in str(entry["selection"]) and "shuffled" in str(entry["control"])


def test_the_figure_has_a_line_for_each_order_and_a_band(summaries: list[AuditSummary]) -> None:
    figure = AUDIT.figures[0].draw(summaries[:2], Style())
    lines = [trace for trace in figure.data if trace.showlegend is not False]
    assert len(lines) == 4 and len(figure.data) == 8
    widths = [trace.line.width for trace in lines]
    assert max(widths[1::2]) < min(widths[::2]), "lines in random order are thin"
    share = 100 * summaries[0].curves["original"].share
    assert list(lines[0].y) == pytest.approx(list(share), nan_ok=True)


def test_another_top_k_or_query_form_uses_the_stored_ranks(summaries: list[AuditSummary]) -> None:
    """Ranks are stored, so the same results serve any top k."""
    summary = summaries[0]
    other = replace(summary, index=replace(summary.index, top=1, query_form="question"))
    share = other.shares["original"]
    counts = [float(r.unretrieved("original", "question", 1).sum()) for r in summary.documents]
    assert share is not None and share.value == pytest.approx(sum(counts) / 72)
    unretrieved = summary.shares["original"]
    assert unretrieved is not None and share.value > unretrieved.value


def test_a_model_that_cannot_be_audited_is_refused_in_one_sentence(
    path: Path, tmp_path: Path
) -> None:
    compute = Compute(tmp_path)
    with pytest.raises(UserError, match="includes all"):
        AUDIT.job(compute, index(formats.corpus(path, "things"), "BM25", "whole", 12))
    (tmp_path / "one.jsonl").write_text(ROWS.splitlines()[0] + "\n")
    with pytest.raises(UserError, match="at least two"):
        AUDIT.job(compute, index(formats.corpus(tmp_path / "one.jsonl", "one"), "BM25", "whole", 1))


def test_the_python_call_gives_the_tables_of_the_command(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Compute(tmp_path)
    monkeypatch.setattr(poslens.api, "service", lambda: compute)
    result = poslens.audit(["BM25"], path, top=2, chunks=["whole", "windows:12:4"])
    frame = result.to_frame()
    assert frame["chunks"].tolist() == ["whole", "windows:12:4"]
    assert frame["top"].tolist() == [2, 2] and frame["documents"].tolist() == [12, 12]
    assert len(result.to_frame("positions")) == 40
    assert len(result.verdicts) == 3 and len(result.figure().data) == 8
    assert result.verdicts[2].startswith("BM25, ")
    assert " compared with BM25 over 12 documents: " in result.verdicts[2]
    differences = result.to_frame("differences").set_index("measure")
    before, after = frame["unretrieved"]
    assert differences.loc["share of unretrieved sentences", "difference"] == pytest.approx(
        after - before
    )
    apart = frame["last_minus_first_random_order"].diff().iloc[1]
    row = differences.loc["share unretrieved in the last third minus first third (shuffled)"]
    assert row["difference"] == pytest.approx(apart) and row["documents"] == 12


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["audit", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def home(own_service: None, tmp_path: Path) -> Path:
    """A folder, for commands that find no results of other tests."""
    return tmp_path


@pytest.mark.parametrize("table", ["summary", "positions", "groups", "worst", "truncation"])
def test_the_command_prints_each_table(home: Path, path: Path, table: str) -> None:
    code, out, said = run(
        "--dataset", str(path), "--model", "BM25", "--top", "2", "--table", table, "--format", "csv"
    )
    assert code == 0, said
    frame = pd.read_csv(io.StringIO(out))
    assert "model" in frame.columns
    assert "BM25: " in said and "72 sentences" in said


def test_the_command_draws_and_skips_models_that_do_not_fit(home: Path, path: Path) -> None:
    figure = home / "unretrieved.json"
    code, out, said = run(
        "--corpus",
        str(path),
        "--model",
        "BM25",
        "--chunks",
        "whole",
        "--chunks",
        "late:8",
        "--top",
        "2",
        "--figure",
        str(figure),
    )
    assert code == 0 and str(figure) in said
    assert [row["model"] for row in json.loads(out)["rows"]] == ["BM25"]
    assert "BM25 does not support late chunks, which need the token vectors of a model" in said
    assert json.loads(figure.read_text())["data"]


@pytest.mark.parametrize(
    ("model", "chunks", "reason"),
    [
        ("bert", "windows:127:32", "Windows of 127 tokens don't fit"),
        ("bert-cls", "late:8", "does not support late chunks"),
    ],
)
def test_chunks_that_do_not_fit_are_refused_before_anything_is_computed(
    home: Path,
    path: Path,
    tiny_folder: Callable[..., Path],
    model: str,
    chunks: str,
    reason: str,
) -> None:
    options = ("--dataset", str(path), "--model", f"it={tiny_folder(model)}", "--top", "2")
    code, out, said = run(*options, "--chunks", "whole", "--chunks", chunks)
    assert code == 0, said
    assert [row["chunks"] for row in json.loads(out)["rows"]] == ["whole"]
    assert said.count(reason) == 1 and said.index(reason) < said.index("on this machine")
    code, out, said = run(*options, "--chunks", chunks)
    assert code == 2 and not out and reason in said and "on this machine" not in said


def test_a_model_without_a_result_sets_the_exit_code(home: Path, path: Path) -> None:
    code, out, said = run(
        *("--dataset", str(path), "--model", "BM25", "--top", "2"),
        *("--model", f"damaged={home}", "--quiet"),
    )
    assert code == 2
    assert [row["model"] for row in json.loads(out)["rows"]] == ["BM25"]
    assert len(said.splitlines()) == 1 and "damaged" in said
    damaged = ("--dataset", str(path), "--model", f"damaged={home}", "--table", "failures")
    code, out, said = run(*damaged, "--model", "BM25", "--top", "2")
    (row,) = json.loads(out)["rows"]
    assert code == 0 and (row["model"], row["item"]) == ("damaged", None)
    assert "No item failed" not in said
    code, out, said = run(*damaged, "--top", "2", "--quiet")
    assert code == 2 and not out and len(said.splitlines()) == 1 and "damaged" in said


def test_the_sample_is_stated_and_its_time_estimated(home: Path, path: Path) -> None:
    options = ("--dataset", str(path), "--model", "MiniLM", "--top", "2", "--documents", "6")
    code, out, said = run(*options)
    assert code == 0, said
    answer = json.loads(out)
    assert [(row["documents"], row["sentences"]) for row in answer["rows"]] == [(6, 36)]
    drawn = "6 of 12 documents, drawn with seed 0"
    assert drawn in out and f"Sample: {drawn}." in said
    # The estimate is printed before the run, and each row as soon as it is computed.
    estimate = said.index(
        "MiniLM: 52 documents or windows (in original and random order) and 72 sentences"
    )
    assert re.search(r"about [\d,]+ tokens: about \d+ (s|min) on this machine", said)
    assert estimate < said.index("MiniLM: ", estimate + 1)
    # Another sample is another corpus, so nothing of the first one is reused.
    other = json.loads(run(*options, "--seed", "1")[1])
    assert other["rows"][0]["documents"] == 6 and "drawn with seed 1" in json.dumps(other)
    code, _, said = run(*options[:-1], "1")
    assert code == 2 and "whole number from 2" in said


def test_the_estimate_for_a_folder_uses_the_limit_of_its_model(
    path: Path, tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    """As its files state it, or else as the loaded model has it."""
    collection = formats.corpus(path, "things")
    silent = tiny_folder("bert")
    stating = shutil.copytree(silent, tmp_path / "stating")
    (stating / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    for folder, limit, load in ((stating, 32, False), (silent, 128, True)):
        spec = register_folder(folder.name, folder)
        assert spec.max_length is None
        subject = AuditIndex(spec, chunks_of("whole"), collection, 3, "sentence")
        tokens = float(f"{workload(collection, subject.chunks, limit).tokens:.3g}")
        estimate = AUDIT.estimate(Compute(tmp_path), subject, load=load)
        assert f"about {tokens:,.0f} tokens" in estimate


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top", "0"], "whole number from 1"),
        (["--chunks", "windows:16:16"], "below 16"),
        (["--chunks", "late:8", "--model", "BM25"], "does not support late chunks"),
        (["--corpus", "nowhere.jsonl"], "nowhere.jsonl is not a folder or a file"),
        (["--corpus", "no/where"], "where is not a folder or a file"),
        (["--corpus", "nowhere"], "There is no data set 'nowhere'"),
        (["--corpus", "{txt}"], "not in a known format"),
        (["--corpus", "{empty}"], "not in a known format|no rows|lacks"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(
    home: Path,
    path: Path,
    arguments: list[str],
    message: str,
) -> None:
    (home / "a.txt").write_text("text")
    (home / "e.jsonl").write_text("")
    names = {"{txt}": str(home / "a.txt"), "{empty}": str(home / "e.jsonl")}
    given = [names.get(one, one) for one in arguments]
    if "--corpus" not in given:
        given += ["--corpus", str(path)]
    code, out, stderr = run(*given)
    assert code == 2 and out == ""
    assert any(re.search(message, line) for line in stderr.splitlines()), stderr
    assert "Traceback" not in stderr


# -- the page --------------------------------------------------------------------------------------


@pytest.fixture
def things(path: Path) -> str:
    datasets.register("things", path)
    return "things"


def test_the_page_shows_stored_results_and_computes_nothing_before_a_click(things: str) -> None:
    asked = {"dataset": things, "models": ["BM25"], "top": "2"}
    page = open_page("audit", **asked).run()
    assert not page.exception and not page.error
    assert "No results have been computed" in page.info[0].value and not page.get("plotly_chart")
    code, _, said = run("--corpus", things, "--model", "BM25", "--top", "2")
    assert code == 0, said
    page = open_page("audit", **asked).run()
    assert not page.exception and not page.error
    assert any("72 sentences of 12 documents" in one.value for one in page.markdown)
    assert '"audit"' in page.get("plotly_chart")[0].proto.spec
    # The key of BM25 on every other page and in the shipped results.
    assert any(f"bm25, statistics of {things}" in one.value for one in page.caption)
    tables_shown = [set(one.value.columns) for one in page.dataframe]
    assert any("unretrieved (shuffled)" in columns for columns in tables_shown)


def test_the_page_audits_a_sample(things: str) -> None:
    page = open_page("audit", dataset=things, models=["MiniLM"], top="2", documents="6").run()
    assert not page.exception and not page.error
    captions = [one.value.replace("\\", "") for one in page.caption]
    assert any("6 of 12 documents, drawn with seed 0" in one for one in captions)
    assert any("72 sentences and questions of 6 documents" in one for one in captions)
    empty = {one.label: one.placeholder for one in page.number_input}
    assert (empty["Documents"], empty["Interval width"]) == ("all", "any")
    (field,) = (one for one in page.number_input if one.label == "Documents")
    field.set_value(None).run()
    captions = [one.value.replace("\\", "") for one in page.caption]
    assert not any("drawn with seed" in one for one in captions), "an empty field means all"
    assert any("of 12 documents" in one for one in captions)
    assert "documents" not in page.query_params


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"chunks": ["windows:16:16"]}, "below 16"),
        ({"chunks": ["late:64"]}, "does not support late chunks"),
        ({"top": "12"}, "includes all"),
    ],
)
def test_a_model_that_cannot_be_audited_leaves_the_page_intact(
    things: str, query: dict[str, object], message: str
) -> None:
    page = open_page("audit", **({"dataset": things, "models": ["BM25"]} | query)).run()
    assert not page.exception
    shown = [one.value for one in (*page.error, *page.info, *page.caption)]
    assert any(message in one.replace("\\", "") for one in shown), shown
    assert "Audit: what can't an index retrieve" in "".join(one.value for one in page.markdown)


def test_an_infinite_number_in_a_link_falls_back_to_the_default(things: str) -> None:
    page = open_page("audit", dataset=things, models=["BM25"], top="inf").run()
    assert not page.exception and not page.error
    assert [one.value for one in page.number_input if one.label == "Top k"] == [10]


def test_a_page_that_needs_queries_states_it(things: str) -> None:
    page = open_page("ranking", dataset=things, models=["BM25"]).run()
    assert not page.exception
    assert not page.error
    assert any("no relevance judgments" in info.value for info in page.info)
