"""Compute the results on the bundled data sets that ship with PosLens, and write Parquet files.

    python -m tools.shipped                # compute everything, then write cache/shipped/results
    python -m tools.shipped --keep         # keep results that ship already, and compute the others
    python -m tools.shipped --work PATH    # store results in PATH; a stopped run resumes there

Needs the models in FETCHED on this machine, and two or three hours on two CPU cores without
`--keep`. Everything is computed on the CPU in float32, by the services that pages call and with
their default selections (`plan`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from poslens.attribution import datasets
from poslens.attribution.curves.positions import length_bucket
from poslens.attribution.curves.projection import METRICS, Layout
from poslens.attribution.datasets import SAMPLE, SAMPLE_BIAS, DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.evaluation.preferences import BASE, CURVES, Preference
from poslens.attribution.interventions.ablation import ablation_method
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec, data_folder, presets
from poslens.attribution.types import Method, TextPair
from poslens.cache.exchange.parquet_file import SealedWriter
from poslens.cache.exchange.transfer import rows_of, take_stream
from poslens.cache.shipped import preferences
from poslens.cache.shipped.manifest import FOLDER, ShippedFile, write_manifest
from poslens.cache.storage.codec import identity, uncompressed
from poslens.cache.storage.maintenance import StoredFile, listing
from poslens.cache.storage.rows import ATTRIBUTION, OTHER
from poslens.cache.storage.store import Store
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.studies import map as maps
from poslens.studies.bias.study import BIAS_STUDY
from poslens.studies.cause import service as interventions
from poslens.studies.curves import null_controls
from poslens.studies.faithfulness import service as faithfulness
from poslens.studies.map import TextMap
from poslens.studies.passport import service as passports
from poslens.studies.positions.study import POSITIONS
from poslens.studies.preferences import (
    FITTING,
    PREFERENCES,
    PreferenceSubject,
    summary_of,
)
from poslens.studies.ranking import service as ranking
from poslens.studies.why.study import WHY
from poslens.version import __version__

DENSE = ("MiniLM", "MiniLM-primacy", "MiniLM-recency")
MODELS = (*DENSE, "BM25")
FETCHED = ("multilingual-e5-small", "splade-tiny")
"""Presets that must be fetched. All parts of their passports ship except those that need every
pair's attribution or many rankings, which would be too large."""
TOO_LARGE = ("attribution", "null_control", "calibration")

LAYOUT = Layout(metric=METRICS["embeddings"])
MAX_BYTES = 15_000_000
N_TESTED = 10
"""Number of pairs whose faithfulness tests ship, out of the study's default pairs; each test takes
a minute."""

CALIBRATED = "@calibrated"
LEFT_OUT = ("random_order", "late_chunks")
"""Methods whose results are needed only by other computations."""


def specs(dataset: str) -> list[RetrieverSpec]:
    """The models whose results ship, as pages use them for this data set."""
    return [with_corpus(resolve(name), dataset) for name in MODELS]


def methods_of(spec: RetrieverSpec) -> list[Method]:
    """The methods whose results ship for all pairs."""
    fitting = [entry for entry in METHODS.values() if entry.fits(family_of(spec))]
    main = [e for e in fitting if e.name in ("saliency", "decomposition")]
    chosen = main or [e for e in fitting if not e.slow]
    return [make_method(entry.name) for entry in chosen]


def first_shown(data: DataSet) -> TextPair:
    """The pair that pages show at a first visit."""
    return next(p for p in data.pairs if length_bucket(p.document_tokens or 1 << 30) == "Q1")


def few(data: DataSet, pairs: Sequence[TextPair], n: int) -> list[TextPair]:
    """The `n` of `pairs` that a page selects, and the pair that it shows first."""
    return list(dict.fromkeys([*spread_evenly(pairs, n), first_shown(data)]))


def fetched_plan(compute: Compute) -> Iterator[tuple[str, Job]]:
    """The jobs for presets that must be fetched, each with a word for what it computes.

    Raises:
        UserError: one is not fetched.
    """
    data = datasets.read(SAMPLE)
    moved = few(data, movable(data.pairs)[0], interventions.DEFAULT_PAIRS)
    # Not `resolve`: a copy from the hub would have other weights than the fetched file.
    for spec in (presets()[name] for name in FETCHED):
        yield "relocation", interventions.job(compute, spec, relocation_method(), moved, SAMPLE)
        yield "saliency", compute.attribution_job(spec, make_method("saliency"), moved, SAMPLE)
        card = passports.passport(compute, spec, data)
        small = replace(card, parts=tuple(p for p in card.parts if p.key not in TOO_LARGE))
        yield "passport", passports.job(compute, small)


