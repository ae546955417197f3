"""Which methods detect the planted position bias of two adapters, which relocation confirms?

    python -m bench.planted [--pairs 24] [--write docs/causality.md]

Uses pairs of English sample documents that MiniLM reads in full, spread evenly. Results are stored
in the data folder, so an interrupted run resumes. The first table has for each method the
primacy-recency index on both adapters, the correlation of its mean curve with the causal curve, and
the index minus that of an unrelated query. The second has the index by strength of the adapters.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.interventions.null_controls import ControlledCurve
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import Method, TextPair
from poslens.compute.compute import Compute
from poslens.compute.runs import Run
from poslens.studies.cause import service as interventions

SIDES = {"MiniLM-primacy": -1, "MiniLM-recency": 1}
STRENGTHS = ("0", "0.25", "0.5", "0.75", "1")
METHODS = {
    "saliency": {},
    "input_x_gradient": {},
    "integrated_gradients": {"steps": "32"},
    "decomposition": {},
    "occlusion": {"level": "sentence"},
}
DOSED = ("saliency", "decomposition")
BEGIN, END = "<!-- planted: begin -->", "<!-- planted: end -->"


def chosen(n: int) -> list[TextPair]:
    """At most `n` English pairs with documents of up to 450 tokens, spread evenly over the
    sample."""
    read_whole = [
        pair
        for pair in datasets.read("sample").pairs
        if pair.language == "eng" and (pair.document_tokens or 0) <= 450
    ]
    return list(spread_evenly(read_whole, n))


def finish(run: Run) -> None:
    """Wait for a run; an error ends the program."""
    run.wait()
    if run.error:
        raise SystemExit(run.error)


def signed(value: Estimate | None) -> str:
    """An estimate with its interval as text; a dash if there is none."""
    return "–" if value is None else value.text("+.2f")


def side_of(value: Estimate | None) -> int:
    """-1 if the interval is below zero, 1 if it is above, otherwise 0."""
    if value is None or value.interval is None:
        return 0
    low, high = value.interval
    return int(low > 0) - int(high < 0)


class Bench:
    """Computes both tables over some pairs."""

    def __init__(self, n: int) -> None:
        self.compute = Compute()
        self.pairs = chosen(n)
        self.among = datasets.read("sample").pairs
        self.relocation = relocation_method()
        self.nulls = interventions.controls("unrelated", self.pairs, self.among)

    def relocate(self, name: str) -> interventions.DataSetCause:
        """The causal curve of a model."""
        spec = resolve(name)
        finish(interventions.job(self.compute, spec, self.relocation, self.pairs, "bench").start())
        return interventions.data_set_cause(
            self.compute, spec, self.relocation, self.pairs, "sample"
        )

    def index(self, name: str, method: Method) -> Estimate | None:
        """The primacy-recency index of a method's mean curve."""
        spec = resolve(name)
        finish(self.compute.attribution_job(spec, method, self.pairs, "bench").start())
        curve = self.compute.curve(spec, method, self.pairs, "sample")
        return curve.summary.primacy_recency_index

    def control(self, name: str, method: Method) -> ControlledCurve:
        """The method's curves minus those of an unrelated query."""
        spec = resolve(name)
        finish(self.compute.attribution_job(spec, method, self.nulls, "bench nulls").start())
        return interventions.controlled(
            self.compute, spec, method, "unrelated", self.pairs, self.among
        )

    def methods(self) -> list[str]:
        """The lines of the table of methods."""
        rows = [
            "| method | index: primacy | recency | finds the side | correlation with "
            "relocation: primacy | recency | index minus unrelated query: primacy | recency | "
            "survives the control |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name in SIDES:
            self.relocate(name)
        for key, options in METHODS.items():
            method = make_method(key, options)
            index, agree, control = {}, {}, {}
            for name in SIDES:
                index[name] = self.index(name, method)
                agree[name] = interventions.agreement_of(
                    self.compute, resolve(name), method, self.relocation, self.pairs
                ).means
                control[name] = self.control(name, method)
            finds = [side_of(index[name]) == side for name, side in SIDES.items()]
            survives = [side_of(control[name].index) == side for name, side in SIDES.items()]
            rows.append(
                f"| {key} | "
                + " | ".join(signed(index[name]) for name in SIDES)
                + f" | {sides_named(finds)} | "
                + " | ".join(map(signed, agree.values()))
                + " | "
                + " | ".join(signed(control[name].index) for name in SIDES)
                + f" | {sides_named(survives)} |"
            )
            print(rows[-1], flush=True)
        return rows

    def doses(self) -> list[str]:
        """The lines of the table of strengths."""
        rows = [
            "| model | last minus first, relocation | "
            + " | ".join(f"index, {m}" for m in DOSED)
            + " |",
            "|---" * (2 + len(DOSED)) + "|",
        ]
        for base in SIDES:
            for strength in STRENGTHS:
                name = base if strength == "1" else f"{base}@{strength}"
                difference = self.relocate(name).last_minus_first
                estimates = [self.index(name, make_method(m, METHODS[m])) for m in DOSED]
                rows.append(
                    f"| {base} x {strength} | {difference.text('+.4f') if difference else '–'} | "
                    + " | ".join(map(signed, estimates))
                    + " |"
                )
                print(rows[-1], flush=True)
        return rows


def sides_named(of_sides: list[bool]) -> str:
    """The adapters for which a condition is true, as text: both, one only, or no."""
    names = [name.removeprefix("MiniLM-") for name in SIDES]
    true_of = [name for name, holds in zip(names, of_sides, strict=True) if holds]
    return "both" if len(true_of) == len(names) else (f"{true_of[0]} only" if true_of else "no")


def main() -> None:
    """Print both tables, and with --write replace them in a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--write", type=Path, help="Markdown file to write the tables into.")
    options = parser.parse_args()
    bench = Bench(options.pairs)
    n, documents = len(bench.pairs), len({pair.document for pair in bench.pairs})
    head = f"n = {n} pairs of {documents} documents of the sample data set, all read whole."
    lines = [head, "", *bench.methods(), "", *bench.doses()]
    print("\n".join(lines))
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        _, end, tail = rest.partition(END)
        if not end:
            raise SystemExit(f"{options.write} has no lines {BEGIN} and {END}.")
        table = "\n".join(lines)
        options.write.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
