"""The linearized network: same forward values, complete shares on every architecture, and nothing
left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods.decomposition import attribute
from poslens.attribution.methods.linearized import linearized
from poslens.attribution.methods.passes import one_round
from poslens.attribution.methods.shares import read_linear, share_matrices
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, TextPair
from tests.support import tiny_models
from tests.support.linear_shares import shares

METHOD = make_method("decomposition")
MATRIX = make_method("decomposition", {"matrix": "yes"})
PAIRS = [
    TextPair("long", "why twice a day", "The tide rises twice a day because the Moon pulls."),
    TextPair("short", "fox", "lazy dogs"),
]
ARCHITECTURES = (
    "bert",
    "bert-cls",
    "roberta",
    "xlm-roberta",
    "mpnet",
    "distilbert",
    "modernbert",
    "qwen3-right",
    "qwen3-left",
    "llama-left",
    "mistral",
    "gemma3",
    "phi3",
    "gpt2",
)
WITHOUT_BIASES = (
    "modernbert",
    "qwen3-right",
    "qwen3-left",
    "llama-left",
    "mistral",
    "gemma3",
    "phi3",
)
each = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture(scope="session")
def more(tiny_folder: Callable[..., object]) -> None:
    """Causal architectures that tiny_models does not list."""
    models = tiny_models
    grouped = (("num_key_value_heads", 2),)
    for name, model_type, extra in (
        ("mistral", "mistral", (*grouped, ("head_dim", 8), ("sliding_window", 12))),
        ("gemma3", "gemma3_text", (*grouped, ("head_dim", 8), ("sliding_window", 12))),
        ("phi3", "phi3", grouped),
        ("gpt2", "gpt2", ()),
    ):
        models.TINY.setdefault(
            name, models.Tiny(model_type, "causal", "lasttoken", "right", extra=extra)
        )


@pytest.fixture
def lively(more: None, tiny: Callable[..., DenseRetriever]) -> Callable[..., DenseRetriever]:
    """`lively("bert", torch.float64, "eager")`: a tiny model whose biases and norm weights differ
    from initial values (0 and 1), which would hide a lost constant."""

    def make(
        name: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa"
    ) -> DenseRetriever:
        retriever = tiny(name)
        generator = torch.Generator().manual_seed(3)
        for parameter in retriever.model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        retriever.model.to(dtype)
        retriever.precision = str(dtype).removeprefix("torch.")
        if name != "mpnet":  # has only one implementation
            retriever.backbone.set_attn_implementation(attention)
            assert retriever.backbone.config._attn_implementation == attention
        return retriever

    return make


def directions(retriever: DenseRetriever, text: str) -> Tensor:
    """A query's direction from the linearized forward pass, which unlike the plain one is float64
    throughout for a float64 model."""
    encoded = retriever.encode_texts([text], "query")
    return read_linear(retriever, encoded, one_round(1), "explicit").vectors.detach()


def traces(retriever: DenseRetriever) -> list[str]:
    """What a run could leave: a mode, hooks, gradients, parameters that require gradients."""
    found = [] if torch.overrides._get_current_function_mode() is None else ["mode"]
    for name, module in retriever.model.named_modules():
        hooks = (
            *module._forward_hooks,
            *module._forward_pre_hooks,
            *module._backward_hooks,
            *module._backward_pre_hooks,
        )
        found += [f"hook on {name}"] * bool(hooks)
    for name, parameter in retriever.model.named_parameters():
        if parameter.grad is not None or parameter.requires_grad:
            found.append(f"gradient of {name}")
    return found


# -- completeness ----------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shares_are_complete_in_float32_and_the_forward_pass_is_unchanged(
    lively: Callable[..., DenseRetriever], name: str, attention: str
) -> None:
    retriever = lively(name, torch.float32, attention)
    queries = retriever.encode_texts([p.query for p in PAIRS], "query")
    documents = retriever.encode_texts([p.document for p in PAIRS], "document")
    with torch.no_grad():
        constant = retriever.directions(retriever.embed(queries))
        plain = retriever.directions(retriever.embed(documents))
    found = shares(retriever, documents, constant)
    torch.testing.assert_close(found.directions, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.scores, (plain * constant).sum(-1), rtol=0, atol=1e-6)
    parts = found.tokens.abs().sum(-1) + found.bias.abs()
    assert (found.error.abs() <= 1e-5 * parts).all(), found.error
    # No single token carries everything: every token of the text has a share.
    assert (documents.row(found.tokens, 0).abs() > 1e-6).sum() >= 5
    for result in attribute(retriever, METHOD, PAIRS):
        assert abs(result.completeness_error or 0) <= 1e-5 * (
            np.abs(result.document_scores).sum() + abs(result.bias_share or 0)
        )


@each
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shares_are_complete_in_float64(
    lively: Callable[..., DenseRetriever], name: str, attention: str
) -> None:
    """Shares and matrix add up to ten digits, so errors in float32 are only rounding."""
    retriever = lively(name, torch.float64, attention)
    pair = PAIRS[0]
    query = directions(retriever, pair.query)
    found = shares(retriever, retriever.encode_texts([pair.document], "document"), query)
    assert found.tokens.dtype == torch.float64
    assert abs(float(found.error)) <= 1e-10
    (_, queries), (_, documents), _ = share_matrices(retriever, [pair], "explicit")
    torch.testing.assert_close(documents.tokens, found.tokens, rtol=0, atol=1e-10)
    torch.testing.assert_close(documents.bias, found.bias, rtol=0, atol=1e-10)
    of_query = shares(retriever, retriever.encode_texts([pair.query], "query"), found.directions)
    torch.testing.assert_close(queries.tokens, of_query.tokens, rtol=0, atol=1e-10)
    assert float(of_query.error.abs()) <= 1e-10


@each
def test_the_bias_share_comes_only_from_constants(
    lively: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = lively(name, torch.float64)
    documents = retriever.encode_texts([p.document for p in PAIRS[:1]], "document")

    def bias() -> float:
        return float(shares(retriever, documents, directions(retriever, PAIRS[0].query)).bias)

    if name in WITHOUT_BIASES:
        # Such a model has no parameters like `norm.bias`.
        assert not any(n.endswith("bias") for n, _ in retriever.backbone.named_parameters())
        assert bias() == 0
        return
    assert abs(bias()) > 1e-3
    for parameter_name, parameter in retriever.backbone.named_parameters():
        if parameter_name.endswith("bias") and "LayerNorm" not in parameter_name:
            parameter.zero_()
    # The betas of norms remain, and GPT-2's position embeddings, which are added after its words.
    for module in retriever.backbone.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.zeros_(module.bias)
    if name == "gpt2":
        assert abs(bias()) > 1e-3
        nn.init.zeros_(retriever.backbone.wpe.weight)
    assert abs(bias()) < 1e-12


@pytest.mark.parametrize("pooling", ["max", "weightedmean", "mean_sqrt_len_tokens", "lasttoken"])
def test_shares_are_complete_with_any_pooling(
    lively: Callable[..., DenseRetriever], pooling: str
) -> None:
    base = lively("bert")
    model = SentenceTransformer(
        modules=[base.model[0], Pooling(32, pooling), Normalize()], device="cpu"
    )
    retriever = DenseRetriever(model, base.spec, "float32")
    for result in attribute(retriever, MATRIX, PAIRS):
        assert abs(result.completeness_error or 0) <= 1e-5


def test_shares_are_complete_with_a_dense_layer_and_tanh(
    lively: Callable[..., DenseRetriever],
) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense

    base = lively("bert")
    torch.manual_seed(0)
    model = SentenceTransformer(
        modules=[*base.model, Dense(32, 16, activation_function=nn.Tanh()), Normalize()],
        device="cpu",
    )
    nn.init.normal_(model[2].linear.bias)
    spec = RetrieverSpec(name="dense", title="dense", family="dense", source="folder:x")
    retriever = DenseRetriever(model, spec, "float32")
    with torch.no_grad():
        plain = retriever.embed(retriever.encode_texts(["fox"], "document"))
    (result,) = attribute(retriever, MATRIX, [TextPair("p", "fox", "fox")])
    assert plain.shape == (1, 16) and result.score == pytest.approx(1, abs=1e-6)
    assert abs(result.completeness_error or 0) <= 1e-5 and abs(result.bias_share or 0) > 1e-3


# -- one function at a time ------------------------------------------------------------------------


def frozen(
    function: Callable[[Tensor], Tensor], x: Tensor, module: nn.Module | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, x * gradient of its sum, and the share of constants, for a batch of one."""
    x = x.clone().requires_grad_()
    scale = torch.ones(len(x), dtype=x.dtype, requires_grad=True)
    with linearized(module or nn.Identity(), scale):
        y = function(x)
    gradient, bias = torch.autograd.grad(y.sum() + 0 * scale.sum(), (x, scale))
    return y.detach(), x.detach() * gradient, bias


