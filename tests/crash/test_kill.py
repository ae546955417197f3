"""A few of the kills of tests/crash/kill.py, and disks that fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from poslens.attribution.errors import UserError
from poslens.cache.storage import index
from poslens.cache.storage.store import Store
from tests.crash.kill import METHOD, MODEL, kill, lexical, some_pairs
from tests.load.store import result


def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    outcome = kill(lexical(), some_pairs(150), tmp_path, kills=15)
    assert outcome.kills == 15 and outcome.acknowledged > 0
    assert (outcome.lost, outcome.wrong, outcome.unsound) == (0, 0, 0), outcome


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which only root may")
def test_a_disk_that_becomes_full_at_any_write_loses_nothing(tmp_path: Path) -> None:
    """A real disk of 3 MiB, filled to different levels, so that space runs out in any of the
    writes: of the log, its index, the lock, or a checkpoint. After freeing space, everything can be
    stored again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        sentences = 0
        for free in range(4096, 1 << 20, 40_960):
            store, ballast = Store(disk / "cache"), disk / "ballast"
            stored = []
            status = os.statvfs(disk)
            ballast.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - free)))
            for n in range(12):
                try:
                    store.put(MODEL, METHOD, [result(f"p{n}", 1)])
                    stored.append(n)
                except UserError as error:
                    sentences += 1
                    assert "the disk is full: free some space" in str(error)
            ballast.unlink()
            store.release()
            index.forget_below(Path("/"))
            pairs = [result(f"p{n}", 1) for n in range(12)]
            there = store.curves(MODEL, METHOD, [pair for pair, _ in pairs]).pair_ids
            missing = {pair.pair_id for pair, _ in pairs} - set(there)
            assert missing == {f"p{n}" for n in range(12)} - {f"p{n}" for n in stored}
            store.put(MODEL, METHOD, pairs)
            for pair, right in pairs:
                found = store.get(MODEL, METHOD, pair)
                assert found is not None
                assert found.document_scores.tobytes() == right.document_scores.tobytes()
            store.release()
            for path in sorted(disk.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
        assert sentences > 10
    finally:
        Store(disk).release()
        subprocess.run(["umount", str(disk)], check=False)
