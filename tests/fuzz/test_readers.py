"""The first damaged files of tests/fuzz/readers.py, in a fork for each reader, because a damaged
Parquet file can crash it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.readers import READERS, fuzz
from tests.support.forked import Forked

# As many as an idle processor reads in about a second; `python -m tests.fuzz.readers` reads more.
USUAL = 1500
SLOW = {
    "parquet": 150,
    "beir": 150,
    "posir": 60,
    "multiclaim": 75,
    "squad": 150,
    "fineweb-posq": 150,
    "documents": 50,
    "traces": 300,
}


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
from tests.fuzz.readers import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_give_data_or_one_sentence(name: str, tmp_path: Path, forked: Forked) -> None:
    said = tmp_path / "under way"
    mutations = str(SLOW.get(name, USUAL))
    given = ("--only", name, "--mutations", mutations, "--said", str(said))
    code, out, err = forked.run(*given, code=LIMITED)
    assert code in (0, 1), f"ended by signal {-code} at {said.read_text()}"
    assert code == 0 and f"{name}: {int(mutations):,} in " in out, out + err


def test_the_fuzzer_detects_planted_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "csv", lambda draw, folder: 1 / 0)  # type: ignore[arg-type]
    with monkeypatch.context() as kept:
        from poslens.attribution import isolated

        for owner, attribute in (
            (isolated, "call"),
            (isolated.Reader, "call"),
            (isolated.Reader, "_start"),
        ):
            kept.setattr(owner, attribute, getattr(owner, attribute))
        (problem,) = fuzz("csv", 1)
    assert "csv 0" in problem and "ZeroDivisionError" in problem
