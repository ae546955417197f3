"""Random models of all families but dense, in the format of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)


def late_interaction(raw: Path, folder: Path, **options: Any) -> Path:
    """A ColBERT on the transformers model in `raw`: query expansion, a skip list, a projection
    without bias, vectors of length 1."""
    torch.manual_seed(3)
    expansion = options.pop("expansion", {"strategy": "fixed", "length": 12})
    reader = Transformer(
        str(raw), query_expansion=expansion, document_length=options.pop("document_length", 64)
    )
    projection = Dense(
        32,
        16,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
        module_output_name="token_embeddings",
    )
    modules = [
        reader,
        projection,
        Normalize(module_input_name="token_embeddings", module_output_name="token_embeddings"),
        MultiVectorMask(skiplist_words=[".", ","]),
    ]
    MultiVectorEncoder(modules=modules, **options).save_pretrained(str(folder))
    return folder


TEMPLATE = (
    "{% for m in messages %}"
    "<|{{ m['role'] }}|> "
    "{{ m['content'] if m['content'] is string else m['content'][0]['text'] }}\n"
    "{% endfor %}answer:"
)


def cross_encoder(raw: Path, folder: Path, labels: int = 1) -> Path:
    """A classification head on the configuration in `raw`, with its tokenizer extended to join
    pairs as in its family."""
    config = AutoConfig.from_pretrained(raw, num_labels=labels)
    torch.manual_seed(11)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    _spread(model)
    tokenizer = AutoTokenizer.from_pretrained(raw)
    begin, end = (
        tokenizer.cls_token or tokenizer.bos_token,
        tokenizer.sep_token or tokenizer.eos_token,
    )
    # The trained tokenizers can't join pairs.
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(t, tokenizer.convert_tokens_to_ids(t)) for t in (begin, end)],
    )
    joined = folder / "raw"
    model.save_pretrained(joined)
    tokenizer.save_pretrained(joined)
    CrossEncoder(str(joined)).save_pretrained(str(folder / "model"))
    return folder / "model"


def generative(raw: Path, folder: Path, template: str = TEMPLATE) -> Path:
    """A causal language model that says "yes" or "no" after a chat template."""
    config = AutoConfig.from_pretrained(raw)
    torch.manual_seed(13)
    model = AutoModelForCausalLM.from_config(config).eval()
    _spread(model)
    tokenizer = AutoTokenizer.from_pretrained(raw)
    tokenizer.chat_template = template
    tokenizer.padding_side = "left"
    model.save_pretrained(folder / "raw")
    tokenizer.save_pretrained(folder / "raw")
    reader = Transformer(str(folder / "raw"), transformer_task="text-generation")
    CrossEncoder(modules=[reader, LogitScore(true_token_id=40, false_token_id=50)]).save_pretrained(
        str(folder / "model")
    )
    return folder / "model"


def seq2seq(folder: Path, model_type: str = "t5", **settings: Any) -> Path:
    """A T5 that answers with one of the first two whole words of its vocabulary."""
    from tests.support import tiny_models

    tokenizer = tiny_models.train_tokenizer("unigram")
    words = [t for t in sorted(tokenizer.get_vocab()) if t[0] == "\u2581" and t[1:].isalpha()]
    words = [
        t[1:] for t in words if len(tokenizer(t[1:], add_special_tokens=False)["input_ids"]) == 1
    ]
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=32,
        decoder_start_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        answers=words[:2],
        **settings,
    )
    torch.manual_seed(19)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    _spread(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sparse(raw: Path, folder: Path, strategy: str = "max", **options: Any) -> Path:
    """A masked language model on the configuration and tokenizer in `raw`, SPLADE pooling."""
    config = AutoConfig.from_pretrained(raw)
    torch.manual_seed(17)
    model = AutoModelForMaskedLM.from_config(config).eval()
    _spread(model)
    with torch.no_grad():  # most terms of a text have weight 0, as in a trained model
        model.get_output_embeddings().bias.fill_(-1.5)
    model.save_pretrained(folder / "raw")
    AutoTokenizer.from_pretrained(raw).save_pretrained(folder / "raw")
    reader = Transformer(str(folder / "raw"), transformer_task="fill-mask")
    encoder = SparseEncoder(modules=[reader, SpladePooling(strategy)], **options)
    encoder.save_pretrained(str(folder / "model"))
    return folder / "model"


def _spread(model: torch.nn.Module) -> None:
    """Random initialization is too uniform for a test to detect a mistake."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(6)
