"""What is refused in one sentence when a model is loaded, and properties of loaded models."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, attribute_batches, make_method
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.dense_loading import must_spread
from poslens.attribution.retrievers.family import Placement
from poslens.attribution.retrievers.load import (
    choose_device,
    choose_precision,
    load,
    use_kernels_for_all_lengths,
)
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import (
    POOLINGS,
    ModelFiles,
    RetrieverSpec,
    with_pooling,
)
from poslens.attribution.types import TextPair

METHOD = make_method("saliency")


def spec_of(folder: Path, **fields) -> RetrieverSpec:
    return RetrieverSpec(
        name="mine", title="mine", family="dense", source=f"folder:{folder}", **fields
    )


@pytest.fixture
def copy(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of the tiny BERT that a test may damage."""
    return Path(shutil.copytree(tiny_folder("bert"), tmp_path / "private-place" / "model"))


def refused(folder: Path) -> str:
    """The sentence with which the folder is refused: exactly one, readable, and without a path."""
    with pytest.raises(UserError) as caught:
        load(spec_of(folder), device="cpu")
    sentence = str(caught.value)
    assert "\n" not in sentence and "Traceback" not in sentence and len(sentence) < 300
    assert "private-place" not in sentence, f"an absolute path: {sentence}"
    assert sentence.startswith("mine ") and sentence.endswith(".")
    return sentence


def test_a_loaded_model_is_frozen_and_in_float32(copy: Path) -> None:
    retriever = load(spec_of(copy), device="cpu")
    assert not retriever.model.training and retriever.precision == "float32"
    for name, parameter in retriever.model.named_parameters():
        assert not parameter.requires_grad and parameter.dtype == torch.float32, name
    assert retriever.device == torch.device("cpu")


def test_a_folder_without_weights_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert refused(copy) == ("mine has no weights in its folder: it needs a *.safetensors file.")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickled_weights_are_refused_unopened(copy: Path, name: str) -> None:
    (copy / "model.safetensors").unlink()
    # A pickle that would write a file when opened.
    trap = copy / "opened"
    (copy / name).write_bytes(f"cbuiltins\nopen\n(S'{trap}'\nS'w'\ntR.".encode())
    assert f"only pickled weights ({name})" in refused(copy)
    assert not trap.exists()


@pytest.mark.parametrize("harmless", [False, True])
def test_a_pickle_beside_unrelated_safetensors_is_refused_unopened(
    copy: Path, harmless: bool
) -> None:
    trap = copy / "opened"
    if harmless:
        torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    else:
        pickled = f"cbuiltins\nopen\n(S'{trap}'\nS'w'\ntR.".encode()
        (copy / "pytorch_model.bin").write_bytes(pickled)
    (copy / "model.safetensors").rename(copy / "1_Pooling" / "other.safetensors")
    refused(copy)
    assert not trap.exists()


@pytest.mark.parametrize("where", ["modules.json", "config.json", "tokenizer_config.json"])
def test_code_in_the_folder_is_not_run(copy: Path, where: str) -> None:
    trap = copy / "run"
    (copy / "evil.py").write_text(f"open({str(trap)!r}, 'w')\nclass Module: pass\n")
    content = json.loads((copy / where).read_text())
    if where == "modules.json":
        content[1]["type"] = "evil.Module"
    elif where == "config.json":
        content |= {
            "auto_map": {"AutoModel": "evil.Module", "AutoConfig": "evil.Module"},
            "model_type": "evil",
        }
    else:
        content |= {"auto_map": {"AutoTokenizer": ["evil.Module", "evil.Module"]}}
    (copy / where).write_text(json.dumps(content))
    try:
        load(spec_of(copy), device="cpu")
    except UserError:
        refused(copy)
    assert not trap.exists(), "the folder's own code was run"


def test_a_module_type_may_not_name_any_python_object(copy: Path) -> None:
    content = json.loads((copy / "modules.json").read_text())
    content[1]["type"] = "os.system"
    (copy / "modules.json").write_text(json.dumps(content))
    refused(copy)


