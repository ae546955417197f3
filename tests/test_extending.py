"""The examples of docs/extending.md, installed where they say and run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

import poslens.attribution.datasets
import poslens.attribution.methods
import poslens.attribution.retrievers
import poslens.cache.kinds
import poslens.studies
from poslens.attribution import coverage as document_coverage
from poslens.attribution.datasets import formats
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, attribute_batches, make_method
from poslens.attribution.methods.perturbation import Perturbed
from poslens.attribution.retrievers.base import embedded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.family import FAMILIES
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.scoring import score_texts
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.storage.schema import SCHEMAS
from poslens.commands.study_command import study_app
from poslens.compute import coverage
from poslens.compute.compute import Explained
from poslens.study import STUDIES
from tests.support.pages import SECONDS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = {
    (kind, path): code
    for kind, path, code in re.findall(r"```(python|diff)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
}
Install = Callable[[str, ModuleType], ModuleType]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install an example's module into a package of PosLens, and remove it again."""
    installed = []

    def put(path: str, package: ModuleType) -> ModuleType:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BLOCKS["python", path], encoding="utf-8")
        inside = path.startswith("poslens/")
        folder = package.__name__ if inside else package.__name__.removeprefix("poslens.")
        root = str(tmp_path / folder.replace(".", "/"))
        if root not in package.__path__:
            monkeypatch.setattr(package, "__path__", [*package.__path__, root])
        name = ("" if inside else "poslens.") + path.removesuffix(".py").replace("/", ".")
        installed.append(name)
        return import_module(name)

    before = dict(STUDIES)
    yield put
    STUDIES.clear()
    STUDIES.update(before)
    for name in installed:
        sys.modules.pop(name, None)


