"""Measurements in new processes, of this checkout of PosLens or of an earlier one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]


def checkouts(other: Path | None) -> dict[str, Path]:
    """This checkout and, if given, the one that it is compared with, by names for tables."""
    return {"here": HERE} | ({"there": other} if other else {})


def output_of(*arguments: str, checkout: Path = HERE, home: Path | None = None) -> str:
    """What a new Python with these arguments prints, in a checkout and with a data folder."""
    command = [sys.executable, *arguments]
    variables = {} if home is None else {"POSLENS_HOME": str(home)}
    done = subprocess.run(
        command, cwd=checkout, env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def apart(measure: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """The result of a function of a benchmark in a new process. Its arguments are numbers and
    texts."""
    module = measure.__globals__["__spec__"].name
    script = (
        f"import json, sys\nfrom {module} import {measure.__name__} as run\n"
        "print(json.dumps(run(*json.loads(sys.argv[1]))))"
    )
    figures: dict[str, float]
    figures = json.loads(output_of("-c", script, json.dumps(arguments)).splitlines()[-1])
    return figures


def memory(field: str) -> int:
    """This process's bytes in a line of /proc/self/status: its resident set (VmRSS), or the largest
    since the start or the last reset (VmHWM). Requires Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
