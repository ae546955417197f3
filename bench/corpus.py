"""Time and memory to read a BEIR corpus of 50,000 documents up to its first pair.

    python -m bench.corpus [--documents 50000] [--rounds 5]

Each round is a new process: register the folder, read it, take the first pair. `judged` is the
number of documents with a judgment; `more` is the growth of the resident set after the imports.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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

    def resident(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

    before = resident("VmRSS")
    started = time.perf_counter()
    (name,) = datasets.register("corpus", folder)
    assert datasets.read(name).pairs[0].document
    return {"seconds": time.perf_counter() - started, "bytes": resident("VmHWM") - before}


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    with tempfile.TemporaryDirectory() as root:
        for judged in (1_000, options.documents):
            folder = Path(root) / str(judged)
            write(folder, options.documents, judged)
            command = [sys.executable, "-m", "bench.corpus", "--measure", str(folder)]
            results = [
                json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
                for _ in range(options.rounds)
            ]
            seconds, peak = (statistics.median(r[k] for r in results) for k in ("seconds", "bytes"))
            print(
                f"{options.documents:,} documents, {judged:6,} judged: {seconds:.2f} s, "
                f"{peak / 2**20:.0f} MiB more"
            )


if __name__ == "__main__":
    main()
