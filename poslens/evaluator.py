"""An evaluator of position bias for the trainer of sentence-transformers.

It runs the studies relocation, ranks by position and audit on the model in memory, and keeps their
results in a temporary folder.
"""

from __future__ import annotations

import csv
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel

from poslens.arguments import data_set
from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Estimate
from poslens.attribution.datasets import SAMPLE, Collection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import TOP, unretrieved_share
from poslens.attribution.evaluation.chunks import WHOLE
from poslens.attribution.evaluation.position_effect import position_effect, position_ranks_method
from poslens.attribution.interventions.relocation import (
    N_POSITIONS,
    relocation_difference,
    relocation_method,
)
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.live import live_retriever
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.kinds.interventions import RankedPair, causes, position_ranks
from poslens.cache.kinds.rankings import fingerprint
from poslens.cache.storage.connections import release
from poslens.cache.storage.store import ModelKey
from poslens.export.json_text import json_text
from poslens.parameters import Integer, Parameters
from poslens.saved_data import Data
from poslens.studies.audit.run import run_audit
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.positions.run import run_positions
from poslens.studies.positions.study import POSITIONS
from poslens.studies.positions.summary import Moved, no_effect, ranked_queries
from poslens.version import __version__

WORST = "ndcg@10_worst"
MEASURES = (
    WORST,
    "ndcg@10_first",
    "ndcg@10_middle",
    "ndcg@10_last",
    *(
        f"{name}{end}"
        for name in ("first_minus_last", "relocation_difference", "unretrieved_sentences")
        for end in ("", "_low", "_high")
    ),
)
"""Names of the measures that a call returns, in the order of the CSV file's columns."""

PARAMETERS = Parameters(
    documents=Integer(
        title="documents",
        default=100,
        low=TOP + 1,
        high=100_000,
        help="Maximum number of documents that are ranked and audited.",
    ),
    pairs=Integer(
        title="pairs",
        default=DEFAULT_PAIRS,
        low=MIN_DOCUMENTS,
        high=100_000,
        help="Maximum number of pairs whose evidence is moved.",
    ),
    seed=Integer(title="seed", default=0, low=0, high=1 << 31, help="Seed of the sample."),
)