def plan(compute: Compute) -> Iterator[tuple[str, Job]]:
    """The jobs for everything that ships for the bundled models, in the order of computation, each
    with a word for what it computes."""
    data, tests = datasets.read(SAMPLE), datasets.read(SAMPLE_BIAS)
    models = specs(SAMPLE)
    for spec in models:
        for method in methods_of(spec):
            yield method.name, compute.attribution_job(spec, method, data.pairs, SAMPLE)
    for spec in specs(SAMPLE_BIAS):
        corpus = BIAS_STUDY.corpus(tests, BIAS_STUDY.parameters.settings())
        for subject in BIAS_STUDY.subjects(compute, spec, corpus, BIAS_STUDY.parameters.settings()):
            yield "bias tests", BIAS_STUDY.job(compute, subject)
    setup = ranking.RankingSetup(ranking.collection_of(data))
    for spec in models:
        yield "ranking", ranking.job(compute, spec, setup)
    for spec in models:
        for source in sources(spec, data):
            yield "map", maps.job(compute, spec, source, LAYOUT)
    moved = few(data, movable(data.pairs)[0], interventions.DEFAULT_PAIRS)
    for what in (relocation_method(), ablation_method("delete")):
        for spec in models:
            yield what.name, interventions.job(compute, spec, what, moved, SAMPLE)
    settings = POSITIONS.parameters.settings()
    for spec in models:
        for asked in POSITIONS.subjects(compute, spec, POSITIONS.corpus(data, settings), settings):
            yield "position effect", POSITIONS.job(compute, asked)
    settings = WHY.parameters.settings()
    for spec in models:
        for misses in WHY.subjects(compute, spec, WHY.corpus(data, settings), settings):
            yield "explanations of misses", WHY.job(compute, misses)
    tested = few(data, spread_evenly(data.pairs, interventions.DEFAULT_PAIRS), N_TESTED)
    quick = [n for n, e in METHODS.items() if not e.slow and e.fits(family_of(models[0]))]
    for title, method in faithfulness.with_baselines(map(make_method, quick)).items():
        yield (
            f"faithfulness of {title}",
            faithfulness.job(compute, models[0], method, tested, SAMPLE, ErasureParameters()),
        )
    nulls = null_controls.controls("unrelated", data.pairs, data.pairs)
    for spec in models:
        method = methods_of(spec)[0]
        yield f"{method.name}, null", compute.attribution_job(spec, method, nulls, "null")
    for measured in methods_measured(compute):
        yield "preferences", PREFERENCES.job(compute, measured)
    # Everything else on a model's card.
    for spec in models:
        yield "passport", passports.job(compute, passports.passport(compute, spec, data))


def methods_measured(compute: Compute) -> list[PreferenceSubject]:
    """The methods whose preferences ship."""
    data, subjects = datasets.read(SAMPLE), list[PreferenceSubject]()
    for name in FITTING:
        settings = PREFERENCES.parameters.settings({"methods": [name]})
        corpus = PREFERENCES.corpus(data, settings)
        subjects += PREFERENCES.subjects(compute, resolve(BASE), corpus, settings)
    return subjects


def preferences_of(compute: Compute) -> Iterator[Preference]:
    """The preferences of these methods, for each setting of curves."""
    for subject in methods_measured(compute):
        for curve in CURVES:
            summary = summary_of(compute, subject, replace(subject.method, curve_params=curve))
            # Only default curves have all numbers, which keeps the file small.
            if summary is not None:
                default = curve == subject.method.curve_params
                yield summary.preference if default else replace(summary.preference, planted=None)


def sources(spec: RetrieverSpec, data: DataSet) -> Iterator[TextMap]:
    """The texts of a model's maps; none if the model has no embeddings."""
    if family_of(spec).search == "vectors":
        yield TextMap("document", [pair.document for pair in data.pairs])
        yield TextMap("query", [pair.query for pair in data.pairs])


def keep(store: Store) -> None:
    """Add the results that already ship to the store, so that only the others are computed. Delete
    the files of an outdated version first.

    Raises:
        UserError: a file is damaged.
    """
    for path in sorted(FOLDER.glob("*.parquet")):
        with path.open("rb") as stream:
            take_stream(store, stream, path.name)


