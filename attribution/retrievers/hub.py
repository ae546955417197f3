"""Models of the Hugging Face hub: size of a download, and the download.

No other code downloads a model: models that are typed, linked or named in scripts are only looked
up on this machine (`resolve.locate`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import resolve, specs
from poslens.attribution.retrievers.model_folder import contents
from poslens.attribution.retrievers.safe_files import DamagedFolder
from poslens.attribution.retrievers.specs import RetrieverSpec

OnProgress = Callable[[str, int, int | None], None]
"""Called with (step, bytes done, total bytes or None if unknown); an exception ends the fetch."""

RESERVE_BYTES = 1 << 30
"""Disk space that must remain free after a download."""

MAX_FILES = 2000
_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a download of `name` and the disk space available for it, in bytes."""

    name: str
    bytes: int
    free_bytes: int

    def require(self, limit_bytes: float | None = None) -> None:
        """Check the size against the limit and the disk.

        Raises:
            UserError: the download exceeds either.
        """
        if limit_bytes is not None and self.bytes > limit_bytes:
            raise UserError(
                f"{self.name} has {_gb(self.bytes)}, more than the {_gb(limit_bytes)} that pages "
                f"may download: run `python -m poslens models fetch {self.name}` instead."
            )
        if self.bytes + RESERVE_BYTES > self.free_bytes:
            raise UserError(
                f"There is not enough disk space for {self.name}: it needs {_gb(self.bytes)} and 1 "
                f"GB must stay free, but only {_gb(self.free_bytes)} are free."
            )


def repositories(spec: RetrieverSpec) -> tuple[str, ...]:
    """The hub ids of `spec`; none if it comes from elsewhere."""
    sources = (spec.source, spec.query_source or "")
    return tuple(s.removeprefix("hub:") for s in sources if s.startswith("hub:"))


def is_whole(spec: RetrieverSpec) -> bool:
    """Whether the local copy of `spec` is known to be complete: according to the file list of the
    hub's library or, for copies that another program made without one, according to the weights.

    Raises:
        UserError: the model is not on this machine.
    """
    return all(map(_is_whole, resolve.locate(spec).folders()))


def _is_whole(folder: Path) -> bool:
    if (folder.parents[1] / "trees" / f"{folder.name}.json").is_file():
        return True
    try:
        return bool(contents(folder).weights)
    except DamagedFolder:
        return False


def size_of(spec: RetrieverSpec) -> Size:
    """Size of a download of `spec`; asks the hub and downloads nothing.

    Raises:
        UserError: the hub does not answer, has no such model, or the model has too many files.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.utils._paths import filter_repo_objects

    total = 0
    patterns = resolve.hub_patterns(specs.code_allowed(spec))
    for repository in repositories(spec):
        try:
            info = HfApi().model_info(repository, files_metadata=True, timeout=_TIMEOUT_S)
        except Exception as error:
            raise _unreachable(repository, error) from error
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        files = list(filter_repo_objects(sizes, allow_patterns=patterns))
        if len(files) > MAX_FILES:
            raise UserError(
                f"{repository} has {len(files):,} files, too many for a model: use another id."
            )
        total += sum(sizes[name] for name in files)
    return Size(spec.base, total, free_bytes(Path(HF_HUB_CACHE)))


def fetch(spec: RetrieverSpec, on_progress: OnProgress, limit_bytes: float | None = None) -> Path:
    """Download at most `limit_bytes` of `spec` and return its folder. An interrupted download
    resumes. An exception in `on_progress` ends it.

    Raises:
        UserError: the hub cannot be reached, the model is too large, or the disk too small.
    """
    size = size_of(spec)
    size.require(limit_bytes)
    code = specs.code_allowed(spec)
    meter = _meter(size, on_progress)
    try:
        for repository in repositories(spec):
            folder = _snapshot(repository, resolve.hub_patterns(code), meter)
            # A model's code can be in another repository, which its configuration names.
            for other in resolve.code_repositories(folder) if code else ():
                _snapshot(other, resolve.CODE_PATTERNS, meter)
    except UserError:
        raise
    except Exception as error:
        raise _unreachable(spec.base, error) from error
    return resolve.locate(spec).folder


def _snapshot(repository: str, patterns: list[str], meter: type) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repository, allow_patterns=patterns, etag_timeout=_TIMEOUT_S, tqdm_class=meter
        )
    )


def _meter(size: Size, on_progress: OnProgress) -> type:
    """Progress bar for huggingface_hub that displays nothing, calls `on_progress`, and ends a
    download that exceeds the size stated by the hub."""
    from tqdm import tqdm

    bars: dict[int, int] = {}

    class Meter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._bytes = kwargs.get("unit") == "B"
            kwargs["disable"] = True
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs)
            self.n = 0

        def update(self, n: float | None = 1) -> None:
            if not self._bytes:
                return
            self.n += int(n or 0)
            # Two bars count the same bytes, as received and as written.
            bars[id(self)] = self.n
            done = max(bars.values())
            if done > 1.05 * size.bytes + (1 << 20):
                raise UserError(f"{size.name} is larger than the hub stated, so it was not kept.")
            on_progress("Downloading", min(done, size.bytes), size.bytes)

    return Meter


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk where this folder is or would be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def _unreachable(name: str, error: Exception) -> UserError:
    return UserError(
        f"{name} could not be downloaded from the Hugging Face hub ({type(error).__name__}): check "
        "the name and the connection, or start PosLens with a local folder."
    )


def _gb(n: float) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"
