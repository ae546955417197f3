"""A cache computed on another machine can be opened without the model's weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.exchange.transfer import merge
from poslens.cache.storage.maintenance import listing, models
from poslens.cache.storage.store import ModelKey, Store
from poslens.compute import stored_models
from poslens.compute.compute import Compute, service
from poslens.figures.plain import plain
from poslens.names import posir_spec
from poslens.studies.passport import cohort
from poslens.studies.passport.service import passport
from tests.support.pages import open_page

ROOT = Path(__file__).parents[3]
METHOD = make_method("saliency")
ABSENT = "elsewhere's weights are not on this machine: only what its cache holds can be opened."


@pytest.fixture(scope="module")
def sent(tiny_folder: Callable[..., Path], tmp_path_factory, sample) -> Path:
    """The cache of a host that has the weights, with two pairs' results."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(tiny_folder("bert"), folder, dirs_exist_ok=True)
    spec = RetrieverSpec("elsewhere", "Elsewhere", "dense", f"folder:{folder}")
    compute = Compute(tmp_path_factory.mktemp("far"))
    for pair in sample.pairs[:2]:
        compute.explain(pair, spec, METHOD)
    compute.explain(sample.pairs[0], replace(spec, query_max_length=512), METHOD)
    shutil.rmtree(folder)
    return compute.root


