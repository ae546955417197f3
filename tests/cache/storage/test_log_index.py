"""A -shm file that is truncated while open does no harm; accessing the missing part would end the
process with SIGBUS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys
from pathlib import Path
from poslens.cache.storage.store import Store
from tests.crash.kill import METHOD, MODEL
from tests.load.store import result

store = Store(Path(sys.argv[1]))
for n in range(3):
    store.put(MODEL, METHOD, [result(f"p{n}", 1)])
(index,) = Path(sys.argv[1]).rglob("*-shm")
os.truncate(index, int(sys.argv[2]))
pairs = [result(f"p{n}", 1) for n in range(4)]
print([store.get(MODEL, METHOD, pair) is not None for pair, _ in pairs])
os.truncate(index, int(sys.argv[2]))
store.put(MODEL, METHOD, [pairs[3]])
print([store.get(MODEL, METHOD, pair) is not None for pair, _ in pairs])
os.truncate(index, int(sys.argv[2]))
"""


@pytest.mark.parametrize("left", [0, 4096])
def test_a_truncated_index_is_rebuilt(tmp_path: Path, left: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(left)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[True, True, True, False]", "[True, True, True, True]"]
