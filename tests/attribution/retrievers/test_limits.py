"""The context limit in a model's configuration, compared with the one PosLens uses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.base import separate
from poslens.attribution.retrievers.late_interaction import LateInteractionRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import (
    configured_limit,
    minilm_folder,
    register_folder,
    resolve,
)
from poslens.cache.keys import used_model
from tests.support import tiny_families

ROBERTA = {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}
"""It numbers positions from 2."""


def folder_with(place: Path, lengths: object) -> Path:
    """MiniLM's folder with a changed sentence-transformers configuration."""
    shutil.copytree(minilm_folder(), place)
    (place / "sentence_bert_config.json").write_text(json.dumps(lengths), encoding="utf-8")
    return place


def test_a_preset_states_that_its_configuration_truncates_earlier() -> None:
    assert limits.reads(resolve("MiniLM")) == "512 tokens (its own configuration: 256)"
    assert limits.reads(resolve("MiniLM@configured")) == "256 tokens"
    assert limits.reads(resolve("BM25")) == "texts of any length"


def test_a_model_as_configured_reads_less_and_has_its_own_cache_key() -> None:
    plain, configured = resolve("MiniLM"), resolve("MiniLM@configured")
    assert (plain.max_length, configured.max_length) == (512, 256)
    one, other = used_model(plain, "cpu", "float32"), used_model(configured, "cpu", "float32")
    assert one.weights == other.weights and one.fingerprint != other.fingerprint
    found = separate(load(configured, "cpu", "float32"))
    (text,) = found.encode_texts(["word " * 400], "document").texts
    assert text.truncated and len(text) == text.max_length == 256


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("MiniLM-recency@0.5@configured", 256),
        ("MiniLM@last@configured", 256),
        ("MiniLM@configured@calibrated(block=64)", 256),
        ("MiniLM@mean@configured", 256),
    ],
)
def test_a_configured_limit_combines_with_other_suffixes(name: str, length: int) -> None:
    assert resolve(name).max_length == length


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MiniLM@configured@configured", "only once, and before @calibrated"),
        ("MiniLM@calibrated@configured", "only once, and before @calibrated"),
        ("MiniLM" + "@configured" * 5000, "only once, and before @calibrated"),
        ("BM25@configured", "no configuration that truncates"),
    ],
)
def test_an_unusable_limit_is_refused_in_one_sentence(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(name)


def test_a_folder_truncates_as_configured_by_default(tmp_path: Path) -> None:
    spec = register_folder("mine", folder_with(tmp_path / "mine", {"max_seq_length": 128}))
    assert configured_limit(spec) == 128 and limits.configured_apart(spec) is None
    assert limits.reads(spec) == "128 tokens"
    assert resolve("mine@configured") is spec


@pytest.mark.parametrize("lengths", [{}, [], {"max_seq_length": None}, {"max_seq_length": [1]}])
def test_a_configuration_without_a_limit_states_none(tmp_path: Path, lengths: object) -> None:
    folder = folder_with(tmp_path / "mine", lengths)
    (folder / "tokenizer_config.json").write_text("{}")
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    spec = register_folder("mine", folder)
    assert configured_limit(spec) is None
    assert limits.reads(spec) == "as many tokens as its own files say"


@pytest.mark.parametrize(
    ("stated", "tokenizer", "config", "limit"),
    [
        (None, 200, {"max_position_embeddings": 512}, 200),
        (None, 512, {"max_position_embeddings": 128}, 128),
        (None, 10**30, {"max_position_embeddings": 256}, 256),
        (None, 200, {}, 200),
        (None, 10**30, {}, None),
        (1024, 10**30, {"max_position_embeddings": 512}, 512),
        # RoBERTa numbers positions from 2.
        (
            None,
            512,
            {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1},
            512,
        ),
        (
            None,
            600,
            {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1},
            512,
        ),
    ],
)
def test_the_tokenizer_and_the_positions_limit_a_model(
    tmp_path: Path, stated: int | None, tokenizer: int, config: dict[str, Any], limit: int | None
) -> None:
    folder = folder_with(tmp_path / "mine", {"max_seq_length": stated})
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": tokenizer}))
    own = json.loads((folder / "config.json").read_text())
    del own["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(own | config))
    assert configured_limit(register_folder("mine", folder)) == limit


@pytest.mark.parametrize(("lengths", "limit"), [({"document_length": 64}, 64), ({}, None)])
def test_the_document_length_limits_late_interaction(
    tmp_path: Path, lengths: dict[str, int], limit: int | None
) -> None:
    folder = folder_with(tmp_path / "mine", {"max_seq_length": 128})
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | lengths))
    spec = replace(register_folder("mine", folder), family="late_interaction")
    assert configured_limit(spec) == limit


def test_the_document_length_that_the_library_saves_limits_late_interaction(
    tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    raw = tiny_folder("bert").parent / "raw"
    folder = tiny_families.late_interaction(raw, tmp_path / "late", document_length=40)
    spec = register_folder("late", folder)
    retriever = load(spec)
    assert isinstance(retriever, LateInteractionRetriever)
    assert configured_limit(spec) == retriever.max_length_of("document") == 40


def test_the_limit_of_a_model_without_files_is_unknown() -> None:
    spec = resolve("bge-m3@configured")
    assert (spec.name, spec.max_length) == ("bge-m3@configured", None)
