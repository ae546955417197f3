"""Untrusted files are read in a child with limited memory and time, and the parent needs no
more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poslens.attribution import isolated
from poslens.attribution.errors import UserError
from poslens.attribution.isolated import Limits, Reader

ROOT = Path(__file__).parents[2]
MEGABYTE = 1 << 20


# -- functions that a child runs -------------------------------------------------------------------


def echo(data: bytes, *arguments: object) -> Iterator[bytes]:
    print("what a library prints is no part of the answer")
    yield data
    yield repr(arguments).encode()


def refuse(data: bytes) -> Iterator[bytes]:
    yield data
    raise UserError("Two words: no\ud800.")


def abort(data: bytes) -> Iterator[bytes]:
    os.abort()
    yield data


def take(_: bytes, megabytes: int) -> Iterator[bytes]:
    yield bytes([bytearray(megabytes * MEGABYTE)[-1]])


def talk(_: bytes, megabytes: int) -> Iterator[bytes]:
    for _ in range(megabytes):
        yield bytes(MEGABYTE)


def hang(data: bytes) -> Iterator[bytes]:
    while True:
        pass
    yield data


def environment(_: bytes) -> Iterator[bytes]:
    yield json.dumps(dict(os.environ)).encode()


def write(_: bytes, path: str) -> Iterator[bytes]:
    with Path(path).open("wb") as stream:
        stream.write(bytes(100_000))
    yield b"written"


def pid(_: bytes) -> Iterator[bytes]:
    yield str(os.getpid()).encode()


@pytest.fixture(autouse=True)
def known_to_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child imports this file as the module that it is in this process."""
    monkeypatch.setattr(
        isolated,
        "_CHILD",
        f"import importlib.util as u, sys; s = u.spec_from_file_location({__name__!r}, "
        f"{__file__!r}); m = sys.modules[{__name__!r}] = u.module_from_spec(s); "
        "s.loader.exec_module(m); from poslens.attribution.isolated import serve; serve()",
    )


# -- the child -----------------------------------------------------------------------------------


def test_an_answer_comes_back_whole() -> None:
    data = bytes(range(256)) * 10_000
    answer = isolated.call(
        echo, ["ä", 3, None], data, damaged="x", limits=Limits(answer=3 * MEGABYTE)
    )
    assert answer == data + b"('\xc3\xa4', 3, None)"


def test_an_error_in_the_child_is_raised_in_the_parent() -> None:
    with pytest.raises(UserError, match=r"^Two words: no\ufffd\.$"):
        isolated.call(refuse, damaged="damaged")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(abort, []), (take, [300]), (talk, [9]), (hang, [])],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_child_that_exceeds_its_memory_limit_is_ended(function, arguments) -> None:
    limits = Limits(
        memory=200 * MEGABYTE, seconds=1 if function is hang else 60, answer=8 * MEGABYTE
    )
    with Reader(limits) as reader:
        for _ in range(2):  # another child reads the next file
            with pytest.raises(UserError, match=r"^It is damaged$"):
                reader.call(function, arguments, damaged="It is damaged")
        fits = {take: [100], talk: [8]}.get(function)
        if fits is not None:
            assert reader.call(function, fits, damaged="x")


def test_one_child_reads_many_files_and_ends_with_its_reader() -> None:
    with Reader() as reader:
        first, second = (reader.call(pid, damaged="x") for _ in range(2))
        assert first == second and Path(f"/proc/{int(first)}").exists() == sys.platform.startswith(
            "linux"
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int(first), 0)


def test_a_child_writes_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="damaged"):
        isolated.call(write, [str(tmp_path / "x")], damaged="damaged")
    assert not (tmp_path / "x").exists() or not (tmp_path / "x").stat().st_size


def test_an_orphaned_child_ends_after_its_time_limit() -> None:
    """A killed parent can no longer end its child."""
    request = b'{"function": "%s:hang", "arguments": [], "bytes": 0}\n' % __name__.encode()
    done = subprocess.run(
        [sys.executable, "-c", isolated._CHILD, "[1000000000, 1]"],
        input=request,
        cwd=ROOT,
        capture_output=True,
        timeout=240,
    )
    assert done.returncode < 0


def test_the_childs_environment_contains_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("POSLENS_KEY_OURS", "POSLENS_COOKIE_SECRET", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
    for name in secrets:
        monkeypatch.setenv(name, "a secret")
    found = json.loads(isolated.call(environment, damaged="damaged"))
    assert not set(secrets) & set(found) and "a secret" not in found.values()
    assert found["PATH"] == os.environ["PATH"] and found["OMP_NUM_THREADS"] == "1"
