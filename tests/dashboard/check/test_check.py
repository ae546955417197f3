"""Check: a model against a stored passport, by service, command and pytest fixture."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.studies.check import service as checking
from poslens.studies.check.baseline import (
    EARLIER_NAMES,
    Baseline,
    BaselineNumber,
    parse,
    read_baseline,
)
from poslens.studies.check.junit import junit_bytes
from poslens.studies.check.service import NAMES, Check, Tolerances
from poslens.studies.passport.document import document_bytes
from poslens.studies.passport.service import ModelPassport, PairScore
from tests.support.nouns import NOUNS

ROOT = Path(__file__).parents[3]
PARTS = ("attribution", "relocation", "ranking", "audit")
ROWS = [
    {
        "query": f"what is {word}",
        "document": f"{'Filler stands here. ' * (8 * (n % 3))}The {word} is {word}. More of it.",
        "evidence": f"The {word} is {word}.",
        "pair_id": word,
    }
    for n, word in enumerate(NOUNS)
]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """A cache above what ships, so that nothing has to be computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_SHIPPED", "yes")
        return Compute(tmp_path_factory.mktemp("check"))


@pytest.fixture(scope="module")
def cards(shipped: Compute) -> Callable[[str], ModelPassport]:
    """The shipped passports of models over the sample, as far as checks need them."""
    sample, made = datasets.read("sample"), dict[str, ModelPassport]()

    def card(name: str) -> ModelPassport:
        if name not in made:
            made[name] = checking.passport(shipped, resolve(name), sample, NAMES)
        return made[name]

    return card


@pytest.fixture(scope="module")
def stored(cards: Callable[[str], ModelPassport]) -> Baseline:
    """MiniLM's passport, by way of its file."""
    return parse(document_bytes([cards("MiniLM")], "json"), "card.json", "MiniLM")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of one's own, and the passport of BM25 over it, computed by the command."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "checked.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    asked = ["passport", "--model", "BM25", "--dataset", str(folder / "checked.jsonl")]
    parts = [word for part in PARTS for word in ("--part", part)]
    done = CliRunner().invoke(app, [*asked, *parts, "--out", str(folder / "baseline.json")])
    assert done.exit_code == 0, done.stderr
    return folder


def run(folder: Path, *more: str) -> Any:
    data = ["--corpus", str(folder / "checked.jsonl"), "--model", "BM25"]
    if "--baseline" not in more:
        data += ["--baseline", str(folder / "baseline.json")]
    return CliRunner().invoke(app, ["check", *data, *more])


def outcomes(made: list[Check]) -> dict[str, str]:
    return {one.name: one.outcome for one in made}


def only(made: list[Check]) -> Check:
    (one,) = made
    return one


def with_number(stored: Baseline, part: str, key: str, value: float | None) -> Baseline:
    """The baseline with another number; without it where the value is None."""
    numbers = {k: v for k, v in stored.numbers[part].items() if k != key or value is not None}
    if value is not None:
        numbers[key] = replace(stored.numbers[part].get(key, BaselineNumber(0)), value=value)
    return replace(stored, numbers={**stored.numbers, part: numbers})


