"""Gradient saliency of MiniLM: an independent loop, laws of batching, and side effects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.methods import attribute_batches, make_method
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.resolve import minilm_folder
from poslens.attribution.types import Attribution, TextPair

METHOD = make_method("saliency")


def reference(
    tokenizer, model, query: str, document: str, limit: int = 512
) -> tuple[float, np.ndarray, np.ndarray]:
    """Score, ||ds/de|| of the query's and of the document's tokens, straight from docs/methods.md
    (section 2): one pair, no padding, mean pooling and cosine by hand."""

    def read(text: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")["input_ids"]
        e = model.get_input_embeddings()(ids).detach().requires_grad_()
        return e, model(inputs_embeds=e).last_hidden_state[0].mean(0)

    (e_query, q), (e_document, d) = read(query), read(document)
    score = (q.detach() @ d) / (q.detach().norm() * d.norm())
    (g_document,) = torch.autograd.grad(score, e_document, retain_graph=True)
    other_way = (q @ d.detach()) / (q.norm() * d.detach().norm())
    (g_query,) = torch.autograd.grad(other_way, e_query)
    return score.item(), g_query[0].norm(dim=-1).numpy(), g_document[0].norm(dim=-1).numpy()


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def traces(retriever: DenseRetriever) -> list[str]:
    """What a run could leave on the model: hooks, gradients, parameters that require gradients."""
    found = []
    for name, module in retriever.model.named_modules():
        hooks = (
            *module._forward_hooks,
            *module._forward_pre_hooks,
            *module._backward_hooks,
            *module._backward_pre_hooks,
        )
        if hooks:
            found.append(f"hook on {name}")
    for name, parameter in retriever.model.named_parameters():
        if parameter.grad is not None or parameter.requires_grad:
            found.append(f"gradient of {name}")
    return found


@pytest.fixture(scope="module")
def pairs(sample: DataSet) -> list[TextPair]:
    """A pair of each language and five more in English across the sample, with short, long
    (truncated) and non-Latin documents."""
    english = [pair for pair in sample.pairs if pair.language == "eng"]
    by_language = {pair.language: pair for pair in sample.pairs}
    chosen = [*english[:: len(english) // 5][:5], *by_language.values()]
    assert len({pair.pair_id for pair in chosen}) == 12
    assert len({pair.language for pair in chosen}) == 7
    return chosen


@pytest.fixture(scope="module")
def results(minilm: DenseRetriever, pairs: list[TextPair]) -> dict[str, Attribution]:
    """The pairs' attributions, from padded batches."""
    found = {}
    sizes = []
    for batch in attribute_batches(minilm, METHOD, pairs):
        sizes.append(len(batch))
        for outcome in batch:
            assert outcome.attribution is not None, outcome.reason
            found[outcome.pair.pair_id] = outcome.attribution
    assert max(sizes) > 1, "no batch was padded"
    return found


