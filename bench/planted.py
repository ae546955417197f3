"""Do attribution curves follow what relocation shows of a planted position bias?

    python -m bench.planted [--pairs 24] [--write docs/causality.md]

Moves the evidence of English sample documents that MiniLM reads in full, spread evenly, and
correlates the methods' mean curves with the result. Primacy-recency indices are the shipped results
of the study `preferences` (docs/methods.md, section 17), which measures excerpts of documents.
Results are stored in the data folder, so an interrupted run resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from bench.options import run, write_table
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.evaluation.preferences import (
    MAX_TOKENS,
    PLANTED,
    STRENGTHS,
    Condition,
)
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import Method, TextPair
from poslens.cache.shipped.preferences import certified
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.studies.cause import service as interventions

METHODS = {
    "saliency": {},
    "decomposition": {},
    "input_x_gradient": {},
    "occlusion": {"level": "sentence"},
    "integrated_gradients": {"steps": "32"},
}
"""The methods whose curves are correlated with relocation, and parameters that make them faster."""


def chosen(n: int) -> list[TextPair]:
    """At most `n` English pairs with documents that MiniLM reads in full, spread evenly."""
    read_whole = [
        pair
        for pair in datasets.read("sample").pairs
        if pair.language == "eng" and (pair.document_tokens or 0) <= MAX_TOKENS
    ]
    return list(spread_evenly(read_whole, n))


def finish(job: Job) -> None:
    """Compute a job's missing results; an error ends the program."""
    if job.n_done() < job.total:
        started = job.start()
        started.wait()
        if started.error:
            raise SystemExit(started.error)


def shown(value: Estimate | None, form: str = "+.2f") -> str:
    """An estimate with its interval as text; a dash if there is none."""
    return "–" if value is None else value.text(form)


def indices(name: str) -> str:
    """The cells of a method's indices at each strength, from the shipped results of the study."""
    (planted,) = (p.planted for p in certified().values() if p.method.name == name and p.planted)
    return " | ".join(map(shown, planted.indices))


class Bench:
    """Computes both tables over some pairs."""

    def __init__(self, n: int) -> None:
        self.compute, self.pairs = Compute(), chosen(n)
        self.relocation = relocation_method()

    def relocated(self, strength: float) -> Estimate | None:
        """The last-minus-first difference of a model with this strength of the planted bias."""
        spec = resolve(Condition(strength).model)
        finish(interventions.job(self.compute, spec, self.relocation, self.pairs, "bench"))
        cause = interventions.data_set_cause(
            self.compute, spec, self.relocation, self.pairs, "sample"
        )
        return cause.last_minus_first

    def correlation(self, strength: float, method: Method) -> Estimate | None:
        """Rank correlation of a method's mean curve with the causal curve."""
        spec = resolve(Condition(strength).model)
        finish(self.compute.attribution_job(spec, method, self.pairs, "bench"))
        return interventions.agreement_of(
            self.compute, spec, method, self.relocation, self.pairs
        ).means

    def strengths(self) -> Iterator[str]:
        """The lines of the table of strengths."""
        yield f"| strength | {' | '.join(f'{strength:+g}' for strength in STRENGTHS)} |"
        yield "|---" * (1 + len(STRENGTHS)) + "|"
        differences = " | ".join(shown(self.relocated(s), "+.3f") for s in STRENGTHS)
        yield f"| relocation, last minus first | {differences} |"
        for name in METHODS:
            yield f"| {name}, index | {indices(name)} |"

    def correlations(self) -> Iterator[str]:
        """The lines of the table of correlations; after `strengths`."""
        yield f"| correlation with relocation | {' | '.join(PLANTED.values())} |"
        yield "|---|---|---|"
        for name, options in METHODS.items():
            method = make_method(name, options)
            cells = (shown(self.correlation(side, method)) for side in PLANTED)
            yield f"| {name} | {' | '.join(cells)} |"


def main(
    pairs: int = 24,
    write: Annotated[Path | None, {"help": "Markdown file to write the tables into."}] = None,
) -> None:
    """Print both tables, and with --write replace them in a file."""
    bench, lines = Bench(pairs), list[str]()
    for table in (bench.strengths(), bench.correlations()):
        for line in (*table, ""):
            lines.append(line)
            print(line, flush=True)
    if write:
        write_table(write, "planted", lines[:-1])


if __name__ == "__main__":
    run(main)
