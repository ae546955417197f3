"""Speed, size and memory of the store, compared with plain files.

    python -m bench.store [--results 10000] [--rounds 7] [--model]
    python -m bench.store --throughput
    python -m bench.store --memory 1000000

- `point read`: reading one result, median and 99th percentile;
- `curves`: reading the curves of all pairs of a data set whose texts are already hashed, compared
  with numpy.load of the same bytes: without cached data of the file, with the system's page cache
  warm or (as root, with --cold) dropped; again; and after one new result;
- `ten times`: the curves of ten times as many results;
- `appends`: 1,000 puts of one result, the last tenth compared with the first;
- `disk`: the file's size compared with a Parquet file (zstd) of the same results;
- `drop`: removing the model;
- `writes` (--model): storing batches of 64, relative to computing them with MiniLM on one thread;
- `throughput` (--throughput, alone): results of 250 and of 1,100 tokens per second that one thread
  encodes and commits in batches of 64, alternating with commits of encoded results;
- `memory` (--memory N, alone): the maximum memory of this process while N results are stored, and
  while 100,000, half and all of them are listed, averaged with intervals and exported. The results
  are 256 random ones of 250 tokens under N names, because computing so many would take days; 4.5
  pairs share a document.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.options import run
from bench.timing import interleaved, ratio, timed
from poslens.attribution.curves.curve_summary import summarize
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import Attribution, TextPair, TokenizedText
from poslens.cache.exchange.rows import stored
from poslens.cache.exchange.transfer import export
from poslens.cache.storage import index
from poslens.cache.storage.encoded import Computed, encoded
from poslens.cache.storage.maintenance import drop_file, listing
from poslens.cache.storage.rows import ROW
from poslens.cache.storage.store import ModelKey, Store

METHOD = make_method("saliency")
MODEL = ModelKey("bench", "0123456789abcdef")
WORDS = "harbour light turns slowly above grey water while boats return".split()
BATCH = 64


def result(n: int, tokens: int | None = None) -> tuple[TextPair, Attribution]:
    """A random result for a document of 60 to 400 tokens, or `tokens`, and a query of 12."""
    generator, chance = random.Random(n), np.random.default_rng(n)

    def read(words: list[str]) -> TokenizedText:
        lengths = np.array([len(word) for word in words])
        ends, n = np.cumsum(lengths + 1) - 1, len(words)
        return TokenizedText(tuple(words), ends - lengths, ends, np.zeros(n, np.bool_), n, 512)

    document = generator.choices(WORDS, k=tokens or generator.randint(60, 400))
    query = [*generator.choices(WORDS, k=11), str(n)]
    of_query, of_document = (
        chance.gamma(2, 0.01, len(text)).astype(np.float32) for text in (query, document)
    )
    pair = TextPair(f"p{n}", " ".join(query), " ".join(document), language="eng", dataset="bench")
    return pair, Attribution(
        "bench", METHOD, pair.pair_id, 0.5, read(query), read(document), of_query, of_document
    )


def seconds(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    return timed(call).wall


def point_reads(store: Store, n: int) -> None:
    """Print the time of reading random results."""
    generator = random.Random(0)
    pairs = [result(generator.randrange(n))[0] for _ in range(1000)]
    took = sorted(1000 * seconds(partial(store.get, MODEL, METHOD, pair)) for pair in pairs)
    print(f"point read of {n:,}: p50 {took[500]:.2f} ms, p99 {took[990]:.2f} ms")


def curves(store: Store, n: int, folder: Path, rounds: int, cold: bool) -> list[float]:
    """Print the time of reading all curves, compared with numpy.load; returns the store's seconds
    in each round."""
    # Including the pairs that are stored later, because the data set must not change.
    pairs = Pairs(result(k)[0] for k in range(n + rounds))
    np.save(folder / "curves.npy", store.curves(MODEL, METHOD, pairs).curves)

    def read() -> None:
        index.forget_below(folder)
        store.curves(MODEL, METHOD, pairs)

    took = interleaved({"store": read, "numpy": lambda: np.load(folder / "curves.npy")}, rounds)
    print(
        f"{n:,} curves, warm: {1000 * statistics.median(took['store']):.1f} ms, "
        f"{ratio(took['store'], took['numpy']):.1f}x numpy.load"
    )
    if cold:
        store.release()
        both: dict[str, list[float]] = {"store": [], "numpy": []}
        for _ in range(rounds):
            for name, call in (("store", read), ("numpy", lambda: np.load(folder / "curves.npy"))):
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
                both[name].append(seconds(call))
        print(
            f"{n:,} curves, cold: {1000 * statistics.median(both['store']):.1f} ms, "
            f"{ratio(both['store'], both['numpy']):.1f}x numpy.load"
        )
    again = [seconds(lambda: store.curves(MODEL, METHOD, pairs)) for _ in range(rounds)]
    print(
        f"{n:,} curves again: {1000 * statistics.median(again):.2f} ms, "
        f"{ratio(again, took['numpy']):.2f}x numpy.load"
    )
    new = []
    for k in range(rounds):
        store.put(MODEL, METHOD, [result(n + k)])
        new.append(seconds(lambda: store.curves(MODEL, METHOD, pairs)))
    print(f"{n:,} curves after one new result: {1000 * statistics.median(new):.1f} ms")
    return took["store"]


def single_appends(folder: Path, n: int) -> None:
    """Print the time of single puts, and of the last ones relative to the first."""
    store, results = Store(folder), [result(k) for k in range(n)]
    store.put(MODEL, METHOD, [result(n)])
    took = [seconds(partial(store.put, MODEL, METHOD, [result])) for result in results]
    tenth = n // 10
    first, last = sum(took[:tenth]), sum(took[-tenth:])
    print(
        f"{n:,} single appends: median {1000 * statistics.median(took):.1f} ms, "
        f"last tenth {last / first:.2f}x the first"
    )
    store.release()


def disk(store: Store, folder: Path) -> None:
    """Print the size of the store's file, compared with a Parquet file of the same results."""
    store.release()
    size = store.path(MODEL, METHOD).stat().st_size
    with pq.ParquetWriter(folder / "all.parquet", ROW, compression="zstd") as writer:
        for batch in stored(store, MODEL, METHOD):
            writer.write_table(pa.Table.from_batches([batch]))
    parquet = (folder / "all.parquet").stat().st_size
    print(f"disk: {size / 2**20:.1f} MiB, {size / parquet:.2f}x Parquet")


