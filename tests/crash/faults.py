"""Let every call that changes a file of the cache fail, once or from then on, as on a full or
broken disk (ENOSPC, EIO), or write only half of its data.

    python -m tests.crash.faults [--every 1] [--work 0]

A preloaded library makes calls fail (faults.c; needs a C compiler and Linux). Each case is a forked
child that works in a folder, reports acknowledged pairs through a pipe, and hits its fault at the
N-th call; N grows until no fault fires any more. The child may fail with one sentence, but with no
other error; it then tries again, on the repaired disk or a broken one, or ends. Afterwards, in a
process without faults, everything acknowledged is there, nothing wrong is shown, verifying finds no
damage, and a resumed run gives the curve of an uninterrupted one bit for bit. The work is a real
precompute (BM25, as in tests/crash/kill.py) into a store that checkpoints often and is then
compacted; the same into parts that are then ingested; and a merge of another cache, exported to a
file.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from poslens.attribution.curves.curve_summary import summarize
from poslens.attribution.errors import UserError
from poslens.attribution.isolated import Reader
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.types import Method, TextPair
from poslens.cache.exchange.part_files import PartFolder, PartWriter, ingest
from poslens.cache.exchange.transfer import export, import_file, merge
from poslens.cache.jobs.attributions import OneDevice, precompute
from poslens.cache.storage import connections, index
from poslens.cache.storage.encoded import Computed
from poslens.cache.storage.maintenance import compact, listing, verify
from poslens.cache.storage.store import ModelKey, Store
from tests.crash.kill import METHOD, MODEL, Telling, lexical, some_pairs, sound

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_suffix(".c")
ENDED, BROKEN = 3, 4
"""Exit codes of a child that ended with a sentence, and of one that met another error."""


# -- the library ----------------------------------------------------------------------------------


def missing() -> str:
    """Why calls can't be made to fail here; empty if they can."""
    if not sys.platform.startswith("linux"):
        return "calls can be made to fail on Linux alone"
    return "" if shutil.which("cc") else "there is no C compiler"


