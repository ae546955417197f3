"""The attribution methods: one table of what there is, which parameters it has and what fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attribution.batching import (
    CPU_BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    batches,
    halving,
    stoppable,
)
from attribution.curves.positions import (
    NORMALIZATIONS,
    RESAMPLINGS,
    Aggregate,
    curve_params,
)
from attribution.errors import Stopped, UserError
from attribution.methods import decomposition, exact, gradients, occlusion, saliency
from attribution.retrievers.base import Retriever
from attribution.types import Attribution, Method, TextPair

Compute = Callable[[Any, Method, Sequence[TextPair]], list[Attribution]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a method: its values, the first being the default."""

    name: str
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method as the pages and the command line offer it.

    `version` is part of the key: raise it when the numbers change. `aggregate` makes a word's or
    sentence's number of its tokens': the sum of shares and effects, which add up, but the mean of
    lengths, whose sum counts pieces.
    """

    name: str
    title: str
    help: str
    unit: str
    signed: bool
    families: tuple[str, ...]
    version: int
    compute: Compute
    parameters: tuple[Parameter, ...] = ()
    aggregate: Aggregate = "sum"


CURVE_PARAMETERS = (
    Parameter(
        "normalization",
        NORMALIZATIONS,
        "How a document is scaled before averaging: p99 clips at its 99th percentile and divides "
        "by it (PosIR's scripts), max divides by its largest value (PosIR's text), none keeps it.",
    ),
    Parameter(
        "resampling",
        RESAMPLINGS,
        "How tokens become 100 points: bin_mean averages every token into its bin, point samples "
        "by interpolation (PosIR) and looks at no more than 200 tokens.",
    ),
)

POSIR_CURVE = {"normalization": "p99", "resampling": "point"}
"""Curve parameters of the PosIR protocol."""

_COMPARED = ("late_interaction", "sparse", "cross_encoder")
"""Families beside dense ones whose score has a gradient at word embeddings."""

METHODS: dict[str, MethodEntry] = {
    "saliency": MethodEntry(
        name="saliency",
        title="Gradient saliency",
        help="Length of the score's gradient at each word embedding: where the score is sensitive.",
        unit="‖∂s/∂e‖₂",
        signed=False,
        families=("dense", *_COMPARED),
        version=1,
        compute=saliency.attribute,
        parameters=(Parameter("norm", ("l2",), "Norm over the embedding's dimensions."),),
        aggregate="mean",
    ),
    "decomposition": MethodEntry(
        name="decomposition",
        title="Token decomposition",
        help="Each token's exact, signed share of the score, with attention, norms and activations "
        "frozen at their values for this input; shares and the bias share add up to the score.",
        unit="share of the score",
        signed=True,
        families=("dense", "cross_encoder"),
        version=1,
        compute=decomposition.attribute,
        parameters=(
            Parameter(
                "matrix",
                ("no", "yes"),
                "Also the share of each query token with each document token.",
            ),
            Parameter(
                "biases",
                decomposition.BIASES,
                "Where constants go: explicit, all into the bias share; decompx, the first layer's "
                "value bias to its token; absdot, every one to the tokens by |bias · vector|, as "
                "DecompX is configured (BERT-like models; texts of up to 512 tokens).",
            ),
            Parameter(
                "part",
                decomposition.PARTS,
                "position keeps what the tokens' position embeddings bring of their shares (models "
                "that add them), word all the rest: how much hangs on where a token stands.",
            ),
        ),
    ),
    "input_x_gradient": MethodEntry(
        name="input_x_gradient",
        title="Input × gradient",
        help="Word embedding times gradient: a first-order, signed estimate that need not add up.",
        unit="score",
        signed=True,
        families=("dense", *_COMPARED),
        version=1,
        compute=gradients.input_x_gradient,
    ),
    "integrated_gradients": MethodEntry(
        name="integrated_gradients",
        title="Integrated gradients",
        help="Gradients averaged on the way from padding tokens to the text: signed shares of the "
        "score above the padding's score. Slow.",
        unit="score",
        signed=True,
        families=("dense", *_COMPARED),
        version=1,
        compute=gradients.integrated_gradients,
        parameters=(
            Parameter(
                "steps",
                ("auto", "16", "32", "64", "128", "256", "512"),
                "Points on the way; auto doubles them until the shares add up, to 0.1% of it.",
            ),
        ),
    ),
    "terms": MethodEntry(
        name="terms",
        title="Term shares",
        help="Each term's exact share of the score. BM25: a document token has its query term's "
        "part, spread evenly over the term's occurrences. SPLADE: query weight times document "
        "weight, at the two tokens the weights come from. Adds up exactly.",
        unit="share of the score",
        signed=True,
        families=("lexical", "sparse"),
        version=1,
        compute=exact.attribute,
    ),
    "maxsim": MethodEntry(
        name="maxsim",
        title="MaxSim shares",
        help="Each document token's exact share of the score: the similarities of the query tokens "
        "it wins, summed. Adds up exactly.",
        unit="share of the score",
        signed=True,
        families=("late_interaction",),
        version=1,
        compute=exact.attribute,
        parameters=(
            Parameter(
                "matrix",
                ("winners", "similarities"),
                "What the matrix shows: each query token's winner, or all similarities.",
            ),
        ),
    ),
    "occlusion": MethodEntry(
        name="occlusion",
        title="Occlusion",
        help="How far the score falls when a unit is replaced by padding tokens: signed. Slow.",
        unit="score",
        signed=True,
        families=("dense", "lexical", *_COMPARED),
        version=1,
        compute=occlusion.attribute,
        parameters=(
            Parameter("level", ("word", "token", "sentence"), "What is replaced at a time."),
        ),
    ),
}


def make_method(name: str, options: Mapping[str, str] | None = None) -> Method:
    """A method with its parameters, defaults filled in.

    Raises:
        UserError: an unknown method, parameter or value.
    """
    entry = METHODS.get(name)
    if entry is None:
        raise UserError(f"There is no method {name[:80]!r}: choose one of {', '.join(METHODS)}.")
    given = dict(options or {})

    def take(parameters: Sequence[Parameter]) -> dict[str, str]:
        taken = {}
        for parameter in parameters:
            value = given.pop(parameter.name, parameter.choices[0])
            if value not in parameter.choices:
                raise UserError(
                    f"{parameter.name} cannot be {value[:80]!r}: choose one of "
                    f"{', '.join(parameter.choices)}."
                )
            taken[parameter.name] = value
        return taken

    params = {**take(entry.parameters), "version": entry.version}
    shape = curve_params(**take(CURVE_PARAMETERS))
    if given:
        known = ", ".join(p.name for p in (*entry.parameters, *CURVE_PARAMETERS))
        raise UserError(f"{name} has no parameter {next(iter(given))!r}: it has {known}.")
    return Method(name, params, shape)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pair with its result or with the sentence that says why there is none."""

    pair: TextPair
    attribution: Attribution | None
    reason: str = ""


