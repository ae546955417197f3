"""Each preset's architecture, as a tiny model of the same configuration class: scores, saliency and
decomposition are right. Models defined only by code from a repository are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from poslens.attribution.errors import UserError
from poslens.attribution.methods import decomposition, make_method, saliency
from poslens.attribution.retrievers import resolve, specs
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.model_folder import contents
from poslens.attribution.retrievers.model_rules import has_code
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec, presets
from poslens.attribution.types import TextPair

ARCHITECTURE_OF = {
    "MiniLM": "bert",
    "MiniLM-primacy": "bert",
    "MiniLM-recency": "bert",
    "mpnet": "mpnet",
    "SmolLM2-135M": "llama-right",
    "multilingual-e5-small": "bert",
    "gte-multilingual-base": "code",
    "bge-m3": "bge-m3",
    "Qwen3-Embedding-0.6B": "qwen3-left",
    "Qwen3-Embedding-4B": "qwen3-left",
    "Qwen3-Embedding-8B": "qwen3-left",
    "inf-retriever-v1": "qwen2",
    "inf-retriever-v1-1.5b": "qwen2",
    "NV-Embed-v2": "code",
    "llama-embed-nemotron-8b": "code",
    "KaLM-Embedding-Gemma3-12B-2511": "gemma3",
    "dragon-plus": "bert-cls",
    "dragon-roberta": "roberta",
    "contriever": "bert",
    "contriever-msmarco": "bert",
    "cocodr-base-msmarco": "bert-cls",
    "RetroMAE_MSMARCO_finetune": "bert-cls",
    "ReasonIR-8B": "code",
    "gtr-t5-base": "t5",
    "sentence-t5-base": "t5",
    "paraphrase-multilingual-mpnet-base-v2": "xlm-roberta",
    "LaBSE": "labse",
    "distiluse-base-multilingual-cased-v2": "distiluse",
    "all-MiniLM-L12-v2": "bert",
    "SGPT-125M": "gpt_neo",
}
OTHERS = ("gte", "gemma3-both-ways", "mistral")
"""Also built into transformers: architectures of copies of gte-multilingual-base, of other Gemma 3
embedders and of Mistral embedders."""

ARCHITECTURES = sorted({*ARCHITECTURE_OF.values(), *OTHERS} - {"code"})
PAIRS = (
    TextPair("plain", "tide and the Moon", "The tide rises twice a day as the Moon pulls it."),
    TextPair("short", "fox", "lazy dogs"),
)


def test_every_dense_preset_was_checked_or_needs_code() -> None:
    dense = {name: spec for name, spec in presets().items() if spec.family == "dense"}
    assert dense.keys() == ARCHITECTURE_OF.keys()
    for name, spec in dense.items():
        assert spec.remote_code == (ARCHITECTURE_OF[name] == "code"), name
        assert spec.pooling in (None, *specs.POOLINGS.values())
        if spec.source.startswith("hub:"):
            assert spec.source == f"hub:{spec.hub_id}" and resolve._HUB_ID.fullmatch(spec.hub_id)
            assert spec.parameters and spec.size_mb == 4 * spec.parameters
            assert spec.pooling or spec.remote_code, f"{name}: who pools?"
    two = {name for name, spec in dense.items() if spec.query_source}
    assert two == {"dragon-plus", "dragon-roberta"}


def directly(model: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Input embeddings [1, T, H], and the vector [1, H] from calling a SentenceTransformer's
    modules one by one."""
    features = model.tokenizer(text, return_tensors="pt")
    backbone = model.transformers_model
    table = getattr(backbone, "encoder", backbone) if hasattr(backbone, "shared") else backbone
    embeddings = table.get_input_embeddings()(features["input_ids"]).detach().requires_grad_()
    hidden = backbone(inputs_embeds=embeddings, attention_mask=features["attention_mask"])
    found = {
        "token_embeddings": hidden.last_hidden_state,
        "attention_mask": features["attention_mask"],
    }
    for module in list(model.children())[1:]:
        found = module(found)
    return embeddings, found["sentence_embedding"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_can_be_scored_and_attributed(
    tiny: Callable[..., DenseRetriever], tiny_folder: Callable[..., Path], name: str
) -> None:
    retriever = tiny(name)
    model = SentenceTransformer(str(tiny_folder(name)), device="cpu")
    q, d = (
        model.encode([getattr(p, side) for p in PAIRS], convert_to_tensor=True)
        for side in ("query", "document")
    )
    found = saliency.attribute(retriever, make_method("saliency"), PAIRS)
    expected = torch.cosine_similarity(q, d).tolist()
    assert [r.score for r in found] == pytest.approx(expected, abs=1e-5)
    for result, pair in zip(found, PAIRS, strict=True):
        (_, query), (embeddings, document) = (
            directly(model, text) for text in (pair.query, pair.document)
        )
        score = torch.cosine_similarity(query.detach(), document).sum()
        (gradient,) = torch.autograd.grad(score, embeddings)
        norms = gradient[0].norm(dim=-1).numpy()
        assert norms.max() > 1e-4
        np.testing.assert_allclose(
            result.document_scores, norms, rtol=1e-3, atol=1e-5 * norms.max()
        )
    shares = decomposition.attribute(retriever, make_method("decomposition"), PAIRS)
    for result, score in zip(shares, expected, strict=True):
        assert result.score == pytest.approx(score, abs=1e-5)
        assert abs(result.completeness_error or 0.0) <= 1e-5
        assert result.document_scores.any() and result.query_scores.any()
    checked = check_retriever(retriever)
    assert checked.unfit == {} and (checked.completeness or 0.0) <= 1e-5


@pytest.mark.parametrize("name", [n for n, a in ARCHITECTURE_OF.items() if a == "code"])
def test_the_refusal_of_a_preset_with_code_states_how_to_allow_it(name: str) -> None:
    with pytest.raises(UserError) as caught:
        load(presets()[name], device="cpu")
    assert str(caught.value) == (
        f"{name} needs code from its repository, which PosLens runs only if you allow it: read "
        f"that code, then add --allow-code {name} or set POSLENS_ALLOW_CODE={name}."
    )


# -- attention in both directions without the repository's code --------------------------------


@pytest.fixture
def both_ways(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """The tiny Qwen2, published like inf-retriever: with a code file next to a known model type."""
    folder = Path(shutil.copytree(tiny_folder("qwen2"), tmp_path / "both"))
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}}
    path.write_text(json.dumps(config))
    return folder