def writes(folder: Path) -> None:
    """Print the time of storing results relative to computing them with MiniLM."""
    import torch

    from poslens.attribution.methods.saliency import attribute
    from poslens.attribution.retrievers.dense import DenseRetriever
    from poslens.attribution.retrievers.load import load
    from poslens.attribution.retrievers.resolve import resolve

    torch.set_num_threads(1)
    retriever, store, shares = load(resolve("MiniLM"), device="cpu"), Store(folder), []
    assert isinstance(retriever, DenseRetriever)
    for n in range(3):
        pairs = [result(BATCH * n + k)[0] for k in range(BATCH)]
        started = time.perf_counter()
        done = [
            a for k in range(0, BATCH, 8) for a in attribute(retriever, METHOD, pairs[k : k + 8])
        ]
        computing = time.perf_counter() - started
        put = seconds(partial(store.put, MODEL, METHOD, list(zip(pairs, done, strict=True))))
        shares.append(put / computing)
    print(f"writing batches of {BATCH}: {100 * statistics.median(shares):.2f}% of computing them")
    store.release()


def encode_and_commit(batches: list[list[tuple[TextPair, Attribution]]], store: Store) -> None:
    """Store batches of results."""
    for batch in batches:
        store.put(MODEL, METHOD, batch)


def commit(batches: list[Computed], store: Store) -> None:
    """Store batches of encoded results."""
    for batch in batches:
        store.put_encoded(MODEL, METHOD, batch)


def drop(store: Store) -> None:
    """Remove all files of a store."""
    for file in listing(store):
        drop_file(file)


def print_throughput(folder: Path, rounds: int) -> None:
    """Print the results per second that are encoded and committed, as medians over rounds."""
    for tokens in (250, 1100):
        results = [result(k, tokens) for k in range(960)]
        batches = [results[at : at + BATCH] for at in range(0, len(results), BATCH)]
        done = [encoded(batch, METHOD) for batch in batches]
        contenders = {
            "encoded and committed": partial(encode_and_commit, batches),
            "committed": partial(commit, done),
        }
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for number in range(rounds + 1):
            for name, contender in contenders.items():
                store = Store(folder / f"{tokens}-{number}-{name}")
                store.put(MODEL, METHOD, results[:1])
                _, wall, cpu = timed(partial(contender, store))
                if number:  # the first round is a warm-up
                    rates[name].append((len(results) / wall, len(results) / cpu))
                store.release()
        for name, both in rates.items():
            by_clock, by_processor = (statistics.median(each) for each in zip(*both, strict=True))
            print(f"{tokens:,} tokens, {name}, results a second: {by_clock:,.0f}", end=" ")
            print(f"by the clock, {by_processor:,.0f} by processor time")


