"""All families of retrievers, and detecting a model's family from its folder."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import (  # noqa: F401 (each registers its family)
    dense,
    endpoint,
    late_interaction,
    lexical,
    own_object,
    seq2seq,
    sparse,
)
from poslens.attribution.retrievers.family import FAMILIES, Capability, Family
from poslens.attribution.retrievers.model_folder import contents
from poslens.attribution.retrievers.safe_files import DamagedFolder
from poslens.attribution.retrievers.specs import RetrieverSpec, presets


def family_of(spec: RetrieverSpec) -> Family:
    """The family of a retriever.

    Raises:
        UserError: there is no family of this name.
    """
    if spec.family not in FAMILIES:
        raise UserError(f"PosLens does not support {spec.name}'s family, {spec.family!r}.")
    return FAMILIES[spec.family]


def families_with(capability: Capability) -> tuple[Family, ...]:
    """The families with the capability that a method needs, in display order."""
    return tuple(family for family in FAMILIES.values() if capability in family.capabilities)


def with_detected_family(spec: RetrieverSpec, folder: Path) -> RetrieverSpec:
    """`spec` with the family detected from its files: a model named by its hub id counts as dense
    until its files are downloaded.

    Raises:
        UserError: a pooling, dimensions or a calibration were chosen for a model of another kind.
    """
    if not spec.source.startswith("hub:") or spec.family != "dense" or spec.base in presets():
        return spec
    family = family_of_folder(folder)
    for setting, reason in (
        (spec.pooling, "which has no pooling to replace"),
        (spec.dimensions, "whose vectors can't be truncated"),
        (spec.calibration, "whose attention cannot be calibrated"),
    ):
        if family is not dense.FAMILY and setting is not None:
            raise UserError(
                f"{spec.base} is a {family.title} model, {reason}: remove the suffix after "
                f"{spec.base}."
            )
    return replace(spec, family=family.name)


def family_of_folder(folder: Path) -> Family:
    """The family according to the files of a folder; dense if they do not determine it."""
    try:
        files = contents(folder)
    except DamagedFolder:  # reported when it is loaded
        return dense.FAMILY
    library_class = files.config("config_sentence_transformers.json").get("model_type")
    named = (f for f in FAMILIES.values() if f.library_class and f.library_class == library_class)
    recognized = (family for family in FAMILIES.values() if family.recognizes(files))
    return next(chain(named, recognized), dense.FAMILY)
