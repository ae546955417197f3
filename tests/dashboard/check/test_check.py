"""Check: a model compared with a stored passport, by service, command and pytest fixture."""

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
from poslens.attribution.evaluation.comparison import paired
from poslens.attribution.evaluation.sizes import paired_sizes
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.studies.check import service as checking
from poslens.studies.check.baseline import Baseline, BaselineNumber, parse, read_baseline
from poslens.studies.check.measures import NAMES, Check
from poslens.studies.check.service import Tolerances, junit_bytes
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import document_bytes
from poslens.studies.passport.service import ModelPassport
from poslens.study_part import Number
from tests.support.nouns import NOUNS

ROOT = Path(__file__).parents[3]
PARTS = ("relocation", "position_effect", "ranking", "audit", "misses")
PAIRED = PARTS
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
    """A cache with the shipped results as its fallback, so that nothing has to be computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_SHIPPED", "yes")
        return Compute(tmp_path_factory.mktemp("check"))


@pytest.fixture(scope="module")
def cards(shipped: Compute) -> Callable[[str], ModelPassport]:
    """Passports of shipped models over the sample, with the parts that checks need."""
    sample, cached = datasets.read("sample"), dict[str, ModelPassport]()

    def card(name: str) -> ModelPassport:
        if name not in cached:
            cached[name] = passports.passport(shipped, resolve(name), sample, only=PARTS)
        return cached[name]

    return card


@pytest.fixture(scope="module")
def stored(cards: Callable[[str], ModelPassport]) -> Baseline:
    """MiniLM's passport, written to a file and read back."""
    return as_baseline(cards("MiniLM"))


def as_baseline(card: ModelPassport) -> Baseline:
    return parse(document_bytes([card], "json"), "card.json", card.name)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small user data set, and the passport of BM25 over it, computed by the command."""
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


def changed(mine: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """The user's baseline with a changed passport."""
    (entry,) = json.loads((mine / "baseline.json").read_text(encoding="utf-8"))
    change(entry)
    file = mine / name
    file.write_text(json.dumps([entry]), encoding="utf-8")
    return file


def ranked_better(entry: dict[str, Any]) -> None:
    for item in entry["parts"]["ranking"]["numbers"]["ndcg_at_10"]["items"].values():
        item["value"] += 1


def five_queries(entry: dict[str, Any]) -> None:
    number = entry["parts"]["ranking"]["numbers"]["ndcg_at_10"]
    number["items"] = dict(list(number["items"].items())[:5])


def outcomes(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.outcome for check in checks}


def single(card: ModelPassport, baseline: Baseline, name: str, **tolerances: float) -> Check:
    (check,) = checking.checks(card, baseline, Tolerances(**tolerances), [name])
    return check


def values(card: ModelPassport, part: str, key: str) -> dict[str, float]:
    numbers = (n for one in card.parts if one.key == part for n in one.numbers if n.key == key)
    measure = next(numbers).measure
    assert measure is not None
    return {item_id: row.item() for (item_id, _), row in measure.rows.items()}


def with_number(baseline: Baseline, part: str, key: str, number: BaselineNumber | None) -> Baseline:
    """The baseline with another number, or without it if `number` is None."""
    numbers = {name: each for name, each in baseline.numbers[part].items() if name != key}
    if number is not None:
        numbers[key] = number
    return replace(baseline, numbers={**baseline.numbers, part: numbers})


def with_items(
    card: ModelPassport, part: str, key: str, change: Callable[[str, float], float]
) -> ModelPassport:
    """The passport of a model with a changed value of each item."""

    def number(one: Number) -> Number:
        if one.key != key:
            return one
        assert one.measure is not None
        rows = {
            item: np.array([change(item[0], row.item())]) for item, row in one.measure.rows.items()
        }
        return replace(one, measure=replace(one.measure, rows=rows))

    parts = tuple(
        replace(one, numbers=tuple(map(number, one.numbers))) if one.key == part else one
        for one in card.parts
    )
    return replace(card, parts=parts)


