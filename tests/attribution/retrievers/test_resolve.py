"""Names of retrievers: presets, folders, hub ids, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import specs
from poslens.attribution.retrievers.resolve import (
    installed,
    known,
    locate,
    register_folder,
    resolve,
)
from poslens.attribution.retrievers.specs import (
    POOLINGS,
    RetrieverSpec,
    data_folder,
    presets,
    with_settings,
)


def test_presets_are_listed_in_order() -> None:
    assert list(known())[:3] == ["MiniLM", "MiniLM-primacy", "MiniLM-recency"]
    assert dict(presets()) == known()
    for name, spec in presets().items():
        assert spec.name == name and resolve(name) is spec
        assert spec.title and spec.license and spec.note.endswith(".")
        if spec.family == "dense":
            assert spec.size_mb and (spec.max_length or 0) >= 512
    with pytest.raises(TypeError):
        presets()["x"] = presets()["MiniLM"]  # type: ignore[index]


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "minilm",
        "../x",
        "/etc",
        "/etc/passwd",
        "a/b/c",
        "a/../b",
        "../../etc/passwd",
        "./model",
        "a/.b",
        ".a/b",
        "~/model",
        "C:\\model",
        "file:///etc",
        "hub:a/b",
        "a/b\n",
        "a//b",
        "a/b?x",
        "folder:/etc",
        "x" * 5000,
        "x" * 200 + "/y",
        "a/b\x00",
    ],
)
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(name)
    sentence = str(caught.value)
    assert sentence.startswith("There is no model ")
    assert "MiniLM" in sentence and "\n" not in sentence and len(sentence) < 400


def test_a_hub_id_is_recognized() -> None:
    spec = resolve("organization/model-v1.5_x")
    assert (spec.source, spec.hub_id) == ("hub:organization/model-v1.5_x", spec.name)
    assert spec.origin == "organization/model-v1.5_x"


def test_a_hub_id_that_is_not_downloaded_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Even if the working directory has a folder of that name: an id is never a path.
    (tmp_path / "tests" / "attribution").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    spec = resolve("tests/attribution")
    with pytest.raises(UserError) as caught:
        locate(spec)
    sentence = str(caught.value)
    assert sentence.startswith("tests/attribution is not on this machine yet: run `python -m ")
    assert str(Path.home()) not in sentence and "\n" not in sentence
    assert not installed(spec)


def test_the_error_of_an_unfetched_preset_states_how_to_fetch_it() -> None:
    spec = resolve("mpnet")
    with pytest.raises(UserError) as caught:
        locate(spec)
    assert str(caught.value) == (
        "mpnet is not on this machine yet: run `python -m poslens models fetch mpnet`."
    )
    assert not installed(spec) and installed(resolve("MiniLM"))


@pytest.mark.parametrize(
    "hub_id", ["sentence-transformers/all-MiniLM-L6-v2", "Sentence-Transformers/all-minilm-l6-v2"]
)
def test_the_hub_id_of_packaged_weights_needs_no_hub(hub_id: str) -> None:
    assert resolve(hub_id) is resolve("MiniLM") and installed(resolve(hub_id))
    assert resolve(f"{hub_id}@last") == resolve("MiniLM@last")
    assert resolve(f"{hub_id}@calibrated") == resolve("MiniLM@calibrated")
    for spec in presets().values():
        if spec.hub_id and not spec.source.startswith("hub:"):
            assert resolve(spec.hub_id.upper()) is spec


def test_a_downloaded_hub_copy_takes_precedence(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Callable[..., Path]
) -> None:
    hub_id, folder = "sentence-transformers/all-MiniLM-L6-v2", tiny_folder("bert")
    monkeypatch.setattr("poslens.attribution.retrievers.resolve._from_hub", lambda *_: folder)
    assert resolve(hub_id).source == f"hub:{hub_id}"


@pytest.mark.parametrize("name", ["MiniLM@main", "sentence-transformers/all-MiniLM-L6-v2@c9745ed1"])
def test_a_revision_is_not_part_of_a_name(name: str) -> None:
    with pytest.raises(UserError, match=r"^PosLens can't select a revision by name: remove @"):
        resolve(name)


def test_a_folder_is_registered_by_name(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("bert")
    spec = register_folder("mine", folder)
    assert resolve("mine") is spec and "mine" in known()
    assert locate(spec).folder == folder.resolve()
    assert spec.origin == "folder bert", "a folder is named, not located"
    with pytest.raises(UserError, match="MiniLM is already the name of another model"):
        register_folder("MiniLM", folder)
    with pytest.raises(UserError, match="is not a folder"):
        register_folder("other", folder / "absent")


def test_settings_override_the_spec() -> None:
    spec = replace(resolve("MiniLM"), query_prompt="a: ")
    changed = with_settings(spec, max_length=128, query_max_length=32, query_prompt="")
    assert (changed.max_length, changed.query_max_length, changed.query_prompt) == (128, 32, "")
    longer = {"max_length": 4096, "query_max_length": 32, "query_prompt": ""}
    assert with_settings(spec, **longer).max_length == 512  # type: ignore[arg-type]
    bare = RetrieverSpec("x", "x", "dense", "folder:/x")
    assert with_settings(bare, **longer).max_length == 4096  # type: ignore[arg-type]


def test_a_pooling_follows_the_name() -> None:
    last = resolve("MiniLM@last")
    assert (last.name, last.pooling, last.base) == ("MiniLM@last", "lasttoken", "MiniLM")
    assert last.settings != resolve("MiniLM").settings and "last pooling" in last.title
    assert {resolve(f"MiniLM@{p}").pooling for p in POOLINGS} == set(POOLINGS.values())
    assert resolve("MiniLM@lasttoken") == last, "sentence-transformers' own word for it"
    hub = resolve("organization/model@cls")
    assert (hub.source, hub.pooling) == ("hub:organization/model", "cls")


def test_naming_a_models_own_pooling_gives_the_same_model() -> None:
    """Keys of existing presets don't change, so their stored results are still found."""
    assert resolve("MiniLM@mean") is resolve("MiniLM")
    assert resolve("MiniLM").settings == (
        "pooling=mean, max_length=512, query_max_length=None, query_prompt=None, "
        "document_prompt=None"
    )