@pytest.mark.parametrize("size", [0, 7, 1000])
def test_truncated_weights_are_refused(copy: Path, size: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert "could not be loaded" in refused(copy)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "modules.json"])
def test_a_damaged_file_is_refused(copy: Path, file: str) -> None:
    (copy / file).write_text("{")
    assert "could not be loaded" in refused(copy)


def test_weights_of_another_shape_are_refused(copy: Path) -> None:
    content = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(content | {"hidden_size": 16}))
    assert "could not be loaded" in refused(copy)


def test_weights_of_another_architecture_are_not_replaced_by_random_ones(copy: Path) -> None:
    """transformers fills missing weights with random numbers and a warning, but attributions of
    random weights look like any others."""
    path = copy / "model.safetensors"
    tensors = {f"other.{name}": tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    refused(copy)


def test_one_missing_layer_is_not_replaced_by_a_random_one(copy: Path) -> None:
    path = copy / "model.safetensors"
    tensors = {n: t for n, t in load_file(path).items() if "layer.1.attention" not in n}
    save_file(tensors, path, metadata={"format": "pt"})
    refused(copy)


def test_a_missing_pooler_is_accepted(copy: Path, tiny_folder: Callable[..., Path]) -> None:
    """BERT's pooler is not used by sentence-transformers; many published models leave it out."""
    path = copy / "model.safetensors"
    tensors = {n: t for n, t in load_file(path).items() if not n.startswith("pooler.")}
    save_file(tensors, path, metadata={"format": "pt"})
    pair = TextPair("p", "tide", "the Moon pulls the water")
    (one,) = attribute(load(spec_of(copy), device="cpu"), METHOD, [pair])
    (other,) = attribute(load(spec_of(tiny_folder("bert")), device="cpu"), METHOD, [pair])
    np.testing.assert_array_equal(one.document_scores, other.document_scores)


def test_a_deleted_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mine") as caught:
        load(spec_of(tmp_path / "private-place" / "gone"), device="cpu")
    assert "private-place" not in str(caught.value), "an absolute path"


def test_a_tokenizer_without_offsets_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", property(lambda self: False))
    assert "tokenizer without character offsets" in refused(copy)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer_config.json", {"truncation_side": "left"}),
        ("sentence_bert_config.json", {"tokenizer_args": {"truncation_side": "left"}}),
        (
            "tokenizer.json",
            {
                "truncation": {
                    "direction": "Left",
                    "max_length": 8,
                    "strategy": "LongestFirst",
                    "stride": 0,
                }
            },
        ),
    ],
)
def test_a_tokenizer_that_truncates_the_beginning_is_refused(
    copy: Path, file: str, change: dict[str, Any]
) -> None:
    content = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps(content | change))
    assert "set its truncation_side to right, usually in tokenizer_config.json" in refused(copy)


