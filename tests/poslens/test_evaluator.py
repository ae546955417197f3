"""The evaluator for training: numbers equal those of the studies, the model is unchanged, libraries
can read its files, the documented recipe works, and invalid input is refused."""

from __future__ import annotations

import csv
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator, SequentialEvaluator
from sentence_transformers.sentence_transformer.modules import Router

import poslens
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.evaluator import MEASURES, WORST, mteb_result

WORDS = ["tide", "moon", "fog", "stone", "river", "cloud", "seed", "wind", "salt", "ash", "ice"]
WORDS += ["oak"]
LINES = ("It rained on {}.", "Nobody saw {} there.", "We wrote about {} twice.", "{} is old.")
GUIDE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


def rows(words: list[str]) -> str:
    lines = [
        {
            "pair_id": f"{word}{at}",
            "query": f"what of {word} {at}",
            "document": " ".join(line.format(word) for line in LINES),
            "evidence": LINES[at].format(word),
            "language": "eng" if at else "pol",
        }
        for word in words
        for at in (0, 2)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "mine.jsonl"
    path.write_text(rows(WORDS))
    return str(path)


def load(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("name", ["bert", "qwen3-left"])
def test_the_measures_equal_those_of_the_studies(
    corpus: str, tiny_folder: Callable[..., Path], name: str
) -> None:
    folder = str(tiny_folder(name))
    measures = poslens.PositionEvaluator(corpus)(load(tiny_folder(name)))
    assert list(measures) == list(MEASURES)
    positions = poslens.positions(folder, corpus, pairs=0)
    (effect,) = positions.to_frame("effect").to_dict("records")
    for position in ("first", "middle", "last"):
        assert measures[f"ndcg@10_{position}"] == pytest.approx(effect[position])
    for end in ("", "_low", "_high"):
        assert measures[f"first_minus_last{end}"] == pytest.approx(effect[f"first_minus_last{end}"])
    by_position = positions.to_frame("positions")["ndcg_at_10"]
    assert measures[WORST] == pytest.approx(by_position.min())
    assert by_position.min() < by_position.max()  # otherwise there is nothing to distinguish
    moved = poslens.cause(folder, corpus, interventions=["relocation"], pairs=0)
    (effect,) = moved.to_frame().to_dict("records")
    assert measures["relocation_difference"] == pytest.approx(effect["last_minus_first"], abs=1e-6)
    assert measures["relocation_difference_low"] == pytest.approx(
        effect["last_minus_first_low"], abs=1e-5
    )
    (audit,) = poslens.audit(folder, corpus).to_frame("summary").to_dict("records")
    for end in ("", "_low", "_high"):
        assert measures[f"unretrieved_sentences{end}"] == pytest.approx(audit[f"unretrieved{end}"])


def test_a_model_with_two_encoders_is_evaluated_with_both(
    corpus: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    sides = [load(tiny_folder("bert")), load(tiny_folder("bert-cls"))]
    router = Router.for_query_document(
        query_modules=list(sides[0].children()), document_modules=list(sides[1].children())
    )
    model = SentenceTransformer(modules=[router], device="cpu")
    model.save_pretrained(str(tmp_path / "both"))
    model.train()
    before = state_of(model)
    measures = poslens.PositionEvaluator(corpus)(model)
    assert state_of(model) == before
    (effect,) = poslens.positions(str(tmp_path / "both"), corpus, pairs=0).to_frame("effect").values
    assert measures["first_minus_last"] in effect.tolist()


def test_a_changed_model_gives_other_results_at_the_next_call(
    corpus: str, tiny_folder: Callable[..., Path]
) -> None:
    evaluator, model = poslens.PositionEvaluator(corpus), load(tiny_folder("bert"))
    before = evaluator(model)
    assert evaluator(model) == before
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)
    after = evaluator(model)
    assert after["relocation_difference"] != before["relocation_difference"]
    assert after[WORST] != before[WORST]


def state_of(model: SentenceTransformer) -> dict[str, Any]:
    tokenizer = model.tokenizer
    return {
        "training": [module.training for module in model.modules()],
        "gradients": [weight.requires_grad for weight in model.parameters()],
        "hooks": [
            (len(module._forward_hooks), len(module._forward_pre_hooks))
            for module in model.modules()
        ],
        "limits": (model.max_seq_length, tokenizer.model_max_length, dict(model.prompts)),
        "tokenizer": (tokenizer.backend_tokenizer.truncation, tokenizer.backend_tokenizer.padding),
        "weights": {name: weight.tolist() for name, weight in model.state_dict().items()},
        "random": (random.getstate(), torch.get_rng_state().tolist()),
        "numpy": np.random.get_state()[1].tolist(),
        "gradients allowed": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_unchanged(
    corpus: str, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    model = load(tiny_folder("bert", prompts=(("query", "ask: "),)))
    model.train()
    model[1].eval()  # modules of a model may be in different modes
    model.max_seq_length = 40
    next(model.parameters()).requires_grad_(False)
    model.tokenizer.backend_tokenizer.enable_truncation(7, stride=2)
    before = state_of(model)
    evaluator = poslens.PositionEvaluator(corpus)
    if fails:
        monkeypatch.setattr(
            DenseRetriever, "similarities", lambda *_: (_ for _ in ()).throw(UserError("No."))
        )
        with pytest.raises(UserError, match=r"No\."):
            evaluator(model)
    else:
        evaluator(model)
    assert state_of(model) == before


def test_prompts_are_the_models_unless_given(
    corpus: str, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    tokenize = DenseRetriever._tokenize

    def listening(self: DenseRetriever, texts: list[str], side: Any) -> Any:
        read.add(f"{side}: {self.prompts[side]}")
        return tokenize(self, texts, side)

    monkeypatch.setattr(DenseRetriever, "_tokenize", listening)
    model = load(tiny_folder("bert", prompts=(("query", "ask: "), ("document", "text: "))))
    poslens.PositionEvaluator(corpus)(model)
    assert read == {"query: ask: ", "document: text: "}
    read.clear()
    poslens.PositionEvaluator(corpus, query_prompt="", document_prompt="d ")(model)
    assert read == {"query: ", "document: d "}


def test_a_sample_contains_the_moved_documents_and_has_the_requested_size(
    tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    words = [f"{first}{second}" for first in WORDS for second in WORDS]
    (tmp_path / "many.jsonl").write_text(rows(words))
    evaluator = poslens.PositionEvaluator(str(tmp_path / "many.jsonl"), documents=20, pairs=15)
    about = evaluator.get_config_dict()
    assert (about["documents"], about["pairs"], about["dataset"]) == (20, 15, "many.jsonl")
    texts = {one.text for one in evaluator._moved.collection.documents()}
    assert {pair.document for pair in evaluator._moved.pairs} <= texts
    frame = pd.read_json(tmp_path / "many.jsonl", lines=True)
    again = poslens.PositionEvaluator(frame, documents=20, pairs=15)
    other = poslens.PositionEvaluator(str(tmp_path / "many.jsonl"), documents=20, pairs=15, seed=1)
    assert {one.text for one in again._moved.collection.documents()} == texts
    assert {one.text for one in other._moved.collection.documents()} != texts
    assert math.isfinite(evaluator(load(tiny_folder("bert")))["first_minus_last_low"])


def test_each_call_writes_a_row_and_a_result_that_mteb_reads(
    corpus: str, tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    from mteb.results import TaskResult

    model, folder = load(tiny_folder("bert")), tmp_path / "eval" / "deep"
    evaluator = poslens.PositionEvaluator(corpus, name="mine")
    assert isinstance(evaluator, BaseEvaluator)
    first = evaluator(model, str(folder), 0.5, 10)
    second = evaluator(model, str(folder), 1.0, 20)
    assert evaluator.primary_metric == f"mine_{WORST}" and evaluator.greater_is_better
    assert first == second and list(first) == [f"mine_{name}" for name in MEASURES]
    with (folder / "position_evaluation_mine_results.csv").open(newline="") as file:
        table = list(csv.reader(file))
    assert table[0] == ["epoch", "steps", *MEASURES]
    assert [row[:2] for row in table[1:]] == [["0.5", "10"], ["1.0", "20"]]
    assert [float(value) for value in table[2][2:]] == pytest.approx(list(second.values()))

    path = folder / "position_evaluation_mine_mteb.json"
    result = TaskResult.from_disk(path, load_historic_data=False)
    assert (result.task_name, result.mteb_version) == ("PositionEffect-mine", None)
    assert result.get_score() == result.main_score == pytest.approx(second[f"mine_{WORST}"])
    assert set(result.languages) == {"eng", "pol"} and result.evaluation_time > 0
    (scores,) = result.scores["test"]
    assert {name: scores[name] for name in MEASURES} == pytest.approx(
        dict(zip(MEASURES, second.values(), strict=True))
    )
    assert (scores["steps"], scores["documents"], scores["pairs"]) == (20, 12, 24)
    assert set(json.loads(path.read_text())) <= set(TaskResult.model_fields)

    silent = poslens.PositionEvaluator(corpus, write_csv=False)
    silent(model, str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_undefined_measures_are_left_out_of_json() -> None:
    scores = {"main": 0.5, "other": math.nan}
    made = mteb_result("task", "r", "main", scores, ["tha", None], 1.0, {})["scores"]["test"][0]
    assert "other" not in made and made["main_score"] == 0.5
    assert made["languages"] == ["tha-Thai"]


def test_it_can_be_combined_with_other_evaluators(
    corpus: str, tiny_folder: Callable[..., Path]
) -> None:
    model, evaluator = load(tiny_folder("bert")), poslens.PositionEvaluator(corpus, name="mine")
    together = SequentialEvaluator([evaluator])(model)
    assert together["sequential_score"] == together[f"mine_{WORST}"]


def test_the_documented_recipe_runs(
    tmp_path: Path, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
        if "SentenceTransformerTrainer(" in code
    )
    for number, short in (("1_000", "4"), ("200", "2"), ("batch_size=32", "batch_size=4")):
        assert number in recipe
        recipe = recipe.replace(number, short)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    load(tiny_folder("bert")).save_pretrained("my-model")
    Path("pairs.jsonl").write_text(rows(WORDS))
    lines = [{"anchor": f"what of {word}", "positive": f"{word} is old."} for word in WORDS]
    Path("train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names: dict[str, Any] = {}
    exec(compile(recipe, str(GUIDE), "exec"), names)
    (log,) = Path("checkpoints").glob("eval/*.csv")
    with log.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["steps"]) for row in table[:2]] == [2, 4]
    assert table[0]["relocation_difference"] != table[1]["relocation_difference"]
    trainer = names["trainer"]
    best = max(float(row[WORST]) for row in table[:2])
    assert trainer.state.best_metric == pytest.approx(best)
    assert all(weight.requires_grad for weight in trainer.model.parameters())


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        ("query,document\na,One b. Two c.\n", {}, "has evidence that can be moved"),
        ("text\nOne b. Two c.\n", {}, "evidence"),
        (
            "query,document,evidence\na,One b. Two c.,One b.\n",
            {},
            "have evidence that can be moved, but intervals need 10",
        ),
        (None, {"documents": 10}, "documents must be a whole number from 11"),
        (None, {"pairs": 9}, "pairs must be a whole number from 10"),
        (None, {"seed": -1}, "seed must be a whole number from 0"),
    ],
)
def test_invalid_data_is_refused_before_training(
    tmp_path: Path, content: str | None, arguments: dict[str, Any], words: str
) -> None:
    (tmp_path / "own.csv").write_text(content or "")
    dataset = "sample" if content is None else str(tmp_path / "own.csv")
    with pytest.raises(UserError) as refusal:
        poslens.PositionEvaluator(dataset, **arguments)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_ten_documents_are_too_few_for_a_top_ten(tmp_path: Path) -> None:
    (tmp_path / "ten.jsonl").write_text(rows(WORDS[:10]))
    with pytest.raises(UserError, match="has 10 documents, but a top 10 needs at least 11"):
        poslens.PositionEvaluator(str(tmp_path / "ten.jsonl"))


def test_models_of_another_kind_are_refused(
    corpus: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    evaluator = poslens.PositionEvaluator(corpus)
    reranker = CrossEncoder(str(tiny_folder("bert")), num_labels=1, device="cpu")
    with pytest.raises(UserError, match="of type CrossEncoder: use a SentenceTransformer"):
        evaluator(reranker)