POINTS = torch.tensor([[[-30.0, -3.0, -1e-5, 0.0, 1e-9, 1e-3, 0.7, 5.0, 40.0]]]).double()


@pytest.mark.parametrize(
    "function",
    [
        F.gelu,
        F.silu,
        F.relu,
        torch.tanh,
        torch.relu,
        F.tanh,
        nn.GELU(),
        nn.SiLU(),
        nn.ReLU(),
        nn.Tanh(),
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: x.tanh(),
        lambda x: x.relu(),
        lambda x: x * torch.sigmoid(x),
        lambda x: x * torch.sigmoid(1.702 * x),
    ],
)
def test_an_activation_is_a_ratio_times_its_input(function: Callable[[Tensor], Tensor]) -> None:
    """Elementwise x * f(x)/x = f(x), including zero and tiny inputs."""
    y, product, bias = frozen(function, POINTS)
    torch.testing.assert_close(y, function(POINTS), rtol=0, atol=0)
    torch.testing.assert_close(product, y, rtol=1e-12, atol=1e-15)
    assert float(bias) == 0


@pytest.mark.parametrize(
    "name",
    [
        "gelu_new",
        "gelu_fast",
        "gelu_pytorch_tanh",
        "quick_gelu",
        "gelu",
        "silu",
        "relu",
        "tanh",
        "gelu_10",
        "swish",
    ],
)
def test_activations_of_transformers_are_complete_or_refused(name: str) -> None:
    """Includes those written as formulas; an uncovered one (gelu_10 clips) must not add up."""
    from transformers.activations import ACT2FN

    module = ACT2FN[name]
    model = nn.Sequential(module)
    y, product, _ = frozen(model, POINTS, model)
    torch.testing.assert_close(y, module(POINTS))
    adds_up = torch.allclose(product, y, rtol=1e-9, atol=1e-12)
    assert adds_up == (name != "gelu_10")
    assert not module._forward_hooks and not module._forward_pre_hooks


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda x: F.layer_norm(x, (9,)), 0.0),
        (lambda x: F.layer_norm(input=x, normalized_shape=(9,), bias=torch.ones(9).double()), 9.0),
        (lambda x: F.rms_norm(x, (9,), torch.arange(9).double()), 0.0),
        (lambda x: F.normalize(x, dim=-1), 0.0),
        (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), 0.0),
        (lambda x: x / x.norm(dim=-1, keepdim=True), 0.0),
        (lambda x: F.linear(x, torch.eye(9).double(), torch.full((9,), 2.0).double()), 18.0),
        (lambda x: torch.full((9,), 2.0).double() + x, 18.0),
        (lambda x: x + torch.full((1, 1, 9), 2.0).double(), 18.0),
        (lambda x: torch.addmm(torch.ones(9).double(), x[0], torch.eye(9).double())[None], 9.0),
    ],
)
def test_norms_are_frozen_and_their_constants_counted(
    function: Callable[[Tensor], Tensor], constant: float
) -> None:
    y, product, bias = frozen(function, POINTS)
    torch.testing.assert_close(y, function(POINTS))
    assert float(bias) == constant
    assert float(product.sum()) == pytest.approx(float(y.sum()) - constant, abs=1e-9)


