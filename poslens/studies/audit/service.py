"""Audits of a corpus: which sentences find their own document, by model and by how documents stand
in the index. No Streamlit here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import (
    ORDERS,
    TOP,
    DarkCurve,
    Group,
    Order,
    Probe,
    Reach,
    audit_method,
    dark_curve,
    dark_share,
    groups,
    lean,
    require_top,
    won_back,
    worst,
)
from poslens.attribution.evaluation.audit_workload import Workload, workload
from poslens.attribution.evaluation.chunks import WHOLE, Chunks
from poslens.attribution.evaluation.truncation import Truncation
from poslens.attribution.retrievers.dense import FAMILY as DENSE
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.audit import AuditStore, require_family
from poslens.cache.kinds.audit_queries import Pace, pace
from poslens.cache.lru_cache import LRUCache
from poslens.compute import provenance
from poslens.compute.compute import Compute, run_key
from poslens.compute.provenance import ModelIdentity
from poslens.compute.runs import Job, Report, Run, duration
from poslens.studies.ranking.service import collection_of


@dataclass(frozen=True)
class Setup:
    """What is audited and how it is counted: a corpus, the top k, and what is searched for."""

    collection: Collection
    top: int = TOP
    probe: Probe = "sentence"


@dataclass(frozen=True, slots=True)
class Index:
    """A model, and how documents stand in its index."""

    spec: RetrieverSpec
    chunks: Chunks = WHOLE

    @property
    def name(self) -> str:
        """What figures and tables call it."""
        name = self.spec.name
        return name if self.chunks == WHOLE else f"{name}, {self.chunks.title}"


@dataclass(frozen=True)
class Audit:
    """What one index was found to leave dark; `base` is what it is compared with, None of itself.
    `failed` are documents that could not be searched for, and why."""

    index: Index
    model: ModelIdentity
    setup: Setup
    found: tuple[Reach, ...]
    failed: dict[str, str]
    truncations: tuple[Truncation, ...]
    base: Audit | None = None

    @property
    def name(self) -> str:
        """The index's name."""
        return self.index.name

    @property
    def digest(self) -> tuple[Hashable, ...]:
        """What its numbers depend on: stored results of a document do not change."""
        setup = self.setup
        counted = (setup.top, setup.probe, len(self.found), len(self.truncations))
        base = self.base.digest if self.base is not None else None
        return self.name, self.model.key, *counted, setup.collection.digest, base

    @cached_property
    def curves(self) -> dict[Order, DarkCurve]:
        """Dark sentences by place, in the documents' own order and shuffled."""
        probe, top = self.setup.probe, self.setup.top
        return {order: dark_curve(self.found, order, probe, top) for order in ORDERS}

    @cached_property
    def shares(self) -> dict[Order, Estimate | None]:
        """Share of dark sentences by order."""
        probe, top = self.setup.probe, self.setup.top
        return {order: dark_share(self.found, order, probe, top) for order in ORDERS}

    @cached_property
    def leans(self) -> dict[Order, Estimate | None]:
        """Share in the last third less that in the first, by order."""
        probe, top = self.setup.probe, self.setup.top
        return {order: lean(self.found, order, probe, top) for order in ORDERS}

    @cached_property
    def dark_though_read(self) -> Estimate | None:
        """Share of dark sentences among those that the model reads whole."""
        return dark_share(self.found, "own", self.setup.probe, self.setup.top, read=True)

    @cached_property
    def dark_unread(self) -> Estimate | None:
        """Share of dark sentences among those that it does not; None where it reads all."""
        return dark_share(self.found, "own", self.setup.probe, self.setup.top, read=False)

    @cached_property
    def won_back(self) -> Estimate | None:
        """By how much the share is below the base's."""
        if self.base is None:
            return None
        return won_back(self.base.found, self.found, self.setup.probe, self.setup.top)

    @cached_property
    def groups(self) -> list[Group]:
        """By language and by length."""
        return groups(self.found, self.setup.probe, self.setup.top)

    @cached_property
    def worst(self) -> list[tuple[Reach, int, int]]:
        """Documents with most dark sentences first."""
        return worst(self.found, self.setup.probe, self.setup.top)

    @property
    def n_sentences(self) -> int:
        """Sentences that were searched for."""
        return int(self.curves["own"].n.sum())

    @property
    def n_cut(self) -> int:
        """Documents of which the model does not read every sentence."""
        return sum(bool((one.read[0] < 1).any()) for one in self.found)

    def provenance(self) -> Provenance:
        """Everything needed to audit again."""
        return provenance.of_audit(
            self.model,
            audit_method(self.index.chunks),
            self.setup.collection.name,
            len(self.found),
            self.n_cut if family_of(self.index.spec) is DENSE else None,
            ", ".join(
                filter(
                    None,
                    (
                        f"{self.setup.probe}s, top {self.setup.top}",
                        self.setup.collection.drawn,
                    ),
                )
            ),
            self.shares["own"],
        )


