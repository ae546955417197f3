"""Time and memory to read a BEIR corpus of 50,000 documents up to its first pair.

    python -m bench.corpus [--documents 50000] [--rounds 5]

Each round is a new process: register the folder, read it, take the first pair. `judged` is the
number of documents with a judgment; `more` is the growth of the resident set after the imports.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from pathlib import Path

from bench.options import run
from bench.processes import apart, memory
from bench.timing import timed

TEXT = "the harbour light turns slowly above grey water while boats return with the tide"


def write(folder: Path, documents: int, judged: int) -> None:
    """Write a corpus in BEIR's layout, with 150 to 350 words per document and one query for each
    judged one."""
    chance, words = random.Random(7), TEXT.split()
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for number in range(documents):
            text = " ".join(chance.choices(words, k=chance.randint(150, 350)))
            file.write(json.dumps({"_id": f"d{number}", "title": "Notes", "text": text}) + "\n")
    chosen = sorted(chance.sample(range(documents), judged))
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        for number in chosen:
            file.write(json.dumps({"_id": f"q{number}", "text": f"grey water {number}"}) + "\n")
    with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"q{number}\td{number}\t1\n" for number in chosen)


def measure(folder: str) -> dict[str, float]:
    """Seconds and bytes of reading the corpus once in this process."""
    from poslens.attribution import datasets

    def read() -> None:
        (name,) = datasets.register("corpus", folder)
        assert datasets.read(name).pairs[0].document

    before = memory("VmRSS")
    seconds = timed(read).wall
    return {"seconds": seconds, "bytes": memory("VmHWM") - before}


def main(documents: int = 50_000, rounds: int = 5) -> None:
    """Print medians."""
    with tempfile.TemporaryDirectory() as root:
        for judged in (1_000, documents):
            folder = Path(root) / str(judged)
            write(folder, documents, judged)
            results = [apart(measure, str(folder)) for _ in range(rounds)]
            seconds, peak = (statistics.median(r[k] for r in results) for k in ("seconds", "bytes"))
            print(
                f"{documents:,} documents, {judged:6,} judged: {seconds:.2f} s, "
                f"{peak / 2**20:.0f} MiB more"
            )


if __name__ == "__main__":
    run(main)