@pytest.mark.parametrize(
    ("causal", "masked"),
    [(False, "no"), (True, "no"), (False, "boolean"), (False, "added")],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_attention_is_the_frozen_weights_times_values(
    causal: bool, groups: int, masked: str
) -> None:
    """The gradient of the values is the transpose of the weights; queries and keys get none."""
    torch.manual_seed(0)
    q = torch.randn(2, 4, 5, 3).double()
    k, v = (torch.randn(2, 4 // groups, 5, 3).double() for _ in range(2))
    mask = None
    if masked != "no":
        mask = torch.rand(2, 1, 5, 5) > 0.4
        mask[..., 0] = True
        if masked == "added":
            mask = torch.zeros(2, 1, 5, 5).double().masked_fill(~mask, -torch.inf)
    weights = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) / 3**0.5
    if causal:
        weights = weights.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    if mask is not None:
        weights = weights.masked_fill(~mask, -torch.inf) if masked == "boolean" else weights + mask
    weights = weights.softmax(-1)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    with linearized(nn.Identity(), torch.ones(2, requires_grad=True)):
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=groups > 1)
    torch.testing.assert_close(y, weights @ v.repeat_interleave(groups, 1))
    gradient = torch.randn(3, *y.shape).double()
    expected = (weights.transpose(-1, -2) @ gradient).unflatten(2, (-1, groups)).sum(3)
    one = torch.autograd.grad(y, (q, k, v), gradient[0], retain_graph=True, allow_unused=True)
    assert one[0] is one[1] is None
    torch.testing.assert_close(one[2], expected[0])
    # Many at once use a separate rule: columns of one product.
    many = torch.func.vmap(lambda g: torch.autograd.grad(y, v, g)[0])(gradient)
    torch.testing.assert_close(many, expected)


def test_a_gate_is_treated_as_constant() -> None:
    x = torch.tensor([[[0.5, -2.0]]]).double()
    for gated in (
        lambda x: F.silu(x[..., :1]) * x[..., 1:],
        lambda x: x[..., 1:] * F.silu(x[..., :1]),
    ):
        y, product, _ = frozen(gated, x)
        torch.testing.assert_close(product[..., 1:], y)
        assert float(product[..., 0]) == 0
    for function in (lambda x: x * x, lambda x: F.silu(x) * F.gelu(x), lambda x: x * torch.exp(x)):
        with pytest.raises(UserError, match="can't tell which one is a gate"):
            frozen(function, x)
        assert torch.overrides._get_current_function_mode() is None


def test_a_bias_can_be_collected_per_position() -> None:
    """y = x + b at three positions, weighted 1, 10, 100: the share of b at each."""
    layer = nn.Linear(2, 2).requires_grad_(False)
    layer.weight.copy_(torch.eye(2))
    layer.bias.copy_(torch.tensor([1.0, 2.0]))
    x = torch.zeros(1, 3, 2, requires_grad=True)
    scale, apart = torch.ones(1, requires_grad=True), torch.ones(1, 3, requires_grad=True)
    with linearized(layer, scale, (layer.bias, apart)):
        y = layer(x) + torch.tensor([4.0, 0.0])
    weighted = (y * torch.tensor([1.0, 10.0, 100.0])[None, :, None]).sum()
    others, own = torch.autograd.grad(weighted, (scale, apart))
    assert own.tolist() == [[3.0, 30.0, 300.0]] and others.tolist() == [444.0]


# -- invariance ------------------------------------------------------------------------------------


def same(one: Attribution, other: Attribution, tolerance: float = 1e-4) -> None:
    assert one.document == other.document and one.query == other.query
    assert one.score == pytest.approx(other.score, rel=tolerance)
    for a, b in (
        (one.document_scores, other.document_scores),
        (one.query_scores, other.query_scores),
        (one.matrix, other.matrix),
    ):
        assert a is not None and b is not None
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()
    parts = np.abs(other.document_scores).max()
    assert abs((one.bias_share or 0) - (other.bias_share or 0)) <= tolerance * parts


@each
def test_batching_and_kernels_do_not_change_shares(
    lively: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = lively(name)
    padded = attribute(retriever, MATRIX, PAIRS)
    eager = lively(name, attention="eager")
    for pair, result in zip(PAIRS, padded, strict=True):
        (alone,) = attribute(retriever, MATRIX, [pair])
        same(result, alone)
        (other,) = attribute(eager, MATRIX, [pair])
        same(other, alone)


def test_the_padding_side_does_not_change_shares(lively: Callable[..., DenseRetriever]) -> None:
    right, left = lively("qwen3-right"), lively("qwen3-left")
    assert right.encode_texts(["a fox", "a"], "document").offsets == (0, 0)
    assert left.encode_texts(["a fox", "a"], "document").offsets != (0, 0)
    for one, other in zip(*(attribute(r, MATRIX, PAIRS) for r in (right, left)), strict=True):
        same(one, other)


# -- nothing is left behind ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "modernbert", "gpt2", "qwen3-left", "gemma3"])
def test_attention_weights_do_not_depend_on_heads_per_step(
    lively: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As for long texts: nothing cached, one head at a time; padded, causal, grouped, with
    windows."""
    retriever = lively(name, torch.float64)
    whole = attribute(retriever, MATRIX, PAIRS)
    padded = attribute(retriever, make_method("decomposition"), PAIRS)
    monkeypatch.setattr("poslens.attribution.methods.frozen.KEPT_BYTES", 0)
    monkeypatch.setattr("poslens.attribution.methods.frozen.PART_BYTES", 1)
    monkeypatch.setattr("poslens.attribution.methods.shares.LEAST", 1)
    monkeypatch.setattr("poslens.attribution.methods.shares.batch_tokens", lambda device: 1)
    again = attribute(retriever, MATRIX, PAIRS)
    again += attribute(retriever, make_method("decomposition"), PAIRS)
    for one, other in zip([*whole, *padded], again, strict=True):
        np.testing.assert_allclose(one.document_scores, other.document_scores, rtol=0, atol=1e-9)
        if one.matrix is not None:
            assert other.matrix is not None
            np.testing.assert_allclose(one.matrix, other.matrix, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma3"])
def test_nothing_is_left_on_the_model(lively: Callable[..., DenseRetriever], name: str) -> None:
    retriever = lively(name)
    weights = {n: p.clone() for n, p in retriever.model.named_parameters()}
    attribute(retriever, MATRIX, PAIRS)
    assert traces(retriever) == []
    for n, parameter in retriever.model.named_parameters():
        assert torch.equal(parameter, weights[n]), n


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("call", [1, 2])
def test_nothing_is_left_on_the_model_after_an_exception(
    lively: Callable[..., DenseRetriever],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    call: int,
) -> None:
    """The forward passes of query and document reach the last layer; each fails once. GPT-2's
    activations have hooks."""
    retriever = lively("gpt2")
    (before,) = attribute(retriever, MATRIX, PAIRS[:1])
    layer = retriever.backbone.h[-1].mlp.c_proj
    real, calls = layer.forward, []

    def breaks(*args: object) -> Tensor:
        calls.append(torch.overrides._get_current_function_mode())
        if len(calls) == call:
            raise error("planted")
        return real(*args)

    monkeypatch.setattr(layer, "forward", breaks)
    with pytest.raises(error, match="planted"):
        attribute(retriever, MATRIX, PAIRS[:1])
    assert len(calls) == call and calls[-1] is not None
    assert traces(retriever) == []
    assert torch.is_grad_enabled()
    monkeypatch.undo()
    assert retriever.lock.acquire(timeout=1)
    retriever.lock.release()
    (after,) = attribute(retriever, MATRIX, PAIRS[:1])
    np.testing.assert_array_equal(before.document_scores, after.document_scores)


def test_the_mode_does_not_affect_other_threads() -> None:
    """The mode is local to a thread: it doesn't affect tensors of other threads."""
    x = torch.ones(1, 1, 4, requires_grad=True)
    seen: list[Tensor] = []

    def plain() -> None:
        (gradient,) = torch.autograd.grad(F.softplus(F.silu(x)).sum(), x)
        seen.append(gradient)

    plain()
    with linearized(nn.Identity(), torch.ones(1, requires_grad=True)):
        thread = threading.Thread(target=plain)
        thread.start()
        thread.join()
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)


def test_two_threads_give_the_same_results_as_one(lively: Callable[..., DenseRetriever]) -> None:
    """On one retriever (they take turns) and each on its own (they run at once)."""
    shared, own = lively("bert"), lively("gpt2")
    work = [
        [
            TextPair(f"{w}-{n}", "tide " * (n % 3 + 1), f"the {w} Moon pulls " * (n % 4 + w + 1))
            for n in range(6)
        ]
        for w in range(2)
    ]

    def run(retriever: DenseRetriever, pairs: list[TextPair]) -> list[Attribution]:
        return [attribute(retriever, MATRIX, [pair])[0] for pair in pairs]

    for retrievers in ((shared, shared), (shared, own)):
        expected = [run(r, pairs) for r, pairs in zip(retrievers, work, strict=True)]
        found: dict[int, list[Attribution]] = {}
        barrier = threading.Barrier(2)

        def enter(w: int, retrievers=retrievers, found=found, barrier=barrier) -> None:
            barrier.wait()
            found[w] = run(retrievers[w], work[w])

        threads = [threading.Thread(target=enter, args=(w,)) for w in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for w in range(2):
            for one, other in zip(expected[w], found[w], strict=True):
                # Matrix products may round differently while another thread runs.
                for a, b in (
                    (one.document_scores, other.document_scores),
                    (one.matrix, other.matrix),
                ):
                    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert traces(shared) == [] and traces(own) == []