def test_a_model_that_is_not_a_transformer_is_refused(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    raw = Tokenizer(models.WordLevel({"fog": 0, "[UNK]": 1}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "private-place" / "static"
    SentenceTransformer(modules=[StaticEmbedding(raw, embedding_dim=4)]).save_pretrained(
        str(folder)
    )
    sentence = refused(folder)
    assert "tokenizer" in sentence or "transformer" in sentence


# -- devices and precision ---------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "cuda:7", "mps", "xpu"])
def test_an_unavailable_device_is_refused(asked: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_device(asked)
    assert str(caught.value) == (
        f"This machine has no device '{asked}': use auto, cpu, cuda or cuda:N."
    )
    with pytest.raises(UserError, match="This machine has no device"):
        load(resolve.resolve("MiniLM"), device=asked)


@pytest.mark.parametrize("asked", ["", "banana", "gpu", "cuda:x", "CPU ", "meta"])
def test_an_unknown_device_is_refused(asked: str) -> None:
    with pytest.raises(UserError, match="This machine has no device"):
        choose_device(asked)


def test_auto_selects_a_device() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    assert choose_precision(torch.device("cpu"), 9 << 30) == "float32"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
def test_auto_selects_the_gpu() -> None:
    assert choose_device("auto").type == "cuda"
    assert choose_precision(torch.device("cuda"), 1 << 20) == "float32"


def test_on_a_gpu_attention_kernels_serve_all_lengths() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    use_kernels_for_all_lengths(torch.device("cpu"))
    assert torch.backends.cuda.cudnn_sdp_enabled()
    use_kernels_for_all_lengths(torch.device("cuda"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)


def test_bfloat16_is_used_on_request(copy: Path) -> None:
    retriever = load(spec_of(copy), device="cpu", precision="bfloat16")
    assert next(retriever.model.parameters()).dtype == torch.bfloat16
    assert retriever.precision == "bfloat16"
    (result,) = attribute(retriever, METHOD, [TextPair("p", "tide", "the Moon pulls the water")])
    assert result.document_scores.dtype == np.float32 and result.document_scores.max() > 0


def test_float16_that_overflows_names_a_wider_format(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_folder("bert"), tmp_path / "wide"))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(n for n in tensors if n.endswith("layer.0.output.dense.weight"))
    tensors[name] *= 1e5  # beyond 65,504; the following norm scales it back
    save_file(tensors, path, metadata={"format": "pt"})
    pair = TextPair("p", "tide", "the Moon pulls the water")
    narrow = load(spec_of(folder), device="cpu", precision="float16")
    with pytest.raises(
        UserError,
        match="set POSLENS_PRECISION to bfloat16 or float32",
    ):
        check_retriever(narrow)
    with pytest.raises(UserError, match="use float32 or bfloat16"):
        attribute(narrow, METHOD, [pair])
    for precision in ("bfloat16", "float32"):
        wide = load(spec_of(folder), device="cpu", precision=precision)
        assert np.isfinite(attribute(wide, METHOD, [pair])[0].document_scores).all()


class Gpus:
    """Simulated GPUs with the given free memory in bytes, instead of the machine's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda i: SimpleNamespace(total_memory=sizes[i])
        )


def test_a_model_larger_than_a_gpu_is_spread_over_gpus(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, files, gpu = spec_of(copy), ModelFiles(copy), torch.device("cuda")
    n = sum(t.numel() for t in load_file(copy / "model.safetensors").values())
    need = 4 * n

    def spread(precision: str = "float32", asked: str = "auto") -> bool:
        return must_spread(spec, files, Placement(gpu, precision, asked))

    Gpus(monkeypatch, 2 * need)
    assert not spread()
    assert not must_spread(spec, files, Placement(torch.device("cpu"), "float32"))
    Gpus(monkeypatch, need, need)
    assert spread() and not spread("bfloat16"), "half as large in 16 bits"
    # Both encoders count.
    Gpus(monkeypatch, 2 * need, 2 * need)
    assert must_spread(spec, ModelFiles(copy, query=copy), Placement(gpu, "float32"))
    Gpus(monkeypatch, need)
    with pytest.raises(UserError, match="choose bfloat16 precision, a smaller model, or"):
        spread()
    Gpus(monkeypatch, need, need)
    with pytest.raises(UserError, match="more than the memory of this machine's GPUs"):
        spread(asked="cuda:0")  # one device was requested
    monkeypatch.setattr("poslens.attribution.retrievers.dense_loading.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install accelerate"):
        spread()


def test_a_model_that_exceeds_the_free_memory_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")

    monkeypatch.setattr("poslens.attribution.retrievers.dense_loading._load_model", full)
    with pytest.raises(UserError, match="does not fit into the free memory of cpu"):
        load(spec_of(copy), device="cpu")


def test_a_spread_model_gives_the_same_results(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through accelerate's placement, here with all layers on the CPU."""
    monkeypatch.setattr("poslens.attribution.retrievers.dense_loading.must_spread", lambda *_: True)
    pair = TextPair("p", "tide", "the Moon pulls the water")
    spread = load(spec_of(copy), device="cpu")
    monkeypatch.undo()
    whole = load(spec_of(copy), device="cpu")
    for method in ("saliency", "decomposition"):
        (one,), (other,) = (
            METHODS[method].compute(r, make_method(method), [pair]) for r in (spread, whole)
        )
        np.testing.assert_allclose(one.document_scores, other.document_scores, rtol=1e-4)


# -- settings ----------------------------------------------------------------------------------


def test_settings_name_everything_that_changes_a_number(copy: Path) -> None:
    """Two specs with different results have different settings, on which the cache key depends."""
    spec = spec_of(copy)
    pair = TextPair("p", "tide fox " * 8, "the Moon pulls the water " * 8)
    numbers = {}
    for variant in (
        spec,
        replace(spec, query_prompt="query: "),
        replace(spec, document_prompt="query: "),
        replace(spec, max_length=16),
        replace(spec, query_max_length=8),
        replace(spec, pooling="max"),
        replace(spec, similarity="dot"),
    ):
        (result,) = attribute(load(variant, device="cpu"), METHOD, [pair])
        numbers[variant.settings] = round(result.score, 6)
    assert len(numbers) == 7 and len(set(numbers.values())) == 7


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", ["labse", "llama-left"])
def test_another_pooling_can_be_used_with_the_same_weights(
    tiny_folder: Callable[..., Path], name: str, pooling: str
) -> None:
    """Modules after the pooling (here a dense layer with tanh and a norm) stay."""
    from sentence_transformers import SentenceTransformer

    folder = tiny_folder(name)
    retriever = load(with_pooling(spec_of(folder), pooling), device="cpu")
    assert retriever.name == f"mine@{pooling}"
    model = SentenceTransformer(str(folder), device="cpu")
    texts = ["The tide rises twice a day", "lazy dogs"]
    with torch.no_grad():
        found = retriever.embed(retriever.encode_texts(texts, "document"))
        for row, text in enumerate(texts):
            features = model.tokenizer(text, return_tensors="pt")
            hidden = model.transformers_model(**features).last_hidden_state[0]  # type: ignore[misc]
            weights = torch.arange(1.0, len(hidden) + 1)[:, None]
            pooled = {
                "cls": hidden[0],
                "mean": hidden.mean(0),
                "last": hidden[-1],
                "max": hidden.max(0).values,
                "weightedmean": (hidden * weights).sum(0) / weights.sum(),
            }[pooling]
            after = {"sentence_embedding": pooled[None]}
            for module in list(model.children())[2:]:
                after = module(after)
            torch.testing.assert_close(
                found[row], after["sentence_embedding"][0], atol=1e-5, rtol=1e-4
            )


def test_a_pooling_that_cannot_be_replaced_is_refused(
    copy: Path, tiny_folder: Callable[..., Path]
) -> None:
    config = copy / "1_Pooling" / "config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"pooling_mode": ["mean", "cls"]}))
    with pytest.raises(UserError, match="concatenates several poolings: use mine wi"):
        load(with_pooling(spec_of(copy), "last"), device="cpu")
    modules = json.loads((copy / "modules.json").read_text())
    (copy / "modules.json").write_text(json.dumps(modules[:1]))
    with pytest.raises(UserError, match="has a pooling that can't be replaced"):
        load(with_pooling(spec_of(copy), "last"), device="cpu")


def test_the_models_own_similarity_is_used(copy: Path) -> None:
    config = copy / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"similarity_fn_name": "dot"}))
    dot = load(spec_of(copy), device="cpu")
    (result,) = attribute(dot, METHOD, [TextPair("p", "tide", "the Moon")])
    q, d = dot.model.encode(["tide", "the Moon"])
    assert abs(q @ d) > 1.5 and result.score == pytest.approx(float(q @ d), rel=1e-5)


# -- broken weights in use ---------------------------------------------------------------------


def poisoned(copy: Path, word: str) -> DenseRetriever:
    """The tiny BERT with NaN as the embedding of one word."""
    retriever = load(spec_of(copy), device="cpu")
    token_id = retriever.model.tokenizer.convert_tokens_to_ids(word)
    assert token_id != retriever.model.tokenizer.unk_token_id
    with torch.no_grad():
        retriever.embeddings.weight[token_id] = torch.nan  # type: ignore[index]
    return retriever


def test_nan_weights_are_reported_in_one_sentence(copy: Path) -> None:
    retriever = load(spec_of(copy), device="cpu")
    with torch.no_grad():
        retriever.model[0].auto_model.encoder.layer[0].output.dense.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="not a finite number: use float32"):
        attribute(retriever, METHOD, [TextPair("p", "tide", "the Moon")])
    (batch,) = attribute_batches(retriever, METHOD, [TextPair("p", "tide", "the Moon")])
    assert batch[0].attribution is None and "not a finite number" in batch[0].reason