@pytest.fixture
def home(sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder with that cache."""
    merge(Store(tmp_path / "cache"), Store(sent))
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path))
    service.cache_clear()
    yield tmp_path
    service.cache_clear()
    resolve.remember({})


def test_stored_results_open_and_nothing_is_computed(home: Path, sample) -> None:
    compute = Compute(home)
    assert compute.stored_only() == ["elsewhere"]
    spec = resolve.resolve("elsewhere")
    model = compute.identify(spec)
    assert model.stored_only and model.precision == "float32" and len(model.weights) == 16
    found = compute.explain(sample.pairs[0], spec, METHOD)
    assert found.from_cache
    said = dict(found.provenance().items())
    assert said["model"] == "elsewhere" and said["weights"] == model.weights
    assert str(home) not in str(said) and said["model_source"].startswith("folder model")
    curve = compute.curve(spec, METHOD, sample.pairs, "sample")
    assert curve.summary.curve.n == 2
    with pytest.raises(UserError, match=ABSENT):
        compute.explain(sample.pairs[5], spec, METHOD)
    run = compute.attribution_job(spec, METHOD, sample.pairs, "sample").start()
    run.wait()
    assert run.error == ABSENT
    # Other settings are another model, with only the results computed with them.
    limited = replace(spec, query_max_length=512)
    assert compute.explain(sample.pairs[0], limited, METHOD).from_cache
    with pytest.raises(UserError, match=ABSENT):
        compute.identify(posir_spec(spec))


def test_weights_that_reappear_are_used(
    home: Path, sample, tiny_folder: Callable[..., Path]
) -> None:
    resolve.register_folder("elsewhere", tiny_folder("bert"))
    compute = Compute(home)
    assert compute.stored_only() == []
    model = compute.identify(resolve.resolve("elsewhere"))
    # The same files, so the copied results belong to this model.
    assert not model.stored_only
    assert compute.explain(sample.pairs[0], resolve.resolve("elsewhere"), METHOD).from_cache


def test_all_models_have_one_card_per_weights(home: Path, tiny_folder: Callable[..., Path]) -> None:
    """Results stored as "elsewhere", of weights that now have another name."""
    compute, data = Compute(home), datasets.read("sample")

    def listed() -> list[str]:
        specs = [resolve.resolve(name) for name in cohort.names(compute)]
        cards = [passport(compute, spec, data, only=["attribution"]) for spec in specs]
        return [card.name for card in cohort.by_current_name(cards)]

    assert "elsewhere" in listed()
    resolve.register_folder("renamed", tiny_folder("bert"))
    assert "elsewhere" in cohort.names(compute)
    assert "renamed" in listed() and "elsewhere" not in listed()


def test_results_of_other_weights_get_separate_names(home: Path) -> None:
    store = Store(home / "cache")
    spec = RetrieverSpec("elsewhere", "Elsewhere", "dense", "folder:/x/y")
    about = stored_models.about(spec, "1234567890abcdef", "bfloat16")
    assert "/x" not in about
    with store.writing(ModelKey("elsewhere", "f" * 16, about), METHOD):
        pass
    names = {model.spec.name for model in stored_models.stored_models(store)}
    assert len(names) == 2 and "elsewhere" in names
    assert set(stored_models.remember(store)) == names
    for name in names:
        assert Compute(home).identify(resolve.resolve(name)).stored_only


@pytest.mark.parametrize(
    "about",
    [
        "[]",
        "{}",
        "not json",
        '{"spec": {}}',
        '{"spec": {"name": "other"}, "weights": 1}',
        "[" * 100_000,
        '"spec"',
        "{}]",
        *(
            stored_models.about(RetrieverSpec("M", "M", "dense", "x"), "w", "float32").replace(
                f'"{name}": {was}', f'"{name}": {value}'
            )
            for name, was, value in (
                ("max_length", "null", "Infinity"),
                ("max_length", "null", "1e300"),
                ("max_length", "null", "-1"),
                ("query_max_length", "null", "true"),
                ("query_prompt", "null", "[1]"),
                ("family", '"dense"', '"none"'),
                ("name", '"M"', '"N"'),
                ("precision", '"float32"', '"x", "spec": 1'),
            )
        ),
    ],
    ids=lambda about: about[-60:],
)
def test_invalid_descriptions_of_models_are_ignored(tmp_path: Path, about: str) -> None:
    store = Store(tmp_path / "cache")
    with store.writing(ModelKey("M", "f" * 16, about), METHOD):
        pass
    assert stored_models.stored_models(store) == []


@pytest.mark.parametrize("key", ["method", "model", "fingerprint", "about"])
@pytest.mark.parametrize("value", ["[", "5", '{"a": Infinity}', "[" * 100_000, b"\xff", None])
def test_one_unreadable_file_does_not_affect_lists(home: Path, key: str, value: object) -> None:
    """A foreign file in the cache: the others are listed, and it has one sentence."""
    store = Store(home / "cache")
    before = len(stored_models.stored_models(store))
    with store.writing(ModelKey("M", "f" * 16, "{}"), METHOD) as db:
        if value is None:
            db.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    assert len(listing(store)) >= 3 and len(models(store)) >= 2
    assert len(stored_models.stored_models(store)) == before
    assert stored_models.remember(store)


def test_a_models_description_is_read_back() -> None:
    spec = resolve.resolve("MiniLM-primacy")
    said = json.loads(stored_models.about(spec, "w", "float32"))
    assert said["origin"] == spec.origin and said["spec"]["family"] == "dense"


# -- pages -------------------------------------------------------------------------------------


def page(name: str, **query: object) -> AppTest:
    return open_page(name, **query).run()


def test_explain_shows_the_heatmap_and_offers_the_model(home: Path, sample) -> None:
    app = page("explain", models="elsewhere", pair=sample.pairs[0].pair_id)
    assert not app.exception and [e.value for e in app.error] == []
    assert "elsewhere" in app.multiselect(key="models").options
    assert len(app.get("plotly_chart")) >= 1
    assert any("elsewhere" in caption.value for caption in app.caption)
    other = page("explain", models="elsewhere", pair=sample.pairs[5].pair_id)
    assert [e.value for e in other.error] == [plain(ABSENT)]


def test_curves_shows_the_curve(home: Path, sample) -> None:
    app = page("curves", models="elsewhere")
    assert not app.exception and not app.get("plotly_chart")
    assert "elsewhere has curves for 2 of 304 pairs" in " ".join(c.value for c in app.caption)
    assert "from the cache" in [text.value for text in app.markdown]
    assert not [button for button in app.button if button.label.startswith("Compute")]
    app = page("curves", models="elsewhere", search=sample.pairs[0].pair_id)
    assert not app.exception and [e.value for e in app.error] == []
    assert len(app.get("plotly_chart")) == 1, "all there is of this choice"