def test_the_causal_mask_is_off(both_ways: Path) -> None:
    spec = RetrieverSpec("b", "b", "dense", f"folder:{both_ways}", bidirectional=True)
    retriever = load(spec, device="cpu")
    assert "bidirectional" in spec.settings
    model = AutoModel.from_pretrained(both_ways, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(both_ways)
    texts = [p.document for p in PAIRS]  # of different lengths, so that one is padded
    with torch.no_grad():
        found = retriever.embed(retriever.encode_texts(texts, "document"))
        for row, text in enumerate(texts):
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            n = ids.shape[1]
            open_mask, causal = torch.zeros(1, 1, n, n), None
            expected = model(ids, attention_mask=open_mask).last_hidden_state[0, -1]
            other = model(ids, attention_mask=causal).last_hidden_state[0, -1]
            assert torch.dist(expected, other) > 0.1, "the mask makes no difference here"
            torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-4)
            alone = retriever.embed(retriever.encode_texts([text], "document"))[0]
            torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-4)
    (shares,) = decomposition.attribute(retriever, make_method("decomposition"), PAIRS[:1])
    assert abs(shares.completeness_error or 0.0) <= 1e-5


def qwen2_both_ways(model: Any, ids: list[int]) -> torch.Tensor:
    """Last hidden states [T, H] of a Qwen2 with bidirectional attention, computed from its weights:
    RMSNorm, rotary positions, grouped queries, SwiGLU."""
    config, weights = model.config, model.state_dict()
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return weights[name] * x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def turned(x: torch.Tensor) -> torch.Tensor:
        """[T, heads, width]: dimensions i and i + width / 2 turned by t / theta^(2i / width)."""
        theta = config.rope_parameters["rope_theta"]
        angles = torch.arange(len(ids))[:, None] / theta ** (torch.arange(0, width, 2) / width)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x[..., : width // 2], x[..., width // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    x = weights["embed_tokens.weight"][ids]
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}"
        y = norm(x, f"{at}.input_layernorm.weight")
        q, k, v = (linear(y, f"{at}.self_attn.{part}_proj") for part in "qkv")
        q = turned(q.view(-1, heads, width))
        k, v = turned(k.view(-1, groups, width)), v.view(-1, groups, width)
        k, v = (part.repeat_interleave(heads // groups, 1) for part in (k, v))
        seen = (torch.einsum("thw,shw->hts", q, k) / width**0.5).softmax(-1)
        mixed = torch.einsum("hts,shw->thw", seen, v).flatten(1)
        x = x + linear(mixed, f"{at}.self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm.weight")
        gate, up = linear(y, f"{at}.mlp.gate_proj"), linear(y, f"{at}.mlp.up_proj")
        x = x + linear(gate * gate.sigmoid() * up, f"{at}.mlp.down_proj")
    return norm(x, "norm.weight")


def test_vectors_equal_those_of_a_qwen2_without_a_mask(both_ways: Path) -> None:
    spec = RetrieverSpec("b", "b", "dense", f"folder:{both_ways}", bidirectional=True)
    retriever = load(spec, device="cpu")
    texts = [p.document for p in PAIRS]
    with torch.no_grad():
        encoded = retriever.encode_texts(texts, "document")
        found = retriever.embed(encoded)
        for row in range(len(texts)):
            ids = encoded.row(encoded.features["input_ids"], row).tolist()
            expected = qwen2_both_ways(retriever.backbone, ids)[-1]
            torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-4)


def test_a_model_with_code_is_not_loaded_with_built_in_code(both_ways: Path) -> None:
    """transformers would silently load it with a causal mask."""
    spec = RetrieverSpec("b", "b", "dense", f"folder:{both_ways}")
    with pytest.raises(UserError, match="needs code from its repository"):
        load(spec, device="cpu")


def test_an_end_token_that_only_the_code_adds_is_detected(
    both_ways: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "add_eos_token", True, raising=False)
    path = both_ways / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = content["post_processor"]["processors"][0]  # no end token
    path.write_text(json.dumps(content))
    spec = RetrieverSpec("b", "b", "dense", f"folder:{both_ways}", bidirectional=True)
    with pytest.raises(UserError, match="a token that only its own code adds"):
        load(spec, device="cpu")


# -- code, if it is allowed -----------------------------------------------------------------

CODE = """
from pathlib import Path
from transformers import BertModel
Path({trap!r}).write_text("run")
class Mine(BertModel):
    pass
"""


@pytest.fixture
def coded(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RetrieverSpec:
    """A tiny BERT whose class is defined in its folder, by code that leaves a file when it runs."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    allowed: set[str] = set()
    for module in (specs, resolve):
        monkeypatch.setattr(module, "CODE_ALLOWED", allowed)
    folder = Path(shutil.copytree(tiny_folder("bert"), tmp_path / "coded"))
    (folder / "mine.py").write_text(CODE.format(trap=str(tmp_path / "trap")))
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"auto_map": {"AutoModel": "mine.Mine"}}
    path.write_text(json.dumps(config))
    return resolve.register_folder("coded", folder)


def test_code_runs_only_if_allowed_by_name(
    coded: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    monkeypatch.setenv("POSLENS_ALLOW_CODE", "MiniLM, another")
    for _ in range(2):
        with pytest.raises(UserError, match="--allow-code coded or set POSLENS_ALLOW_CODE=coded"):
            load(coded, device="cpu")
        assert not trap.exists()
    assert not resolve.locate(coded).code
    resolve.allow_code(["coded"])
    retriever = load(coded, device="cpu")
    assert trap.read_text() == "run" and type(retriever.backbone).__name__ == "Mine"
    # The code is then part of the fingerprint.
    assert "mine.py" in dict(resolve.locate(coded).places())
    with pytest.raises(UserError, match="There is no model 'nobody'"):
        resolve.allow_code(["nobody"])


def test_code_can_be_allowed_by_environment_variable(
    coded: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_ALLOW_CODE", "another, coded")
    assert specs.code_allowed(coded) and specs.code_allowed(replace(coded, name="coded@cls"))
    assert not specs.code_allowed(presets()["NV-Embed-v2"])
    load(coded, device="cpu")
    assert (tmp_path / "trap").exists()
    monkeypatch.setenv("POSLENS_ALLOW_CODE", "nvidia/NV-Embed-v2")
    assert specs.code_allowed(presets()["NV-Embed-v2"])


def test_code_in_another_repository_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"auto_map": {"AutoModel": "org/impl--modeling.Model", "AutoConfig": "c.C"}})
    )
    assert resolve.code_repositories(tmp_path) == ["org/impl"]
    assert has_code(contents(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    assert resolve.code_repositories(tmp_path) == [] and not has_code(contents(tmp_path))
