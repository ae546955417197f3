"""The same laws for eleven tiny models: no architecture needs special code."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair, Token

METHOD = make_method("saliency")
ARCHITECTURES = {
    "bert": "mean",
    "bert-cls": "cls",
    "roberta": "mean",
    "xlm-roberta": "mean",
    "mpnet": "mean",
    "distilbert": "mean",
    "modernbert": "mean",
    "qwen3-right": "last",
    "qwen3-left": "last",
    "llama-right": "last",
    "llama-left": "last",
}
# Normalizing tokenizers drop accents, or give a composed letter the offsets of its base letter
# only.
NORMALIZING = ("bert", "bert-cls", "mpnet", "distilbert", "xlm-roberta")
TEXT = "The tide 🚀 rises: cafe\u0301, 海洋潮汐 นกเงือก النخلة 👩\u200d🚀 🇵🇱!"
PAIRS = (
    TextPair("unicode", "tide and the Moon 🙂", TEXT),
    TextPair("short", "fox", "lazy dogs"),
    TextPair("plain", "why twice a day", "The tide rises twice a day because the Moon pulls."),
)

each = pytest.mark.parametrize("name", ARCHITECTURES)


def own_characters(token: Token, text: str) -> bool:
    """Whether text[start:end] is the text of the token, in any tokenizer's notation."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    span = text[token.start : token.end]
    spelled = "".join(bytes_to_unicode()[byte] for byte in (" " + span).encode())
    if token.text in spelled:  # byte level: a token may be some of a character's bytes
        return True
    if token.text in ("[UNK]", "<unk>", "▁"):  # represent any text, including the space before
        return token.end > token.start
    wanted = token.text.removeprefix("##").replace("▁", "").strip()

    def plain(value: str) -> str:
        folded = unicodedata.normalize("NFKD", value).lower()
        return "".join(
            c for c in folded if unicodedata.category(c) not in ("Mn", "Cf", "Cc")
        ).strip()

    # A combining mark between two tokens belongs to the letter before it.
    return plain(wanted) == plain(span) or (len(span) > 0 and plain(span) in plain(wanted))


