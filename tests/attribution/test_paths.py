"""Only regular files are opened: a pipe without a writer would hold its reader forever, and a
device never ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from poslens.attribution.paths import IrregularFileError, open_regular
from tests.support.forked import Forked

DEVICE = Path("/dev/zero")

# In a separate process, so that a hang or an endless device does not affect the tests.
READ = """
import resource, sys
from pathlib import Path
from poslens.attribution.errors import UserError
{imports}
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
try:
    {call}
except UserError as error:
    print(error)
"""


def replaced(path: Path, kind: str) -> Path:
    """`path` as a pipe, a link to a device or a folder."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to(DEVICE)
    else:
        path.mkdir()
    return path


def answer(forked: Forked, imports: str, call: str, *arguments: object) -> str:
    script = READ.format(imports=imports, call=call)
    child = forked.start(*map(str, arguments), code=script, seconds=60)
    status, errors = child.wait(), child.err.read_text()
    assert not status and not errors, errors
    return child.out.read_text()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_opening_anything_but_a_regular_file_raises_an_error(tmp_path: Path, kind: str) -> None:
    opened = Path("/proc/self/fd")
    before = len(list(opened.iterdir())) if opened.exists() else 0
    with pytest.raises(IrregularFileError, match="not a regular file"):
        open_regular(replaced(tmp_path / "it", kind))
    if before:
        assert len(list(opened.iterdir())) == before


def test_a_link_to_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"text"


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["qrels/test.tsv", "qrels/test.parquet", "corpus/0.parquet"])
def test_a_data_set_with_an_irregular_file_is_refused(
    forked: Forked, tmp_path: Path, kind: str, name: str
) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    for stem in ("corpus", "queries"):
        row = {"_id": stem[0].replace("c", "d"), "text": "Fog lifts at noon."}
        (tmp_path / f"{stem}.jsonl").write_text(json.dumps(row) + "\n")
    folder, _, file = name.partition("/")
    (tmp_path / folder).mkdir(exist_ok=True)
    if folder == "corpus":
        (tmp_path / "corpus.jsonl").unlink()
    elif file.endswith(".parquet"):
        (tmp_path / "qrels" / "test.tsv").unlink()
    replaced(tmp_path / name, kind)
    said = answer(
        forked,
        "from poslens.attribution.datasets import beir",
        "beir.read(Path(sys.argv[1]), 'mine').data_set()",
        tmp_path,
    )
    assert said.startswith(name)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_irregular_file_of_rankings_or_results_is_refused(
    forked: Forked, tmp_path: Path, kind: str
) -> None:
    path = replaced(tmp_path / "run.trec", kind)
    said = answer(
        forked,
        "from poslens.attribution.evaluation.trec_runs import register",
        "register('mine', Path(sys.argv[1]))",
        path,
    )
    assert said.startswith("run.trec can't be read (not a regular file)")
    path = replaced(tmp_path / "results.parquet", kind)
    said = answer(
        forked,
        "from poslens.cache.exchange.transfer import import_file\n"
        "from poslens.cache.storage.store import Store",
        "import_file(Store(Path(sys.argv[2])), Path(sys.argv[1]))",
        path,
        tmp_path / "cache",
    )
    assert said.startswith("results.parquet")
