"""Compare the numbers of a CUDA GPU with the CPU's, and measure its speed.

    python -m bench.gpu [--parts proof kernels memory spread speed] [--models NAME ...]
                        [--out gpu.json]

- `proof`: every method on every supported architecture, or on those of `--models`, in float32,
  bfloat16 and float16, compared with the CPU in float32;
- `kernels`: the same with each attention kernel alone, and with flash attention 2 if available;
- `memory`: batches that do not fit into the GPU's memory;
- `spread`: a model whose layers are spread over all GPUs of the machine;
- `speed`: pairs per second of random models at 512, 2,048 and 8,192 tokens, of PosIR's published
  loop, and of a large matrix product in the same precision, interleaved.

Prints tables and writes all results with their provenance as JSON. The exit code is 1 if a number
differs from the CPU's.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers.utils import logging

from bench.contenders import pairs
from bench.encoders import SIZES, build
from bench.gpu_proof import (
    Case,
    Halved,
    halves,
    kernels,
    limited,
    memory_of,
    prove,
    spread,
)
from bench.gpu_speed import Speed, measure, release
from bench.options import run
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import TextPair
from poslens.version import __version__

PRECISIONS = ("float32", "bfloat16", "float16")
LENGTHS = (512, 2048, 8192)
SPEEDS = {"MiniLM-sized": ("float32", "bfloat16"), "0.6B": ("float32", "bfloat16")}
"""Precisions in which models of each size are measured; bfloat16 for sizes that are missing."""

PARTS = ("proof", "kernels", "memory", "spread", "speed")
SIZE_NAMES = tuple(size.name for size in SIZES)

DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(slots=True)
class Report:
    """The results; `failed` is the number of cases that differ from the CPU."""

    provenance: dict[str, Any]
    cases: list[Case] = field(default_factory=list)
    halved: Halved | None = None
    speeds: list[Speed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Number of cases that did not pass."""
        halved = self.halved is not None and not self.halved.passed
        return sum(case.passed is False for case in self.cases) + halved