@pytest.mark.parametrize("name", ["MiniLM@", "MiniLM@median", "MiniLM@LAST", "a/b@sum", "MiniLM@@"])
def test_an_unknown_pooling_names_the_choices(name: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(name)
    sentence = str(caught.value)
    if not name.endswith("@@"):
        assert sentence.endswith("choose from cls, mean, weightedmean, last, max.")
        assert sentence.startswith("There is no pooling ")
    assert "\n" not in sentence


def test_a_model_with_another_pooling_reads_the_same_files() -> None:
    for name in ("MiniLM", "MiniLM-primacy"):
        assert locate(resolve(f"{name}@cls")) == locate(resolve(name))
        assert resolve(f"{name}@cls").origin == resolve(name).origin
    with pytest.raises(UserError, match="models fetch mpnet`"):
        locate(resolve("mpnet@last"))


def test_the_data_folder_follows_poslens_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert data_folder() == Path(os.environ["POSLENS_HOME"])
    monkeypatch.setenv("POSLENS_HOME", "~/elsewhere")
    assert data_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("POSLENS_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "poslens"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert data_folder() == Path.home() / ".local" / "share" / "poslens"


def test_a_models_files_are_only_those_that_are_read(tiny_folder: Callable[..., Path]) -> None:
    """No other files: no leftovers of downloads, other formats, or the model card."""
    folder = tiny_folder("labse")
    names = [place for place, _ in specs.ModelFiles(folder).places()]
    assert names == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "3_Normalize/config.json",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
