"""Randomly damaged model folders, also on the command line; changed weights of the package; and the
names of files that tokenizers look for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import load, model_folder, resolve
from tests.support.forked import Forked


def test_damaged_folders_load_or_are_refused_in_one_sentence(forked: Forked) -> None:
    """Runs in a fork with limited memory. `python -m tests.attribution.damage --cases 10000 --seed
    1` runs more."""
    main = "from tests.attribution.damage import main; main()"
    code, out, said = forked.run("--cases", "150", "--seed", "7", code=main)
    assert code == 0, out[-4000:] + said[-4000:]
    assert "150 folders" in out and "'refused'" in out and "'used'" in out


@pytest.mark.parametrize("damage", ["deep", "cut", "pipe", "activation"])
def test_the_command_line_prints_only_the_sentence(
    damage: str, tiny_folder: Callable[..., Path], tmp_path: Path, forked: Forked
) -> None:
    folder = Path(shutil.copytree(tiny_folder("labse"), tmp_path / "model"))
    config = folder / "config.json"
    if damage == "deep":
        config.write_text("[" * 5000 + "]" * 5000)
    elif damage == "pipe":
        config.unlink()
        os.mkfifo(config)
    elif damage == "activation":
        text = json.dumps({"activation_function": "torch.utils.collect_env.main"})
        (folder / "2_Dense" / "config.json").write_text(text)
    else:  # found only by the library
        (folder / "tokenizer.json").write_text("{")
    asked = ("explain", "--model", str(folder), "--query", "tide", "--document", "the tide")
    code, out, said = forked.run(*asked, env={"POSLENS_HOME": str(tmp_path / "home")})
    assert code == 2 and out == ""
    assert "Traceback" not in said and str(tmp_path) not in said
    assert len(said.strip().splitlines()) == 1 and "model " in said, said


def test_changed_weights_of_the_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from poslens.attribution.retrievers.resolve import minilm_folder

    folder = Path(shutil.copytree(minilm_folder(), tmp_path / "model"))
    monkeypatch.setattr(resolve, "minilm_folder", lambda: folder)
    for name in ("MiniLM", "MiniLM-recency@0.5"):
        load.load(resolve.resolve(name), device="cpu")
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\x01")
    for name in ("MiniLM", "MiniLM-recency"):
        with pytest.raises(UserError, match="not those that PosLens was tested with: run `pip"):
            load.load(resolve.resolve(name), device="cpu")


def test_every_vocabulary_file_of_transformers_is_covered() -> None:
    """Checks the file names that its tokenizers look for."""
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    names: set[str] = set()
    for kind in {name for name in TOKENIZER_MAPPING_NAMES.values() if name}:
        try:
            files = getattr(transformers, kind).vocab_files_names
        except (ImportError, AttributeError):  # needs a package that is not installed
            continue
        names |= {name for name in files.values() if isinstance(name, str)}
    assert len(names) > 5
    # Pickles are never read.
    missed = {n for n in names if model_folder.limit_of(n) is None}
    assert not {name for name in missed if not name.endswith((".bin", ".pkl"))}