def print_memory(folder: Path, n: int) -> None:
    """Print the maximum memory of each step of a run over `n` results."""
    process, most = psutil.Process(), [0]
    started = process.memory_info().rss

    def watch() -> None:
        while True:
            most[0] = max(most[0], process.memory_info().rss)
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    store, results = Store(folder / "many"), [result(k, 250) for k in range(256)]
    batch, words = encoded(results, METHOD), results[0][0].document[:1000]
    pairs: list[TextPair] = []
    sentences: list[str] = []

    def step(name: str, call: Callable[[], object]) -> None:
        most[0] = 0
        took = seconds(call)
        sentences.append(f"{name} {most[0] / 2**20:,.0f} MiB, {took:.0f} s")

    def put() -> None:
        first = len(pairs)
        for k in range(first, min(first + 100_000, n)):
            if k == first or k % 9 in (0, 5):  # 4.5 pairs per document
                document = f"{k} {words}"
            pairs.append(TextPair(f"p{k}", f"where does {k} lie", document, dataset="bench"))
        for start in range(first, len(pairs), len(results)):
            portion = pairs[start : start + len(results)]
            part = (
                batch if len(portion) == len(results) else encoded(results[: len(portion)], METHOD)
            )
            store.put_encoded(MODEL, METHOD, replace(part, pairs=portion))

    def listed() -> None:
        assert not store.missing(MODEL, METHOD, asked)
        assert sum(file.results for file in listing(store)) == len(pairs)

    def averaged() -> None:
        curves = store.curves(MODEL, METHOD, asked)
        summarize(
            curves.curves,
            [pair.document for pair in pairs],
            model="bench",
            dataset="bench",
            method=METHOD,
            n_truncated=curves.n_truncated,
            n_failed=0,
            magnitudes=curves.magnitudes,
        )

    def exported() -> None:
        assert export(store, listing(store), folder / "all.parquet", poslens="bench") == len(pairs)

    print(f"at the start: {started / 2**20:,.0f} MiB")
    while len(pairs) < n:
        step("stored", put)
        if len(pairs) in (100_000, n // 2) or len(pairs) >= n:
            asked = Pairs(pairs)
            step("listed", listed)
            step("averaged", averaged)
        if len(pairs) >= n or len(pairs) == 100_000:
            step("exported", exported)
        now = process.memory_info().rss / 2**20
        print(f"{len(pairs):,}: {'; '.join(sentences)}; then {now:,.0f} MiB", flush=True)
        sentences.clear()
    store.release()


def read_all(store: Store, n: int, folder: Path, rounds: int, cold: bool) -> list[float]:
    """Store `n` results and print the time of reading them; returns the seconds of reading all
    curves in each round."""
    numbers = range(n)
    for first in range(0, n, BATCH):
        store.put(MODEL, METHOD, list(map(result, numbers[first : first + BATCH])))
    point_reads(store, n)
    return curves(store, n, folder, rounds, cold)


def main(
    results: int = 4000,
    appends: int = 1000,
    rounds: int = 7,
    cold: Annotated[bool, {"help": "drop the page cache (root)"}] = False,
    model: Annotated[bool, {"help": "also compute with MiniLM"}] = False,
    throughput: Annotated[bool, {"help": "only the rate of writing"}] = False,
    memory: Annotated[int, {"help": "only the memory of so many results"}] = 0,
) -> None:
    """Print each figure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if throughput:
            print_throughput(folder, rounds)
            return
        if memory:
            print_memory(folder, memory)
            return
        small, large = Store(folder / "small"), Store(folder / "large")
        of_small = read_all(small, results, folder, rounds, cold)
        disk(small, folder)
        of_large = read_all(large, 10 * results, folder, rounds, cold)
        print(f"{10 * results:,} curves: {ratio(of_large, of_small):.1f}x the time of {results:,}")
        for store, n in ((small, results), (large, 10 * results)):
            print(f"dropping {n:,} results: {1000 * seconds(partial(drop, store)):.0f} ms")
        single_appends(folder / "appends", appends)
        if model:
            writes(folder / "writes")


if __name__ == "__main__":
    run(main)