def corpus(data: DataSet, documents: int = 0, seed: int = 0) -> Collection:
    """The documents of a data set: its whole corpus where it is known by name. With `documents`, so
    many of them, drawn with `seed`.

    Raises:
        UserError: its files are not as they should be.
    """
    whole = datasets.corpus_of(data.name) if data.name in datasets.names() else collection_of(data)
    return sample(whole, documents, seed)


def sample(whole: Collection, documents: int, seed: int) -> Collection:
    """So many documents of a corpus, drawn with `seed`; all of them for 0. The same sample is drawn
    once.

    Raises:
        UserError: `documents` is 1 or below 0, or the corpus cannot be read.
    """
    if not documents:
        return whole
    if documents < 2:
        raise UserError("Audit at least 2 documents: in one, every sentence finds it.")
    key = (whole.digest, documents, seed)
    return _samples.get(key, lambda: whole.sampled_documents(documents, seed))


_samples: LRUCache[Collection] = LRUCache(8)
_workloads: LRUCache[Workload] = LRUCache(32)
_paces: LRUCache[Pace] = LRUCache(32)
_stores: LRUCache[AuditStore] = LRUCache(8)
_audits: LRUCache[Audit] = LRUCache(32)


def store_of(compute: Compute, collection: Collection) -> AuditStore:
    """One store a corpus: its fingerprint and its documents' keys take a pass over it."""
    key = (str(compute.root), collection.digest)
    return _stores.get(key, lambda: AuditStore(compute.root, collection))


def job(compute: Compute, index: Index, setup: Setup) -> Job:
    """Audit what is missing; progress counts the documents of the stage at hand.

    Raises:
        UserError: the model's files are not here, it has no index, or nothing could be dark.
    """
    require_family(index.spec, index.chunks)
    model = compute.identify(index.spec)
    store = store_of(compute, setup.collection)
    require_top(setup.top, len(store.keys))

    def work(run: Run, report: Report) -> Progress:
        def stage(text: str) -> None:
            run.stage = text

        retriever = compute.retriever(model)
        if not index.spec.remote and isinstance(retriever, DenseRetriever):
            run.stage = "Timing the model"
            _pace(model, retriever, compute, setup.collection)
        return store.audit(
            retriever,
            model.key,
            index.chunks,
            options=compute.run_options(index.spec, run, report),
            on_stage=stage,
        )

    total = len(store.keys)
    scope = f"{setup.collection.name} {setup.collection.drawn}".rstrip()
    key = run_key(model, audit_method(index.chunks), scope)
    return compute.job(
        key,
        index.name,
        total,
        work,
        n_done=lambda: total - store.missing(model.key, index.chunks),
        failures=lambda: store.select(model.key, index.chunks).failed,
        can_start=not model.stored_only,
        doing="audit",
        sending=compute.sending(index.spec, lambda other: job(other, index, setup)),
    )


def _pace(
    model: ModelIdentity, retriever: DenseRetriever, compute: Compute, collection: Collection
) -> Pace:
    """The model's pace in this process, measured once."""
    key = (model.key, model.device)
    return _paces.get(key, lambda: pace(retriever, collection, compute.device_slot(model.spec)))


def estimate_words(compute: Compute, index: Index, setup: Setup, *, load: bool = False) -> str:
    """How much is read for what is missing of an audit and how long that takes, in words; empty for
    BM25. The time is known once the model was timed in this process: with `load` it is loaded and
    timed now.

    Raises:
        UserError: the corpus cannot be read, or the model cannot be loaded.
    """
    if family_of(index.spec).search != "vectors":
        return ""
    model = compute.identify(index.spec)
    collection, limit = setup.collection, model.spec.max_length
    known = _workloads.get(
        (collection.digest, str(index.chunks), limit),
        lambda: workload(collection, index.chunks, limit),
    )
    said = (
        f"{known.document_texts:,} documents or windows (in order and shuffled) and "
        f"{known.queries:,} sentences and questions of {known.documents:,} documents, about "
        f"{float(f'{known.tokens:.3g}'):,.0f} tokens"
    )
    if index.spec.remote or model.stored_only:
        return f"{said}."
    speed = _paces.find((model.key, model.device))
    if speed is None and load and isinstance(found := compute.retriever(model), DenseRetriever):
        speed = _pace(model, found, compute, collection)
    if speed is None:
        return f"{said}; the time is estimated once the model is loaded."
    return f"{said}: about {duration(speed.seconds(known))} on this machine."


