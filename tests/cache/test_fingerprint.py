"""A fingerprint changes with everything that results depend on, and with nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import poslens.cache.keys
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.paths import file_state
from poslens.attribution.retrievers.load import load, plan
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.keys import (
    file_digest,
    files_fingerprint,
    find_digest,
    model_fingerprint,
    text_fingerprint,
    used_model,
)


@pytest.fixture
def copy(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder("bert"), tmp_path / "model"))


def change_in_place(path: Path) -> None:
    """Replace the contents by others of the same size, keeping the dates."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


FILES = [
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "1_Pooling/config.json",
]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_changes_the_fingerprint(copy: Path, name: str) -> None:
    files = ModelFiles(copy)
    before = files_fingerprint(files)
    assert files_fingerprint(files) == before and len(before) == 16
    time.sleep(0.02)  # a file system's clock ticks every few milliseconds
    if name.endswith(".json"):
        path = copy / name
        path.write_text(path.read_text().replace(": ", ":  ", 1))
    else:
        change_in_place(copy / name)
    assert files_fingerprint(files) != before


def test_a_replaced_file_changes_the_fingerprint(copy: Path, tmp_path: Path) -> None:
    """Replaced by renaming, as downloads are: same name, size and date, another inode."""
    files = ModelFiles(copy)
    before = files_fingerprint(files)
    path = copy / "model.safetensors"
    twin = tmp_path / "twin"
    shutil.copy2(path, twin)
    change_in_place(twin)
    twin.rename(path)
    assert files_fingerprint(files) != before


def test_a_file_changed_at_once_is_read_again(tmp_path: Path) -> None:
    """A file that changes again within the same tick of the file system's clock, 50 times."""
    path = tmp_path / "config.json"
    wrong = 0
    for n in range(50):
        path.write_bytes(b"%08d" % n)
        first = file_digest(path)
        path.write_bytes(b"%08d" % -n if n else b"-0000000")
        wrong += file_digest(path) == first
    assert wrong == 0


def test_added_and_removed_files_count_only_if_they_are_read(copy: Path) -> None:
    """Files that no library opens are not part of the model: the card, leftovers of downloads in
    `.cache`, other formats, and folders that no module names."""
    files = ModelFiles(copy)
    before = files_fingerprint(files)
    (copy / "README.md").write_text("another card")
    downloads = copy / ".cache" / "huggingface" / "download"
    downloads.mkdir(parents=True)
    for name in ("config.json.metadata", "model.safetensors.lock", "x.json", "x.safetensors"):
        (downloads / name).write_text(name)
    (copy / "onnx").mkdir()
    (copy / "onnx" / "config.json").write_text("{}")
    (copy / "eval_results.json").write_text("{}")
    (copy / "2_Dense").mkdir()
    (copy / "2_Dense" / "config.json").write_text("{}")
    assert files_fingerprint(files) == before
    modules = (copy / "modules.json").read_text()
    (copy / "modules.json").write_text(modules.replace("1_Pooling", "2_Dense"))
    assert files_fingerprint(files) != before
    (copy / "modules.json").write_text(modules)
    assert files_fingerprint(files) == before
    (copy / "special_tokens_map.json").write_text("{}")
    assert files_fingerprint(files) != before
    (copy / "special_tokens_map.json").unlink()
    (copy / "tokenizer_config.json").unlink()
    assert files_fingerprint(files) != before