def pair_batches(
    pairs: Sequence[TextPair], device: str, max_length: int, max_tokens: int | None = None
) -> Iterator[list[TextPair]]:
    """Pairs in batches of like length, longest first, for a retriever on a device of this type
    that reads `max_length` tokens of a document."""
    if max_tokens is None:
        max_tokens = CPU_BATCH_TOKENS if device == "cpu" else GPU_BATCH_TOKENS

    def length(pair: TextPair) -> int:
        # Bytes over four are close to tokens in every script, and cost no tokenizing.
        return min(len(pair.document.encode("utf-8", "replace")) // 4 + 8, max_length)

    return batches(pairs, length, max_tokens)


def attribute_batch(
    retriever: Retriever, method: Method, batch: Sequence[TextPair]
) -> list[Outcome]:
    """Attribute pairs together. One that fails takes nobody with it: the batch is then computed
    again one by one."""
    entry = METHODS[method.name]
    try:
        results = halving(lambda part: entry.compute(retriever, method, part), list(batch))
    except Stopped:
        raise
    except UserError as error:
        if len(batch) == 1:
            return [Outcome(batch[0], None, str(error))]
        return [outcome for pair in batch for outcome in attribute_batch(retriever, method, [pair])]
    return [Outcome(pair, result) for pair, result in zip(batch, results, strict=True)]


def attribute_batches(
    retriever: Retriever,
    method: Method,
    pairs: Sequence[TextPair],
    should_stop: Callable[[], bool] = lambda: False,
    max_tokens: int | None = None,
) -> Iterator[list[Outcome]]:
    """Attribute all pairs batch by batch; asks `should_stop` before each.

    Raises:
        Stopped: it said so within one.
    """
    for batch in pair_batches(pairs, retriever.device.type, retriever.max_length, max_tokens):
        if should_stop():
            return
        with stoppable(should_stop):
            found = attribute_batch(retriever, method, batch)
        yield found