class PositionEvaluator(BaseEvaluator):
    """Measures the position bias of a SentenceTransformer during training, as
    `SentenceTransformerTrainer(evaluator=...)`, or once: `PositionEvaluator()(model)`.

    Each call uses the same pairs and documents and returns:

    - `ndcg@10_first`, `_middle`, `_last`: nDCG@10 of searching the documents while the evidence of
      the query's own document is at the first, the middle or the last of the positions at which the
      model reads it in full; `first_minus_last`, paired by query.
    - `ndcg@10_worst`, the `primary_metric`: nDCG@10 at the position where it is lowest. Both
      position bias and poor ranking lower it, so ranking badly everywhere does not raise it. As the
      lowest of 11 means it is biased slightly downward.
    - `relocation_difference`: mean score with the evidence in the last third minus in the first
      third, in the score's units; negative: evidence near the beginning scores higher.
    - `unretrieved_sentences`: share of sentences, 0 to 1, that do not retrieve their own document
      in the top 10.

    `_low` and `_high` are ends of 95% intervals, which resample documents. An undefined measure is
    NaN, such as the relocation difference if the model never reads the evidence in one third. The
    numbers equal those of `poslens.positions`, `poslens.cause` and `poslens.audit` for the same
    texts. They depend on the number of documents: compare checkpoints with each other, not with
    results on a larger corpus.

    With `output_path` each call adds a row to `position_evaluation_NAME_results.csv` there, and
    writes its numbers to `position_evaluation_NAME_mteb.json`, which `mteb.TaskResult.from_disk`
    reads. A call changes neither the model's modes, gradient flags, prompts and lengths nor any
    random state.
    """

    def __init__(
        self,
        dataset: Data = SAMPLE,
        *,
        documents: int = 100,
        pairs: int = DEFAULT_PAIRS,
        seed: int = 0,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        name: str = "",
        write_csv: bool = True,
    ) -> None:
        """
        Args:
            dataset: name, path or rows of a data set of pairs with evidence (docs/data.md).
            documents: maximum number of documents that are ranked and audited, at least 11: those
                whose evidence is moved, and others drawn at random from the corpus.
            pairs: maximum number of pairs whose evidence is moved, at least 10, spread evenly over
                the data set.
            query_prompt: replaces the model's own query prompt; `document_prompt` likewise.
            name: prefix of each measure's name, and part of the names of files.
            write_csv: whether a call with an `output_path` writes the CSV row and the JSON.

        Raises:
            UserError: the data set cannot be read, has no evidence that can be moved, or has too
                few documents; a number is out of range.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        settings = PARAMETERS.settings({"documents": documents, "pairs": pairs, "seed": seed})
        self.name, self.write_csv, self.primary_metric = name, write_csv, WORST
        self._prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt}
        self._moved = _moved(dataset, settings.documents, settings.pairs, settings.seed)
        self._stem = f"position_evaluation{'_' * bool(name)}{name}"
        self.csv_file = f"{self._stem}_results.csv"
        self.csv_headers = ["epoch", "steps", *MEASURES]

    def __call__(
        self,
        model: BaseModel,
        output_path: str | None = None,
        epoch: float = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        """The measures by name of `model`, a SentenceTransformer, with its current weights.

        Raises:
            UserError: PosLens cannot read the model, or no pair has ranks at two positions.
        """
        started = time.perf_counter()
        with (
            live_retriever(model, **self._prompts) as retriever,
            TemporaryDirectory(prefix="poslens-") as folder,
        ):
            try:
                measures = _measures(retriever, self._moved, Path(folder))
            finally:
                release(Path(folder))
        values = ", ".join(f"{name} {value:.4f}" for name, value in measures.items())
        logging.getLogger(__name__).info("PositionEvaluator, epoch %s, %s", epoch, values)
        if output_path is not None and self.write_csv:
            Path(output_path).mkdir(parents=True, exist_ok=True)
            self._write(Path(output_path), measures, epoch, steps, time.perf_counter() - started)
        prefixed: dict[str, float] = self.prefix_name_to_metrics(measures, self.name)
        # Trainers pass fractional epochs, although the signature declares int.
        self.store_metrics_in_model_card_data(model, prefixed, epoch, steps)  # type: ignore[arg-type]
        return prefixed

    def _write(
        self, folder: Path, measures: Mapping[str, float], epoch: float, steps: int, seconds: float
    ) -> None:
        path = folder / self.csv_file
        is_new = not path.is_file()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(self.csv_headers)
            writer.writerow([epoch, steps, *(measures[name] for name in MEASURES)])
        moved = self._moved
        result = mteb_result(
            f"PositionEffect{'-' * bool(self.name)}{self.name}",
            moved.fingerprint,
            WORST,
            measures,
            [pair.language for pair in moved.pairs],
            seconds,
            {**self.get_config_dict(), "epoch": epoch, "steps": steps},
        )
        (folder / f"{self._stem}_mteb.json").write_text(json_text(result, 2), encoding="utf-8")

    @property
    def description(self) -> str:
        """The evaluator's title in model cards."""
        return "Position Effect"

    def get_config_dict(self) -> dict[str, Any]:
        """The data set and the numbers of documents, pairs and positions, for the model card."""
        moved = self._moved
        return {
            "dataset": moved.dataset,
            "documents": moved.collection.survey.n,
            "pairs": len(moved.pairs),
            "positions": N_POSITIONS,
        }


def _moved(dataset: Data, documents: int, pairs: int, seed: int) -> Moved:
    """The pairs whose evidence is moved, and in memory the documents that they are ranked among."""
    data = data_set(dataset)
    settings = POSITIONS.parameters.settings({"pairs": min(pairs, documents)})
    moved = POSITIONS.corpus(data, settings)
    of_evidence = {pair.document for pair in moved.pairs}
    if len(of_evidence) < MIN_DOCUMENTS:
        raise UserError(
            f"Only {len(of_evidence)} of the selected documents of {data.title} have evidence that "
            f"can be moved, but intervals need {MIN_DOCUMENTS}: use a data set with more "
            "documents, or increase pairs."
        )
    chosen = {pair.pair_id for pair in moved.pairs}
    always = frozenset(
        key
        for query in moved.collection.queries
        for key, pair_id in query.pairs.items()
        if pair_id in chosen
    )
    sample = moved.collection.sampled_documents(documents, seed, always)
    texts = tuple(sample.documents())
    if len(texts) <= TOP:
        raise UserError(
            f"{data.title} has {len(texts)} documents, but a top {TOP} needs at least {TOP + 1}: "
            "use a data set with more documents."
        )
    corpus: Collection = replace(sample, stream=lambda: iter(texts), files=())
    return replace(moved, collection=corpus, fingerprint=fingerprint(corpus))