def test_one_failed_pair_does_not_affect_the_others(copy: Path) -> None:
    retriever = poisoned(copy, "fox")
    good = [TextPair(f"g{n}", "tide", "the Moon pulls " * (n + 1)) for n in range(4)]
    bad = [
        TextPair("b0", "tide", "a quick fox"),
        TextPair("b1", "fox", "the Moon"),
        TextPair("b2", "\u200b", "the Moon"),
    ]
    mixed = [good[0], bad[0], good[1], bad[1], good[2], bad[2], good[3]]
    batches = list(attribute_batches(retriever, METHOD, mixed))
    assert len(batches) == 1
    found = {outcome.pair.pair_id: outcome for outcome in batches[0]}
    assert sorted(found) == ["b0", "b1", "b2", "g0", "g1", "g2", "g3"]
    for pair in bad:
        assert found[pair.pair_id].attribution is None and found[pair.pair_id].reason
    for pair in good:
        (alone,) = attribute(retriever, METHOD, [pair])
        result = found[pair.pair_id].attribution
        assert result is not None and found[pair.pair_id].reason == ""
        np.testing.assert_allclose(result.document_scores, alone.document_scores, rtol=1e-4)


# -- adapters ----------------------------------------------------------------------------------


def test_an_adapter_is_merged_into_the_weights(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    wrapped = get_peft_model(
        AutoModel.from_pretrained(copy), LoraConfig(r=2, lora_alpha=4, target_modules=["query"])
    )
    torch.manual_seed(3)
    deltas = {}
    with torch.no_grad():
        for name, module in wrapped.named_modules():
            if hasattr(module, "lora_B") and "default" in module.lora_B:
                module.lora_B["default"].weight.normal_()
                low = module.lora_B["default"].weight @ module.lora_A["default"].weight
                deltas[name.removeprefix("base_model.model.")] = 2.0 * low  # alpha / r
    wrapped.save_pretrained(tmp_path / "planted" / "mine")
    base = spec_of(copy)
    monkeypatch.setattr(resolve, "PLANTED", tmp_path / "planted")
    monkeypatch.setattr(resolve, "presets", lambda: {"base": base})
    adapted = load(replace(base, source="adapter:base"), device="cpu")
    plain = load(base, device="cpu")
    before = dict(plain.model[0].auto_model.named_modules())
    after = dict(adapted.model[0].auto_model.named_modules())
    assert len(deltas) == 2 and before.keys() == after.keys()
    for name, delta in deltas.items():
        torch.testing.assert_close(after[name].weight, before[name].weight + delta)
    assert not any(p.requires_grad for p in adapted.model.parameters())
    pair = TextPair("p", "tide", "the Moon pulls the water")
    (one,), (other,) = (attribute(r, METHOD, [pair]) for r in (plain, adapted))
    assert np.abs(one.document_scores - other.document_scores).max() > 1e-4


def test_a_model_with_an_adapter_loads_without_library_warnings(one_thread: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        load(resolve.resolve("MiniLM-primacy"))