def test_equals_an_independent_loop(pairs: list[TextPair], results: dict[str, Attribution]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = AutoModel.from_pretrained(minilm_folder()).eval()
    assert any(results[pair.pair_id].document.truncated for pair in pairs)
    assert any(not results[pair.pair_id].document.truncated for pair in pairs)
    for pair in pairs:
        result = results[pair.pair_id]
        score, query, document = reference(tokenizer, model, pair.query, pair.document)
        assert result.score == pytest.approx(score, abs=1e-5)
        assert result.query_scores.shape == query.shape
        assert result.document_scores.shape == document.shape
        assert relative(result.query_scores, query) <= 1e-5, pair.pair_id
        assert relative(result.document_scores, document) <= 1e-5, pair.pair_id
        assert (result.document_scores > 0).all()


def test_scores_equal_sentence_transformers(
    pairs: list[TextPair], results: dict[str, Attribution]
) -> None:
    model = SentenceTransformer(str(minilm_folder()), device="cpu")
    model.max_seq_length = 512
    chosen = pairs[:8]
    queries = model.encode([pair.query for pair in chosen])
    documents = model.encode([pair.document for pair in chosen])
    for pair, q, d in zip(chosen, queries, documents, strict=True):
        cosine = q @ d / (np.linalg.norm(q) * np.linalg.norm(d))
        assert results[pair.pair_id].score == pytest.approx(float(cosine), abs=1e-5)


def test_ids_and_tokens_equal_sentence_transformers(
    minilm: DenseRetriever, pairs: list[TextPair]
) -> None:
    model = SentenceTransformer(str(minilm_folder()), device="cpu")
    model.max_seq_length = 512
    texts = [pair.document for pair in pairs]
    expected = model.preprocess(texts)
    encoded = minilm.encode_texts(texts, "document")
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(encoded.features[name], expected[name]), name
    for b, text in enumerate(encoded.texts):
        ids = encoded.row(expected["input_ids"], b).tolist()
        assert [token.text for token in text.tokens] == model.tokenizer.convert_ids_to_tokens(ids)
        assert [token.is_special for token in text.tokens] == [i in (101, 102) for i in ids]


def test_the_length_includes_truncated_text(minilm: DenseRetriever, sample: DataSet) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    longest = max(sample.pairs, key=lambda pair: len(pair.document)).document
    short = "Fog forms over cold water."
    whole, brief = minilm.encode_texts([longest, short], "document").texts
    expected = len(tokenizer(longest, add_special_tokens=False, truncation=False)["input_ids"])
    assert expected > 1024
    assert (whole.n_tokens_full, whole.max_length, len(whole.tokens)) == (expected, 512, 512)
    assert whole.truncated and whole.content.sum() == 510
    assert not brief.truncated and brief.n_tokens_full == 6
    # The beginning of the text was read: the last token ends at `read_until`.
    last = [token for token in whole.tokens if not token.is_special][-1]
    assert whole.read_until == last.end < len(longest)


def test_padding_changes_nothing(minilm: DenseRetriever) -> None:
    texts = ("Fog.", "Fog forms over cold water when moist air drifts in.", "Ice " * 90)
    batch = [TextPair(str(n), text, text * 2) for n, text in enumerate(texts)]
    together = attribute(minilm, METHOD, batch)
    for pair, padded in zip(batch, together, strict=True):
        (alone,) = attribute(minilm, METHOD, [pair])
        assert padded.document == alone.document and padded.query == alone.query
        assert padded.score == pytest.approx(alone.score, rel=1e-5)
        assert relative(padded.document_scores, alone.document_scores) <= 1e-5
        assert relative(padded.query_scores, alone.query_scores) <= 1e-5


@pytest.mark.parametrize("calls", [1, 2])
def test_nothing_is_left_on_the_model_after_an_exception(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The forward pass fails at its first call (the query) or its second (the document)."""
    retriever = tiny("bert")
    pair = TextPair("p", "tide", "the Moon pulls the water")
    (before,) = attribute(retriever, METHOD, [pair])
    layer = retriever.model[0].auto_model.encoder.layer[1]
    real, seen = layer.forward, []

    def breaks(*args, **kwargs):
        seen.append(1)
        if len(seen) == calls:
            raise RuntimeError("planted")
        return real(*args, **kwargs)

    monkeypatch.setattr(layer, "forward", breaks)
    with pytest.raises(RuntimeError, match="planted"):
        attribute(retriever, METHOD, [pair])
    assert traces(retriever) == []
    monkeypatch.undo()
    # The lock was released, and the next result is the same.
    assert retriever.lock.acquire(timeout=1)
    retriever.lock.release()
    (after,) = attribute(retriever, METHOD, [pair])
    np.testing.assert_array_equal(before.document_scores, after.document_scores)


def test_two_threads_give_the_same_results_as_one(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    work = [
        [
            TextPair(f"{w}-{n}", "tide " * (n % 4 + 1), f"the {w} Moon pulls " * (n % 5 + w + 1))
            for n in range(25)
        ]
        for w in range(2)
    ]
    expected = [[attribute(retriever, METHOD, [pair])[0] for pair in pairs] for pairs in work]
    found: list[list[Attribution]] = [[], []]
    failures: list[BaseException] = []
    barrier = threading.Barrier(2)

    def run(w: int) -> None:
        try:
            barrier.wait()
            found[w] = [attribute(retriever, METHOD, [pair])[0] for pair in work[w]]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(w,)) for w in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert traces(retriever) == []
    for one, other in zip(chain(*expected), chain(*found), strict=True):
        assert one.pair_id == other.pair_id and one.score == other.score
        np.testing.assert_array_equal(one.document_scores, other.document_scores)
        np.testing.assert_array_equal(one.query_scores, other.query_scores)


@pytest.mark.parametrize("empty", ["\u200b", "\u200e\u200f", "\x01"])
def test_a_text_without_tokens_is_refused(minilm: DenseRetriever, empty: str) -> None:
    with pytest.raises(UserError, match="reads no word of the document"):
        attribute(minilm, METHOD, [TextPair("p", "fog", empty)])
    with pytest.raises(UserError, match="reads no word of the query"):
        attribute(minilm, METHOD, [TextPair("p", empty, "fog")])
    assert traces(minilm) == []


def test_an_unknown_word_is_text_and_a_special_token_is_not(minilm: DenseRetriever) -> None:
    (text,) = minilm.encode_texts(["a 🚀 fog"], "document").texts
    content = [(t.text, t.start, t.end) for t in text.tokens if not t.is_special]
    assert content == [("a", 0, 1), ("[UNK]", 2, 3), ("fog", 4, 7)]
    assert [t.text for t in text.tokens if t.is_special] == ["[CLS]", "[SEP]"]
    assert text.n_tokens_full == 3 and not text.truncated


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
def test_gpu_agrees_with_cpu(minilm: DenseRetriever, pairs: list[TextPair]) -> None:
    from poslens.attribution.retrievers.load import load

    on_gpu = load(minilm.spec, device="cuda")
    for pair in pairs[:5]:
        (one,), (other,) = (attribute(r, METHOD, [pair]) for r in (minilm, on_gpu))
        assert relative(other.document_scores, one.document_scores) <= 1e-3
        assert other.score == pytest.approx(one.score, abs=1e-4)


def test_weights_are_found_without_importing_the_package() -> None:
    folder = minilm_folder()
    assert isinstance(folder, Path) and (folder / "model.safetensors").is_file()
