"""The subjects of the study `debias`: a corpus, split in two for training, and versions of a model
(plain, calibrated, debiased, both)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.datasets.types import spread_evenly, spread_words
from poslens.attribution.debiasing import folder as folders
from poslens.attribution.debiasing.corpus import TrainingCorpus, fingerprint, training_corpus
from poslens.attribution.debiasing.folder import Manifest
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import movable
from poslens.attribution.retrievers.calibration import Calibration
from poslens.attribution.retrievers.dense import FAMILY as DENSE
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.model_folder import contents, is_router
from poslens.attribution.retrievers.resolve import locate
from poslens.attribution.retrievers.safe_files import DamagedFolder
from poslens.attribution.retrievers.specs import (
    RetrieverSpec,
    code_allowed,
    contents_of,
    data_folder,
    runs_bidirectional,
    with_calibration,
)
from poslens.attribution.types import TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.studies.audit.summary import whole_corpus
from poslens.studies.ranking.service import RankingSetup, collection_of
from poslens.study_part import MOVABLE

MAX_SETTINGS = 64
"""Maximum number of calibration settings of one grid, because each ranks the whole data set."""

NO_POSITIONS = (
    "This data set has no evidence positions, so no position bias can be measured: "
    "choose another data set."
)

HALF, ALL = "half", "all"
_LAYER_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")


@dataclass(frozen=True)
class DebiasCorpus:
    """A data set split by document. `texts` are its documents, and `held_out` the ids of those that
    are not used for training (all if `training` is None). `setup` ranks the queries of held-out
    documents (None without any), and `pairs` are those of the `n_movable` held-out pairs with
    movable evidence whose evidence is moved."""

    name: str
    training: TrainingCorpus | None
    texts: Collection
    held_out: frozenset[str]
    setup: RankingSetup | None
    pairs: tuple[TextPair, ...]
    n_movable: int

    @property
    def moved(self) -> str:
        """Which pairs have their evidence moved, as text."""
        items = "pairs of held-out documents" if self.training is not None else MOVABLE
        return spread_words(len(self.pairs), items)


@dataclass(frozen=True)
class DebiasPoint:
    """A version of a model: `base` unchanged, calibrated, debiased with a recipe, or both.
    `versions` is the number of versions that are compared."""

    base: RetrieverSpec
    corpus: DebiasCorpus
    calibration: Calibration | None = None
    recipe: TrainingRecipe | None = None
    versions: int = 1

    @property
    def kind(self) -> str:
        """plain, debiased, calibrated, or debiased and calibrated."""
        steps = {"debiased": self.recipe, "calibrated": self.calibration}
        return " and ".join(name for name, step in steps.items() if step is not None) or "plain"

    @property
    def label(self) -> str:
        """The point's name, which is known before training."""
        suffix = self.calibration.suffix if self.calibration else ""
        return f"{self.base.name}{', debiased' if self.recipe else ''}{suffix}"

    def training(self, compute: Compute) -> str:
        """Text that identifies the training: model, corpus and recipe."""
        corpus = self.corpus.training
        assert self.recipe is not None and corpus is not None
        model = compute.identify(self.base)
        return f"{model.key.fingerprint}; {corpus.name} {corpus.digest}; {self.recipe.words}"

    def spec(self, compute: Compute) -> RetrieverSpec | None:
        """The retriever; None until it is trained."""
        spec: RetrieverSpec | None = self.base
        if self.recipe is not None:
            spec = folders.find(self.training(compute))
        if spec is None or self.calibration is None:
            return spec
        return with_calibration(spec, self.calibration)

    def manifest(self, compute: Compute) -> Manifest | None:
        """The record of the model's training; None without training, or until it is trained."""
        spec = folders.find(self.training(compute)) if self.recipe is not None else None
        return None if spec is None else folders.read_manifest(folders.folder_of(spec))

    def checkpoint(self, compute: Compute) -> Path:
        """The file from which an interrupted training resumes."""
        name = fingerprint(self.training(compute))
        return data_folder() / "models" / "debiasing" / f"{name}.safetensors"


def require_trainable(spec: RetrieverSpec) -> None:
    """Check that the model can be debiased.

    Raises:
        UserError: it cannot.
    """
    if spec.without_files or family_of(spec) is not DENSE:
        kind = "an endpoint" if spec.remote else f"a {family_of(spec).title} model"
        kind = "an object without weights" if spec.without_files and not spec.remote else kind
        raise UserError(
            f"{spec.name} is {kind}, which cannot be trained here: choose a dense "
            "sentence-transformers model."
        )
    if spec.calibration is not None:
        raise UserError(
            f"{spec.name} is calibrated: debias {spec.base}, to which the calibration can be added."
        )
    if spec.query_source is not None or _has_router(spec):
        raise UserError(
            f"{spec.name} has separate encoders for queries and documents, which debiasing does "
            "not support: choose a model with one encoder."
        )
    if runs_bidirectional(spec) or (spec.remote_code and code_allowed(spec)):
        raise UserError(
            f"{spec.name} needs code from its repository, which the debiased folder would lack: "
            "choose a model with an architecture of transformers."
        )


def _has_router(spec: RetrieverSpec) -> bool:
    """Whether the model's files name a Router; False if they can't be read, which is reported when
    the model is loaded."""
    try:
        modules = contents(locate(spec).folder).modules
    except (UserError, DamagedFolder):
        return False
    return any(is_router(kind) for kind, _ in modules)


