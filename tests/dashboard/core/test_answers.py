"""The output of every command with --format json matches docs/json-schema.json."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.export.json_text import json_text
from poslens.studies.explain.answers import TokenEntry
from tests.attribution.debiasing.debias_testing import judged_rows
from tests.support.nouns import NOUNS
from tools import docs
from tools.json_shapes import Schema, fields_of, words

SCHEMA = json.loads(docs.json_schema())
TINY = "bert"
FILLER = "Filler stands here. " * 4

ARGUMENTS = {
    "explain --table tokens": "--model bert --method decomposition --option matrix=yes "
    "--query ice --document fog",
    "curve --table curves": "--model bert --dataset pairs --axis text",
    "curve --table summary": "--model bert --model BM25 --method occlusion --dataset pairs "
    "--table summary",
    **{
        f"curve --table {name}": "--model bert --model BM25 --method occlusion --dataset pairs "
        f"--table {name}"
        for name in ("differences", "items")
    },
    "explain --table comparison": "--model bert --model BM25 --method occlusion --dataset pairs "
    "--pair ice --table comparison",
    "precompute": "--model bert --dataset pairs",
    **{
        f"cause --table {name}": f"--model BM25 --model bert --dataset pairs --table {name}"
        for name in ("effects", "curve", "differences", "items")
    },
    **{
        f"control --table {name}": f"--model BM25 --dataset pairs --method terms --table {name}"
        for name in ("control", "curve")
    },
    "agreement --table agreement": "--model BM25 --dataset pairs --method terms",
    **{
        f"segments --table {name}": f"--model bert --model bert@mean --dataset pairs --table {name}"
        for name in ("segments", "curve", "differences", "items")
    },
    **{
        f"edits --table {name}": "--model bert --model bert@mean --dataset pairs --edit removal "
        f"--table {name}"
        for name in ("cosines", "differences", "items")
    },
    **{
        f"faithfulness --table {name}": f"--model BM25 --dataset pairs --table {name}"
        for name in ("methods", "differences", "items")
    },
    **{
        f"bias --table {name}": f"--model BM25 --model bert --dataset pairs --table {name}"
        for name in ("tests", "pairs", "differences", "items")
    },
    **{
        f"rank --table {name}": f"--model BM25 --dataset {data} --table {name}"
        for name, data in {
            "measures": "pairs",
            "psi": "pairs",
            "psi_strata": "pairs",
            "bins": "pairs",
            "queries": "pairs",
            "languages": "pairs",
            "evidence": "pairs",
            "splits": "pairs",
            "pools": "pairs",
            "groups": "squad-posq",
            "positions": "squad-posq",
        }.items()
    },
    "rank --table agreement": "--model BM25 --model bert --model bert@calibrated --dataset pairs "
    "--table agreement --against squad-posq",
    **{
        f"rank --table {name}": f"--model BM25 --model bert --dataset pairs --table {name}"
        for name in ("differences", "query_differences", "items")
    },
    **{
        f"{command} --table failures": "--model bert --dataset failing --table failures"
        for command in ("curve", "segments")
    },
    "curve --table published": "--table published --published A=published.npz",
    **{
        f"debias --table {name}": f"--model bert --corpus short --steps 2 --strengths 0.5 "
        f"--table {name}"
        for name in ("points", "checks", "queries")
    },
    "debias --table selection": "--model bert --corpus pairs --steps 0 --pairs 2 --strengths 0.5 "
    "--blocks 8 --table selection",
    **{
        f"audit --table {name}": f"--model BM25 --model bert --corpus pairs --top 1 --table {name}"
        for name in (
            "summary",
            "positions",
            "groups",
            "worst",
            "truncation",
            "differences",
            "items",
        )
    },
    **{
        f"chunks --table {name}": f"--model bert --dataset pairs --top 1 --windows 16 "
        f"--table {name}"
        for name in ("plan", "settings", "changes", "queries")
    },
    "passport": "--model BM25 --dataset pairs --part attribution --part ranking",
    "check": "--model BM25 --dataset pairs --baseline baseline.json --only ranking",
    **{
        f"needles --table {name}": "--model BM25 --corpus pairs --needles 2 "
        f"--depths 0,100 --lengths 64 --table {name}"
        for name in ("cells", "summary")
    },
    **{
        f"needles --table {name}": "--model BM25 --model bert --corpus pairs --needles 2 "
        f"--depths 0,100 --lengths 64 --table {name}"
        for name in ("differences", "items")
    },
    **{
        f"why --table {name}": f"--model BM25 --model bert --dataset pairs --top 1 --table {name}"
        for name in ("misses", "causes", "steps", "differences", "items")
    },
    **{
        f"simulatability --table {name}": f"--model BM25 --dataset pairs --words 2 --table {name}"
        for name in ("methods", "queries")
    },
    **{
        f"preferences --table {name}": "--model MiniLM --dataset sample --documents 2 "
        f"--method saliency --table {name}"
        for name in ("methods", "strengths")
    },
    **{
        f"hubs --table {name}": f"--model BM25 --dataset pairs --top 2 --table {name}"
        for name in ("hubness", "hubs", "queries", "words")
    },
    **{
        f"positions --table {name}": f"--model BM25 --model bert --dataset pairs --table {name}"
        for name in ("positions", "effect", "groups", "queries", "differences", "items")
    },
    **{
        f"differences --table {name}": f"--model BM25 --model bert --dataset pairs --table {name}"
        for name in ("differences", "items")
    },
    "models": "",
    "models fetch": "mpnet",
    "datasets": "",
    "methods": "",
    "cache list": "",
    "cache export": "OUT.parquet",
    "cache import": "results.parquet",
    "cache merge": "other",
    "cache ingest": "parts",
    "cache verify": "",
    "cache verify --parts": "--parts parts",
    "cache compact": "",
    "cache delete": "--method input_x_gradient --yes",
}
"""Arguments for each answer; files are in the folder of `home`."""

MORE = [
    ("cause --table effects", "--model bert --dataset pairs --pairs 2 --intervention ablation"),
    ("segments --table segments", "--model bert --dataset pairs --parts thirds"),
    ("debias --table points", "--model bert --corpus pairs --steps 0 --strengths 0.5 --blocks 8"),
]
"""Other ways to request the same answer."""

WITHOUT_FIGURE = {
    *(f"rank --table {name}" for name in ("languages", "splits", "pools", "agreement", "items")),
    "audit --table truncation",
    "audit --table items",
    "hubs --table words",
}
"""Tables whose numbers no figure shows."""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, tiny_folder: Callable[..., Path]
) -> Iterator[Path]:
    """A separate data folder, small data sets and files, and their stored results."""
    folder = tmp_path_factory.mktemp("answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_HOME", str(folder / "home"))
        patch.chdir(folder)
        service.cache_clear()
        written(folder)
        shutil.copytree(tiny_folder("bert"), folder / TINY)
        for arguments in (
            "precompute --model bert --dataset pairs",
            "precompute --model bert --dataset pairs --method occlusion",
            "precompute --model BM25 --dataset pairs --method occlusion",
            "precompute --model bert --dataset pairs --method input_x_gradient",
            "precompute --model bert --dataset failing",
            "precompute --model BM25 --dataset pairs --method terms --parts parts",
            "cache export results.parquet",
            "passport --model BM25 --dataset pairs --part ranking --out baseline.json",
        ):
            done = run(*arguments.split())
            assert done.exit_code == 0, done.stderr
        shutil.copytree(folder / "home" / "cache", folder / "other")
        yield folder
        service.cache_clear()


def written(folder: Path) -> None:
    """The data sets, registered by name."""
    rows = [
        {
            "pair_id": word,
            "query": f"what is {word}",
            "document": f"{FILLER * (n % 3)}The {word} is {word}. {FILLER}",
            "evidence": f"The {word} is {word}.",
            "language": ("eng", "pol")[n % 2],
        }
        for n, word in enumerate(NOUNS)
    ]
    failing = {"pair_id": "bad", "query": "\u200b", "document": "Ice melts."}
    short = judged_rows()
    for name, listed in {"pairs": rows, "failing": [rows[0], failing], "short": short}.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
        datasets.register(name, path)
    questions = [
        {
            "id": word,
            "context": f"The {word} is old. {'So it is. ' * 30}",
            "question": f"how old is the {word}",
            "answers": {"text": [word], "answer_start": [4]},
        }
        for word in NOUNS
    ]
    pq.write_table(pa.Table.from_pylist(questions), folder / "squad.parquet")
    datasets.register("squad-posq", folder / "squad.parquet")
    classes = [
        {
            "content": f"The {word} is old and number {n} of all.",
            "question": f"which {word} is old",
            "span_class": [("beginning", "middle", "end")[n % 3]],
        }
        for n, word in enumerate(NOUNS)
    ]
    path = folder / "fineweb.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in classes), encoding="utf-8")
    datasets.register("fineweb-posq", path)
    np.savez(folder / "published.npz", curves=np.random.default_rng(0).random((9, 100)))


def closed(schema: Any) -> Any:
    """The schema without additional fields, which it allows for readers."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(one) for key, one in schema.items()}
    return {**made, "additionalProperties": False} if "properties" in made else made