def test_a_baseline_with_earlier_names_is_read_as_before(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    data = document_bytes([cards("MiniLM")], "json").decode()
    for name, now in EARLIER_NAMES.items():
        assert f'"{now}"' in data
        data = data.replace(f'"{now}"', f'"{name}"')
    assert parse(data.encode(), "card.json", "MiniLM") == stored


def test_a_model_passes_against_itself(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    made = checking.checks(cards("MiniLM"), stored, Tolerances(0, 0, 0, 0, 0), NAMES)
    assert outcomes(made) == dict.fromkeys(NAMES, "pass")
    assert all("different samples" not in one.line for one in made)


def test_a_model_with_a_planted_bias_fails_where_it_leans(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    """The planted model reads as many tokens and gives other scores; its leans lie further out."""
    found = cards("MiniLM-recency")
    made = checking.checks(found, stored, Tolerances(), NAMES)
    assert outcomes(made) == {
        "relocation": "fail",
        "curve": "fail",
        "psi": "pass",
        "truncation": "pass",
        "drift": "fail",
    }
    before = np.array([one.score for one in stored.scores.values()])
    after = np.array([found.scores[key].score for key in stored.scores])
    drift = next(one for one in made if one.name == "drift")
    assert drift.value == pytest.approx(np.abs(after - before).mean() / before.std())
    worst = list(stored.scores)[int(np.abs(after - before).argmax())]
    assert f"pair {worst}," in drift.line


@pytest.mark.parametrize(
    ("old", "excess"),
    [(0.2, 0), (0.1, 0.02), (-0.05, 0.12), (0.5, 0)],
    ids=["shrank", "grew", "changed sides", "shrank much"],
)
def test_an_index_counts_where_it_lies_further_out(
    cards: Callable[[str], ModelPassport], stored: Baseline, old: float, excess: float
) -> None:
    key = "saliency_primacy_recency_index"
    card = cards("MiniLM")
    part = next(one for one in card.parts if one.key == "attribution")
    numbers = tuple(
        replace(n, estimate=replace(n.estimate, value=0.12)) if n.key == key else n
        for n in part.numbers
    )
    card = replace(card, parts=(replace(part, numbers=numbers),))
    for tolerance, outcome in ((excess, "pass"), (excess - 0.01, "fail")):
        if tolerance < 0:
            continue
        one = only(
            checking.checks(
                card,
                with_number(stored, "attribution", key, old),
                Tolerances(curve=tolerance),
                ["curve"],
            )
        )
        assert one.outcome == outcome and one.excess == pytest.approx(excess)
        assert f"{0.12:+.3f}" in one.line and f"{old:+.3f}" in one.line


def test_the_lean_is_the_one_that_relocation_measures(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    """MiniLM-primacy's curve leans to the beginning and MiniLM's to the end, so its index may pass
    as a smaller one; moving the evidence costs it 2.9 times as much of its score's spread."""
    found = cards("MiniLM-primacy")
    same_index = with_number(stored, "attribution", "saliency_primacy_recency_index", -0.19)
    lean, curve = checking.checks(found, same_index, Tolerances(), ["relocation", "curve"])
    assert (lean.outcome, curve.outcome) == ("fail", "pass")
    spread = np.std([one.score for one in found.scores.values()])
    of_stored = np.std([one.score for one in stored.scores.values()])
    before = stored.numbers["relocation"]["last_minus_first"]
    assert lean.value is not None and lean.baseline is not None
    assert lean.value == pytest.approx(-0.0498 / spread, abs=0.001)
    assert lean.baseline == pytest.approx(before.value / of_stored)
    assert lean.excess == pytest.approx(lean.baseline - lean.value)
    assert "over 29 pairs of 29 documents" in lean.line


def test_a_lean_is_in_units_that_a_models_scale_does_not_change(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    scores = {key: replace(one, score=100 * one.score + 7) for key, one in stored.scores.items()}
    scaled = with_number(
        stored,
        "relocation",
        "last_minus_first",
        100 * stored.numbers["relocation"]["last_minus_first"].value,
    )
    one = only(
        checking.checks(
            cards("MiniLM"), replace(scaled, scores=scores), Tolerances(1e-4), ["relocation"]
        )
    )
    assert one.outcome == "pass"


def test_an_index_that_was_lost_fails_although_another_method_has_one(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    """The profile's index is in both; it is blind to the query, and no answer for saliency."""
    card = cards("MiniLM")
    assert "profile_primacy_recency_index" in stored.numbers["attribution"]
    part = next(one for one in card.parts if one.key == "attribution")
    left = tuple(n for n in part.numbers if n.key != "saliency_primacy_recency_index")
    card = replace(card, parts=(replace(part, numbers=left),))
    (one,) = checking.checks(card, stored, Tolerances(), ["curve"])
    assert one.outcome == "fail" and "has no primacy-recency index of saliency," in one.line


@pytest.mark.parametrize(
    ("part", "key", "name", "worse", "better"),
    [
        ("ranking", "psi_minus_permutation", "psi", -0.1, 0.1),
        ("audit", "tokens_read", "truncation", 100.0, -100.0),
    ],
)
def test_only_what_got_worse_counts(
    cards: Callable[[str], ModelPassport],
    stored: Baseline,
    part: str,
    key: str,
    name: str,
    worse: float,
    better: float,
) -> None:
    now = stored.numbers[part][key].value
    for shift, outcome in ((worse, "fail"), (better, "pass")):
        held = with_number(stored, part, key, now + shift)
        one = only(checking.checks(cards("MiniLM"), held, Tolerances(), [name]))
        assert one.outcome == outcome and one.excess == pytest.approx(
            max(0, shift * np.sign(worse))
        )


def test_what_the_baseline_lacks_is_said_and_what_the_model_lost_fails(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    card = cards("MiniLM")
    less = with_number(stored, "ranking", "psi_minus_permutation", None)
    made = checking.checks(card, less, Tolerances(), NAMES)
    assert outcomes(made)["psi"] == "not checked"
    assert not checking.passed(made) and not checking.failed(made)
    parts = tuple(
        replace(one, numbers=(), absent="No disk.") if one.key == "ranking" else one
        for one in card.parts
    )
    lost = only(checking.checks(replace(card, parts=parts), stored, Tolerances(), ["psi"]))
    assert lost.outcome == "fail" and lost.line.endswith("No disk.")
    why = replace(less, absent={**less.absent, "ranking": "Too few documents."})
    assert only(checking.checks(card, why, Tolerances(), ["psi"])).line.endswith(
        "no PSI minus its mean under permutation. Too few documents."
    )


def test_a_check_says_over_how_many_pairs_and_documents_the_baseline_was_made(
    shipped: Compute, cards: Callable[[str], ModelPassport]
) -> None:
    few = checking.passport(shipped, resolve("MiniLM"), datasets.read("sample"), ["curve"], 30)
    known = parse(document_bytes([few], "json"), "card.json", "MiniLM")
    n = len({pair.document for pair in few.of.pairs})
    assert "30 of the 304 pairs of sample scored" in known.heading
    assert "304 pairs of 68 documents, 30 attributed" in few.heading
    assert "reads 512 tokens; its configuration truncates at 256; weights" in few.heading
    one = only(checking.checks(cards("MiniLM"), known, Tolerances(curve=1), ["curve"]))
    assert (one.n, one.baseline_n, one.baseline_n_documents) == (304, 30, n)
    assert f"over 304 pairs of 68 documents, compared with {one.baseline:+.3f}" in one.line
    assert f"over 30 pairs of {n} documents" in one.line and "different samples" in one.line
    said = checking.entry(cards("MiniLM"), known, [one])["checks"][0]
    assert (said["n"], said["baseline_n"], said["baseline_n_documents"]) == (304, 30, n)


def test_pairs_whose_texts_changed_are_no_drift(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    first = next(iter(stored.scores))
    changed = {**stored.scores, first: PairScore("0" * 16, 99.0), "gone": PairScore("", 1.0)}
    one = only(
        checking.checks(cards("MiniLM"), replace(stored, scores=changed), Tolerances(), ["drift"])
    )
    assert one.outcome == "pass" and one.value == 0
    assert "2 of the baseline's pairs don't exist here" in one.line
    other = replace(stored, scores={first: PairScore("0" * 16, 1.0)})
    for one in checking.checks(cards("MiniLM"), other, Tolerances(), ["drift", "relocation"]):
        assert one.outcome == "not checked" and "with the same texts" in one.line


def test_a_junit_file_says_what_passed_failed_and_was_skipped() -> None:
    made = [
        Check("relocation", "pass", "fine"),
        Check("psi", "fail", "\x00 <b> & rose"),
        Check("drift", "not checked", "none"),
    ]
    suite = ElementTree.fromstring(junit_bytes(made, "a\x07b"))[0]
    assert suite.attrib == {
        "name": "a�b",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    assert [case.attrib["name"] for case in suite] == ["relocation", "psi", "drift"]
    assert [[child.tag for child in case] for case in suite] == [
        ["system-out"],
        ["failure"],
        ["skipped"],
    ]
    assert suite[1][0].attrib["message"] == "� <b> & rose"


def damaged(stored: Baseline) -> list[tuple[bytes, str]]:
    entry = {"format": 1, "model": "M", "dataset": "d", "parts": {}, "scores": {}}

    def file(**changes: object) -> bytes:
        return json.dumps([{**entry, **changes}]).encode()

    return [
        (b"", "isn't a passport"),
        (b"\xff\x00", "isn't a passport"),
        (b"[" * 100_000, "isn't a passport"),
        (b"{}", "isn't a passport"),
        (b"[]", "isn't a passport"),
        (b"[1]", "isn't a passport"),
        (b'[{"format": 1, "model": "M", "dataset": "d", "parts": NaN}]', "isn't a passport"),
        (file(format=2), "another version of PosLens"),
        (file(parts=[]), "is damaged"),
        (file(parts={"ranking": {}}), "is damaged"),
        (file(parts={"ranking": {"numbers": {"psi": {"value": "1"}}}}), "is damaged"),
        (file(parts={"ranking": {"numbers": {"psi": {"value": True}}}}), "is damaged"),
        (file(scores={"a": {"texts": 1, "score": 1}}), "is damaged"),
        (file(scores={"a": 1}), "is damaged"),
        (file(scores=[1]), "is damaged"),
        (file(model=7), "is damaged"),
        (file(n_pairs="many"), "is damaged"),
        (json.dumps([entry, {**entry, "model": "N"}]).encode(), "not exactly one of X"),
    ]


def test_a_bad_baseline_is_one_sentence(stored: Baseline, tmp_path: Path) -> None:
    for data, said in damaged(stored):
        with pytest.raises(UserError, match=said) as raised:
            parse(data, "card.json", "X")
        assert str(raised.value).count("\n") == 0
    (tmp_path / "two.json").write_bytes(damaged(stored)[-1][0])
    assert read_baseline(tmp_path / "two.json", "N").model == "N"


def test_the_command_computes_what_is_missing_and_says_how_it_went(
    mine: Path, tmp_path: Path
) -> None:
    junit = tmp_path / "found.xml"
    done = run(mine, "--junit", str(junit))
    assert done.exit_code == 3, done.stderr
    assert [line.split(":")[:2] for line in done.stdout.splitlines()] == [
        ["pass", " relocation"],
        ["pass", " curve"],
        ["pass", " psi"],
        ["not checked", " truncation"],
        ["pass", " drift"],
    ]
    assert ElementTree.parse(junit).getroot().attrib["skipped"] == "1"
    asked = ["relocation", "curve", "psi", "drift"]
    assert run(mine, *(word for name in asked for word in ("--only", name))).exit_code == 0
    only_this = run(mine, "--only", "truncation", "--format", "json")
    assert only_this.exit_code == 3 and not json.loads(only_this.stdout)["passed"]


def test_the_command_fails_with_exit_code_1(mine: Path, tmp_path: Path) -> None:
    (entry,) = json.loads((mine / "baseline.json").read_text(encoding="utf-8"))
    for one in entry["scores"].values():
        one["score"] *= 2
    entry["parts"]["attribution"]["numbers"]["terms_primacy_recency_index"]["n"] = 7
    file = tmp_path / "other.json"
    file.write_text(json.dumps([entry]), encoding="utf-8")
    done = run(mine, "--baseline", str(file), "--format", "json", "--junit", str(tmp_path / "j"))
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert "over 7 pairs of" in next(c["line"] for c in found["checks"] if c["name"] == "curve")
    assert not found["passed"]
    assert {one["name"]: one["outcome"] for one in found["checks"]}["drift"] == "fail"
    assert ElementTree.parse(tmp_path / "j").getroot().attrib["failures"] == "1"
    assert run(mine, "--baseline", str(file), "--only", "relocation").exit_code == 0
    assert run(mine, "--baseline", str(file), "--drift", "9").exit_code == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--drift", "nan"), "tolerance of drift"),
        (("--relocation", "-1"), "tolerance of relocation"),
        (("--baseline", "nowhere.json"), "No such file"),
    ],
)
def test_bad_options_are_one_sentence_and_exit_code_2(
    mine: Path, more: tuple[str, ...], said: str
) -> None:
    done = run(mine, *more)
    assert done.exit_code == 2 and said in done.stderr.splitlines()[-1]


PROJECT = """
def test_good(poslens_check):
    only = ["relocation", "drift"]
    assert len(poslens_check("BM25", "baseline.json", "checked.jsonl", only=only)) == 2

def test_bad(poslens_check):
    poslens_check("BM25", "worse.json", "checked.jsonl")

def test_unknown(poslens_check):
    poslens_check("BM25", "baseline.json", "checked.jsonl")

def test_wrong(poslens_check):
    poslens_check("BM25", "baseline.json", "checked.jsonl", dirft=1)
"""


def test_a_project_of_ones_own_has_the_fixture(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = json.loads((mine / "baseline.json").read_text(encoding="utf-8"))
    for one in entry["scores"].values():
        one["score"] += 1
    (mine / "worse.json").write_text(json.dumps([entry]), encoding="utf-8")
    (mine / "test_model.py").write_text(PROJECT, encoding="utf-8")
    monkeypatch.chdir(mine)
    plugins = ["-p", "poslens.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # Within this process: another would load every library again.
    code = pytest.main(["-q", "-rs", *plugins, "--rootdir", str(mine), str(mine / "test_model.py")])
    said = capsys.readouterr().out
    assert code == 1
    assert "2 failed, 1 passed, 1 skipped" in said
    assert "drift: The scores of 12 pairs changed by" in said
    assert "There is no check 'dirft'" in said
    assert "Not checked: truncation: The baseline doesn't contain" in said
    assert "Traceback" not in said


def test_the_fixture_brings_nothing_heavy_before_it_is_called() -> None:
    code = (
        "import sys, poslens.pytest_plugin; "
        "print({'torch', 'numpy', 'pandas', 'streamlit', 'dashboard'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_an_unknown_check_is_one_sentence(mine: Path) -> None:
    with pytest.raises(UserError, match="no check 'leen': choose of relocation, curve, psi"):
        poslens.check("BM25", mine / "baseline.json", only=["leen"])


def test_the_workflow_in_the_docs_is_one_that_runs() -> None:
    """It parses, and its commands take the options that they are given."""
    text = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (job,) = yaml.safe_load(block)["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]
    whole = typer.main.get_command(app)
    commands = [line.split()[1:] for line in steps if line.startswith("poslens ")]
    commands += [line.split()[1:] for line in re.findall(r"^    (poslens .*)$", text, re.MULTILINE)]
    assert len(commands) == 3
    for name, *arguments in commands:
        whole.commands[name].make_context(name, list(arguments))  # type: ignore[attr-defined]