def changed(path: str) -> str:
    """A file of PosLens with an example's changes; each must match exactly once."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for above, added in re.findall(r"((?:^ .*\n)+)((?:^\+.*\n)+)", BLOCKS["diff", path], re.M):
        before, after = (re.sub(r"^.", "", lines, flags=re.M) for lines in (above, added))
        assert text.count(before) == 1, before
        text = text.replace(before, before + after)
    return text


def test_every_code_block_of_the_page_is_tested() -> None:
    assert PAGE.count("```") == 2 * len(BLOCKS)
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path for _, path in BLOCKS if f'"{path}"' not in source] == []


@pytest.fixture
def no_new_methods() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def own_places(known: Iterable[Any]) -> bool:
    """Whether all have distinct positions in lists; otherwise module names would decide."""
    orders = [one.order for one in known]
    return len(set(orders)) == len(orders)


def test_the_example_of_a_method_works(
    install: Install, no_new_methods: None, minilm: DenseRetriever
) -> None:
    install("attribution/methods/embedding_length.py", poslens.attribution.methods)
    assert own_places(METHODS.values())
    pairs = [
        TextPair("a", "tide", "The tide rises twice a day."),
        TextPair("b", "fox", "A fox sleeps."),
    ]
    method = make_method("embedding_length")
    outcomes = [o for batch in attribute_batches(minilm, method, pairs) for o in batch]
    results = {o.pair.pair_id: o.attribution for o in outcomes}
    model: Any = minilm.model  # its modules are type-checked like any module
    table = model[0].auto_model.get_input_embeddings().weight
    for pair in pairs:
        result = results[pair.pair_id]
        assert result is not None
        ids = model.tokenizer(pair.document)["input_ids"]
        wanted = table[ids].norm(dim=-1).detach().numpy()
        content = result.document.content
        np.testing.assert_allclose(result.document_scores[content], wanted[content], rtol=1e-5)


@pytest.fixture
def no_new_families() -> Iterator[None]:
    before = dict(FAMILIES)
    yield
    FAMILIES.clear()
    FAMILIES.update(before)


def test_the_example_of_a_family_works(install: Install, no_new_families: None) -> None:
    install("attribution/retrievers/overlap.py", poslens.attribution.retrievers)
    assert own_places(FAMILIES.values())
    compile(changed("attribution/retrievers/detect.py"), "detect.py", "exec")
    retriever = load(RetrieverSpec("overlap", "Word overlap", "overlap", "builtin:overlap"))
    assert check_retriever(retriever).library.distance == 0
    fitting = [name for name, entry in METHODS.items() if entry.fits(FAMILIES["overlap"])]
    assert fitting == ["terms"]
    pair = TextPair("p", "when does the tide turn", "The tide turns. The Moon pulls.")
    ((outcome,),) = attribute_batches(retriever, make_method("terms"), [pair])
    result = outcome.attribution
    assert result is not None
    assert result.score == 2
    shares = zip(result.document.tokens, result.document_scores.tolist(), strict=True)
    assert [(token.text, share) for token, share in shares if share] == [
        ("The", 0.5),
        ("tide", 1),
        ("The", 0.5),
    ]
    # Methods that need more than the family has are refused in one sentence.
    for ask in (
        lambda: embedded(retriever),
        lambda: score_texts(retriever, [(pair.query, pair.document)]),
        lambda: Perturbed(retriever, pair, "document"),
        lambda: list(document_coverage.coverage(retriever, [pair])),
    ):
        with pytest.raises(UserError, match="overlap only splits the score of a pair into terms"):
            ask()
    served: Any = SimpleNamespace(
        identify=lambda spec: SimpleNamespace(key=SimpleNamespace(fingerprint="f"), spec=spec),
        loaded=lambda model: True,
    )
    assert coverage.at_hand(served, retriever.spec, [pair]) == {}
    shown = Explained(result, served.identify(retriever.spec), pair, from_cache=False)
    assert coverage.of_pair(served, shown).tokens == len(result.document)


@pytest.fixture
def no_new_formats() -> Iterator[None]:
    before = dict(formats.FORMATS)
    yield
    formats.FORMATS.clear()
    formats.FORMATS.update(before)


def test_the_example_of_a_data_format_works(
    install: Install, no_new_formats: None, tmp_path: Path
) -> None:
    install("attribution/datasets/dpr.py", poslens.attribution.datasets)
    assert own_places(formats.FORMATS.values())
    passage = {"title": "A way", "text": "It is 4 km."}
    rows = [
        {"id": "1", "question": "q", "answers": ["4 km"], "positive_ctxs": [passage]},
        {"id": "2", "question": "q", "answers": ["5 km"], "positive_ctxs": [passage]},
    ]
    questions = tmp_path / "dev.jsonl"
    questions.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    data = formats.read(questions, "mine")
    assert [(p.pair_id, p.document[p.evidence.start : p.evidence.end]) for p in data.pairs] == [
        ("1", "4 km")
    ]
    assert [(r.row, r.reason) for r in data.rejected] == [
        (2, "its first answer does not occur verbatim in the passage")
    ]
    with pytest.raises(UserError, match=r"first error is in dev\.jsonl row 1"):
        questions.write_text(json.dumps(rows[1]), encoding="utf-8")
        formats.read(questions, "mine")


@pytest.fixture
def no_new_kinds() -> Iterator[None]:
    before = dict(SCHEMAS)
    yield
    SCHEMAS.clear()
    SCHEMAS.update(before)


def test_the_example_of_a_study_works(
    install: Install, tmp_path: Path, own_service: None, no_new_kinds: None
) -> None:
    install("cache/kinds/lead.py", poslens.cache.kinds)
    assert "lead" in SCHEMAS
    module = install("poslens/studies/lead.py", poslens.studies)
    compile(changed("dashboard/app.py"), "app.py", "exec")
    program = study_app(module.STUDY)
    asked = ["--model", "MiniLM", "--model", "BM25", "--documents", "12"]
    printed = CliRunner().invoke(program, asked, catch_exceptions=False)
    (row,) = json.loads(printed.stdout)["rows"]
    assert (row["model"], row["documents"]) == ("MiniLM", 12)
    assert 0 < row["cosine_low"] < row["cosine"] < row["cosine_high"] < 1
    assert "MiniLM: mean cosine 0." in printed.stderr and "BM25" in printed.stderr
    bad = CliRunner().invoke(program, ["--documents", "0"], catch_exceptions=False)
    assert bad.exit_code == 2 and "must be a whole number from 1 to 100,000" in bad.stderr
    page = tmp_path / "dashboard/lead/page.py"
    page.parent.mkdir(parents=True)
    page.write_text(BLOCKS["python", "dashboard/lead/page.py"], encoding="utf-8")
    app = AppTest.from_file(str(page), default_timeout=SECONDS)
    app.query_params["documents"] = "12"
    app.run()
    assert not app.exception and not app.error
    (frame,) = [one.value for one in app.dataframe]
    assert "MiniLM" in frame["model"].tolist() and frame["cosine"][0].startswith("0.")


def test_the_example_of_a_study_is_short() -> None:
    files = ("cache/kinds/lead.py", "poslens/studies/lead.py", "dashboard/lead/page.py")
    text = "".join(BLOCKS["python", path] for path in files)
    lines = [line for line in text.splitlines() if line.strip() and "import" not in line]
    assert len(lines) <= 150
