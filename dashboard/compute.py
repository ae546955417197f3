"""What pages and the command line ask for: results, computed once and kept. No Streamlit here."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from attribution.errors import UserError
from attribution.faithfulness import Faithfulness, Parameters
from attribution.methods import METHODS, attribute_batches
from attribution.position import CurveSummary, summarize
from attribution.projection import Layout
from attribution.proof import Proof, prove
from attribution.retrievers import families, lexical
from attribution.retrievers.base import Retriever
from attribution.retrievers.load import load, plan
from attribution.retrievers.registry import RetrieverSpec, data_folder
from attribution.retrievers.sparse import Term
from attribution.types import Array, Attribution, Method, Provenance, Side, TextPair
from cache.embeddings import EMBEDDING, EmbeddingStore, embed, make_map, map_key
from cache.faithfulness import FaithfulnessStore, StoredFaithfulness
from cache.faithfulness import run as run_faithfulness
from cache.fingerprint import files_fingerprint, model_fingerprint
from cache.precompute import Progress, precompute
from cache.store import ModelKey, Store, StoredCurves
from dashboard.settings import DEVICE, MODEL_MEMORY_GB, PRECISION

RunKey = tuple[str, str, str, str, str]
Report = Callable[[Progress], None]


@cache
def poslens_version() -> str:
    """Version of this program: of the installed package, else of the source tree."""
    try:
        return version("poslens")
    except PackageNotFoundError:
        import tomllib

        project = Path(__file__).parent.parent / "pyproject.toml"
        return tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A retriever as it would compute now: what the store's key and every caption need, known
    without loading it."""

    spec: RetrieverSpec
    key: ModelKey
    weights: str
    precision: str
    device: str


@dataclass(frozen=True, slots=True)
class Explained:
    """A result with where it came from. `notice` says what went wrong without spoiling it, such
    as a cache that could not be written."""

    attribution: Attribution
    model: ModelIdentity
    pair: TextPair
    from_cache: bool
    notice: str = ""

    def provenance(self) -> Provenance:
        """Everything needed to compute this result again."""
        document = self.attribution.document
        return Provenance(
            poslens=poslens_version(),
            model=self.model.spec.name,
            model_source=self.model.spec.origin,
            weights=self.model.weights,
            method=repr(self.attribution.method),
            dataset=self.pair.dataset,
            n=1,
            max_length=document.max_length,
            truncated=int(document.truncated),
            precision=self.model.precision,
            prompts=self.model.spec.prompts,
            selection=f"pair {self.pair.pair_id}",
        )


@dataclass(frozen=True, slots=True)
class DataSetCurve:
    """The curves stored of a selection of pairs, and their average."""

    summary: CurveSummary
    stored: StoredCurves
    model: ModelIdentity
    total: int
    selection: str

    def provenance(self) -> Provenance:
        """Everything needed to compute this curve again."""
        curve = self.summary.curve
        return Provenance(
            poslens=poslens_version(),
            model=self.model.spec.name,
            model_source=self.model.spec.origin,
            weights=self.model.weights,
            method=repr(curve.method),
            dataset=curve.dataset,
            n=curve.n,
            max_length=self.model.spec.max_length or 0,
            truncated=curve.n_truncated,
            precision=self.model.precision,
            prompts=self.model.spec.prompts,
            selection=self.selection,
        )


class Turnstile:
    """A lock that lets waiters through in the order they came. A run over a data set asks again
    after every batch; with a plain lock it would get it back each time before anyone waiting."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for one's turn and hold the device."""
        ticket = object()
        with self._condition:
            self._waiting.append(ticket)
            try:
                self._condition.wait_for(lambda: self._waiting[0] is ticket)
            except BaseException:
                self._waiting.remove(ticket)
                self._condition.notify_all()
                raise
        try:
            yield
        finally:
            with self._condition:
                self._waiting.popleft()
                self._condition.notify_all()


class Run:
    """A data set run in a thread of its own; it goes on while pages come and go."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.stage = ""
        self.progress = Progress(total=total, done=0, computed=0, failed=0, seconds=0.0)
        self.error = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether it is still computing."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to end after the batch at hand."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stop.is_set()

    def start(self, work: Callable[[Run], None]) -> None:
        """Run `work`; a UserError becomes `error`, anything else a sentence and a log entry."""

        def guarded() -> None:
            try:
                work(self)
            except UserError as error:
                self.error = str(error)
            except Exception:
                import logging

                logging.getLogger(__name__).exception("run %s failed", self.label)
                self.error = "The run ended with an unexpected error; the server's log has it."

        self._thread = threading.Thread(target=guarded, name=self.label, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Block until it has ended."""
        if self._thread is not None:
            self._thread.join()


