"""Installed packages are the tested ones: all but torch are pinned by version and hash."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import uvicorn

ROOT = Path(__file__).parents[1]


def lines(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_lock_pins_every_requirement_by_version_and_hash() -> None:
    locked: dict[str, set[str]] = {}
    for line in lines("requirements.lock"):
        found = re.fullmatch(
            r"([\w.-]+)==([\w.+!-]+)(?: ;[^#]*?)?((?: --hash=sha256:[0-9a-f]{64})+)", line
        )
        assert found, f"no version and hash: {line[:80]}"
        locked.setdefault(found[1], set()).add(found[2])
    for line in lines("requirements.txt"):
        name, version = line.partition(" ;")[0].split("==")
        if name == "torch":  # its build is the user's choice
            assert name not in locked
        else:
            assert locked[name] == {version}, f"run `make lock`: {line}"


def test_the_lock_contains_no_urls_and_no_gpu_packages() -> None:
    """Nor any packages that would replace torch or install CUDA."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text and not re.search(r"^(nvidia|cuda|triton|torch)\b", text, re.MULTILINE)


def test_make_installs_from_the_lock() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--require-hashes -r requirements.lock" in recipe
    assert "-r requirements.txt" not in recipe


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop does not run on Windows")
def test_the_server_runs_on_uvloop() -> None:
    """Streamlit leaves the choice to uvicorn, which uses uvloop if it is installed."""
    factory = uvicorn.Config("app").get_loop_factory()
    assert factory is not None
    loop = factory()
    loop.close()
    assert type(loop).__module__ == "uvloop"
