"""Small files that would need much memory or time are refused, at little cost to the server."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[3]


def parquet(column: str, values: pa.Array) -> bytes:
    rows = {name: pa.array(["text"]) for name in ("query", "document")} | {column: values}
    out = io.BytesIO()
    pq.write_table(pa.table(rows), out, compression="zstd")
    return out.getvalue()


def nested(kind: str, n: int = 20_000_000) -> pa.Array:
    offsets = pa.array([0, n], pa.int32())
    zeros = pa.array(np.zeros(n, np.int8))
    if kind == "struct":
        zeros = pa.StructArray.from_arrays([zeros, zeros], ["a", "b"])
    return pa.ListArray.from_arrays(offsets, zeros)


def pickled() -> bytes:
    """A pickle with a key that takes 2^40 steps to hash."""
    return b"\x80\x02}(K\x01\x85" + b"q\x00h\x00\x86" * 40 + b"K\x01u."


def archive(n: int) -> bytes:
    out, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|i1", "fortran_order": False, "shape": (n // 100, 100)}
    )
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("curves.npy", header.getvalue() + bytes(n))
    return out.getvalue()


SMALL = {
    "list.parquet": lambda: parquet("domain", nested("list")),
    "struct.parquet": lambda: parquet("pair_id", nested("struct")),
    "query.parquet": lambda: parquet("query", nested("list")),
    "hash.pkl": lambda: pickled(),
    "curves.npz": lambda: archive(200_000_000),
}
SCRIPT = """
import resource, sys
from pathlib import Path
from poslens.attribution.datasets import read_upload
from poslens.attribution.errors import UserError
from poslens.attribution.curves.published import read_curves
path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    data = path.read_bytes()
    if path.suffix == ".parquet":
        read_upload(path.name, data)
    else:
        read_curves("m", path.name, data)
except UserError:
    pass
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
      children.ru_maxrss // 1024,
      children.ru_utime + children.ru_stime)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kilobytes only on Linux")
@pytest.mark.parametrize("name", SMALL)
def test_small_files_take_little_memory_and_time(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(SMALL[name]())
    assert path.stat().st_size < 20_000_000

    def limited() -> None:  # protects the machine that runs the tests
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        preexec_fn=limited,
    )
    parent, child, seconds = map(float, done.stdout.split())
    # 60 MB are imports that any reading needs.
    assert parent < 150, f"the server took {parent} MB more"
    assert child < 1500, f"a child took {child} MB"
    assert seconds < 25
