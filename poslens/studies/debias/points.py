"""The subjects of the study `debias`: a corpus split in two, and versions of a model (plain,
calibrated, debiased, both)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from poslens.attribution import datasets
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.debiasing import folder as folders
from poslens.attribution.debiasing.corpus import TrainingCorpus, fingerprint, training_corpus
from poslens.attribution.debiasing.folder import Manifest
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import movable
from poslens.attribution.retrievers.calibration import Calibration
from poslens.attribution.retrievers.dense import FAMILY as DENSE
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import (
    RetrieverSpec,
    code_allowed,
    data_folder,
    runs_bidirectional,
    with_calibration,
)
from poslens.attribution.types import TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.studies.ranking.service import RankingSetup, collection_of


@dataclass(frozen=True)
class DebiasCorpus:
    """A data set split by document. `texts` are its documents, and `held_out` the ids of the
    held-out ones. `setup` ranks the queries of held-out documents (None without any), and `pairs`
    are held-out pairs whose evidence can be moved."""

    name: str
    training: TrainingCorpus
    texts: Collection
    held_out: frozenset[str]
    setup: RankingSetup | None
    pairs: tuple[TextPair, ...]


@dataclass(frozen=True)
class DebiasPoint:
    """One version of a model: `base` unchanged, calibrated, debiased with a recipe, or both."""

    base: RetrieverSpec
    corpus: DebiasCorpus
    calibration: Calibration | None = None
    recipe: TrainingRecipe | None = None

    @property
    def kind(self) -> str:
        """plain, debiased, calibrated, or debiased and calibrated."""
        steps = {"debiased": self.recipe, "calibrated": self.calibration}
        return " and ".join(name for name, step in steps.items() if step is not None) or "plain"

    @property
    def label(self) -> str:
        """The point's name, which needs no trained model."""
        suffix = self.calibration.suffix if self.calibration else ""
        return f"{self.base.name}{', debiased' if self.recipe else ''}{suffix}"

    def training(self, compute: Compute) -> str:
        """Text that identifies the training: model, corpus and recipe."""
        assert self.recipe is not None
        model = compute.identify(self.base)
        corpus = self.corpus.training
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
    if spec.query_source is not None:
        raise UserError(
            f"{spec.name} has an encoder of its own for queries, which debiasing does not train: "
            "choose a model with one encoder."
        )
    if runs_bidirectional(spec) or (spec.remote_code and code_allowed(spec)):
        raise UserError(
            f"{spec.name} is defined by code in its repository, which a plain folder would lack: "
            "choose a model of a class that transformers has."
        )


_corpora: LRUCache[DebiasCorpus] = LRUCache(8)


def debias_corpus(data: DataSet, n_pairs: int) -> DebiasCorpus:
    """A data set split by document, with at most `n_pairs` held-out pairs whose evidence is moved.

    Raises:
        UserError: the data set has too few documents or sentences.
    """
    named = data.name in datasets.names()
    texts = datasets.corpus_of(data.name) if named else collection_of(data)
    return _corpora.get((texts.digest, data.name, n_pairs), lambda: _split(data, texts, n_pairs))


def _split(data: DataSet, texts: Collection, n_pairs: int) -> DebiasCorpus:
    documents = list(texts.documents())
    training = training_corpus(
        data.name, [(document.text, document.language) for document in documents]
    )
    held_out = frozenset(document.key for document in documents if training.held_out(document.text))
    usable, _ = movable([pair for pair in data.pairs if training.held_out(pair.document)])
    pairs = tuple(spread_evenly(usable, min(n_pairs, len(usable))))
    return DebiasCorpus(data.name, training, texts, held_out, _setup(data, held_out), pairs)


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


def points(
    spec: RetrieverSpec, corpus: DebiasCorpus, recipe: TrainingRecipe, strengths: Sequence[float]
) -> list[DebiasPoint]:
    """The versions of a model that are compared: plain, debiased, calibrated at each strength, and
    debiased and calibrated at the first strength.

    Raises:
        UserError: the model cannot be trained.
    """
    require_trainable(spec)
    settings = [Calibration(strength) for strength in strengths]
    return [
        DebiasPoint(spec, corpus),
        DebiasPoint(spec, corpus, recipe=recipe),
        *(DebiasPoint(spec, corpus, setting) for setting in settings),
        *(DebiasPoint(spec, corpus, setting, recipe) for setting in settings[:1]),
    ]


def recipe_entries(recipe: TrainingRecipe) -> dict[str, float]:
    """The numbers of a recipe by name."""
    return {name: float(value) for name, value in asdict(recipe).items()}
