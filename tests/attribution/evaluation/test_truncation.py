"""Truncation of models with a known limit, including black boxes, and chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.chunks import (
    WHOLE,
    Chunks,
    chunks_of,
    late_vectors,
    read_spans,
    require_fit,
    windows_of,
)
from poslens.attribution.evaluation.truncation import Truncation, last_word, long_texts, truncation
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import RetrieverSpec, presets

Tiny = Callable[..., DenseRetriever]
TEXT = " ".join(f"word{n}" for n in range(300))


def black_box(limit: int) -> Callable[[str], Any]:
    """A model that returns only vectors and reads `limit` words."""

    def embed(text: str) -> np.ndarray:
        vector = np.zeros(300)
        for word in text.split()[:limit]:
            vector[int(word[4:])] += 1
        return vector / max(1e-9, np.linalg.norm(vector))

    return embed


@pytest.mark.parametrize("limit", [1, 2, 77, 299])
def test_the_limit_of_a_black_box_is_found(limit: int) -> None:
    found = last_word(black_box(limit), TEXT)
    assert (found.word, found.n_words) == (limit, 300)
    assert TEXT[: found.end].split()[-1] == f"word{limit - 1}"


def test_a_model_without_a_limit_is_read_to_the_end() -> None:
    found = last_word(black_box(10_000), TEXT)
    assert found.word == found.n_words == 300


def test_punctuation_at_the_end_of_a_text_is_not_truncated() -> None:
    """The model drops it, so the vector is that of the whole text before its end."""

    def embed(text: str) -> Any:
        return black_box(10_000)(text.replace(".", ""))

    last = last_word(embed, f"{TEXT} . .")
    assert last.word == last.n_words and last.end == len(TEXT) + 4
    last = last_word(black_box(299), TEXT)
    assert last.word == 299, "a word is no punctuation"


def test_the_limit_is_found_despite_noise_in_the_vectors() -> None:
    lot = np.random.default_rng(0)
    steady = black_box(77)
    found = last_word(lambda text: steady(text) + lot.normal(0, 1e-5, 300), TEXT)
    assert found.word == 77


def test_few_vectors_are_requested() -> None:
    asked = []

    def embed(text: str) -> np.ndarray:
        asked.append(text)
        return black_box(77)(text)

    last_word(embed, TEXT)
    assert len(asked) <= 2 + 9


@pytest.mark.parametrize("limit", [1, 2, 77, 299, 300])
@pytest.mark.parametrize("expected", [0, 1, 76, 77, 78, 299, 300])
def test_an_expected_limit_saves_vectors_and_does_not_change_the_result(
    limit: int, expected: int
) -> None:
    asked = []

    def embed(text: str) -> np.ndarray:
        asked.append(text)
        return black_box(limit)(text)

    end = len(" ".join(TEXT.split()[:expected]))
    assert last_word(embed, TEXT, end) == last_word(black_box(limit), TEXT)
    assert len(asked) <= (4 if limit == expected else 2 + 2 + 9)


def test_text_without_words_is_refused() -> None:
    with pytest.raises(UserError, match="no word"):
        last_word(black_box(3), "   ")


# -- models ----------------------------------------------------------------------------------------


def embedder(retriever: DenseRetriever) -> Callable[[str], Any]:
    def embed(text: str) -> Any:
        with torch.no_grad():
            return retriever.embed(retriever.encode_texts([text], "document"))[0].numpy()

    return embed


@pytest.mark.parametrize(
    ("name", "limit"), [("bert", 128), ("bert", 40), ("roberta", 33), ("qwen3-left", 50)]
)
def test_a_model_truncates_at_its_configured_length(tiny: Tiny, name: str, limit: int) -> None:
    retriever = tiny(name, max_length=limit)
    text = " ".join(f"The tide rises {n} times." for n in range(60))
    found = truncation(retriever, embedder(retriever), text)
    assert found.claimed == limit and not found.reads_all
    assert found.first <= limit <= found.last < found.n_tokens
    assert found.as_claimed


def test_truncation_before_the_claimed_length_is_detected(tiny: Tiny) -> None:
    honest, claiming = tiny("bert", max_length=40), tiny("bert", max_length=128)
    text = " ".join(f"The tide rises {n} times." for n in range(60))
    found = truncation(claiming, embedder(honest), text)
    assert found.claimed == 128 and found.last < 60 and not found.as_claimed


def test_a_short_text_is_not_truncated(tiny: Tiny) -> None:
    retriever = tiny("bert")
    found = truncation(retriever, embedder(retriever), "The tide rises twice.")
    assert found.reads_all and found.as_claimed


def test_short_documents_are_joined() -> None:
    assert long_texts(["abc", "def", "ghi", "jkl"], 6) == [("abc def", 2)]
    assert long_texts(["abcdefgh", "def"], 6) == [("abcdefgh", 1)]
    assert long_texts([], 6) == []


# -- chunks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["whole", "windows:128:32", "windows:64", "late:128"])
def test_the_name_of_chunks_is_the_text_they_are_parsed_from(text: str) -> None:
    assert str(chunks_of(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("halves", "chunks can't be"),
        ("late:64:8", "chunks can't be"),
        ("windows:0", "at least 1"),
        ("windows:32:32", "below 32"),
        ("windows:16:32", "below 16"),
    ],
)
def test_invalid_chunks_are_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        chunks_of(text)


def test_windows_have_the_given_size_and_overlap(tiny: Tiny) -> None:
    retriever = tiny("bert")
    text = " ".join(f"The tide rises {n} times." for n in range(20))
    ids = retriever.model.tokenizer(text, add_special_tokens=False)["input_ids"]
    windows = windows_of(retriever, text, Chunks("windows", 30, 10))
    assert len(windows) >= 1 + -(-(len(ids) - 30) // 20)
    cut = [retriever.model.tokenizer(w, add_special_tokens=False)["input_ids"] for w in windows]
    at = text.find(windows[1])
    assert text.startswith(windows[0]) and text.endswith(windows[-1]) and at > 0
    assert all(27 <= len(one) <= 30 for one in cut[:-1])
    assert len(windows[0]) - at > 0


SCRIPTS = (
    "The unhappily-named family 👩‍🚀 flags 🇵🇱 smile 🙂 Zażółć gęślą jaźń; naïve café. "
    "海洋潮汐是由月球引力引起的。 "
    "นกเงือกเป็นนกขนาดใหญ่ النخلة شجرة مثمرة "
) * 4


@pytest.mark.parametrize("prompt", [None, "passage: "])
@pytest.mark.parametrize("name", ["roberta", "qwen3-left", "bert", "t5"])
@pytest.mark.parametrize(("size", "overlap"), [(40, 10), (40, 0), (12, 4)])
def test_no_window_has_more_tokens_than_its_size(
    tiny: Tiny, name: str, prompt: str | None, size: int, overlap: int
) -> None:
    """Byte-level tokenizers split a character into several tokens; windows start and end inside
    words."""
    retriever = tiny(name, document_prompt=prompt)
    windows = windows_of(retriever, SCRIPTS, Chunks("windows", size, overlap))
    read = retriever.encode_texts(windows, "document").texts
    assert max(one.n_tokens_full for one in read) <= size
    # Every character is in a window, in order.
    end = 0
    for window in windows:
        at = SCRIPTS.find(window, max(0, end - len(window)))
        assert at >= 0 and not SCRIPTS[end:at].strip()
        end = at + len(window)
    assert not SCRIPTS[end:].strip()
    if not overlap:
        assert sum(map(len, windows)) <= len(SCRIPTS)


def test_a_text_that_fits_one_window_is_its_only_window(tiny: Tiny) -> None:
    assert windows_of(tiny("bert"), "A tide.", Chunks("windows", 30, 10)) == ["A tide."]


def test_bm25_windows_are_measured_in_words() -> None:
    bm25 = load(presets()["BM25"])
    assert windows_of(bm25, "one two three four five", Chunks("windows", 2)) == [
        "one two",
        "three four",
        "five",
    ]


@pytest.mark.parametrize("name", ["bert", "mpnet", "t5"])
def test_late_chunks_are_means_of_the_token_vectors_of_one_pass(tiny: Tiny, name: str) -> None:
    """Computed in a loop over the token vectors of transformers, followed by the model's other
    layers."""
    retriever = tiny(name)
    texts = ["The tide rises twice a day because the Moon pulls.", "A quick brown fox."]
    found = late_vectors(retriever, texts, 4)
    for text, windows in zip(texts, found, strict=True):
        with torch.no_grad():
            encoded = retriever.encode_texts([text], "document")
            tokens = retriever.model[0](dict(encoded.features))["token_embeddings"][0]
            expected = []
            for start in range(0, len(tokens), 4):
                mean = {"sentence_embedding": tokens[start : start + 4].mean(0, keepdim=True)}
                for module in list(retriever.model)[2:]:
                    mean = module(mean)
                expected.append(mean["sentence_embedding"][0])
        assert len(windows) == len(expected) > 1
        torch.testing.assert_close(windows, torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_late_chunks_leave_out_a_prompt_that_pooling_excludes(
    tiny_folder: Callable[..., Path], padding: str
) -> None:
    """The prompt has more tokens than a chunk. The chunks are means of the token vectors after it,
    and a single chunk is the vector of sentence-transformers."""
    prompt = "a passage about the tide: "
    folder = tiny_folder("bert", prompts=(("document", prompt),), include_prompt=False)
    retriever = load(RetrieverSpec("p", "p", "dense", f"folder:{folder}"), device="cpu")
    texts = ["The tide rises twice a day because the Moon pulls.", "A quick brown fox."]
    model = retriever.model
    model.tokenizer.padding_side = padding
    features = model.preprocess(texts, prompt=prompt)
    n_prompt = int(features["prompt_length"])
    assert n_prompt > 4
    with torch.no_grad():
        states = model[0](dict(features))["token_embeddings"]
    read = features["attention_mask"].bool()
    for number, windows in enumerate(late_vectors(retriever, texts, 4)):
        parts = states[number][read[number]][n_prompt:].split(4)
        torch.testing.assert_close(windows, torch.stack([part.mean(0) for part in parts]))
    whole = torch.cat(late_vectors(retriever, texts, 128))
    expected = torch.from_numpy(model.encode_document(texts))
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)
    spans = read_spans(retriever, texts[0], Chunks("late", 4)) or []
    tokens = retriever.encode_texts([texts[0]], "document").texts[0]
    text_ends = tokens.ends[n_prompt:]
    last = [int(max(text_ends[first : first + 4])) for first in range(0, len(text_ends), 4)]
    # A chunk of special tokens covers no character.
    assert [end for _, end in spans] == [end for end in last if end]


def test_a_late_chunk_of_everything_is_the_text_s_own_vector(tiny: Tiny) -> None:
    retriever = tiny("bert")
    (found,) = late_vectors(retriever, ["The tide rises."], 128)
    own = embedder(retriever)("The tide rises.")
    np.testing.assert_allclose(found[0].numpy(), own, rtol=1e-5, atol=1e-6)


def test_chunks_that_do_not_fit_a_model_are_refused(tiny: Tiny) -> None:
    with pytest.raises(UserError, match="need the token vectors of a model with mean pooling"):
        require_fit(tiny("bert-cls"), Chunks("late", 8))
    with pytest.raises(UserError, match="need the token vectors of a model with mean pooling"):
        require_fit(load(presets()["BM25"]), Chunks("late", 8))
    with pytest.raises(UserError, match=r"\(126 without special tokens"):
        require_fit(tiny("bert"), Chunks("windows", 127))
    require_fit(tiny("bert"), WHOLE)


@pytest.mark.parametrize("prompt", [None, "passage: "])
def test_the_longest_accepted_windows_are_not_truncated(
    tiny: Tiny, sample: DataSet, prompt: str | None
) -> None:
    """Windows start and end inside words here, and each has a prompt."""
    retriever = tiny("bert", document_prompt=prompt)
    (word,) = retriever.encode_texts(["a"], "document").texts
    longest = 128 - (len(word) - int(word.content.sum()))
    assert (longest < 126) == (prompt is not None)
    chunks = Chunks("windows", longest)
    require_fit(retriever, chunks)
    with pytest.raises(UserError, match="choose smaller windows"):
        require_fit(retriever, Chunks("windows", longest + 1))
    documents = {pair.document for pair in sample.pairs}
    windows = [one for text in documents for one in windows_of(retriever, text, chunks)]
    read = retriever.encode_texts(windows, "document").texts
    assert len(windows) > 1000 and not any(text.truncated for text in read)


def test_a_text_that_ends_in_an_unknown_token_is_read_to_the_end() -> None:
    """Words of a script that the tokenizer doesn't know become one token, so the vector no longer
    changes after the first of their characters."""
    read = Truncation(1, n_words=80, word=72, n_tokens=100, first=100, last=100, claimed=512)
    assert read.reads_all and read.as_claimed
    cut = replace(read, first=90, last=90, claimed=90)
    assert not cut.reads_all and cut.as_claimed