def test_consistent_rounding_is_no_effect(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    """All items differ by less than a float32 score is exact to, and all in the same direction."""
    rounded = with_items(cards("MiniLM"), "relocation", "last_minus_first", lambda _, v: v + 1e-8)
    check = single(rounded, stored, "relocation")
    assert check.comparison is not None and check.comparison.verdict == "equivalent"
    assert check.difference == 0 and check.outcome == "pass"
    moved = with_items(cards("MiniLM"), "relocation", "last_minus_first", lambda _, v: 1.1 * v)
    check = single(moved, stored, "relocation")
    assert check.difference is not None and check.difference > 0


# -- verdicts --------------------------------------------------------------------------------------


def test_a_model_passes_against_itself(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    checks = checking.checks(cards("MiniLM"), stored, Tolerances(0, 0, 0, 0, 0, 0, 0), NAMES)
    assert outcomes(checks) == dict.fromkeys(NAMES, "pass")
    assert checking.exit_code(checks) == 0
    verdicts = [check.comparison.verdict for check in checks if check.comparison]
    assert verdicts == ["equivalent"] * len(PAIRED)


def test_equal_results_of_other_weights_leave_a_rare_loss_possible(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    """68 documents without a difference don't rule out that 2% of all lose; 149 would, and 299 that
    the effect of position turns around in 1%."""
    other = replace(stored, weights="0" * 16)
    checks = checking.checks(cards("MiniLM"), other, Tolerances(), PAIRED)
    found = outcomes(checks)
    assert found.pop("relocation") == "pass"  # a score, which changes in every document
    assert set(found.values()) == {"too few documents"}
    assert [check.comparison and check.comparison.needed for check in checks[1:]] == [
        299,
        149,
        149,
        149,
    ]
    assert single(cards("MiniLM"), other, "ranking", ranking=0.05).outcome == "pass"
    assert single(cards("MiniLM"), other, "ranking", ranking=0).outcome == "too few documents"


@pytest.mark.parametrize(
    ("n", "n_better", "passes"),
    [(38, 0, False), (38, 2, False), (38, 3, True), (60, 2, True), (148, 0, False), (149, 0, True)],
)
def test_a_rare_increase_is_ruled_out_by_fewer_documents_if_the_model_got_better(
    n: int, n_better: int, passes: bool
) -> None:
    """As docs/check.md states; documents that got better lost a miss, or their whole effect."""
    documents = [f"d{k}" for k in range(n)]
    missed = (np.arange(n) < n_better).astype(float)
    misses = paired(missed, np.zeros(n), documents, 0.02, largest=1.0)
    assert misses is not None and misses.rules_out("higher") is passes
    assert (1 - 0.05 ** (1 / n) - n_better / n <= 0.02) is passes
    effect = (np.arange(n) >= 4 * n_better).astype(float)
    sizes = paired_sizes(np.ones(n), effect, documents, 0.02, largest=2.0)
    increase = 2 * (1 - 0.05 ** (1 / n)) - 4 * n_better / n
    assert sizes is not None and sizes.rules_out("higher") is (increase <= 0.02)
    rule = (ROOT / "docs/check.md").read_text(encoding="utf-8")
    assert "that takes 149 documents (299 for `position_effect`) if the mean stays the same" in rule


@pytest.mark.parametrize("name", ["MiniLM-primacy", "MiniLM-recency"])
def test_a_planted_bias_fails_the_relocation_check(
    cards: Callable[[str], ModelPassport], stored: Baseline, name: str
) -> None:
    checks = checking.checks(cards(name), stored, Tolerances(), NAMES)
    assert outcomes(checks)["relocation"] == "fail" and checking.exit_code(checks) == 1
    assert outcomes(checks)["truncation"] == "pass"
    # In the other direction the bias shrinks, which passes.
    back = checking.checks(cards("MiniLM"), as_baseline(cards(name)), Tolerances(), PAIRED)
    assert outcomes(back)["relocation"] == "pass"
    # An increase of misses beyond 0.02 needs 149 documents if fewer than five have one.
    assert outcomes(back)["misses"] == "too few documents" and checking.exit_code(back) == 4


@pytest.mark.parametrize(("name", "key"), [("audit", "unretrieved"), ("misses", "missed")])
def test_sentences_state_shares_in_percent_and_their_differences_in_points(
    cards: Callable[[str], ModelPassport], stored: Baseline, name: str, key: str
) -> None:
    worse = with_items(cards("MiniLM"), name, key, lambda _, value: value + 0.03)
    check = single(worse, stored, name)
    assert check.outcome == "fail" and check.value is not None and check.baseline is not None
    assert check.difference == pytest.approx(0.03) and check.tolerance == 0.02
    assert f" is {check.value:.1%} ({check.baseline:.1%} in the baseline) over " in check.line
    assert "The increase is +3.0 [" in check.line
    assert "] percentage points; the tolerance is 2 percentage points. Higher (p" in check.line
    ruled_out = single(worse, stored, name, **{name: 0.05})
    assert "5 percentage points" in ruled_out.line and "0.05" not in ruled_out.line


def test_a_quarter_of_the_planted_bias_fails_though_its_saliency_curve_passed(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    planted = values(cards("MiniLM-primacy"), "relocation", "last_minus_first")
    card = with_items(
        cards("MiniLM"),
        "relocation",
        "last_minus_first",
        lambda pair, value: 0.75 * value + 0.25 * planted[pair],
    )
    check = single(card, stored, "relocation")
    assert check.outcome == "fail" and check.comparison is not None
    assert check.comparison.verdict == "higher"
    assert single(card, stored, "relocation", relocation=0.1).outcome == "pass"


def test_relocation_is_the_change_in_standard_deviations_of_each_models_scores(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    check = single(cards("MiniLM-recency"), stored, "relocation")
    before, now = (
        values(cards(name), "relocation", "last_minus_first")
        for name in ("MiniLM", "MiniLM-recency")
    )
    assert before.keys() == now.keys() and check.n == len(now)
    old = np.mean(list(before.values())) / np.std([s["score"] for s in stored.scores.values()])
    scores = [s["score"] for s in cards("MiniLM-recency").scores.values()]
    new = np.mean(list(now.values())) / np.std(scores)
    assert (check.baseline, check.value) == (pytest.approx(old), pytest.approx(new))
    assert old < 0 < new and check.difference == pytest.approx(new + old)
    assert "over 29 pairs of 29 documents" in check.line


def test_relocation_does_not_depend_on_the_scale_of_a_models_scores(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    scores = {key: {**s, "score": 100 * s["score"] + 7} for key, s in stored.scores.items()}
    number = stored.numbers["relocation"]["last_minus_first"]
    items = {item: 100 * value for item, value in number.items.items()}
    scaled = with_number(stored, "relocation", "last_minus_first", replace(number, items=items))
    check = single(cards("MiniLM"), replace(scaled, scores=scores), "relocation", relocation=1e-4)
    assert check.outcome == "pass"


def test_ranking_is_the_loss_of_ndcg_per_query(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    before, now = (
        values(cards(name), "ranking", "ndcg_at_10") for name in ("MiniLM", "MiniLM-recency")
    )
    check = single(cards("MiniLM-recency"), stored, "ranking")
    assert check.difference == pytest.approx(np.mean([before[q] - now[q] for q in before]))
    assert (check.n, check.n_documents) == (304, 68)
    worse = with_items(cards("MiniLM"), "ranking", "ndcg_at_10", lambda _, value: value - 0.05)
    assert single(worse, stored, "ranking").outcome == "fail"
    assert single(worse, stored, "ranking", ranking=0.06).outcome == "pass"
    better = with_items(cards("MiniLM"), "ranking", "ndcg_at_10", lambda _, value: value + 0.05)
    assert single(better, stored, "ranking", ranking=0).outcome == "pass"


@pytest.mark.parametrize(
    ("name", "part", "key", "worse"),
    [
        ("position_effect", "position_effect", "first_minus_last", 0.1),
        ("audit", "audit", "unretrieved", 0.1),
        ("misses", "misses", "missed", 0.1),
    ],
)
def test_an_increase_of_every_item_beyond_the_tolerance_fails(
    cards: Callable[[str], ModelPassport],
    stored: Baseline,
    name: str,
    part: str,
    key: str,
    worse: float,
) -> None:
    card = with_items(cards("MiniLM"), part, key, lambda _, value: value + worse)
    check = single(card, stored, name)
    assert check.outcome == "fail" and check.difference == pytest.approx(worse)
    assert single(card, stored, name, **{name: worse + 0.01}).outcome == "pass"


def test_checks_undecided_for_too_few_documents_do_not_pass(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    """Noise with mean 0: few documents don't rule out an increase, but more do."""
    rng = np.random.default_rng(3)
    noise = {query: float(rng.normal(0, 0.3)) for query in values(cards("MiniLM"), *NDCG_KEY)}
    card = with_items(cards("MiniLM"), *NDCG_KEY, lambda query, value: value + noise[query])
    number = stored.numbers["ranking"]["ndcg_at_10"]
    few = dict(list(number.items.items())[:60])
    less = with_number(stored, *NDCG_KEY, replace(number, items=few))
    check = single(card, less, "ranking")
    assert check.outcome == "too few documents" and check.n == 60
    assert check.comparison is not None and check.comparison.needed is not None
    needed = check.comparison.needed_one_sided
    assert needed is not None and check.n_documents is not None
    # A check passes once an increase is ruled out, whether or not both models are equivalent.
    assert check.n_documents < needed < check.comparison.needed
    assert f"about {needed:,} documents would be needed" in check.line
    assert checking.exit_code([check]) == 4
    assert single(card, less, "ranking", ranking=0.5).outcome == "pass"


NDCG_KEY = ("ranking", "ndcg_at_10")


def test_p_is_adjusted_over_the_checks_made(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    alone = single(cards("MiniLM-recency"), stored, "ranking").comparison
    together = checking.checks(cards("MiniLM-recency"), stored, Tolerances(), PAIRED)
    p = [check.comparison.p for check in together if check.comparison]
    among = next(check.comparison for check in together if check.name == "ranking")
    assert alone is not None and among is not None and alone.p is not None
    rank = sorted(each for each in p if each is not None).index(alone.p)
    assert rank and alone.p_holm == alone.p
    assert among.p_holm == pytest.approx((len(PAIRED) - rank) * alone.p)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        (["pass", "pass"], 0),
        (["pass", "fail", "not checked", "too few documents"], 1),
        (["pass", "too few documents", "not checked"], 3),
        (["too few documents", "pass"], 4),
    ],
)
def test_exit_codes_of_outcomes(results: list[Any], code: int) -> None:
    checks = [Check(str(number), outcome, "") for number, outcome in enumerate(results)]
    assert checking.exit_code(checks) == code


# -- what is compared ------------------------------------------------------------------------------


def test_only_parts_of_the_baseline_are_computed_and_compared(
    shipped: Compute, stored: Baseline
) -> None:
    sample = datasets.read("sample")

    def parts(baseline: Baseline, names: list[str]) -> set[str]:
        found = checking.passport(shipped, resolve("MiniLM"), sample, baseline, names)
        return {part.key for part in found.parts}

    assert checking.chosen(stored) == [*PAIRED, "truncation"]
    two = replace(stored, numbers={key: stored.numbers[key] for key in ("relocation", "audit")})
    assert checking.chosen(two) == ["relocation", "audit", "truncation"]
    assert checking.chosen(two, ["drift"]) == ["drift"]
    assert parts(two, checking.chosen(two)) == {"relocation", "audit"}
    assert parts(stored, ["drift"]) == parts(stored, ["relocation"]) == {"relocation"}
    with pytest.raises(UserError, match="--part ranking"):
        checking.chosen(two, ["ranking"])
    with pytest.raises(UserError, match="no number of relocation, position_effect"):
        checking.chosen(replace(stored, numbers={"needles": {}}))


def test_the_model_uses_exactly_the_baselines_pairs_for_relocation(
    shipped: Compute, cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    pairs = list(values(cards("MiniLM"), "relocation", "last_minus_first"))[5:25]
    number = stored.numbers["relocation"]["last_minus_first"]
    items = {item: value for item, value in number.items.items() if item[0] in pairs}
    some = replace(number, items=items)
    few = with_number(stored, "relocation", "last_minus_first", some)
    few = replace(few, numbers={"relocation": few.numbers["relocation"]})
    sample = datasets.read("sample")
    card = checking.passport(shipped, resolve("MiniLM-primacy"), sample, few, ["relocation"])
    assert sorted(pair.pair_id for pair in card.scope.moved) == sorted(pairs) and not card.missing
    check = single(card, few, "relocation")
    assert check.n == 20 and check.outcome == "fail"
    items = {item: value for item, value in items.items() if item[0] == pairs[0]}
    one = with_number(few, "relocation", "last_minus_first", replace(number, items=items))
    card = checking.passport(shipped, resolve("MiniLM-primacy"), sample, one, ["relocation"])
    check = single(card, one, "relocation")
    assert check.outcome == "not checked" and " of only one pair: write it again" in check.line


def test_the_baseline_states_its_data_and_settings(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    lines = checking.baseline_lines(stored, NAMES)
    assert "sample (304 pairs)" in lines[0]
    moved = "30 pairs that have evidence, spread evenly over the data set"
    assert lines[1:] == [
        f"relocation: 29 pairs of 29 documents ({moved})",
        f"position_effect: 30 queries of 30 documents ({moved}, ranked among 68 documents)",
        "ranking: 304 queries of 68 documents",
        "audit: 66 documents (sentences as queries, top 10)",
        "misses: 304 pairs of 68 documents (top 10)",
    ]
    checks = checking.checks(cards("MiniLM-primacy"), stored, Tolerances(), NAMES)
    entry = checking.entry(cards("MiniLM-primacy"), stored, checks)
    assert [(one["check"], one["n"], one["n_documents"]) for one in entry["baseline_parts"]] == [
        ("relocation", 29, 29),
        ("position_effect", 30, 30),
        ("ranking", 304, 68),
        ("audit", 66, 66),
        ("misses", 304, 68),
    ]
    first = entry["checks"][0]
    assert (first["outcome"], first["verdict"], first["n"]) == ("fail", "higher", 29)
    assert first["low"] is not None and first["low"] < first["difference"]  # type: ignore[operator]
    assert entry["checks"][-1]["verdict"] is None


@pytest.mark.parametrize(("shift", "outcome"), [(100.0, "fail"), (-100.0, "pass")])
def test_a_longer_context_passes_and_a_shorter_one_fails(
    cards: Callable[[str], ModelPassport], stored: Baseline, shift: float, outcome: str
) -> None:
    number = stored.numbers["audit"]["tokens_read"]
    baseline = with_number(
        stored, "audit", "tokens_read", replace(number, value=number.value + shift)
    )
    check = single(cards("MiniLM"), baseline, "truncation")
    assert check.outcome == outcome and check.difference == max(0, shift)
    assert ("100 fewer" if shift > 0 else "100 more") in check.line


def with_longest_text_read(card: ModelPassport, tokens: float) -> ModelPassport:
    """The passport of an audit in which every text was read to the end."""
    numbers = {number.key: number for part in card.parts for number in part.numbers}
    limit = numbers["tokens_read"]
    whole = replace(limit, key="longest_text_read", estimate=replace(limit.estimate, value=tokens))

    def changed(part: Any) -> Any:
        return replace(part, numbers=tuple(whole if n is limit else n for n in part.numbers))

    return replace(card, parts=[changed(part) for part in card.parts])


@pytest.mark.parametrize(("longest", "outcome"), [(413, "not checked"), (512, "pass")])
def test_texts_that_are_too_short_tell_nothing_about_truncation(
    cards: Callable[[str], ModelPassport], stored: Baseline, longest: float, outcome: str
) -> None:
    """The baseline's model truncates at 512 tokens."""
    check = single(with_longest_text_read(cards("MiniLM"), longest), stored, "truncation")
    assert (check.outcome, check.value, check.baseline) == (outcome, longest, 512)


def test_a_baseline_of_short_texts_is_a_lower_limit(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    audit = dict(stored.numbers["audit"])
    audit["longest_text_read"] = replace(audit.pop("tokens_read"), value=413)
    short = replace(stored, numbers={**stored.numbers, "audit": audit})
    assert single(cards("MiniLM"), short, "truncation").outcome == "pass"
    audit["longest_text_read"] = replace(audit["longest_text_read"], value=600)
    check = single(cards("MiniLM"), short, "truncation")
    assert (check.outcome, check.difference) == ("fail", 88)


def test_a_model_without_truncation_has_the_longest_context(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    """BM25 has none."""
    card = cards("MiniLM")

    def without(part: Any) -> Any:
        return replace(part, numbers=tuple(n for n in part.numbers if n.key != "tokens_read"))

    unlimited = replace(card, parts=[without(part) for part in card.parts])
    check = single(unlimited, stored, "truncation")
    assert check.outcome == "pass" and check.line.endswith("reads whole texts.")


def test_drift_is_in_standard_deviations_of_the_baselines_scores(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    now = cards("MiniLM-recency").scores
    before = np.array([s["score"] for s in stored.scores.values()])
    after = np.array([now[key]["score"] for key in stored.scores])
    check = single(cards("MiniLM-recency"), stored, "drift")
    assert check.outcome == "fail"
    assert check.value == pytest.approx(np.abs(after - before).mean() / before.std())
    worst = list(stored.scores)[int(np.abs(after - before).argmax())]
    assert f"pair {worst}," in check.line


def test_parts_missing_from_the_baseline_are_reported_and_parts_lost_by_the_model_fail(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    card = cards("MiniLM")
    less = with_number(stored, *NDCG_KEY, None)
    checks = checking.checks(card, less, Tolerances(), NAMES)
    assert outcomes(checks)["ranking"] == "not checked" and checking.exit_code(checks) == 3
    why = replace(less, absent={**less.absent, "ranking": "Too few documents."})
    line = single(card, why, "ranking").line
    assert line == "The baseline has no nDCG@10. Too few documents."
    parts = tuple(
        replace(one, numbers=(), absent="No disk.") if one.key == "ranking" else one
        for one in card.parts
    )
    lost = single(replace(card, parts=parts), stored, "ranking")
    assert lost.outcome == "fail" and lost.line.endswith("No disk.")
    elsewhere = replace(stored, scores={"other": next(iter(stored.scores.values()))})
    other = single(replace(card, parts=parts), elsewhere, "ranking")
    assert other.outcome == "not checked"
    assert other.line == "None of the baseline's pairs exists in sample."


def test_a_baseline_without_single_items_must_be_rewritten(
    shipped: Compute, cards: Callable[[str], ModelPassport]
) -> None:
    """As written by earlier versions: parts that can't be compared aren't computed."""
    (entry,) = json.loads(document_bytes([cards("MiniLM")], "json"))
    for part in entry["parts"].values():
        for number in part["numbers"].values():
            del number["items"]
    earlier = parse(json.dumps([entry]).encode(), "card.json", "MiniLM")
    names = checking.chosen(earlier)
    card = checking.passport(shipped, resolve("MiniLM"), datasets.read("sample"), earlier, names)
    assert [part.key for part in card.parts] == ["audit"]
    checks = checking.checks(card, earlier, Tolerances(), names)
    assert outcomes(checks) == {**dict.fromkeys(PAIRED, "not checked"), "truncation": "pass"}
    assert "write it again" in checks[0].line


def test_items_whose_texts_changed_are_not_compared(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    number = stored.numbers["relocation"]["last_minus_first"]
    first, *others = number.items
    changed = first[0], "0" * 16
    items = {item: number.items[item] for item in others} | {changed: 99.0, ("gone", ""): 99.0}
    other = with_number(stored, "relocation", "last_minus_first", replace(number, items=items))
    check = single(cards("MiniLM"), other, "relocation")
    assert check.outcome == "pass" and check.n == 28
    assert "2 of the baseline's pairs don't exist here" in check.line
    none = replace(number, items={changed: 1.0})
    other = with_number(stored, "relocation", "last_minus_first", none)
    check = single(cards("MiniLM"), other, "relocation")
    assert check.outcome == "not checked" and "None of the baseline's pairs" in check.line


def test_pairs_whose_texts_changed_do_not_count_as_drift(
    cards: Callable[[str], ModelPassport], stored: Baseline
) -> None:
    first = next(iter(stored.scores))
    changed = {"texts": "0" * 16, "score": 99.0}
    scores = {**stored.scores, first: changed, "gone": {"texts": "", "score": 1.0}}
    check = single(cards("MiniLM"), replace(stored, scores=scores), "drift")
    assert check.outcome == "pass" and check.value == 0 and check.n == len(stored.scores) - 1
    other = replace(stored, scores={first: changed})
    check = single(cards("MiniLM"), other, "drift")
    assert check.outcome == "not checked" and "with the same texts" in check.line


# -- files and commands ----------------------------------------------------------------------------


def test_a_junit_file_states_what_passed_failed_and_was_skipped() -> None:
    checks = [
        Check("relocation", "pass", "fine"),
        Check("ranking", "fail", "\x00 <b> & rose"),
        Check("drift", "not checked", "none"),
        Check("audit", "too few documents", "about 70 documents are needed"),
    ]
    suite = ElementTree.fromstring(junit_bytes(checks, "a\x07b"))[0]
    assert suite.attrib == {
        "name": "a�b",
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
    }
    assert [case.attrib["name"] for case in suite] == ["relocation", "ranking", "drift", "audit"]
    assert [[child.tag for child in case] for case in suite] == [
        ["system-out"],
        ["failure"],
        ["skipped"],
        ["skipped"],
    ]
    assert suite[1][0].attrib["message"] == "� <b> & rose"
    assert suite[3][0].attrib["message"] == "too few documents: about 70 documents are needed"


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
        (
            file(parts={"ranking": {"numbers": {"psi": {"value": 1, "items": {"q": 1}}}}}),
            "is damaged",
        ),
        (file(parts={"ranking": {"numbers": {}, "provenance": [1]}}), "is damaged"),
        (file(scores={"a": {"texts": 1, "score": 1}}), "is damaged"),
        (file(scores={"a": 1}), "is damaged"),
        (file(scores=[1]), "is damaged"),
        (file(model=7), "is damaged"),
        (file(n_pairs="many"), "is damaged"),
        (json.dumps([entry, {**entry, "model": "N"}]).encode(), "not exactly one of X"),
    ]


def test_an_invalid_baseline_is_refused_in_one_sentence(stored: Baseline, tmp_path: Path) -> None:
    for data, said in damaged(stored):
        with pytest.raises(UserError, match=said) as raised:
            parse(data, "card.json", "X")
        assert str(raised.value).count("\n") == 0
    (tmp_path / "two.json").write_bytes(damaged(stored)[-1][0])
    assert read_baseline(tmp_path / "two.json", "N").model == "N"


def test_the_command_computes_missing_results_and_reports_outcomes(
    mine: Path, tmp_path: Path
) -> None:
    junit = tmp_path / "found.xml"
    done = run(mine, "--junit", str(junit))
    assert done.exit_code == 0, done.stderr
    assert [line.split(":")[:2] for line in done.stdout.splitlines()] == [
        ["pass", " relocation"],
        ["pass", " position_effect"],
        ["pass", " ranking"],
        ["pass", " audit"],
        ["pass", " misses"],
    ]
    assert "ranking: 12 queries of 12 documents" in done.stderr
    assert "(12 pairs), PosLens " in done.stderr, "each part counts its documents"
    assert "truncation: left out, because the baseline lacks its number." in done.stderr
    assert ElementTree.parse(junit).getroot().attrib["skipped"] == "0"
    asked = [*PAIRED, "drift"]
    assert run(mine, *(word for name in asked for word in ("--only", name))).exit_code == 0
    truncation = run(mine, "--only", "truncation", "--format", "json")
    assert truncation.exit_code == 3 and not json.loads(truncation.stdout)["passed"]


def test_nothing_is_checked_on_another_data_set(mine: Path, tmp_path: Path) -> None:
    rows = [
        {**row, "query": f"{row['query']} again", "pair_id": f"other {row['query']}"}
        for row in ROWS
    ]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arguments = [
        "--dataset",
        str(tmp_path / "other.jsonl"),
        "--baseline",
        str(mine / "baseline.json"),
    ]
    done = CliRunner().invoke(app, ["check", "--model", "BM25", *arguments])
    assert done.exit_code == 3, done.output
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("not checked: ")] == []
    assert (
        lines[1]
        == "not checked: position_effect: None of the baseline's pairs exists in other.jsonl."
    )


def test_the_command_fails_with_exit_code_1(mine: Path, tmp_path: Path) -> None:
    file = changed(mine, "better.json", ranked_better)
    junit = tmp_path / "j"
    done = run(mine, "--baseline", str(file), "--format", "json", "--junit", str(junit))
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert not answer["passed"]
    ranking = next(check for check in answer["checks"] if check["name"] == "ranking")
    assert (ranking["outcome"], ranking["verdict"]) == ("fail", "higher")
    assert ElementTree.parse(junit).getroot().attrib["failures"] == "1"
    assert run(mine, "--baseline", str(file), "--only", "relocation").exit_code == 0
    assert run(mine, "--baseline", str(file), "--ranking", "9").exit_code == 0


def test_too_few_documents_have_an_exit_code_of_their_own(mine: Path) -> None:
    file = changed(mine, "few.json", five_queries)
    done = run(mine, "--baseline", str(file), "--only", "ranking", "--only", "relocation")
    assert done.exit_code == 4
    assert "too few documents: ranking: " in done.stdout
    assert "Too few documents to decide: an interval needs 10." in done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--drift", "nan"), "tolerance of drift"),
        (("--relocation", "-1"), "tolerance of relocation"),
        (("--baseline", "nowhere.json"), "No such file"),
    ],
)
def test_invalid_options_give_one_sentence_and_exit_code_2(
    mine: Path, more: tuple[str, ...], message: str
) -> None:
    done = run(mine, *more)
    assert done.exit_code == 2 and message in done.stderr.splitlines()[-1]


PROJECT = """
def test_good(poslens_check):
    only = ["relocation", "drift"]
    assert len(poslens_check("BM25", "baseline.json", "checked.jsonl", only=only)) == 2

def test_bad(poslens_check):
    poslens_check("BM25", "better.json", "checked.jsonl")

def test_unknown(poslens_check):
    poslens_check("BM25", "baseline.json", "checked.jsonl", only=["truncation"])

def test_undecided(poslens_check):
    poslens_check("BM25", "few.json", "checked.jsonl", only=["ranking"])

def test_wrong(poslens_check):
    poslens_check("BM25", "baseline.json", "checked.jsonl", dirft=1)
"""


def test_the_fixture_is_available_in_other_projects(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(mine, "better.json", ranked_better)
    changed(mine, "few.json", five_queries)
    (mine / "test_model.py").write_text(PROJECT, encoding="utf-8")
    monkeypatch.chdir(mine)
    plugins = ["-p", "poslens.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # Runs in this process, since another one would load every library again.
    code = pytest.main(["-q", "-rs", *plugins, "--rootdir", str(mine), str(mine / "test_model.py")])
    said = capsys.readouterr().out
    assert code == 1
    assert "2 failed, 1 passed, 2 skipped" in said
    assert "ranking: nDCG@10 is" in said
    assert "There is no tolerance 'dirft'" in said
    assert "not checked: truncation: The baseline doesn't say" in said
    assert "too few documents: ranking: nDCG@10 is" in said
    assert "Traceback" not in said and "another exception occurred" not in said


def test_the_fixture_loads_no_heavy_libraries_before_it_is_called() -> None:
    code = (
        "import sys, poslens.pytest_plugin; "
        "print({'torch', 'numpy', 'pandas', 'streamlit', 'dashboard'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_an_unknown_check_is_refused_in_one_sentence(mine: Path) -> None:
    with pytest.raises(UserError, match="no check 'leen': choose from relocation, position_effect"):
        poslens.check("BM25", mine / "baseline.json", only=["leen"])


def test_the_workflow_in_the_docs_is_valid() -> None:
    """It parses, and its commands accept their options."""
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