_corpora: LRUCache[DebiasCorpus] = LRUCache(8)


def debias_corpus(data: DataSet, n_pairs: int, trains: bool) -> DebiasCorpus:
    """A data set with at most `n_pairs` held-out pairs whose evidence is moved: split by document
    if it `trains` a model, otherwise with every query whose evidence position is known.

    Raises:
        UserError: the data set has too few documents or sentences for training or, without
            training, no queries with known evidence positions.
    """
    texts = whole_corpus(data)
    key = (texts.digest, data.name, n_pairs, trains)
    return _corpora.get(key, lambda: (_split if trains else _whole)(data, texts, n_pairs))


def _split(data: DataSet, texts: Collection, n_pairs: int) -> DebiasCorpus:
    documents = list(texts.documents())
    training = training_corpus(
        data.name, [(document.text, document.language) for document in documents]
    )
    held_out = frozenset(document.key for document in documents if training.held_out(document.text))
    pairs = [pair for pair in data.pairs if training.held_out(pair.document)]
    setup = _setup(data, held_out)
    return DebiasCorpus(data.name, training, texts, held_out, setup, *_moved(pairs, n_pairs))


def _setup(data: DataSet, held_out: frozenset[str]) -> RankingSetup | None:
    try:
        collection = collection_of(data)
    except UserError:
        return None  # the data set has no queries with judgments
    left_out = frozenset(
        query.query_id for query in collection.queries if not held_out.issuperset(query.relevant)
    )
    if len(left_out) == len(collection.queries):
        return None
    return RankingSetup(collection, left_out=left_out, selection="queries of held-out documents")


def _whole(data: DataSet, texts: Collection, n_pairs: int) -> DebiasCorpus:
    collection = collection_of(data)
    left_out = frozenset(q.query_id for q in collection.queries if q.evidence is None)
    if len(left_out) == len(collection.queries):
        raise UserError(NO_POSITIONS)
    selection = "queries whose evidence position is known" if left_out else ""
    setup = RankingSetup(collection, left_out=left_out, selection=selection)
    documents = frozenset(document.key for document in texts.documents())
    return DebiasCorpus(data.name, None, texts, documents, setup, *_moved(data.pairs, n_pairs))


def _moved(pairs: Sequence[TextPair], n: int) -> tuple[tuple[TextPair, ...], int]:
    """At most `n` pairs whose evidence is moved, and the number of pairs with movable evidence."""
    usable, _ = movable(pairs)
    return tuple(spread_evenly(usable, n)), len(usable)


def points(
    spec: RetrieverSpec,
    corpus: DebiasCorpus,
    recipe: TrainingRecipe,
    settings: Sequence[Calibration],
) -> list[DebiasPoint]:
    """The versions of a model that are compared: plain, calibrated in each setting and, if the
    corpus has a training half, debiased, and debiased and calibrated in the first setting."""
    recipes = [recipe] if corpus.training is not None else []
    versions: list[tuple[Calibration | None, TrainingRecipe | None]] = [
        (None, None),
        *((None, each) for each in recipes),
        *((setting, None) for setting in settings),
        *((setting, each) for each in recipes for setting in settings[:1]),
    ]
    return [DebiasPoint(spec, corpus, *version, len(versions)) for version in versions]


def grid(
    spec: RetrieverSpec, strengths: Sequence[float], blocks: Sequence[int], layers: Sequence[str]
) -> list[Calibration]:
    """Calibration settings in every combination; `layers` are `half`, `all` or numbers of layers.

    Raises:
        UserError: a number is out of range, there are more than `MAX_SETTINGS` combinations, or the
            model is not dense.
    """
    if family_of(spec) is not DENSE:
        raise UserError(
            f"{spec.name} is not a dense model, so its attention can't be calibrated: choose one."
        )
    n = _n_layers(spec) if set(layers) != {HALF} else None
    settings: dict[str, Calibration] = {}
    for depth, block, strength in product(layers, blocks, strengths):
        setting = Calibration(strength, block, _depth(depth, n, spec.name))
        if setting.layers is not None and n is not None:
            setting.first_of(n, spec.name)
        settings[with_calibration(spec, setting).name] = setting
    if len(settings) > MAX_SETTINGS:
        raise UserError(
            f"{len(settings)} settings exceed the maximum of {MAX_SETTINGS}: choose fewer values."
        )
    return list(settings.values())


def _n_layers(spec: RetrieverSpec) -> int | None:
    """The number of layers in the model's configuration; None if it is not stated."""
    values = contents_of(spec.name, locate(spec).folder).config("config.json")
    return next((n for key in _LAYER_KEYS if isinstance(n := values.get(key), int)), None)


def _depth(word: str, n: int | None, name: str) -> int | None:
    if word == HALF:
        return None
    if word == ALL and n is not None:
        return n
    if word == ALL:
        raise UserError(f"{name} does not state how many layers it has: use a number.")
    depth = layers_of(word)
    # Equal settings must have the same name, because results are stored by it.
    return None if n is not None and depth == max(1, n // 2) else depth


def layers_of(word: str) -> int | None:
    """The number of layers in a value of the parameter `layers`; None for `half` and `all`.

    Raises:
        UserError: it is none of these.
    """
    if word in (HALF, ALL):
        return None
    try:
        return int(word)
    except ValueError as error:
        raise UserError(
            f"layers must be half, all or a whole number, not {word[:40]!r}."
        ) from error