@each
def test_saliency_equals_an_independent_loop(
    tiny: Callable[..., DenseRetriever], tiny_folder: Callable[..., Path], name: str
) -> None:
    folder = tiny_folder(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    retriever = tiny(name)

    def pool(hidden: torch.Tensor) -> torch.Tensor:
        return {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[ARCHITECTURES[name]]

    def read(text: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        e = model.get_input_embeddings()(ids).detach().requires_grad_()
        return e, pool(model(inputs_embeds=e).last_hidden_state[0])

    for result, pair in zip(attribute(retriever, METHOD, PAIRS), PAIRS, strict=True):
        (_, q), (e, d) = read(pair.query), read(pair.document)
        score = torch.cosine_similarity(q.detach(), d, dim=0)
        (gradient,) = torch.autograd.grad(score, e)
        expected = gradient[0].norm(dim=-1).numpy()
        assert result.score == pytest.approx(score.item(), abs=1e-5)
        assert np.isfinite(result.document_scores).all() and expected.max() > 1e-4
        np.testing.assert_allclose(
            result.document_scores, expected, rtol=1e-3, atol=1e-5 * expected.max()
        )


@each
def test_padding_changes_nothing(tiny: Callable[..., DenseRetriever], name: str) -> None:
    retriever = tiny(name)
    together = attribute(retriever, METHOD, PAIRS)
    left = retriever.encode_texts([p.document for p in PAIRS], "document").offsets
    assert (max(left) > 0) == name.endswith("left")
    for pair, padded in zip(PAIRS, together, strict=True):
        (alone,) = attribute(retriever, METHOD, [pair])
        assert padded.document == alone.document
        for one, other in (
            (padded.document_scores, alone.document_scores),
            (padded.query_scores, alone.query_scores),
        ):
            assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()


@each
def test_scores_equal_sentence_transformers(
    tiny: Callable[..., DenseRetriever], tiny_folder: Callable[..., Path], name: str
) -> None:
    model = SentenceTransformer(str(tiny_folder(name)), device="cpu")
    queries = model.encode([p.query for p in PAIRS], convert_to_tensor=True)
    documents = model.encode([p.document for p in PAIRS], convert_to_tensor=True)
    expected = torch.cosine_similarity(queries, documents)
    found = [result.score for result in attribute(tiny(name), METHOD, PAIRS)]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@each
def test_offsets_point_at_the_tokens_own_characters(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    texts = [TEXT, "  leading and   inner\tspaces\n", PAIRS[2].document]
    for text, read in zip(texts, tiny(name).encode_texts(texts, "document").texts, strict=True):
        content = [token for token in read.tokens if not token.is_special]
        assert not read.truncated
        assert all(0 <= t.start <= t.end <= len(text) for t in content)
        assert all(a.start <= b.start and a.end <= b.end for a, b in pairwise(content))
        for token in content:
            assert own_characters(token, text), (token, text[token.start : token.end])
        covered = {i for t in content for i in range(t.start, t.end)}
        missing = {i for i, c in enumerate(text) if not c.isspace()} - covered
        assert all(unicodedata.category(text[i]) in ("Mn", "Cf") for i in missing), name
        assert name in NORMALIZING or not missing


@each
def test_prompts_are_encoded_but_not_shown(tiny: Callable[..., DenseRetriever], name: str) -> None:
    prompt = "instruct: a fox\nquery: "
    bare, prompted = tiny(name), tiny(name, query_prompt=prompt)
    for text in (PAIRS[0].query, TEXT, "fox"):
        ids = prompted.encode_texts([text], "query").features["input_ids"]
        assert (
            ids.tolist()
            == bare.encode_texts([prompt + text], "query").features["input_ids"].tolist()
        )
        (read,) = prompted.encode_texts([text], "query").texts
        content = [token for token in read.tokens if not token.is_special]
        assert all(own_characters(token, text) for token in content)
        assert content[0].start == 0 and content[-1].end == len(text)
        special = [token for token in read.tokens if token.is_special]
        assert len(special) >= 5 and all((t.start, t.end) == (0, 0) for t in special)
        assert not read.truncated and read.n_tokens_full == len(content)
        # Documents don't get the prompt.
        assert (
            bare.encode_texts([text], "document").texts
            == prompted.encode_texts([text], "document").texts
        )
    (one,), (other,) = (attribute(r, METHOD, [PAIRS[0]]) for r in (bare, prompted))
    assert abs(one.score - other.score) > 1e-4, "the prompt was not read"


def test_the_models_own_prompts_are_used(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("bert", prompts=(("query", "query: "), ("document", "passage: ")))
    spec = RetrieverSpec(name="own", title="own", family="dense", source=f"folder:{folder}")
    retriever = load(spec, device="cpu")
    assert retriever.prompts == {"query": "query: ", "document": "passage: "}
    model = SentenceTransformer(str(folder), device="cpu")
    (result,) = attribute(retriever, METHOD, [PAIRS[2]])
    q = model.encode([PAIRS[2].query], prompt_name="query")[0]
    d = model.encode([PAIRS[2].document], prompt_name="document")[0]
    cosine = q @ d / np.linalg.norm(q) / np.linalg.norm(d)
    assert result.score == pytest.approx(float(cosine), abs=1e-5)


@pytest.mark.parametrize("include", [True, False])
def test_prompt_tokens_can_be_left_out_of_the_pooling(
    tiny_folder: Callable[..., Path], include: bool
) -> None:
    folder = tiny_folder("roberta", prompts=(("query", "instruct: "),), include_prompt=include)
    spec = RetrieverSpec(name="p", title="p", family="dense", source=f"folder:{folder}")
    model = SentenceTransformer(str(folder), device="cpu")
    (result,) = attribute(load(spec, device="cpu"), METHOD, [PAIRS[2]])
    q = model.encode([PAIRS[2].query], prompt_name="query")[0]
    d = model.encode([PAIRS[2].document])[0]
    cosine = q @ d / np.linalg.norm(q) / np.linalg.norm(d)
    assert result.score == pytest.approx(float(cosine), abs=1e-5)


@each
def test_a_document_beyond_the_context_limit_is_truncated(
    tiny: Callable[..., DenseRetriever], tiny_folder: Callable[..., Path], name: str
) -> None:
    """The tiny models have 128 positions; RoBERTa-like ones 130, two of them never used."""
    text = "The tide rises twice a day. " * 40
    retriever = tiny(name)
    (result,) = attribute(retriever, METHOD, [TextPair("long", "tide", text)])
    assert len(result.document.tokens) == retriever.max_length == 128
    assert result.document.truncated and np.isfinite(result.document_scores).all()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(name))
    whole = tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"]
    assert result.document.n_tokens_full == len(whole)


@each
def test_maximum_lengths_can_be_set(tiny: Callable[..., DenseRetriever], name: str) -> None:
    retriever = tiny(name, max_length=32, query_max_length=12)
    text = "The tide rises twice a day. " * 10
    query = retriever.encode_texts([text], "query").texts[0]
    document = retriever.encode_texts([text], "document").texts[0]
    assert (len(query.tokens), len(document.tokens)) == (12, 32)
    assert (query.max_length, document.max_length) == (12, 32)
    assert query.n_tokens_full == document.n_tokens_full
    # A short text in a batch with a long one doesn't count as truncated.
    short = retriever.encode_texts([text, "tide"], "document").texts[1]
    assert not short.truncated
    beyond = tiny(name, max_length=4096)
    (result,) = attribute(beyond, METHOD, [TextPair("long", "tide", text * 4)])
    assert len(result.document.tokens) == 128


def test_a_prompt_is_not_part_of_a_truncated_texts_length(
    tiny: Callable[..., DenseRetriever],
) -> None:
    text = "The tide rises twice a day. " * 10
    bare = tiny("bert", max_length=20)
    prompted = tiny("bert", max_length=20, document_prompt="query: fox ")
    one = bare.encode_texts([text], "document").texts[0]
    other = prompted.encode_texts([text], "document").texts[0]
    assert one.n_tokens_full == other.n_tokens_full
    assert other.content.sum() < one.content.sum() and other.truncated


def test_a_plain_transformers_folder_is_read(tiny_folder: Callable[..., Path]) -> None:
    """Without modules.json sentence-transformers takes the mean of all tokens."""
    folder = tiny_folder("bert").parent / "raw"
    assert not (folder / "modules.json").exists()
    spec = RetrieverSpec(name="raw", title="raw", family="dense", source=f"folder:{folder}")
    (result,) = attribute(load(spec, device="cpu"), METHOD, [PAIRS[2]])
    saved = RetrieverSpec(
        name="st", title="st", family="dense", source=f"folder:{tiny_folder('bert')}"
    )
    (expected,) = attribute(load(saved, device="cpu"), METHOD, [PAIRS[2]])
    np.testing.assert_allclose(result.document_scores, expected.document_scores, rtol=1e-5)


def test_a_chat_template_is_not_part_of_the_text(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """sentence-transformers applies a chat template if a plain transformers folder has one, but the
    template's tokens are not the user's text. Refusing such a model in one sentence is correct,
    too."""
    folder = Path(shutil.copytree(tiny_folder("llama-left").parent / "raw", tmp_path / "chat"))
    path = folder / "tokenizer_config.json"
    template = "{% for m in messages %}user says: {{ m['content'] }}{% endfor %}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    spec = RetrieverSpec(name="chat", title="chat", family="dense", source=f"folder:{folder}")
    text = "The tide rises"
    try:
        (read,) = load(spec, device="cpu").encode_texts([text], "document").texts
    except UserError:
        return
    content = [token for token in read.tokens if not token.is_special]
    assert all(own_characters(token, text) for token in content), content
    assert content[0].start == 0 and content[-1].end == len(text)


def test_a_text_of_which_the_tokenizer_keeps_nothing_is_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A causal model's tokenizer without begin and end tokens can leave no token at all."""
    from tokenizers import normalizers, processors

    retriever = tiny("llama-right")
    backend = retriever.model.tokenizer.backend_tokenizer
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    with pytest.raises(UserError, match="reads no word"):
        retriever.encode_texts(["fox", "\u200b"], "document")