def why_not() -> str:
    """Why nothing can be measured on this machine, as a sentence; empty if there is a CUDA GPU."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return (
            f"bench.gpu needs a CUDA GPU, and torch {torch.__version__} is built without CUDA: "
            "install a build with it on a machine that has one."
        )
    return "bench.gpu needs a CUDA GPU, and torch finds none on this machine."


def provenance(device: str) -> dict[str, Any]:
    """Software and hardware on which the numbers depend."""
    entries: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "poslens": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "sentence_transformers": version("sentence-transformers"),
        "captum": version("captum"),
        "threads": torch.get_num_threads(),
    }
    if torch.device(device).type == "cuda":
        chip = torch.cuda.get_device_properties(device)
        entries |= {
            "chip": chip.name,
            "chips": torch.cuda.device_count(),
            "memory_gb": round(chip.total_memory / 1e9, 1),
            "capability": f"{chip.major}.{chip.minor}",
            "cuda": torch.version.cuda,
            "driver": DRIVER.read_text().splitlines()[0] if DRIVER.is_file() else "unknown",
            # TF32 has ten bits of precision, so every number would differ from the CPU's.
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    return entries


def run_speed(
    report: Report,
    device: str,
    names: Sequence[str],
    lengths: Sequence[int],
    rounds: int,
    show: Callable[[str], None],
) -> None:
    """Add the speed of the models of these sizes to the report, and show it."""
    for size in SIZES:
        if size.name not in names:
            continue
        for precision in SPEEDS.get(size.name, ("bfloat16",)):
            speeds = list(measure(size, device, precision, lengths, rounds=rounds))
            report.speeds += speeds
            for line in speed_lines(speeds):
                show(line)
            release()


def run_memory(device: str) -> Halved:
    """Compute a batch of 64 documents of 512 tokens in two fifths of the memory that it needs, and
    one document in less than it needs."""
    retriever = build(SIZES[0], device, "float32")
    batch: list[TextPair] = pairs(64, 512)
    method = make_method("saliency")
    compute = partial(METHODS[method.name].compute, retriever, method)
    compute(batch[:1])  # the first call allocates memory that stays allocated
    before, whole = memory_of(lambda: compute(batch), device)
    _, single = memory_of(lambda: compute(batch[:1]), device)
    less, least = before + 0.4 * (whole - before), before + 0.3 * (single - before)
    return halves(
        retriever,
        batch,
        lambda: limited(device, int(less)),
        lambda: limited(device, int(least)),
    )


def case_lines(cases: Iterable[Case]) -> list[str]:
    """The lines of a table of cases."""
    lines = [
        "| model | method | precision | how | distance | score | completeness | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    answer = {True: "as on the CPU", False: "NOT as on the CPU", None: "–"}
    for case in cases:
        numbers = (
            "–" if number is None else f"{number:.0e}"
            for number in (case.distance, case.score, case.completeness)
        )
        cells = (case.model, case.method, case.precision, case.how, *numbers)
        verdict = answer[case.passed] + (f": {case.note}" if case.note else "")
        lines.append(f"| {' | '.join(cells)} | {verdict} |")
    return lines


def add_cases(report: Report, cases: Iterable[Case]) -> None:
    """Add the cases to the report, and show each as soon as it is computed."""
    for case in cases:
        report.cases.append(case)
        print(case_lines([case])[2], flush=True)


def speed_lines(speeds: Iterable[Speed]) -> list[str]:
    """The lines of a table of speeds, one for each contender."""
    lines = [
        "| model | precision | tokens | what | pairs at once | pairs/s | over the loop | TFLOP/s "
        "| of the product's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def shown(number: float | None, form: str) -> str:
        return "–" if number is None else format(number, form)

    for speed in speeds:
        cells = (
            speed.model,
            speed.precision,
            str(speed.tokens),
            speed.contender,
            str(speed.batch or "–"),
            speed.note or shown(speed.pairs_per_second, ".3g"),
            shown(speed.over_loop, ".2f"),
            shown(speed.teraflops, ".3g"),
            shown(speed.of_peak, ".1%"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write(report: Report, path: Path) -> None:
    """Write the report as JSON."""
    entries = {**asdict(report), "failed": report.failed}
    path.write_text(json.dumps(entries, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def main(
    parts: Annotated[tuple[str, ...], {"choices": PARTS}] = PARTS,
    models: Annotated[tuple[str, ...], {"help": "Architectures of the proof."}] = (),
    sizes: Annotated[tuple[str, ...], {"choices": SIZE_NAMES}] = SIZE_NAMES,
    lengths: tuple[int, ...] = LENGTHS,
    rounds: int = 5,
    out: Path = Path("gpu.json"),
) -> None:
    """Run the parts and print their results."""
    if reason := why_not():
        print(reason)
        return
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    device = "cuda:0"
    report = Report(provenance(device))
    print(json.dumps(report.provenance, indent=1))
    print("\n".join(case_lines([])))
    with tempfile.TemporaryDirectory() as folder:
        if "proof" in parts:
            add_cases(report, prove(Path(folder, "proof"), device, PRECISIONS, models or None))
        if "kernels" in parts:
            add_cases(report, kernels(Path(folder, "kernels"), device, PRECISIONS))
    if "spread" in parts:
        if torch.cuda.device_count() > 1:
            cases, where = spread(resolve("MiniLM"), "auto")
            add_cases(report, cases)
            report.notes.append(f"A model was spread over {', '.join(where)}.")
        else:
            report.notes.append("There is one GPU, so no model was spread.")
    if "memory" in parts:
        report.halved = run_memory(device)
        print(report.halved)
    for note in report.notes:
        print(note)
    write(report, out)  # so that these results exist even if the rest fails
    if "speed" in parts:
        run_speed(report, device, sizes, lengths, rounds, print)
    write(report, out)
    print(f"{report.failed} of {len(report.cases)} cases are not as on the CPU; see {out}.")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    run(main)