def compute_all(compute: Compute) -> None:
    """Compute the missing results of both plans.

    Raises:
        UserError: something could not be computed.
    """
    for what, job in chain(fetched_plan(compute), plan(compute)):
        run = job.start()
        run.wait()
        print(f"{job.label}, {what}: {run.progress.done:,} of {job.total:,}", file=sys.stderr)
        if run.error or run.progress.stopped:
            raise UserError(run.error or "Stopped; what was computed is kept.")


def left_out(file: StoredFile) -> bool:
    """Whether these results are needed only by other computations. That includes the embeddings of
    calibrated and fetched models, because their maps don't ship."""
    name, model = file.method.name, file.model.name
    return name in LEFT_OUT or (name == "embedding" and (CALIBRATED in model or model in FETCHED))


def write_all(store: Store, folder: Path) -> tuple[ShippedFile, ...]:
    """Write the stored results to `folder`, one file for each model and method, and the manifest.

    Raises:
        UserError: the files are too large in total to ship, or the store has two versions of one.
    """
    files = sorted((file for file in listing(store) if not left_out(file)), key=_name)
    for file, other in pairwise(files):
        if _name(file) == _name(other):
            raise UserError(
                f"{_name(file)} would have the results of {file.method.core} and of "
                f"{other.method.core}: delete the outdated ones from the store and from {folder}."
            )
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.parquet"):
        old.unlink()
    written = tuple(write(store, file, folder) for file in files)
    if (total := sum(file.bytes for file in written)) > MAX_BYTES:
        raise UserError(f"{total:,} bytes are more than the {MAX_BYTES:,} that may ship.")
    write_manifest(written, folder)
    return written


def write(store: Store, file: StoredFile, folder: Path) -> ShippedFile:
    """Write one model's results under one method."""
    path = folder / _name(file)
    listed = [(source, small(rows)) for source, rows in rows_of(store, file)]
    with (
        path.open("wb") as stream,
        SealedWriter(stream, [listed[0][0]], __version__, small=True) as writer,
    ):
        for source, rows in listed:
            writer.write(source, rows)
    data = path.read_bytes()
    names = {name for _, rows in listed for name in rows.column("dataset").to_pylist() if name}
    return ShippedFile(
        name=path.name,
        model=file.model.name,
        fingerprint=file.model.fingerprint,
        method=file.method.core,
        datasets=tuple(sorted(names)),
        rows=writer.rows,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        poslens=__version__,
    )


def small(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, sorted so that similar ones are adjacent, with results uncompressed, because the
    file compresses them together. Incomplete searches are left out."""
    rows = rows.filter(pc.invert(pc.equal(rows.column("kind"), f"{OTHER}search")))
    order = pc.sort_indices(rows, [("dataset", "ascending"), ("pair_id", "ascending")])
    rows = rows.take(order)
    payloads = [
        uncompressed(row["payload"], identity(row["dataset"], row["pair_id"], row["text"]))
        if row["kind"] == ATTRIBUTION and row["payload"] is not None
        else row["payload"]
        for row in rows.select(["kind", "dataset", "pair_id", "text", "payload"]).to_pylist()
    ]
    at = rows.schema.get_field_index("payload")
    return rows.set_column(at, rows.schema.field(at), pa.array(payloads, pa.binary()))


def _name(file: StoredFile) -> str:
    # A calibrated model's name has brackets, commas and spaces.
    model = re.sub(r"[^A-Za-z0-9_.-]+", "-", file.model.name).strip("-")
    order = file.method.params.get("order")
    return f"{model}-{file.method.name}{f'-{order}' if order else ''}.parquet"


def main() -> int:
    """Compute and write the files; returns 0, or 2 on an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=data_folder() / "work-shipped")
    parser.add_argument("--keep", action="store_true", help="Keep results that ship already.")
    options = parser.parse_args()
    # Otherwise results that already ship would count as computed.
    os.environ |= {"POSLENS_SHIPPED": "no", "POSLENS_DEVICE": "cpu"}
    os.environ |= {"POSLENS_PRECISION": "float32"}
    compute = Compute(options.work)
    try:
        if options.keep:
            keep(compute.store)
        compute_all(compute)
        files = write_all(compute.store, FOLDER)
        preferences.write(preferences_of(compute))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(files)} files, {sum(file.bytes for file in files):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