class Compute:
    """Models, store, device queue and runs of one process."""

    def __init__(self, root: Path | None = None) -> None:
        folder = (root or data_folder()) / "cache"
        self.store = Store(folder)
        self.tests = FaithfulnessStore(folder)
        self.embeddings = EmbeddingStore(folder)
        self._turnstile = Turnstile()
        self._loading = threading.Lock()
        self._models: OrderedDict[tuple[str, str], Retriever] = OrderedDict()
        self._proofs: dict[tuple[str, str], Proof] = {}
        self._runs: dict[RunKey, Run] = {}
        self._runs_lock = threading.Lock()

    # -- models --------------------------------------------------------------------------------

    def identify(self, spec: RetrieverSpec) -> ModelIdentity:
        """The model as its files are now; cheap, loads nothing.

        Raises:
            UserError: its files are not here.
        """
        files, device, precision = plan(spec, DEVICE.get(), PRECISION.get())
        spec = families.settled(spec, files.folder)
        weights = files_fingerprint(files)
        key = model_fingerprint(
            weights, f"{spec.settings}, precision={precision}{lexical.settings(spec)}"
        )
        return ModelIdentity(spec, ModelKey(spec.name, key), weights, precision, str(device))

    def retriever(self, model: ModelIdentity) -> Any:
        """The model, loaded and put to the proof where it is not; the least recently used ones
        make room.

        Raises:
            UserError: it cannot be loaded or fails its proof.
        """
        key = (model.key.fingerprint, model.device)
        with self._loading:
            found = self._models.get(key)
            if found is None:
                found = load(model.spec, DEVICE.get(), PRECISION.get())
                if key not in self._proofs:
                    self._proofs[key] = prove(found)
                self._models[key] = found
                self._evict()
            self._models.move_to_end(key)
            return found

    def _evict(self) -> None:
        limit = MODEL_MEMORY_GB.get() * 2**30 or 0.4 * _device_memory()
        while len(self._models) > 1 and self._bytes() > limit:
            self._models.popitem(last=False)

    def _bytes(self) -> int:
        return sum(found.weight_bytes for found in self._models.values())

    def proof(self, model: ModelIdentity) -> Proof | None:
        """What the model showed of itself when it was loaded; None before that."""
        return self._proofs.get((model.key.fingerprint, model.device))

    def unfit(self, spec: RetrieverSpec, method: str) -> str:
        """Why `method` does not work on this model; empty where it does, as far as is known:
        what only the loaded model can tell is known once it was loaded."""
        model, fitting = self.identify(spec), METHODS[method].families
        if model.spec.family not in fitting:
            return f"it is for {_listed(fitting)} retrievers"
        proof = self.proof(model)
        return proof.unfit.get(method, "") if proof else ""

    # -- pairs ---------------------------------------------------------------------------------

    def explain(
        self,
        pair: TextPair,
        spec: RetrieverSpec,
        method: Method,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Explained:
        """One pair's attribution, from the cache or computed and stored.

        Raises:
            UserError: whatever keeps it from being computed, or it was stopped.
        """
        model = self.identify(spec)
        notice = ""
        try:
            found = self.store.get(model.key, method, pair)
        except UserError as error:
            found, notice = None, f"{error} The result below was computed and is not kept."
        if found is not None:
            return Explained(found, model, pair, from_cache=True)
        if model.spec.family not in METHODS[method.name].families:
            raise UserError(f"{method.name} does not fit {spec.name}: choose another method.")
        retriever = self.retriever(model)
        if reason := self.unfit(spec, method.name):
            raise UserError(f"{method.name} does not fit {spec.name}: {reason}")
        with self._turnstile.turn():
            outcomes = [
                outcome
                for batch in attribute_batches(retriever, method, [pair], should_stop)
                for outcome in batch
            ]
        if not outcomes:
            raise UserError("Stopped before this pair's turn came.")
        result = outcomes[0].attribution
        if result is None:
            raise UserError(outcomes[0].reason)
        if not notice:
            try:
                self.store.put(model.key, method, [(pair, result)])
            except UserError as error:
                notice = f"{error} The result below is not kept."
        return Explained(result, model, pair, from_cache=False, notice=notice)

    def terms(self, pair: TextPair, spec: RetrieverSpec) -> list[Term]:
        """The vocabulary's terms that a sparse encoder finds in both texts, with their weights.

        Raises:
            UserError: the model cannot be loaded or a text has no token.
        """
        retriever = self.retriever(self.identify(spec))
        with self._turnstile.turn(), retriever.lock:
            return retriever.terms(pair)[2]

    # -- data sets -----------------------------------------------------------------------------

    def curve(
        self,
        spec: RetrieverSpec,
        method: Method,
        pairs: Sequence[TextPair],
        dataset: str,
        selection: str = "",
    ) -> DataSetCurve:
        """The aggregated curve of what is stored of `pairs`; computes no attribution.

        Raises:
            UserError: nothing is stored of them.
        """
        model = self.identify(spec)
        stored = self.store.curves(model.key, method, pairs)
        summary = summarize(
            stored.curves,
            model=spec.name,
            dataset=dataset,
            method=method,
            n_truncated=stored.n_truncated,
            n_failed=len(stored.failed),
        )
        return DataSetCurve(summary, stored, model, len(pairs), selection)

    def n_missing(self, spec: RetrieverSpec, method: Method, pairs: Sequence[TextPair]) -> int:
        """How many of `pairs` still have to be computed."""
        return len(self.store.missing(self.identify(spec).key, method, pairs))

    def start_run(
        self,
        spec: RetrieverSpec,
        method: Method,
        pairs: Sequence[TextPair],
        dataset: str,
        on_progress: Report = lambda progress: None,
        *,
        retry_failed: bool = False,
    ) -> Run:
        """Compute what is missing of `pairs` in a thread; a run of the same kind that is active
        is returned instead of a second one."""
        model = self.identify(spec)

        def work(run: Run, report: Report) -> Progress:
            return precompute(
                self.retriever(model),
                model.key,
                method,
                pairs,
                self.store,
                should_stop=lambda: run.stopping,
                on_progress=report,
                turn=self._turnstile.turn,
                retry_failed=retry_failed,
            )

        return self._start(_run_key(model, method, dataset), len(pairs), work, on_progress)

    def _start(
        self,
        key: RunKey,
        total: int,
        work: Callable[[Run, Report], Progress],
        on_progress: Report = lambda progress: None,
    ) -> Run:
        with self._runs_lock:
            running = self._runs.get(key)
            if running is not None and running.active:
                return running
            run = Run(" ".join(key), total)
            self._runs[key] = run

            def report(progress: Progress) -> None:
                run.progress = progress
                on_progress(progress)

            def whole(run: Run) -> None:
                run.progress = work(run, report)

            run.start(whole)
        return run

    def run_of(self, spec: RetrieverSpec, method: Method, dataset: str) -> Run | None:
        """The latest run of this kind in this process."""
        return self._runs.get(_run_key(self.identify(spec), method, dataset))

    # -- faithfulness --------------------------------------------------------------------------

    def test_pair(
        self, pair: TextPair, spec: RetrieverSpec, method: Method, parameters: Parameters
    ) -> Faithfulness:
        """How faithfully a method orders one pair's words; from the store or computed and kept.

        Raises:
            UserError: whatever keeps it from being computed.
        """
        model = self.identify(spec)
        found = self.tests.get(model.key, method, parameters, pair)
        if found is None:
            run_faithfulness(
                self.retriever(model), model.key, method, [pair], self.store, self.tests,
                parameters=parameters, turn=self._turnstile.turn, retry_failed=True,
            )  # fmt: skip
            stored = self.tests.select(model.key, method, parameters, [pair])
            if not stored.results:
                raise UserError(next(iter(stored.failed.values()), "This pair gave no result."))
            found = stored.results[0]
        return found

    def start_tests(
        self,
        spec: RetrieverSpec,
        method: Method,
        pairs: Sequence[TextPair],
        scope: str,
        parameters: Parameters,
    ) -> Run:
        """Test a method on what is missing of `pairs`, in a thread."""
        model = self.identify(spec)

        def work(run: Run, report: Report) -> Progress:
            return run_faithfulness(
                self.retriever(model),
                model.key,
                method,
                pairs,
                self.store,
                self.tests,
                parameters=parameters,
                should_stop=lambda: run.stopping,
                on_progress=report,
                turn=self._turnstile.turn,
            )

        return self._start(_run_key(model, method, f"{scope} {parameters!r}"), len(pairs), work)

    def tests_run_of(
        self, spec: RetrieverSpec, method: Method, scope: str, parameters: Parameters
    ) -> Run | None:
        """The latest test run of this kind in this process."""
        return self.run_of(spec, method, f"{scope} {parameters!r}")

    def tested(
        self, spec: RetrieverSpec, method: Method, pairs: Sequence[TextPair], parameters: Parameters
    ) -> StoredFaithfulness:
        """What is stored of the tests of a method on `pairs`."""
        return self.tests.select(self.identify(spec).key, method, parameters, pairs)

    # -- maps ----------------------------------------------------------------------------------

    def stored_map(self, spec: RetrieverSpec, source: MapSource, layout: Layout) -> StoredMap:
        """What there is of a map, computing nothing: which of the wanted items have a vector, and
        their points where they were fitted."""
        model = self.identify(spec)
        items, vectors = source.vectors(self, model)
        points = None
        if len(vectors):
            points = self.embeddings.get_map(model.key, map_key(layout, vectors))
        return StoredMap(model, tuple(items), points)

    def start_map(self, spec: RetrieverSpec, source: MapSource, layout: Layout) -> Run:
        """Compute what is missing of a map's vectors and fit it, in a thread."""
        model = self.identify(spec)

        def work(run: Run, report: Report) -> Progress:
            run.stage = "Computing"
            progress = source.compute(self, model, run, report)
            if progress.stopped:
                return progress
            _, vectors = source.vectors(self, model)
            run.stage = "Fitting the map"

            def fitted(done: int, total: int) -> None:
                if run.stopping:
                    raise UserError("The fit was stopped; vectors are kept.")
                report(Progress(total, done, done, 0, time.perf_counter() - started))

            report(Progress(0, 0, 0, 0, 0.0))  # numba compiles before the first epoch
            started = time.perf_counter()
            make_map(model.key, vectors, layout, self.embeddings, fitted)
            return progress

        return self._start(self._map_key(model, source, layout), len(source), work)

    def map_run(self, spec: RetrieverSpec, source: MapSource, layout: Layout) -> Run | None:
        """The latest run of this map in this process."""
        return self._runs.get(self._map_key(self.identify(spec), source, layout))

    @staticmethod
    def _map_key(model: ModelIdentity, source: MapSource, layout: Layout) -> RunKey:
        return _run_key(model, EMBEDDING, f"{source.scope} {layout!r}")


@dataclass(frozen=True, slots=True)
class StoredMap:
    """The items that have a vector, in order, and their points [n, 2] where they were fitted."""

    model: ModelIdentity
    items: tuple[str, ...]
    points: Array | None


class MapSource(Protocol):
    """What a map is made of."""

    scope: str

    def __len__(self) -> int:
        """Items wanted."""

    def vectors(self, compute: Compute, model: ModelIdentity) -> tuple[list[str], Array]:
        """The items that have a stored vector, and the vectors [n, H]."""

    def compute(self, compute: Compute, model: ModelIdentity, run: Run, report: Report) -> Progress:
        """Store what is missing."""


class TextMap:
    """Embeddings of texts, which are their own items."""

    def __init__(self, side: Side, texts: Sequence[str]) -> None:
        self.side = side
        self.texts = tuple(dict.fromkeys(texts))
        digest = hashlib.sha256("\0".join(self.texts).encode("utf-8", "replace")).hexdigest()
        self.scope = f"{side} {digest}"

    def __len__(self) -> int:
        return len(self.texts)

    def vectors(self, compute: Compute, model: ModelIdentity) -> tuple[list[str], Array]:
        """Texts that were embedded, and their vectors."""
        found = compute.embeddings.select(model.key, self.side, self.texts)
        kept = [text for text in self.texts if text in found]
        return kept, np.array([found[text] for text in kept], dtype=np.float32)

    def compute(self, compute: Compute, model: ModelIdentity, run: Run, report: Report) -> Progress:
        """Embed the rest."""
        if model.spec.family != "dense":
            raise UserError(
                f"{model.spec.name} has no one vector for a text: choose a dense model, or a map "
                "of curves."
            )
        return embed(
            compute.retriever(model), model.key, self.side, self.texts, compute.embeddings,
            should_stop=lambda: run.stopping, on_progress=report, turn=compute._turnstile.turn,
        )  # fmt: skip


class CurveMap:
    """Position curves of pairs under a method; items are pair ids."""

    def __init__(self, method: Method, pairs: Sequence[TextPair]) -> None:
        self.method = method
        self.pairs = tuple(pairs)
        digest = hashlib.sha256("\0".join(p.pair_id for p in self.pairs).encode()).hexdigest()
        self.scope = f"{method!r} {digest}"

    def __len__(self) -> int:
        return len(self.pairs)

    def vectors(self, compute: Compute, model: ModelIdentity) -> tuple[list[str], Array]:
        """Pairs whose curves are stored, and the curves."""
        stored = compute.store.curves(model.key, self.method, self.pairs)
        return list(stored.pair_ids), stored.curves

    def compute(self, compute: Compute, model: ModelIdentity, run: Run, report: Report) -> Progress:
        """Attribute the rest."""
        return precompute(
            compute.retriever(model), model.key, self.method, self.pairs, compute.store,
            should_stop=lambda: run.stopping, on_progress=report, turn=compute._turnstile.turn,
        )  # fmt: skip


def _run_key(model: ModelIdentity, method: Method, scope: str) -> RunKey:
    return model.spec.name, model.key.fingerprint, method.core, scope, model.device


def _listed(families: Sequence[str]) -> str:
    words = [family.replace("_", "-") for family in families]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _device_memory() -> int:
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def service() -> Compute:
    """This process's one instance."""
    return Compute()
