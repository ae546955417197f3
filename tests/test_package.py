"""The wheel: its contents, and that it works without the checkout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.ports import free_port

ROOT = Path(__file__).parents[1]
FOLDERS = ("attribution", "cache", "dashboard")
"""Folders of the checkout that the wheel has inside `poslens`."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Built in this environment, since an isolated build would fetch its backend again.
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([sys.executable, "-m", *command, str(folder), str(ROOT)], check=True)
    (found,) = folder.glob("poslens-*.whl")
    return found


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment with the wheel. It uses this environment's
    dependencies, which take minutes to install."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    here = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{here}\n")
    command = ["pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([sys.executable, "-m", *command, "--no-index", str(wheel)], check=True)
    return home / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment and a folder without the checkout."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    yield {**kept, "POSLENS_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}


def test_the_wheel_installs_one_package_with_all_modules_and_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"poslens"}
    files = {
        ("" if package == "poslens" else "poslens/") + path.relative_to(ROOT).as_posix()
        for package in (*FOLDERS, "poslens")
        for path in (ROOT / package).rglob("*")
        if "__pycache__" not in path.parts and path.is_file()
    }
    assert files <= set(names), "a file of the packages is missing from the wheel"
    assert {"poslens/py.typed", *(f"poslens/{name}/py.typed" for name in FOLDERS)} <= set(names)


@pytest.fixture
def same_names(tmp_path: Path) -> Path:
    """A project folder that has modules with the names of PosLens's folders."""
    folder = tmp_path / "project"
    (folder / "dashboard").mkdir(parents=True)
    for name in ("cache.py", "attribution.py", "dashboard/__init__.py"):
        (folder / name).write_text("raise RuntimeError('this is another project')\n")
    return folder


def test_requirements_admit_the_pinned_versions(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        head = Parser().parsestr(archive.read(path).decode())
    asked = {r.name: r for r in map(Requirement, head.get_all("Requires-Dist", []))}
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    pins = {r.name: (str(r.specifier).removeprefix("=="), r.marker) for r in pinned}
    optional = {n for n, r in asked.items() if "extra" in str(r.marker)}
    assert set(asked) - optional == set(pins)
    for name, (version, marker) in pins.items():
        assert asked[name].marker == marker, name
        bounds = {one.operator for one in asked[name].specifier}
        assert bounds == {">=", "<"} and version in asked[name].specifier, name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert head["Version"] == project["version"]


def test_a_pair_is_explained_in_a_project_with_modules_of_the_same_name(
    program: Path, elsewhere: dict[str, str], same_names: Path
) -> None:
    asked = ["explain", "--query", "what melts", "--document", "Ice melts. Stone stays."]
    found = subprocess.run(
        [program / "python", "-m", "poslens", *asked],
        capture_output=True,
        text=True,
        env=elsewhere,
        cwd=same_names,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["provenance"]["model_source"].endswith("all-MiniLM-L6-v2")
    code = "import poslens; print(poslens.__file__)"
    where = subprocess.run(
        [program / "python", "-c", code],
        capture_output=True,
        text=True,
        env=elsewhere,
        cwd=same_names,
    )
    assert not Path(where.stdout.strip()).is_relative_to(ROOT)


def test_the_dashboard_opens_in_a_project_with_modules_of_the_same_name(
    program: Path, elsewhere: dict[str, str], same_names: Path
) -> None:
    port = free_port()
    server = subprocess.Popen(
        [program / "poslens", "run", "--port", str(port)],
        env=elsewhere,
        cwd=same_names,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        said = ""
        while "PosLens: http://" not in said:
            line = server.stdout.readline()
            assert line, f"the server ended: {said}"
            said += line
        until = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
                    assert re.search("<title>", page.read().decode())
                    break
            except OSError:
                assert time.monotonic() < until, "the port does not answer"
                time.sleep(0.2)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(120)