def preloaded(arguments: list[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of this program with the library, built in `folder`."""
    library = folder / "faults.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    command = [sys.executable, "-m", "tests.crash.faults", *arguments]
    return command, os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True, slots=True)
class Fault:
    """How calls fail: the error, whether once or from then on, and whether half is written."""

    name: str
    error: int
    lasting: bool = False
    torn: bool = False


FAULTS = (
    Fault("ENOSPC once", errno.ENOSPC),
    Fault("ENOSPC from then on, the first write halved", errno.ENOSPC, lasting=True, torn=True),
    Fault("EIO once", errno.EIO),
    Fault("EIO from then on", errno.EIO, lasting=True),
    Fault("half written once", errno.EIO, torn=True),
)


# -- the work --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """The child's inputs; `whole` is the store of an uninterrupted run, outside its folder."""

    retriever: Retriever
    pairs: tuple[TextPair, ...]
    whole: Store

    def device(self) -> OneDevice:
        """In batches of a few pairs."""
        return OneDevice(self.retriever, METHOD, max_tokens=600)


Work = Callable[[Setting, Path, int], None]


def into_store(setting: Setting, folder: Path, pipe: int) -> None:
    """Precompute, then compact."""
    store = Telling(folder / "cache", pipe)
    precompute(setting.device(), MODEL, METHOD, setting.pairs, store)
    compact(store, MODEL, METHOD)


class _TellingParts(PartWriter):
    pipe = -1

    def put_encoded(self, model: ModelKey, method: Method, computed: Computed) -> None:
        super().put_encoded(model, method, computed)
        names = [pair.pair_id for pair in computed.all_pairs]
        os.write(self.pipe, "".join(f"{name}\n" for name in names).encode())


def into_parts(setting: Setting, folder: Path, pipe: int) -> None:
    """Precompute into parts, then ingest them."""
    place = PartFolder(folder / "parts")
    writer = _TellingParts(place, folder / "host", "0")
    writer.pipe = pipe
    precompute(setting.device(), MODEL, METHOD, setting.pairs, writer)
    if problems := ingest(Store(folder / "cache"), place).problems:
        raise RuntimeError(problems[0])


def by_merging(setting: Setting, folder: Path, pipe: int) -> None:
    """Merge a whole cache into an empty one, and export that over an earlier file."""
    store, target = Store(folder / "cache"), folder / "out.parquet"
    merge(store, setting.whole)
    os.write(pipe, "".join(f"{pair.pair_id}\n" for pair in setting.pairs).encode())
    for _ in range(2):
        export(store, listing(store), target, poslens="0")


WORKS: dict[str, Work] = {
    "precompute into the store, compact": into_store,
    "precompute into parts, ingest": into_parts,
    "merge, export": by_merging,
}


# -- a case ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """Outcome of the cases of one kind of work and fault. All of these must be 0 or empty:
    `lost` (acknowledged pairs that are gone), `wrong` (differing numbers), `unsound` (damaged
    files), `errors` (errors that were not one sentence)."""

    calls: int = 0
    cases: int = 0
    sentences: int = 0
    went_on: int = 0
    acknowledged: int = 0
    lost: int = 0
    wrong: int = 0
    unsound: int = 0
    errors: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.lost or self.wrong or self.unsound or self.errors)


@dataclass(frozen=True, slots=True)
class _Told:
    """A child's report: acknowledged pairs, sentences, another error, number of calls, the failed
    call."""

    names: frozenset[str]
    sentences: tuple[str, ...]
    error: str
    calls: int
    failed: str


def _child(work: Work, setting: Setting, folder: Path, fault: Fault, number: int, pipe: int) -> int:
    library = ctypes.CDLL(None)
    library.faults_failed.restype = ctypes.c_char_p
    library.faults_calls.restype = ctypes.c_long

    def say(kind: str, text: str) -> None:
        os.write(pipe, f"{kind} {json.dumps(text)}\n".encode())

    # Checkpoint after a few batches instead of a hundred.
    connections._CHECKPOINT_BYTES = 1 << 20
    library.faults_arm(
        str(folder).encode(), ctypes.c_long(number), fault.error, fault.lasting, fault.torn
    )
    status = 0
    for attempt in range(3):
        try:
            work(setting, folder, pipe)
            status = 0
            break
        except UserError as error:
            say("!sentence", str(error))
            status = ENDED
        except BaseException:
            say("!error", traceback.format_exc())
            status = BROKEN
            break
        # The disk is repaired while the process keeps running, or after it ends.
        if not fault.lasting or (attempt == 1 and number % 2):
            library.faults_disarm()
        elif attempt == 1:
            break
    try:
        for name in ("cache", "host"):
            Store(folder / name).release()
    except BaseException:
        say("!error", traceback.format_exc())
    say("!failed", library.faults_failed().decode())
    say("!calls", str(library.faults_calls()))
    return status


def _forked(work: Work, setting: Setting, folder: Path, fault: Fault, number: int) -> _Told:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = BROKEN
        try:
            status = _child(work, setting, folder, fault, number, writing)
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:  # noqa: PTH123
        lines = stream.read().splitlines()
    _, status = os.waitpid(child, 0)
    said: dict[str, list[str]] = {"!sentence": [], "!error": [], "!calls": [], "!failed": []}
    for line in lines:
        if line.startswith("!"):
            kind, _, text = line.partition(" ")
            said[kind].append(json.loads(text))
    ended = os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, ENDED)
    # On a repaired disk the same process finishes.
    mended = number % 2 or not fault.lasting
    error = next(iter(said["!error"]), "")
    if not error and (not ended or (mended and os.WEXITSTATUS(status) == ENDED)):
        error = f"the child ended with {status}: {said['!sentence']}"
    return _Told(
        frozenset(line for line in lines if not line.startswith("!")),
        tuple(said["!sentence"]),
        error,
        int((said["!calls"] or ["0"])[0]),
        (said["!failed"] or [""])[0],
    )


def _shown(store: Store, pairs: tuple[TextPair, ...]) -> tuple[dict[str, bytes], dict[str, str]]:
    found = store.curves(MODEL, METHOD, pairs)
    curves = (curve.tobytes() for curve in found.curves)
    return dict(zip(found.pair_ids, curves, strict=True)), found.failed


def _aggregate(store: Store, pairs: tuple[TextPair, ...]) -> bytes:
    """The curve on the page: mean, band and quartiles."""
    found = store.curves(MODEL, METHOD, pairs)
    curve = summarize(
        found.curves,
        found.pair_ids,
        magnitudes=found.magnitudes,
        model="m",
        dataset="d",
        method=METHOD,
        n_truncated=found.n_truncated,
        n_failed=len(found.failed),
    ).curve
    parts = (curve.mean, curve.std, curve.ci_low, curve.ci_high, curve.quartiles)
    return b"".join(part.tobytes() for part in parts if part is not None)


def run(
    work: Work, setting: Setting, folder: Path, fault: Fault, every: int, first: int = 1
) -> Outcome:
    """Run cases N = first, first + every, ... of one kind of work and fault, until no fault
    fires."""
    outcome = Outcome()
    right, reasons = _shown(setting.whole, setting.pairs)
    aggregate = _aggregate(setting.whole, setting.pairs)
    null = os.open(os.devnull, os.O_WRONLY)
    number = first
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        told = _forked(work, setting, folder, fault, number)
        if not told.failed and not told.error:
            outcome.calls = told.calls
            os.close(null)
            return outcome
        outcome.cases += 1
        outcome.failed[told.failed] += 1
        outcome.sentences += bool(told.sentences)
        outcome.went_on += not told.sentences
        outcome.said.update(told.sentences)
        outcome.acknowledged += len(told.names)
        if told.error:
            outcome.errors.append(f"{fault.name}, call {number} ({told.failed}): {told.error}")
        for problem in _after(work, setting, folder, told, (right, reasons), aggregate, null):
            setattr(outcome, problem, getattr(outcome, problem) + 1)
            outcome.errors.append(f"{fault.name}, call {number} ({told.failed}): {problem}")
        number += every


def _after(
    work: Work,
    setting: Setting,
    folder: Path,
    told: _Told,
    right: tuple[dict[str, bytes], dict[str, str]],
    aggregate: bytes,
    pipe: int,
) -> Iterator[str]:
    """What is wrong after a fault, before and after a run that resumes without one."""
    index.forget_below(Path("/"))
    store, curves, reasons = Store(folder / "cache"), *right
    if work is into_parts and (folder / "parts").is_dir():
        # Parts contain what was acknowledged, and a store ingests it from there.
        if ingest(store, PartFolder(folder / "parts")).problems:
            yield "unsound"
        index.forget_below(Path("/"))
    there, failed = _shown(store, setting.pairs)
    if told.names - there.keys() - failed.keys():
        yield "lost"
    if any(curves.get(name) != curve for name, curve in there.items()):
        yield "wrong"
    if any(reasons.get(name) != reason for name, reason in failed.items()):
        yield "wrong"
    if not _whole(store) or not _exported_whole(folder):
        yield "unsound"
    work(setting, folder, pipe)
    index.forget_below(Path("/"))
    if _shown(store, setting.pairs) != right or _aggregate(store, setting.pairs) != aggregate:
        yield "wrong"
    for pair in setting.pairs:
        found, kept = store.get(MODEL, METHOD, pair), setting.whole.get(MODEL, METHOD, pair)
        if (found is None) != (kept is None) or (
            found is not None
            and kept is not None
            and found.document_scores.tobytes() != kept.document_scores.tobytes()
        ):
            yield "wrong"
            break
    if not _whole(store):
        yield "unsound"
    store.release()
    Store(folder / "host").release()


def _whole(store: Store) -> bool:
    """Whether SQLite and PosLens find no damage, and no file without contents is left."""
    path, files = store.path(MODEL, METHOD), listing(store)
    if any(file.problem for file in files) or not sound(store):
        return False
    if path.exists() and not files and not _empty(path):
        return False
    found = verify(store, MODEL, METHOD)
    return not found.damaged and not found.blocks


def _empty(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def _exported_whole(folder: Path) -> bool:
    """Whether an exported file is complete or missing, and nothing else is left."""
    target = folder / "out.parquet"
    if target.exists():
        again = Store(folder / "again")
        import_file(again, target)
        again.release()
        shutil.rmtree(again.root)
    return not list(folder.glob(".*.part"))


# -- the program -----------------------------------------------------------------------------------


def main() -> None:
    """Let every call fail and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--every", type=int, default=1, help="only one call in so many")
    parser.add_argument("--work", type=int, choices=range(len(WORKS)), help="one of them alone")
    parser.add_argument("--pairs", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0, help="where to begin, with --every")
    options = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        if not hasattr(ctypes.CDLL(None), "faults_arm"):
            command, environment = preloaded(sys.argv[1:], folder)
            raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)
        started, outcomes = time.perf_counter(), []
        # The process that pre-reads parts changes no file, and its start would take most of the
        # time.
        Reader.call = lambda *_, **__: b""  # type: ignore[method-assign]
        works = list(WORKS.items())
        chosen = works if options.work is None else [works[options.work]]
        setting = Setting(lexical(), some_pairs(options.pairs), Store(folder / "whole"))
        precompute(setting.device(), MODEL, METHOD, setting.pairs, setting.whole)
        for title, work in chosen:
            for number, fault in enumerate(FAULTS):
                first = 1 + (options.seed + 37 * number) % options.every
                outcome = run(work, setting, folder / "faulty", fault, options.every, first)
                outcomes.append(outcome)
                print(
                    f"{title}; {fault.name}: {outcome.calls} calls, {outcome.cases} failed, "
                    f"{outcome.sentences} sentences, {outcome.went_on} went on; "
                    f"{outcome.acknowledged} acknowledged, {outcome.lost} lost, "
                    f"{outcome.wrong} wrong, {outcome.unsound} unsound",
                    flush=True,
                )
                for error in outcome.errors:
                    print(error, file=sys.stderr)
        failed = sum((outcome.failed for outcome in outcomes), Counter[str]())
        said = sum((outcome.said for outcome in outcomes), Counter[str]())
        print("failed:", ", ".join(f"{n} {call}" for call, n in failed.most_common()))
        for sentence, n in said.most_common():
            print(f"{n:6} {sentence}")
        print(
            f"{sum(outcome.cases for outcome in outcomes)} cases, "
            f"{time.perf_counter() - started:.0f} s"
        )
        if not all(outcome.good for outcome in outcomes):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
