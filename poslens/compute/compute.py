"""Results for pages and the command line, each computed once and cached. No Streamlit here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, cast

from poslens.attribution import datasets
from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.curves.positions import BANDS
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, attribute_batches, instead_of
from poslens.attribution.retrievers import resolve, specs
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.detect import families_with, family_of
from poslens.attribution.retrievers.endpoint import EmbeddingEndpoint
from poslens.attribution.retrievers.self_check import SelfCheck
from poslens.attribution.retrievers.sparse import SparseRetriever, Term
from poslens.attribution.retrievers.specs import RetrieverSpec, data_folder
from poslens.attribution.text import listed
from poslens.attribution.types import Attribution, Method, Provenance, TextPair
from poslens.cache.jobs.attributions import Executor, OneDevice, precompute
from poslens.cache.jobs.claims import at_work, claims_folder, using
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import used_model
from poslens.cache.kinds.embeddings import EmbeddingStore, ReceivedVectors
from poslens.cache.lru_cache import LRUCache
from poslens.cache.shipped.layer import Shipped
from poslens.cache.storage.encoded import Destination
from poslens.cache.storage.files import set_fallback
from poslens.cache.storage.store import ModelKey, Store, StoredCurves
from poslens.compute import provenance, stored_models
from poslens.compute.costs import Counting, cost_of
from poslens.compute.mean_curves import MeanCurves
from poslens.compute.model_pool import (
    ModelPool,
    check_model,
    load_model,
    memory_limit,
    weights_to_load,
)
from poslens.compute.provenance import ModelIdentity
from poslens.compute.queue import DeviceQueue, Place, ready
from poslens.compute.runs import (
    Job,
    Report,
    Run,
    RunKey,
    Runs,
    Sending,
    Work,
    failures_of,
    in_turn,
    interruptible,
)
from poslens.compute.selection import ComputedSoFar
from poslens.compute.settings import (
    DEVICE,
    PRECISION,
    QUEUE_LIMIT,
    REQUESTS_EACH,
    RUN_LIMIT,
    RUNS_EACH,
    SHIPPED,
)

IDENTIFIED_S = 0.5
"""Seconds for which a model's identity is reused: reading it from the files takes 3 ms, and drawing
one page needs it 80 times."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The attribution of one pair and what its provenance needs. `notice` reports a problem that
    does not affect the result, such as a cache that could not be written."""

    attribution: Attribution
    model: ModelIdentity
    pair: TextPair
    from_cache: bool
    notice: str = ""

    def provenance(self) -> Provenance:
        """Everything needed to reproduce this result."""
        return provenance.of_attribution(self.model, self.pair, self.attribution)


@dataclass(frozen=True)
class DataSetCurve:
    """The average of the stored curves of a selection of pairs. `content` identifies what was
    averaged, `total` counts the selected pairs, stored or not, and `read` returns the curves."""

    content: str
    summary: CurveSummary
    model: ModelIdentity
    total: int
    selection: str
    read: Callable[[], StoredCurves] = field(repr=False, compare=False)

    @cached_property
    def stored(self) -> StoredCurves:
        """The curves, read on first use, because a mean of 421,000 curves is shown without them."""
        return self.read()

    @property
    def failed(self) -> dict[str, str]:
        """The reasons why pairs have no curve, by pair id."""
        return self.stored.failed if self.summary.curve.n_failed else {}

    def provenance(self, band: str = BANDS[0]) -> Provenance:
        """Everything needed to reproduce this curve, or a figure of it with a band of this kind.
        The selection states if not all of its pairs are computed."""
        curve, selection = self.summary.curve, self.selection
        if (done := curve.n + curve.n_failed) < self.total:
            selection = ComputedSoFar(done, self.total, "pair").of(selection)
        return provenance.of_curve(self.model, curve, selection, band)


class Compute:
    """The results below one folder, and the models, device queue and runs with which this process
    computes them."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        beside: Compute | None = None,
        counting: Counting | None = None,
    ) -> None:
        """Store results in the folder `cache` below `root`. With `beside`, another `Compute`,
        share its models, queue and limits but not its results. Without `beside`, results that
        ship with PosLens are used as a fallback. With `counting`, no model is loaded; texts for
        endpoints are counted instead of sent."""
        folder = (root or data_folder()) / "cache"
        if beside is None:
            set_fallback(folder, Shipped(folder) if SHIPPED.get() == "yes" else None)
        self.root = folder
        self._counting = counting
        self.store = Store(folder)
        self.embeddings = EmbeddingStore(folder)
        self._known: Store = beside._known if beside else self.store
        self.queue: DeviceQueue = (
            beside.queue
            if beside
            else DeviceQueue(QUEUE_LIMIT.get, each=REQUESTS_EACH.get, shared=self._device_file)
        )
        self.models: ModelPool = beside.models if beside else ModelPool(memory_limit)
        self.runs: Runs = beside.runs if beside else Runs(RUN_LIMIT.get, RUNS_EACH.get)
        self._identified: LRUCache[tuple[float, ModelIdentity]] = LRUCache(64)
        self.means = MeanCurves(self.store)
        self._terms: LRUCache[list[Term]] = LRUCache(64)

    # -- models --------------------------------------------------------------------------------

    def identify(self, spec: RetrieverSpec) -> ModelIdentity:
        """The model's identity according to its current files, which are checked at most every half
        second. The model is not loaded. If its files are not on this machine, the identity comes
        from stored results.

        Raises:
            UserError: neither its files nor any of its results are on this machine.
        """
        # BM25 uses the statistics of a data set, which may have been reloaded since.
        key = (spec, DEVICE.get(), PRECISION.get(), datasets.generation())
        dated = self._identified.find(key)
        if dated is None or time.monotonic() - dated[0] > IDENTIFIED_S:
            dated = self._identified.keep(key, (time.monotonic(), self._identify(spec)))
        return dated[1]

    def _identify(self, spec: RetrieverSpec) -> ModelIdentity:
        if not resolve.installed(spec) and (stored := stored_models.find(self._known, spec)):
            named = replace(stored.key, name=spec.name)
            return ModelIdentity(spec, named, stored.weights, stored.precision, "none", True)
        model = used_model(spec, DEVICE.get(), PRECISION.get())
        about = stored_models.about(model.spec, model.weights, model.precision)
        key = ModelKey(model.spec.name, model.fingerprint, about)
        return ModelIdentity(model.spec, key, model.weights, model.precision, model.device)

    def stored_only(self) -> list[str]:
        """Names of models whose results are stored but whose weights are not on this machine;
        `resolve` accepts these names."""
        return stored_models.remember(self._known)

    def retriever(self, model: ModelIdentity) -> Retriever:
        """The loaded model; loads and checks it first if necessary, and evicts the least recently
        used models to make room. An embedding endpoint stores the vectors that it returns.

        Raises:
            UserError: it cannot be loaded or fails its check.
        """
        if model.stored_only:
            raise specs.weights_absent(model.spec.name)
        if self._counting is not None:
            return self._counting.retriever(model.spec, model.key, self.embeddings)
        retriever = self.models.get(
            (model.key.fingerprint, model.device),
            lambda: load_model(model.spec),
            lambda retriever: check_model(model.spec, retriever),
            lambda: weights_to_load(model.spec),
        )
        # A Python object is read like an endpoint, but costs nothing.
        if not (model.spec.remote and isinstance(retriever, EmbeddingEndpoint)):
            return retriever
        return retriever.storing(ReceivedVectors(self.embeddings, model.key, retriever.width))

    def loaded(self, model: ModelIdentity) -> bool:
        """Whether the model is loaded."""
        return self.models.loaded((model.key.fingerprint, model.device))

    def fitting(self, model: ModelIdentity, method: Method) -> Retriever:
        """The loaded model, if the method works on it.

        Raises:
            UserError: the method does not fit the model, or `retriever` fails.
        """
        self.require_fit(model, method)  # may be known from the family, before loading
        loaded = self.retriever(model)
        self.require_fit(model, method)
        return loaded

    def require_fit(self, model: ModelIdentity, method: Method) -> None:
        """Check that the method is not known to be unavailable for the model.

        Raises:
            UserError: the method is unavailable.
        """
        unfit = self.unfit(model)
        if reason := unfit.get(method.name):
            text = f"{method.name} is unavailable for {model.spec.name}: {reason.rstrip('.')}"
            raise UserError(f"{text}. {instead_of(unfit)}")

    def self_check(self, model: ModelIdentity) -> SelfCheck | None:
        """The self-check's measurements from when the model was loaded; None before that."""
        return self.models.self_check((model.key.fingerprint, model.device))

    def unfit(self, model: ModelIdentity) -> dict[str, str]:
        """The reasons why methods are unavailable for this model, by method name. Some are known
        only after the model was loaded."""
        checked = self.self_check(model)
        reasons = dict(checked.unfit) if checked else {}
        family = family_of(model.spec)
        for name, entry in METHODS.items():
            if not entry.fits(family):
                titles = [family.title for family in families_with(entry.needs)]
                fitting = f"this method needs {listed(titles, 'or')} retrievers"
                reasons[name] = family.why_not or fitting
        return reasons

    # -- pairs ---------------------------------------------------------------------------------

    def explain(self, pair: TextPair, spec: RetrieverSpec, method: Method) -> Explained:
        """One pair's attribution, from the cache or computed and stored.

        Raises:
            UserError: the attribution cannot be computed, or it was stopped.
        """
        model = self._identify(spec)  # the cache key identifies the model's files as they are now
        notice = ""
        try:
            attribution = self.store.get(model.key, method, pair)
        except UserError as error:
            attribution, notice = None, f"{error} The result below was computed but isn't stored."
        if attribution is not None:
            return Explained(attribution, model, pair, from_cache=True)
        retriever = self.fitting(model, method)
        with self.device_slot(spec)():
            outcomes = [
                outcome
                for batch in attribute_batches(retriever, method, [pair])
                for outcome in batch
            ]
        result = outcomes[0].attribution
        if result is None:
            raise UserError(outcomes[0].reason)
        if not notice:
            try:
                self.store.put(model.key, method, [(pair, result)])
            except UserError as error:
                notice = f"{error} The result below isn't stored."
        return Explained(result, model, pair, from_cache=False, notice=notice)

    def ask(self, pair: TextPair, spec: RetrieverSpec, method: Method) -> Place[Explained]:
        """A position in the device queue for one pair's attribution, so that a page can show its
        progress. Pages with the same request share the computation.

        Raises:
            UserError: the model's files are not on this machine, or too many requests are waiting.
        """
        model = self.identify(spec)
        with suppress(UserError):  # the store cannot be read: `explain` reports it in its notice
            if (attribution := self.store.get(model.key, method, pair)) is not None:
                return ready(Explained(attribution, model, pair, from_cache=True))
        # Another `Compute` needs its own request, because this one stores the result in this cache.
        key = ("explain", self.root, model.key, repr(method), pair)
        return self.queue.ask(key, lambda: self.explain(pair, spec, method))

    def ask_terms(self, pair: TextPair, spec: RetrieverSpec) -> Place[list[Term]]:
        """A position in the device queue for the vocabulary terms that a sparse encoder gives
        weight to in both texts. Its result raises UserError if the model cannot be loaded or a text
        has no token.

        Raises:
            UserError: the model's files are not on this machine, or too many requests are waiting.
        """
        model = self.identify(spec)
        key = ("terms", self.root, model.key, pair)
        if (terms := self._terms.find(key)) is not None:
            return ready(terms)

        def encode() -> list[Term]:
            retriever = cast(SparseRetriever, self.retriever(model))
            with self.device_slot(spec)(), retriever.lock:
                return self._terms.keep(key, retriever.terms(pair))

        return self.queue.ask(key, encode)

    # -- data sets -----------------------------------------------------------------------------

    def curve(
        self,
        spec: RetrieverSpec,
        method: Method,
        pairs: Sequence[TextPair],
        dataset: str,
        selection: str = "",
    ) -> DataSetCurve:
        """The average of the stored curves of `pairs`; no attribution is computed. With
        `over_text(method)` it covers whole texts, past the context limit too, and has no center of
        mass and no index.

        Raises:
            UserError: the method is unavailable for the model, or none of the pairs has a stored
                result.
        """
        model = self.identify(spec)
        self.require_fit(model, method)
        try:
            content, summary = self.means.of(model.key, method, pairs, dataset)
        except UserError as nothing_stored:
            if failed := self.store.curves(model.key, method, pairs).failed:
                reason = next(iter(failed.values()))
                raise UserError(f"No pair has a result: {reason}") from nothing_stored
            raise
        read = partial(self.store.curves, model.key, method, pairs)
        return DataSetCurve(content, summary, model, len(pairs), selection, read)

    def attribution_job(
        self,
        spec: RetrieverSpec,
        method: Method,
        pairs: Sequence[TextPair],
        scope: str,
        *,
        executor: Callable[[ModelIdentity], AbstractContextManager[Executor]] | None = None,
        store: Destination | None = None,
    ) -> Job:
        """A job that attributes `pairs`; `scope` identifies this selection of pairs. `executor`
        replaces this process's device, and `store` replaces the cache as the destination.

        Raises:
            UserError: neither the model's files nor any of its results are on this machine.
        """
        model = self.identify(spec)

        def this_device(model: ModelIdentity) -> AbstractContextManager[Executor]:
            return nullcontext(
                OneDevice(self.fitting(model, method), method, self.device_slot(spec))
            )

        def work(run: Run, report: Report) -> Progress:
            with (executor or this_device)(model) as place:
                return precompute(
                    place,
                    model.key,
                    method,
                    pairs,
                    store or self.store,
                    options=self.run_options(spec, run, report),
                )

        return self.model_job(
            model,
            method,
            scope,
            len(pairs),
            work,
            lambda other: other.attribution_job(spec, method, pairs, scope),
            n_done=lambda: self.means.n_attempted(model.key, method, pairs),
            failures=lambda: self.store.curves(model.key, method, pairs).failed,
            n_elsewhere=lambda: at_work(
                claims_folder(self.store.root, model.key, method), elsewhere=True
            ),
            doing=METHODS[method.name].title,
        )

    def job(self, key: RunKey, label: str, total: int, work: Work, **details: Any) -> Job:
        """A job that stores its results in this folder; `details` are further fields of `Job`."""

        def claimed(run: Run, report: Report) -> Progress:
            _, fingerprint, *_ = key
            with using(self.root, fingerprint):
                return work(run, report)

        upkeep = details.get("upkeep", False)
        return Job(self.runs, self.root, key, label, total, work if upkeep else claimed, **details)

    def model_job(
        self,
        model: ModelIdentity,
        method: Method,
        scope: str,
        total: int,
        work: Work,
        again: Callable[[Compute], Job],
        *,
        label: str = "",
        adaptive: bool = False,
        **details: Any,
    ) -> Job:
        """A job of one model; `scope` identifies the selection of items. `again` creates the same
        job for another `Compute`, so that the texts for an endpoint can be counted before they are
        sent; `adaptive` is as in `Sending`. `label` is by default the model's name."""
        spec, sending = model.spec, None
        if spec.remote:

            def counted(folder: Path, counting: Counting) -> Job:
                return again(Compute(folder, beside=self, counting=counting))

            sending = Sending(spec.name, partial(cost_of, self.root), counted, adaptive)
        return self.job(
            run_key(model, method, scope),
            label or spec.name,
            total,
            interruptible(work),
            can_start=not model.stored_only,
            sending=sending,
            **details,
        )

    def joint_job(
        self,
        model: ModelIdentity,
        method: Method,
        scope: str,
        parts: Sequence[tuple[str, Job]],
        *,
        label: str,
        doing: str,
    ) -> Job:
        """A job of one model that runs several, each with its name, one after the other; progress
        counts the items of all."""
        return self.job(
            run_key(model, method, scope),
            label,
            sum(job.total for _, job in parts),
            in_turn(parts),
            parts=tuple(job for _, job in parts),
            n_done=lambda: sum(job.n_done() for _, job in parts),
            failures=lambda: failures_of(parts),
            can_start=not model.stored_only,
            doing=doing,
        )

    def device_slot(self, spec: RetrieverSpec) -> Callable[[], AbstractContextManager[None]]:
        """A function that returns a context manager, which waits for the device and reserves it. A
        run takes a slot for each batch. Endpoints need no slot, so that nothing on this machine
        waits for them."""
        return nullcontext if spec.remote else self.queue.device_slot

    def _device_file(self) -> Path:
        """The file that all processes with this cache and this device lock while they compute."""
        return self.root / f"device-{DEVICE.get().replace(':', '-')}.lock"

    def run_options(self, spec: RetrieverSpec, run: Run, report: Report) -> RunOptions:
        """Options of the run loop: where to report, and how to reserve the device."""

        def on_stage(stage: str) -> None:
            run.stage = stage

        return RunOptions(report, self.device_slot(spec), run.retry_failed, on_stage)


def run_key(model: ModelIdentity, method: Method, scope: str) -> RunKey:
    """The key of a run; a second run with the same key cannot start while the first is active."""
    return model.spec.name, model.key.fingerprint, method.core, scope, model.device


@cache
def service() -> Compute:
    """The process-wide `Compute`, created by the first call."""
    return Compute()