def audit(compute: Compute, index: Index, setup: Setup, base: Audit | None = None) -> Audit | None:
    """What is stored of an index, counted; None while documents are missing.

    Raises:
        UserError: the model's files are not here, it has no index, or no document could be
            searched for.
    """
    require_family(index.spec, index.chunks)
    model = compute.identify(index.spec)
    store = store_of(compute, setup.collection)
    require_top(setup.top, len(store.keys))
    if store.missing(model.key, index.chunks):
        return None
    kept = store.select(model.key, index.chunks)
    truncations = tuple(store.truncations(model.key))
    if not kept.results:
        reason = next(iter(kept.failed.values()), "there are none")
        raise UserError(f"No document of {setup.collection.title} can be searched for: {reason}")
    made = Audit(index, model, setup, tuple(kept.results.values()), kept.failed, truncations, base)
    return _audits.get(made.digest, lambda: made)


def base_of(found: Sequence[Audit], index: Index) -> Audit | None:
    """What an index is compared with: the first one of the same model, calibrated or not."""
    return next((one for one in found if one.index.spec.base == index.spec.base), None)


def sentence(found: Audit) -> str:
    """What was found, in words."""
    share, null = found.shares["own"], found.shares["shuffled"]
    if share is None or null is None:
        return f"{found.name}: no sentence was searched for."
    what = "sentences" if found.setup.probe == "sentence" else "questions"
    said = (
        f"{found.name}: {_percent(share)} of {found.n_sentences:,} {what} of {len(found.found):,} "
        f"documents do not find their own document in the top {found.setup.top}; "
        f"{_percent(null)} where its sentences are shuffled."
    )
    tilt = found.leans["shuffled"]
    if tilt is not None and tilt.interval is not None:
        if tilt.interval[0] > 0:
            said += " Place alone makes the end darker than the beginning."
        elif tilt.interval[1] < 0:
            said += " Place alone makes the beginning darker than the end."
        else:
            said += " No difference between beginning and end can be told from place alone."
    won = found.won_back
    if won is not None and found.base is not None:
        said += f" Won back against {found.base.name}: {_percent(won, '+.1f')} points."
    return said


def _percent(one: Estimate, form: str = ".1f") -> str:
    scaled = Estimate(
        100 * one.value,
        None if one.low is None else 100 * one.low,
        None if one.high is None else 100 * one.high,
    ).text(form)
    return (
        scaled
        if form.startswith("+")
        else scaled.replace(" [", "% [", 1)
        if "[" in scaled
        else f"{scaled}%"
    )


def tokens_read(tried: Sequence[Truncation]) -> int:
    """Tokens of the longest texts up to where the model stops reading, special ones included; of
    the longest one where it reads all of them."""
    # The last word that is read may end behind the limit.
    cut = [min(one.last, max(one.first, one.claimed)) for one in tried if not one.reads_all]
    return max(cut or [one.n_tokens for one in tried])


def measured_limit(compute: Compute, spec: RetrieverSpec, data: DataSet) -> str:
    """Where an audit of the data set's corpus found that a model stops reading, in a sentence;
    empty where none did.

    Raises:
        UserError: the corpus or what is stored of it cannot be read.
    """
    store = store_of(compute, corpus(data))
    return _limit_words(spec, store.truncations(compute.identify(spec).key))


def limit_sentence(found: Audit) -> str:
    """Where the model was found to stop reading; empty where nothing was tried."""
    return _limit_words(found.index.spec, found.truncations)


def _limit_words(spec: RetrieverSpec, tried: Sequence[Truncation]) -> str:
    if not tried:
        return ""
    name = spec.name
    longest = max(tried, key=lambda one: one.n_tokens)
    if spec.without_files:  # its tokens are words here, and it names no limit
        cut = min(tried, key=lambda one: (one.reads_all, one.last))
        if cut.reads_all:
            return f"{name} reads texts of {longest.n_words:,} words to their end."
        return f"{name} stops reading at word {cut.word:,} of {cut.n_words:,}."
    if all(one.reads_all for one in tried):
        more = (
            ""
            if longest.n_tokens > longest.claimed
            else (f", all that was tried of the {longest.claimed:,} that it claims")
        )
        return f"{name} reads texts of {longest.n_tokens:,} tokens to their end{more}."
    cut = next(one for one in tried if not one.reads_all)
    where = f"{cut.first:,}" if cut.first == cut.last else f"{cut.first:,} to {cut.last:,}"
    verdict = "as it claims" if cut.as_claimed else "not as it claims"
    return (
        f"{name} stops reading at token {where} of {cut.n_tokens:,}, {verdict} "
        f"(limit {cut.claimed:,}, special tokens included)."
    )
