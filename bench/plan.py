"""Hours and bytes that PosIR's 421,708 pairs and ten models need on 1, 8 and 64 GPUs.

    python -m bench.plan [--gpus 1 8 64] [--rate NAME=PAIRS_PER_SECOND ...] [--measure]

Computed by a formula, which a simulation of the executor checks. Every input is an argument;
`--measure` measures bytes, encoding and writing on this machine and prints them. A rate that
`precompute` shows on one GPU replaces the estimate from the model's size.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

from bench.options import run
from poslens.attribution.batching import GPU_BATCH_TOKENS
from poslens.attribution.retrievers.specs import presets
from poslens.attribution.types import TextPair

# The ten models of the PosIR paper, with the millions of parameters of their embedding tables
# (vocabulary times width), which need no operations.
TABLES: Mapping[str, float] = {
    "gte-multilingual-base": 250_048 * 768 / 1e6,
    "bge-m3": 250_002 * 1024 / 1e6,
    "Qwen3-Embedding-0.6B": 151_669 * 1024 / 1e6,
    "inf-retriever-v1-1.5b": 151_646 * 1536 / 1e6,
    "Qwen3-Embedding-4B": 151_665 * 2560 / 1e6,
    "inf-retriever-v1": 151_646 * 3584 / 1e6,
    "llama-embed-nemotron-8b": 128_256 * 4096 / 1e6,
    "Qwen3-Embedding-8B": 151_665 * 4096 / 1e6,
    "NV-Embed-v2": 32_000 * 4096 / 1e6,
    "KaLM-Embedding-Gemma3-12B-2511": 262_208 * 3840 / 1e6,
}
MODELS: Mapping[str, int] = {name: presets()[name].parameters or 0 for name in TABLES}
"""Millions of parameters of the models."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of the plan; comments state which are measured and which are assumed."""

    pairs: int = 421_708  # PosIR's own count
    document_tokens: float = 1100.0  # assumed mean, cut at 2,048 as the PosIR protocol does
    query_tokens: float = 30.0  # assumed
    peak_flops: float = 989e12  # H100 SXM's data sheet: dense bfloat16
    # Measured on an H100 with a model of the size of Qwen3-Embedding-0.6B (docs/performance.md): by
    # this formula, 88 pairs/s at 512 tokens are 0.097, and 19.5 pairs/s at 2,048 tokens are 0.083.
    # Larger models probably reach more.
    utilisation: float = 0.09
    # A forward pass takes 2 operations per parameter and token, without word embeddings, and a
    # gradient with respect to the inputs 2 more, because the weights need none. On two CPU cores
    # both together take as long as 2.1 to 2.3 forward passes (docs/performance.md).
    flops_per_parameter: float = 4.6
    load_bytes_per_second: float = 2e9  # assumed: weights from a local disk
    bytes_fixed: float = 1819.0  # measured: --measure
    bytes_per_token: float = 6.94  # measured: --measure
    encodes_per_second: float = 4000.0  # measured: --measure; one core per GPU
    writes_per_second: float = 9000.0  # measured: --measure
    slow_share: float = 0.05  # assumed: workers that run at half the speed
    lost_per_hour: float = 0.02  # assumed: failures of a worker per hour
    rates: Mapping[str, float] = field(default_factory=dict)  # measured pairs per second and GPU

    def rate(self, model: str) -> float:
        """Pairs per second on one GPU, including encoding by the same worker."""
        if model in self.rates:
            return self.rates[model]
        tokens = self.document_tokens + self.query_tokens
        working = (MODELS[model] - TABLES[model]) * 1e6
        flops = self.flops_per_parameter * working * tokens
        return 1 / (flops / (self.peak_flops * self.utilisation) + 1 / self.encodes_per_second)

    def load_seconds(self, model: str) -> float:
        """Seconds to read the weights, two bytes per parameter."""
        return 2e6 * MODELS[model] / self.load_bytes_per_second

    @property
    def result_bytes(self) -> float:
        """Bytes of one stored result."""
        return self.bytes_fixed + self.bytes_per_token * (self.document_tokens + self.query_tokens)

    @property
    def batch(self) -> int:
        """Number of pairs in a batch on a GPU."""
        return max(1, int(GPU_BATCH_TOKENS // self.document_tokens))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for one model on a number of GPUs."""

    model: str
    gpus: int
    seconds: float
    writing: bool  # whether the single writer limits the speed


def forecast(inputs: Inputs, model: str, gpus: int) -> Forecast:
    """The forecast by formula.

    It is the sum of the work divided by the speed of all workers, or the writer's time if that is
    longer; of loading the model once; of waiting at the end for half a batch on average; and, for
    each worker that fails, of half a batch and loading again, divided among all workers.
    """
    batch_seconds = inputs.batch / inputs.rate(model)
    slow = round(gpus * inputs.slow_share)
    speed = gpus - slow / 2
    computing = inputs.pairs / inputs.rate(model) / speed
    deaths = inputs.lost_per_hour * gpus * computing / 3600
    computing += deaths * (0.5 * batch_seconds + inputs.load_seconds(model)) / speed
    writing = inputs.pairs / inputs.writes_per_second
    tail = batch_seconds * (0.5 if gpus > 1 else 0)
    return Forecast(
        model,
        gpus,
        max(computing, writing) + tail + inputs.load_seconds(model),
        writing > computing,
    )


@dataclass(frozen=True, slots=True)
class Simulated:
    """The duration of a simulated run in seconds, the number of workers that failed, and how often
    each batch was stored."""

    seconds: float
    deaths: int
    stored: Sequence[int]


def simulate(inputs: Inputs, model: str, gpus: int, seed: int = 7) -> Simulated:
    """Simulate the executor by events: workers take batches, longest first, without a gap, because
    each has the next one already. Some are slow; some fail, which gives their batch to another, and
    return after loading the model. One writer stores the results."""
    chance = random.Random(seed)
    per_pair = 1 / inputs.rate(model)
    # Lengths have a log-normal distribution around the mean, truncated as in the protocol.
    lengths = sorted(
        (min(2048.0, chance.lognormvariate(0.0, 0.5)) for _ in range(inputs.pairs)), reverse=True
    )
    scale = len(lengths) / sum(lengths)
    batches = [lengths[s : s + inputs.batch] for s in range(0, len(lengths), inputs.batch)]
    work = [sum(batch) * scale * per_pair for batch in batches]
    slow = round(gpus * inputs.slow_share)
    speeds = [0.5 if worker < slow else 1.0 for worker in range(gpus)]
    todo = list(range(len(work)))[::-1]
    stored = [0] * len(work)
    load = inputs.load_seconds(model)
    # (time, worker, batch): the batch ends; -1 means that the worker is ready for one.
    events: list[tuple[float, int, int]] = [(load, worker, -1) for worker in range(gpus)]
    heapq.heapify(events)
    writer, deaths = 0.0, 0
    doomed: set[tuple[float, int, int]] = set()
    while events:
        event = heapq.heappop(events)
        now, worker, done = event
        if event in doomed:
            # The worker failed: another one takes the batch, and the worker loads the model again.
            doomed.discard(event)
            deaths += 1
            todo.append(done)
            heapq.heappush(events, (now + load, worker, -1))
            continue
        if done >= 0:
            stored[done] += 1
            writer = max(writer, now) + len(batches[done]) / inputs.writes_per_second
        if not todo:
            if any(other for _, _, other in events if other >= 0) and doomed:
                heapq.heappush(events, (now + 1.0, worker, -1))  # a lost batch may come back
            continue
        batch = todo.pop()
        seconds = work[batch] / speeds[worker]
        death = (
            chance.expovariate(inputs.lost_per_hour / 3600) if inputs.lost_per_hour else math.inf
        )
        if death < seconds:
            event = (now + death, worker, batch)
            doomed.add(event)
        else:
            event = (now + seconds, worker, batch)
        heapq.heappush(events, event)
    return Simulated(max(writer, load), deaths, stored)


def table(inputs: Inputs, gpus: Sequence[int]) -> str:
    """The hours of each model and in total, as a Markdown table."""
    head = ["model", "pairs/s on one GPU", *(f"hours on {n}" for n in gpus)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    totals = [0.0] * len(gpus)
    for model in MODELS:
        forecasts = [forecast(inputs, model, n) for n in gpus]
        hours = [forecast.seconds / 3600 for forecast in forecasts]
        totals = [a + b for a, b in zip(totals, hours, strict=True)]
        cells = [
            f"{h:.2f}" + (" (writer)" if e.writing else "")
            for h, e in zip(hours, forecasts, strict=True)
        ]
        lines.append(f"| {model} | {inputs.rate(model):.1f} | " + " | ".join(cells) + " |")
    free = replace(inputs, writes_per_second=math.inf)
    alone = [sum(forecast(free, model, n).seconds for model in MODELS) / 3600 for n in gpus]
    lines.append("| all ten | | " + " | ".join(f"**{total:.1f}**" for total in totals) + " |")
    lines.append(
        "| all ten, without the writer's limit | | "
        + " | ".join(f"{total:.1f}" for total in alone)
        + " |"
    )
    lines.append(
        "| GPU-hours | | "
        + " | ".join(f"{total * n:.0f}" for total, n in zip(totals, gpus, strict=True))
        + " |"
    )
    return "\n".join(lines)


def storage(inputs: Inputs) -> str:
    """The bytes of a result, of a model and in total, as a sentence."""
    n_bytes = inputs.result_bytes
    return (
        f"{n_bytes:,.0f} bytes per result, {n_bytes * inputs.pairs / 1e9:.1f} GB per model, "
        f"{n_bytes * inputs.pairs * len(MODELS) / 1e9:.0f} GB for all ten."
    )


def check(inputs: Inputs, gpus: Sequence[int]) -> str:
    """The formula compared with the simulation for a small, a medium and the largest model, as a
    Markdown table."""
    lines = [
        "| model | GPUs | formula, h | simulation, h | formula / simulation | workers lost |",
        "|---|---|---|---|---|---|",
    ]
    for model in (
        min(MODELS, key=MODELS.__getitem__),
        "Qwen3-Embedding-4B",
        max(MODELS, key=MODELS.__getitem__),
    ):
        for n in gpus:
            seconds = forecast(inputs, model, n).seconds
            simulated = simulate(inputs, model, n)
            assert set(simulated.stored) == {1}
            lines.append(
                f"| {model} | {n} | {seconds / 3600:.2f} | {simulated.seconds / 3600:.2f} | "
                f"{seconds / simulated.seconds:.3f} | {simulated.deaths} |"
            )
    return "\n".join(lines)


def measured() -> dict[str, float]:
    """Bytes per result and rates of encoding and writing, measured with random results. One thread
    encodes. The writer is a whole run (claims, checks, commits) that receives the encoded results
    of 64 GPUs."""
    import numpy as np

    from bench.store import METHOD, MODEL
    from bench.timing import timed
    from poslens.attribution.types import Attribution, TokenizedText
    from poslens.cache.jobs.attributions import precompute
    from poslens.cache.storage.encoded import Computed, encoded
    from poslens.cache.storage.store import Store

    chance = np.random.default_rng(7)
    words = ["harbour", "light", "turns", "slowly", "above", "grey", "water", "tide", "##s", "boat"]

    def text(n: int) -> TokenizedText:
        chosen = chance.choice(words, n)
        starts = np.concatenate([[0], np.cumsum([len(w) + 1 for w in chosen])[:-1]])
        ends = starts + [len(w) for w in chosen]
        return TokenizedText(tuple(map(str, chosen)), starts, ends, np.zeros(n, np.bool_), n, 2048)

    def result(number: int, n_tokens: int) -> tuple[TextPair, Attribution]:
        query, document = text(30), text(n_tokens)
        q, d = (chance.gamma(2, 0.01, n).astype(np.float32) for n in (30, n_tokens))
        attribution = Attribution("m", METHOD, f"p{number}", 0.5, query, document, q, d)
        return TextPair(f"p{number}", "q", f"d{number}", dataset="set"), attribution

    usual = Inputs()
    lengths = (300, int(usual.document_tokens))
    sizes, encoding = [], []
    for n_tokens in lengths:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder))
            for turn in range(10):
                first = turn * usual.batch
                random_results = [result(first + k, n_tokens) for k in range(usual.batch)]
                n = len(random_results)
                batch, _, seconds = timed(partial(encoded, random_results, METHOD))
                encoding.append(n / seconds)
                store.put_encoded(MODEL, METHOD, batch)
            store.release()  # moves SQLite's log into the file
            size = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
            sizes.append(size / (10 * n))

    class InFlight:
        """64 GPUs with two batches each, whose results arrive in groups of four batches."""

        def batches(self, pairs: Sequence[TextPair]) -> Iterator[list[TextPair]]:
            for first in range(0, len(pairs), usual.batch):
                yield list(pairs[first : first + usual.batch])

        def compute(self, batches: Iterator[list[TextPair]]) -> Iterator[Computed]:
            given = deque(islice(batches, 128))
            while given:
                together = [given.popleft() for _ in range(min(4, len(given)))]
                given += islice(batches, len(together))
                yield Computed.merged([replace(batch, pairs=pairs) for pairs in together])

    document = " ".join(words) * 80
    writing = []
    for _ in range(3):
        pairs = [TextPair(f"p{k}", f"q{k}", document, dataset="set") for k in range(200 * n)]
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder))
            done = precompute(InFlight(), MODEL, METHOD, pairs, store)
            store.release()
        writing.append(done.computed / done.seconds)
    per_token = (sizes[1] - sizes[0]) / (lengths[1] - lengths[0])
    return {
        "bytes_fixed": round(sizes[0] - per_token * (lengths[0] + 30), 1),
        "bytes_per_token": round(per_token, 2),
        "encodes_per_second": round(statistics.median(encoding[len(encoding) // 2 :])),
        "writes_per_second": round(statistics.median(writing)),
    }


USUAL = Inputs()


def main(
    gpus: tuple[int, ...] = (1, 8, 64),
    rate: Annotated[tuple[str, ...], {"metavar": "NAME=PAIRS_PER_SECOND"}] = (),
    measure: Annotated[bool, {"help": "measure the store on this machine"}] = False,
    pairs: int = USUAL.pairs,
    document_tokens: float = USUAL.document_tokens,
    query_tokens: float = USUAL.query_tokens,
    peak_flops: float = USUAL.peak_flops,
    utilisation: float = USUAL.utilisation,
    encodes_per_second: float = USUAL.encodes_per_second,
    writes_per_second: float = USUAL.writes_per_second,
) -> None:
    """Print the plan."""
    rates = {name: float(value) for name, value in (each.rsplit("=", 1) for each in rate)}
    inputs = Inputs(
        pairs,
        document_tokens,
        query_tokens,
        peak_flops,
        utilisation,
        encodes_per_second=encodes_per_second,
        writes_per_second=writes_per_second,
        rates=rates,
    )
    if measure:
        values = measured()
        print("Measured on this machine:", values, end="\n\n")
        inputs = replace(inputs, **values)  # type: ignore[arg-type]
    print(table(inputs, gpus), storage(inputs), check(inputs, gpus), sep="\n\n")


if __name__ == "__main__":
    run(main)
