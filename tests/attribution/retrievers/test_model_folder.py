"""Model folders are untrusted: nothing in them is imported, called, followed outside or read
without a limit, and they are refused in one sentence before a library opens a file."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import (
    detect,
    load,
    model_folder,
    model_rules,
    resolve,
    safe_files,
    specs,
)
from poslens.attribution.retrievers.load import plan
from poslens.attribution.retrievers.model_rules import is_activation, is_module
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from tests.support import tiny_families
from tests.support.forked import Forked

NESTED = "[" * 100_000 + "]" * 100_000


def spec_of(folder: Path, family: str = "dense") -> RetrieverSpec:
    return RetrieverSpec("mine", "mine", family, f"folder:{folder}")


@pytest.fixture
def copy(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a tiny model with a dense layer that a test may damage."""
    return Path(shutil.copytree(tiny_folder("labse"), tmp_path / "private-place" / "model"))


@pytest.fixture
def reranker(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    return tiny_families.cross_encoder(tiny_folder("bert"), tmp_path / "private-place")


def change(path: Path, **settings: Any) -> None:
    """Put settings into a JSON file."""
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | settings))


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a library is reached."""
    import sentence_transformers

    def reached(*_: object, **__: object) -> None:
        pytest.fail("a library read the folder")

    for name in ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder"):
        monkeypatch.setattr(sentence_transformers, name, reached)


def refused(folder: Path, family: str = "dense") -> str:
    """The sentence with which a folder is refused before a library reads it."""
    with pytest.raises(UserError) as caught:
        plan(spec_of(folder, family), "cpu")
    with pytest.raises(UserError) as again:
        load.load(spec_of(folder, family), device="cpu")
    assert str(again.value) == str(caught.value)
    sentence = str(caught.value)
    assert sentence.startswith("mine ") and sentence.endswith(".") and "\n" not in sentence
    assert len(sentence) < 320 and "private-place" not in sentence and sentence.isascii()
    return sentence


# -- programs ----------------------------------------------------------------------------------

CALLED = "torch.utils.collect_env.main"
"""A function that runs system programs, which a configuration could name."""


@pytest.mark.parametrize("key", ["sentence_transformers", "sbert_ce_default_activation_function"])
@pytest.mark.parametrize(
    "name",
    [CALLED, "torch.distributed.run.main", "torch.nn.Module", "torch.nn.modules.activation.torch"],
)
def test_a_reranker_configuration_cannot_call_a_function(
    reranker: Path, unopened: None, monkeypatch: pytest.MonkeyPatch, key: str, name: str
) -> None:
    value = {"activation_fn": name} if key == "sentence_transformers" else name
    change(reranker / "config.json", **{key: value})
    sentence = refused(reranker, "cross_encoder")
    assert f"names '{name}' in config.json" in sentence


def test_a_rerankers_usual_activations_are_accepted(reranker: Path) -> None:
    for name in ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"):
        change(reranker / "config.json", sentence_transformers={"activation_fn": name})
        load.load(spec_of(reranker, "cross_encoder"), device="cpu")


@pytest.mark.parametrize("name", [CALLED, "os.system", "evil.Module", "torch.hub.load"])
def test_a_dense_layer_cannot_import_anything_but_activations(
    copy: Path, unopened: None, name: str
) -> None:
    change(copy / "2_Dense" / "config.json", activation_function=name)
    assert f"names '{name}' in 2_Dense/config.json" in refused(copy)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "sentence_transformers.util.misc.import_from_string",
        "evil.Module",
        "",
        "x",
        "sentence_transformers.models.CLIPModel",
        "sentence_transformers.models.WordEmbeddings",
        "sentence_transformers.util.misc.importlib.Dense",
        "torch.nn.Linear",
    ],
)
@pytest.mark.parametrize("by", ["modules.json", "router_config.json", "config.json"])
def test_unknown_modules_are_refused(copy: Path, unopened: None, name: str, by: str) -> None:
    modules = json.loads((copy / "modules.json").read_text())
    if by == "modules.json":
        modules[1]["type"] = name
    else:
        modules[1] |= {"type": "sentence_transformers.models.Router", "path": "9_Router"}
        (copy / "9_Router" / "below").mkdir(parents=True)
        settings = {"types": {"below": name}, "structure": {}, "parameters": {}}
        (copy / "9_Router" / by).write_text(json.dumps(settings))
    (copy / "modules.json").write_text(json.dumps(modules))
    sentence = refused(copy)
    assert f"has a module {name!a}" in sentence or f"names {name!a}" in sentence


def test_modules_and_activations_that_the_libraries_save_are_accepted() -> None:
    import sentence_transformers.base.modules as base
    import sentence_transformers.sentence_transformer.modules as dense
    from sentence_transformers.cross_encoder.modules import LogitScore
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
    from sentence_transformers.util import fullname

    for kind in (
        base.Transformer,
        base.Dense,
        base.Normalize,
        base.Router,
        dense.Pooling,
        dense.LayerNorm,
        dense.Dropout,
        LogitScore,
        MultiVectorMask,
        MLMTransformer,
        SpladePooling,
    ):
        assert is_module(f"{kind.__module__}.{kind.__qualname__}"), kind
    for kind in (torch.nn.Tanh, torch.nn.Identity, torch.nn.GELU, torch.nn.Sigmoid):
        assert is_activation(fullname(kind())), kind
    assert not is_activation("torch.nn.Linear") and not is_module("torch.nn.Tanh")


@pytest.mark.parametrize(
    "place",
    [
        "config.json",
        "tokenizer_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "processor_config.json",
        "sentence_bert_config.json",
    ],
)
@pytest.mark.parametrize("key", ["AutoModel", "AutoTokenizer", "AutoConfig", "AutoProcessor"])
def test_code_is_refused_wherever_it_is_named(
    copy: Path, unopened: None, place: str, key: str
) -> None:
    change(copy / place, nested={"auto_map": {key: "evil.Thing"}})
    assert "needs code from its repository" in refused(copy)


@pytest.mark.parametrize("base", ["organization/model", "../other", "/etc", ".", None])
@pytest.mark.parametrize("where", ["", "2_Dense"])
def test_an_adapter_cannot_name_another_model(
    copy: Path, unopened: None, base: str | None, where: str
) -> None:
    change(copy / where / "adapter_config.json", base_model_name_or_path=base, peft_type="LORA")
    assert "is an adapter" in refused(copy)


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        ("config.json", {"transformers_weights": "adapter_model.bin"}),
        ("config.json", {"attn_implementation": "someone/kernel"}),
        ("config.json", {"_attn_implementation": "someone/kernel:f"}),
        ("config.json", {"quantization_config": {"quant_method": "fp8"}}),
        ("sentence_bert_config.json", {"tokenizer_name_or_path": "../other"}),
        ("sentence_bert_config.json", {"model_args": {"use_safetensors": False}}),
        ("sentence_bert_config.json", {"model_kwargs": {"gguf_file": "x.gguf"}}),
        ("sentence_bert_config.json", {"config_args": {"cache_dir": "/tmp"}}),
        ("sentence_bert_config.json", {"processor_kwargs": {"subfolder": "../other"}}),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method": "push_to_hub", "method_output_name": "x"}}},
        ),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../../other/tokenizer.9.0.0.json"]}),
    ],
)
def test_settings_cannot_refer_to_files_outside(
    copy: Path, unopened: None, place: str, settings: dict[str, Any]
) -> None:
    change(copy / place, **settings)
    refused(copy)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", ".git", "C:\\x", "a\x00b"])
def test_modules_must_be_within_the_folder(copy: Path, unopened: None, path: str) -> None:
    modules = json.loads((copy / "modules.json").read_text())
    modules[2]["path"] = path
    (copy / "modules.json").write_text(json.dumps(modules))
    assert "outside its folder" in refused(copy)


def test_a_link_to_a_folder_outside_is_refused_as_a_module(copy: Path, unopened: None) -> None:
    (copy / "2_Dense").rename(copy.parent / "elsewhere")
    (copy / "2_Dense").symlink_to(copy.parent / "elsewhere")
    refused(copy)


def test_pickled_weights_of_a_module_are_refused(copy: Path, unopened: None) -> None:
    weights = load_file(copy / "2_Dense" / "model.safetensors")
    (copy / "2_Dense" / "model.safetensors").unlink()
    torch.save(weights, copy / "2_Dense" / "pytorch_model.bin")
    assert "only pickled weights (2_Dense/pytorch_model.bin)" in refused(copy)


# -- irregular files, and sizes ------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "config.json",
        "tokenizer.json",
        "modules.json",
        "model.safetensors",
        "README.md",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "vocab.txt",
        "tokenizer.model",
        "config_sentence_transformers.json",
        "chat_template.jinja",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "zeros", "dangling", "folder", "socket", "loop"])
def test_only_regular_files_are_opened(copy: Path, place: str, kind: str) -> None:
    """In a separate process: reading a pipe would block forever, and /dev/zero would fill the
    memory."""
    path = copy / place
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "dangling":
        path.symlink_to(copy / "absent")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    else:
        before = Path.cwd()
        os.chdir(path.parent)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
        os.chdir(before)
    found = spec_of(copy)
    with pytest.raises(UserError, match="which is not a regular file: restore the file"):
        plan(found, "cpu")
    # Registering it and detecting its family also read files.
    with pytest.raises(UserError, match="which is not a regular file"):
        resolve.register_folder("mine", copy)
    assert detect.family_of_folder(copy).name == "dense"


@pytest.mark.parametrize(
    ("place", "settings", "message"),
    [
        ("config.json", {"num_hidden_layers": 10_000_000}, "num_hidden_layers"),
        ("config.json", {"num_labels": 10**9}, "num_labels"),
        ("config.json", {"max_position_embeddings": 10**12}, "max_position_embeddings"),
        ("config.json", {"nested": {"encoder_layers": 10**7}}, "encoder_layers"),
        ("config.json", {"vocab_size": 10**400}, "beyond all bounds"),
        ("config.json", {"architectures": 5}, "architectures"),
        ("config.json", {"architectures": [5]}, "architectures"),
        ("config.json", {"architectures": "BertModel"}, "architectures"),
        ("config.json", {"model_type": []}, "model_type"),
        ("config.json", {"model_type": "clip"}, "is of type 'clip'"),
        ("config.json", {"model_type": "encoder-decoder"}, "use a text model"),
        ("config_sentence_transformers.json", {"prompts": {"query": 5}}, "prompts"),
        ("config_sentence_transformers.json", {"prompts": ["query"]}, "prompts"),
        ("config_sentence_transformers.json", {"default_prompt_name": {}}, "default_prompt_name"),
        ("config_sentence_transformers.json", {"similarity_fn_name": 3}, "similarity_fn_name"),
        ("sentence_bert_config.json", {"max_seq_length": "many"}, "max_seq_length"),
        ("sentence_bert_config.json", {"max_seq_length": -5}, "max_seq_length"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length"),
        ("sentence_bert_config.json", {"max_seq_length": True}, "max_seq_length"),
        ("sentence_bert_config.json", {"max_seq_length": 10**30}, "max_seq_length"),
        ("tokenizer_config.json", {"model_max_length": "x"}, "model_max_length"),
        ("2_Dense/config.json", {"in_features": 100_000, "out_features": 100_000}, "dense layer"),
        ("2_Dense/config.json", {"in_features": "x"}, "dense layer"),
    ],
)
def test_settings_of_wrong_size_or_type_are_refused(
    copy: Path, unopened: None, place: str, settings: dict[str, Any], message: str
) -> None:
    change(copy / place, **settings)
    assert message in refused(copy)


@pytest.mark.parametrize(
    "place",
    [
        "config.json",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "2_Dense/config.json",
        "config_sentence_transformers.json",
    ],
)
@pytest.mark.parametrize("content", [NESTED, f'{{"a": {NESTED}}}', "[1" + ",1" * 13_000_000 + "]"])
def test_json_is_bounded_before_it_is_parsed(
    copy: Path, unopened: None, place: str, content: str
) -> None:
    (copy / place).write_text(content)
    sentence = refused(copy)
    assert Path(place).name in sentence
    assert any(word in sentence for word in ("too deep", "more values", "more than 16 MB"))


def test_brackets_in_json_strings_do_not_count_as_depth() -> None:
    text = json.dumps({"merges": ["[[[[" * 1000, 'a"\\', "]" * 1000]}).encode()
    assert safe_files.parse_json(text, "x")["merges"][1] == 'a"\\'
    deep: Any = 1
    for _ in range(40):
        deep = {"a": [deep]}
    assert safe_files.parse_json(json.dumps(deep).encode(), "x") == deep


@pytest.mark.parametrize("size", [0, 7, 8, 100])
@pytest.mark.parametrize("start", [b"", b"\xff" * 8, (1 << 40).to_bytes(8, "little")])
def test_invalid_headers_of_weights_are_refused(
    copy: Path, unopened: None, size: int, start: bytes
) -> None:
    path = copy / "model.safetensors"
    path.write_bytes((start + path.read_bytes()[len(start) :])[:size])
    assert "could not be loaded: model.safetensors is truncated" in refused(copy)


def test_a_tokenizer_of_another_model_is_refused(copy: Path) -> None:
    """Its token ids exceed the table of word embeddings: one sentence, at loading or later."""
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["fog"] = max(vocabulary.values()) + 1
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    retriever = load.load(spec_of(copy), device="cpu")
    check_retriever(retriever)  # texts with valid ids may be encoded
    with pytest.raises(UserError, match=f"its tokenizer returns token {vocabulary['fog']}:"):
        retriever.encode_plain(["fog"], "document")
    with pytest.raises(UserError, match=r"mine has only .* token embeddings"):
        retriever.encode_texts(["fog"], "query")
    for token in vocabulary:
        vocabulary[token] += 10_000
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"^mine .*\.$"):
        check_retriever(load.load(spec_of(copy), device="cpu"))


# -- what is read and what is not --------------------------------------------------------------

WATCH = """
import json, sys
from pathlib import Path
root = Path(sys.argv[1])
opened = set()
def watch(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        path = Path(args[0] if isinstance(args[0], str) else args[0].decode())
        if path.is_relative_to(root):
            opened.add(path.relative_to(root).as_posix())
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"):
        opened.add(event)
from poslens.attribution.retrievers import load, resolve
import sentence_transformers, transformers
sys.addaudithook(watch)
spec = resolve.register_folder("mine", root)
load.load(spec, device="cpu")
print(json.dumps(sorted(opened)))
"""


@pytest.mark.parametrize("kind", ["labse", "t5", "qwen3-left", "cross", "late", "sparse"])
def test_every_file_that_python_opens_is_in_the_fingerprint(
    kind: str, tiny_folder: Callable[..., Path], tmp_path: Path, forked: Forked
) -> None:
    """Observed while the libraries load it; they start no program and use no network."""
    if kind == "cross":
        folder = tiny_families.cross_encoder(tiny_folder("bert"), tmp_path)
    elif kind == "late":
        folder = tiny_families.late_interaction(tiny_folder("bert"), tmp_path / "late")
    elif kind == "sparse":
        folder = tiny_families.sparse(tiny_folder("bert"), tmp_path)
    else:
        folder = tiny_folder(kind)
    code, out, said = forked.run(str(folder), code=WATCH)
    assert code == 0, said
    opened = set(json.loads(out.splitlines()[-1]))
    covered = {place for place, _ in specs.ModelFiles(folder).places()}
    assert opened - covered <= {"README.md"}, "read, and no part of the fingerprint"
    assert covered - opened <= {"tokenizer.json"}, "no part of the model"


def test_a_check_is_remembered_until_a_file_changes(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = []
    monkeypatch.setattr(
        model_folder, "_read", lambda root, was=model_folder._read: (times.append(1), was(root))[1]
    )
    monkeypatch.setattr(model_folder.time, "time_ns", lambda: 2**62)
    for _ in range(3):
        plan(spec_of(copy), "cpu")
    assert len(times) == 1
    change(copy / "config.json", architectures=[5])
    refused(copy)
    (copy / "special_tokens_map.json").write_text("[")
    refused(copy)


def test_common_types_are_known_to_transformers() -> None:
    assert not model_rules.COMMON - model_rules.text_models()