def test_a_pickle_that_would_be_read_is_in_the_fingerprint(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Weights of a dense layer were once loaded from a pickle outside the fingerprint."""
    folder = Path(shutil.copytree(tiny_folder("labse"), tmp_path / "pickled"))
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    (folder / "2_Dense" / "model.safetensors").unlink()
    torch.save(weights, folder / "2_Dense" / "pytorch_model.bin")
    spec = RetrieverSpec("mine", "mine", "dense", f"folder:{folder}")
    with pytest.raises(UserError, match=r"only pickled weights \(2_Dense/pytorch_model.bin\)|size"):
        used_model(spec, "cpu", "float32")


def test_an_index_of_weights_cannot_refer_outside_its_folder(copy: Path, tmp_path: Path) -> None:
    """Weights elsewhere could change without changing the fingerprint."""
    (copy / "model.safetensors").rename(copy / "model-00001-of-00001.safetensors")
    names = load_file(copy / "model-00001-of-00001.safetensors")
    spec = RetrieverSpec("mine", "mine", "dense", f"folder:{copy}")
    index = copy / "model.safetensors.index.json"

    def write(shard: str) -> None:
        index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, shard)}))

    write("model-00001-of-00001.safetensors")
    before = used_model(spec, "cpu", "float32").weights
    load(spec, device="cpu")
    time.sleep(0.02)
    change_in_place(copy / "model-00001-of-00001.safetensors")
    assert used_model(spec, "cpu", "float32").weights != before
    outside = tmp_path / "outside.safetensors"
    shutil.copy(copy / "model-00001-of-00001.safetensors", outside)
    for shard in ("../outside.safetensors", str(outside), "sub/x.safetensors", "..", "x.bin", ""):
        write(shard)
        with pytest.raises(
            UserError, match="names files other than the safetensors files in its folder"
        ):
            used_model(spec, "cpu", "float32")
    write("absent.safetensors")
    with pytest.raises(UserError, match=r"mine lacks absent\.safetensors"):
        used_model(spec, "cpu", "float32")


def test_the_same_files_elsewhere_have_the_same_fingerprint(copy: Path, tmp_path: Path) -> None:
    other = shutil.copytree(copy, tmp_path / "moved")
    assert files_fingerprint(ModelFiles(copy)) == files_fingerprint(ModelFiles(Path(other)))


def test_a_file_moved_to_another_module_changes_the_fingerprint(tmp_path: Path) -> None:
    """The same names and contents in the same order, but in other folders."""
    kinds = "sentence_transformers.models.Pooling"
    modules = [{"type": kinds, "path": place} for place in ("a", "b")]

    def make(name: str, place: str) -> ModelFiles:
        for each in ("a", "b"):
            (tmp_path / name / each).mkdir(parents=True)
        (tmp_path / name / "modules.json").write_text(json.dumps(modules))
        (tmp_path / name / place / "config.json").write_text("{}")
        return ModelFiles(tmp_path / name)

    assert files_fingerprint(make("one", "a")) != files_fingerprint(make("other", "b"))


def test_an_adapter_is_part_of_the_fingerprint(copy: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"one")
    with_adapter = files_fingerprint(ModelFiles(copy, adapter))
    assert with_adapter != files_fingerprint(ModelFiles(copy))
    time.sleep(0.02)
    (adapter / "adapter_model.safetensors").write_bytes(b"two")
    assert files_fingerprint(ModelFiles(copy, adapter)) != with_adapter


def test_prompts_and_lengths_are_part_of_the_key(tiny_folder: Callable[..., Path]) -> None:
    from dataclasses import replace

    spec = RetrieverSpec("m", "m", "dense", f"folder:{tiny_folder('bert')}")
    variants = [
        spec,
        replace(spec, query_prompt="a"),
        replace(spec, document_prompt="a"),
        replace(spec, query_prompt=""),
        replace(spec, max_length=9),
        replace(spec, query_max_length=9),
        replace(spec, query_prompt="a', document_prompt='b"),
        replace(spec, query_prompt="a", document_prompt="b"),
    ]
    keys = [model_fingerprint("weights", variant.settings) for variant in variants]
    assert len(set(keys)) == len(variants)
    assert model_fingerprint("other", spec.settings) not in keys
    # The name and display texts don't matter.
    assert replace(spec, name="x", title="y", note="z").settings == spec.settings


def test_texts_are_part_of_the_key() -> None:
    pair = TextPair("p", "ab", "cd")
    assert text_fingerprint(pair) == text_fingerprint(TextPair("other", "ab", "cd"))
    assert text_fingerprint(pair) == text_fingerprint(
        TextPair("p", "ab", "cd", EvidenceSpan(0, 1), "eng", "x", "set", 5)
    )
    others = [("abc", "d"), ("a", "bcd"), ("ab", "cd "), ("AB", "cd"), ("cd", "ab")]
    assert text_fingerprint(pair) not in {text_fingerprint(TextPair("p", *o)) for o in others}


# -- digests on disk ---------------------------------------------------------------------------


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file that was last changed a while ago, according to the patched clock."""
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(2 << 20))
    monkeypatch.setattr(
        poslens.cache.keys.time, "time_ns", lambda: path.stat().st_ctime_ns + 10**10
    )
    return path


def restart() -> None:
    """Clear the process's caches."""
    poslens.cache.keys._digests.clear()


def test_a_large_file_is_hashed_once_over_many_starts(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = file_digest(weights)
    assert digest == hashlib.sha256(weights.read_bytes()).hexdigest()
    restart()
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert file_digest(weights) == digest


def test_replaced_weights_of_the_same_name_size_and_dates_are_a_miss(
    weights: Path, tmp_path: Path
) -> None:
    before = file_digest(weights)
    twin = tmp_path / "twin"
    shutil.copy2(weights, twin)
    change_in_place(twin)
    twin.rename(weights)
    restart()
    renamed = file_digest(weights)
    assert renamed != before
    restart()
    time.sleep(0.02)
    change_in_place(weights)
    assert file_digest(weights) == before, "the same bit flipped twice: contents decide"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 1}', '{"x": [1, 2, 3, 4, "short"]}'])
def test_a_damaged_digest_file_is_ignored(weights: Path, tmp_path: Path, content: str) -> None:
    digest = file_digest(weights)
    place = tmp_path / "home" / "cache" / "digests.json"
    assert place.is_file()
    place.write_text(content)
    restart()
    assert file_digest(weights) == digest
    assert find_digest(place, file_state(weights)) == digest, "remembered again"


def test_a_digest_file_that_cannot_be_written_is_ignored(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    assert file_digest(weights) == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_everything_that_affects_a_result_is_in_the_key() -> None:
    """Parameters and version of a method are in its core; precision, prompts and lengths are in the
    settings that are part of the model's fingerprint."""
    plain = make_method("decomposition")
    assert f"version={METHODS['decomposition'].version}" in plain.core
    cores = {make_method("decomposition", {"matrix": m}).core for m in ("no", "yes")}
    assert len(cores) == 2
    keys = {model_fingerprint("weights", f"x, precision={p}") for p in ("float32", "bfloat16")}
    assert len(keys) == 2


@pytest.mark.parametrize("name", ["MiniLM", "MiniLM-recency", "BM25"])
def test_a_packaged_model_has_the_same_fingerprint_everywhere(name: str, tmp_path: Path) -> None:
    """Shipped results are found by it on every machine."""
    files, place = plan(resolve(name), "cpu")
    assert place.precision == "float32"
    moved = {
        part: Path(shutil.copytree(folder, tmp_path / f"elsewhere-{part}"))
        for part in ("folder", "adapter", "query")
        if (folder := getattr(files, part)) is not None
    }
    assert files_fingerprint(replace(files, **moved)) == files_fingerprint(files)