DEFINITIONS = closed(SCHEMA["$defs"])
COMMANDS = dict(docs.commands(docs.every_command()))


def strict(text: str) -> Any:
    """Parse standard JSON, which excludes NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_every_command_declares_its_answer_and_accepts_format() -> None:
    # Tables of failures differ in nothing.
    answers = {name for name in docs.answers_of() if not name.endswith("--table failures")}
    assert answers == {name for name in ARGUMENTS if not name.endswith("--table failures")}
    whole = docs.every_command()
    without = [
        name
        for name, command in docs.commands(whole)
        if all("--format" not in one.opts for one in command.params)
    ]
    assert without == ["run"]


def test_every_analysis_but_three_draws_a_chart() -> None:
    without = {
        name
        for name, command in docs.commands(docs.every_command())
        if all("--figure" not in one.opts for one in command.params)
    }
    listed = {name for name in without if name.split()[0] in ("cache", "models")}
    assert without - listed == {"run", "precompute", "check", "datasets", "methods"}


CHANGING = {"precompute", "cache export", "cache import", "cache merge", "cache ingest"}
CHANGING |= {"cache compact", "cache delete", "cache list"}
"""Commands whose numbers depend on the run or on the current state of the store."""


@pytest.mark.parametrize(("name", "arguments"), [*ARGUMENTS.items(), *MORE])
def test_every_answer_matches_the_schema_and_is_the_same_in_a_file(
    name: str, arguments: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fetching is tested in tests/attribution/retrievers/test_fetch.py.
    monkeypatch.setattr(
        "poslens.attribution.retrievers.fetch.fetch", lambda name, show: tmp_path / name
    )
    command = name.split(" --")[0]
    asked = [*command.split(), *arguments.replace("OUT", str(tmp_path / "rows")).split()]
    done = run(*asked, "--format", "json")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines and (len(lines) == 1 or name in ("cache list", "cache verify", "cache compact"))
    answers = [strict(line) for line in lines]
    schema = {**closed(SCHEMA["commands"][name]), "$defs": DEFINITIONS}
    for answer in answers:
        errors = [one.message for one in Draft202012Validator(schema).iter_errors(answer)]
        assert errors == []
        assert answer["rows"] if isinstance(answer, dict) and "rows" in answer else answer

    options = {word: one for one in COMMANDS[command].params for word in one.opts}
    figure, drawn = tmp_path / "chart.html", list[str]()
    if "--figure" in options and name not in WITHOUT_FIGURE:
        drawn = ["--figure", str(figure)]
    file = tmp_path / "result.json"
    if command == "cache delete":  # nothing is left to delete
        assert run("cache", "merge", "other").exit_code == 0
    written = run(*asked, *drawn, "--out", str(file))
    assert written.exit_code == 0, written.stderr
    assert written.stdout.splitlines() == [str(file)]
    held = [strict(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert held and (command in CHANGING or held == answers)
    if drawn:
        assert str(figure) in written.stderr.splitlines()
        assert 'id="provenance"' in figure.read_text(encoding="utf-8")
    if "csv" not in docs.kind_of(options["--format"]):
        return
    files = [tmp_path / f"table.{suffix}" for suffix in ("csv", "parquet")]
    for path in files:
        assert run(*asked, "--out", str(path)).stdout.splitlines() == [str(path)]
    assert files[0].read_text(encoding="utf-8") == run(*asked, "--format", "csv").stdout
    assert len(pd.read_parquet(files[1])) == len(pd.read_csv(files[0]))
    assert strict((tmp_path / "table.provenance.json").read_text(encoding="utf-8"))


def test_the_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_answers_can_be_printed_as_text_and_csv(home: Path) -> None:
    done = run("precompute", "--model", TINY, "--dataset", "pairs", "--format", "text")
    assert (
        done.stdout.startswith("model: bert · method: saliency(") and "computed: 0" in done.stdout
    )
    assert done.stdout.count("\n") == 1
    done = run("cache", "list", "--format", "text")
    assert len(done.stdout.splitlines()) == len(run("cache", "list").stdout.splitlines())
    asked = "passport --model BM25 --dataset pairs --part attribution".split()
    (printed,) = json.loads(run(*asked).stdout)
    frame = pd.read_csv(io.StringIO(run(*asked, "--format", "csv").stdout))
    assert frame["measure"].tolist() == list(printed["parts"]["attribution"]["numbers"])
    done = run(*asked, "--stored", "--format", "csv", "--dataset", "failing")
    assert done.exit_code == 2 and "remove --stored" in done.stderr


@pytest.mark.parametrize("command", ["precompute", "curve", "passport --model BM25", "rank"])
def test_an_error_prints_no_answer(command: str) -> None:
    done = run(*command.split(), "--dataset", "nope", "--format", "json")
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no data set 'nope'" in done.stderr


def test_non_finite_numbers_are_null_and_invalid_characters_replaced() -> None:
    value = {"a": [math.nan, np.float32("inf"), np.arange(2)], "b\ud800": "\udfff ü", "c": (True,)}
    assert json_text(value) == '{"a": [null, null, [0, 1]], "b\ufffd": "\ufffd ü", "c": [true]}'


def test_every_field_must_be_described() -> None:
    class Silent(TypedDict):
        value: float

    with pytest.raises(ValueError, match="value does not say what it is"):
        list(fields_of(Silent))
    assert words(dict[str, list[int | None]]) == "list of (whole number or null) by name"
    assert words(list[int | None] | None) == "list of (whole number or null), or null"


def test_two_different_schemas_cannot_share_a_name() -> None:
    schema = Schema()
    schema.of(TokenEntry)
    other = TypedDict("TokenEntry", {"what it is": Annotated[str, "Something else."]})
    with pytest.raises(ValueError, match="two shapes are called TokenEntry"):
        schema.of(other)