def _measures(retriever: DenseRetriever, moved: Moved, folder: Path) -> dict[str, float]:
    """The measures of a model by name; intermediate results are stored below `folder`."""
    # A new fingerprint for each call, because this process caches results by model.
    model = ModelKey(retriever.name, uuid4().hex)
    pairs, method = moved.pairs, relocation_method()
    items = [RankedPair(pair, moved.fingerprint) for pair in pairs]
    run_positions(folder, retriever, model, N_POSITIONS, items, moved.collection)
    relocations = causes(folder, method).select(model, method, pairs).results
    ranks = position_ranks(folder).select(model, position_ranks_method(N_POSITIONS), items)
    effect = position_effect(ranked_queries(pairs, relocations, ranks.results, N_POSITIONS))
    if effect is None:
        raise no_effect(retriever.name, ranks.failed, len(pairs))
    document_of = {pair.pair_id: pair.document for pair in pairs}
    difference = relocation_difference(
        list(relocations.values()), [document_of[pair_id] for pair_id in relocations]
    )
    audit = AuditStore(folder, moved.collection)
    run_audit(audit, retriever, model, WHOLE, measure_truncation=False)
    ranked = list(audit.select(model, WHOLE).results.values())
    return {
        WORST: min(mean.value for mean in effect.ndcg),
        "ndcg@10_first": effect.first.value,
        "ndcg@10_middle": effect.middle.value,
        "ndcg@10_last": effect.last.value,
        **_with_ends("first_minus_last", effect.effect.difference),
        **_with_ends("relocation_difference", difference),
        **_with_ends(
            "unretrieved_sentences", unretrieved_share(ranked, "original", "sentence", TOP)
        ),
    }


def _with_ends(name: str, estimate: Estimate | None) -> dict[str, float]:
    value = math.nan if estimate is None else estimate.value
    low, high = (estimate.interval if estimate else None) or (math.nan, math.nan)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


# -- the result for MTEB ---------------------------------------------------------------------------

# Scripts (ISO 15924) other than Latin, with the languages of `attribution.datasets.languages` that
# are written in them.
_SCRIPTS = {
    "Arab": ("ara", "fas", "urd"),
    "Beng": ("ben",),
    "Cyrl": ("bul", "mon", "rus", "srp", "ukr"),
    "Deva": ("hin", "nep"),
    "Grek": ("ell",),
    "Hans": ("cmn",),
    "Hebr": ("heb",),
    "Jpan": ("jpn",),
    "Kore": ("kor",),
    "Telu": ("tel",),
    "Thai": ("tha",),
}
_SCRIPT_OF = {language: script for script, languages in _SCRIPTS.items() for language in languages}


def mteb_result(
    task: str,
    revision: str,
    main_score: str,
    scores: Mapping[str, float],
    languages: Iterable[str | None],
    seconds: float,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The result of one model on one task, with the fields of MTEB's `TaskResult`.

    `revision` identifies the task's texts; `scores` are measures by name (measures that are not
    finite are omitted), and `main_score` is the one that leaderboards sort by; `languages` are ISO
    639-3 codes, None if unknown; `seconds` is the evaluation time. `about` and the version of
    PosLens are added to the scores. `mteb_version` is null, because MTEB did not compute them.
    """
    stated = sorted({language for language in languages if language})
    entry = {
        "main_score": scores[main_score],
        **{name: value for name, value in scores.items() if math.isfinite(value)},
        "hf_subset": "default",
        "languages": [f"{language}-{_SCRIPT_OF.get(language, 'Latn')}" for language in stated],
        "poslens_version": __version__,
        **about,
    }
    return {
        "dataset_revision": revision,
        "task_name": task,
        "mteb_version": None,
        "scores": {"test": [entry]},
        "evaluation_time": seconds,
        "kg_co2_emissions": None,
        "date": datetime.now(UTC).timestamp(),
    }
