"""Docs and pages use the field's terms, and retired words do not come back.

Docs are read without code, addresses and HTML, which name options and files. Docstrings and
comments of `attribution` are read without names in backquotes. In the dashboard, every string with
a space that is not a docstring is read: text on pages, not keys.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RETIRED = {
    r"places?": "position",
    r"lean(s|ed|ing)?": "last-minus-first difference, index, or tilt",
    r"dark(er)? (sentence|passage|text|than)s?": "unretrieved sentence",
    r"w(o|i)ns? back": "recovered",
    r"own order": "original order",
    r"by lot": "in random order, or at random",
    r"(had|has|have) no say": "held out",
    r"remed(y|ies)": "debiasing",
    r"mend(s|ed|ing)?": "reduce, calibrate or debias",
    r"baskets?": "token block",
    r"behind (the|its|their|a model's|the model's) limit": "past the context limit",
    r"less (first|the first|that of|the control's?|an unrelated|what|early|those)": "minus",
    r"PSI (by|beyond) chance": "PSI under permutation",
    r"minus null": "subtract control",
    r"(is|are|be|was) said": "is stated, or is reported",
    r"is to be had|dear|at work": "a plain sentence",
    r"beside": "next to, or with",
    r"(stand|lie)s? (behind|beside|early|late)": "is",
    r"stands? (in|at|on|there|above|below|first|over)": "is",
    r"told apart": "distinguished",
    r"said so": "returned true, or canceled the run",
    r"taken away": "removed",
    r"what was found": "results",
    r"\w*(colour|judgement|neighbour|favour|behaviour|labell|optimis|recognis|linearis)\w*|"
    r"centre[sd]?": "the American spelling",
    r"embedded (one|sample|data sets?)": "bundled",
    r"as they should be": "valid",
}
"""Retired words, as regular expressions of whole words in any case, with what to write instead."""

FREE = r"\b(in the first|one|take|takes) place\b"
"""Idioms in which a retired word means something else."""

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NOT_READ = {
    "CHANGELOG.md": "it names the words that earlier versions used",
}
"""Files that are not read, with reasons."""


def prose(text: str) -> str:
    """A page of docs without its code, its addresses and its HTML."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?: {4,}|\t).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)|<[^>]*>|https?://\S+", "", text)


def shown(source: str) -> Iterator[str]:
    """The strings of a module that readers may see."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text and id(node) not in docstrings:
            yield text


def explained(source: str) -> Iterator[str]:
    """The docstrings and comments of a module, each on one line and without code in backquotes."""
    texts = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    for text in texts:
        if isinstance(text, str):
            yield re.sub(r"`[^`]*`", "", " ".join(text.split()))


def retired(text: str) -> list[str]:
    """Each retired word of a text, with what to write instead."""
    text = re.sub(FREE, "", text, flags=re.IGNORECASE)
    return [
        f"{match[0]!r}: write {instead}"
        for word, instead in RETIRED.items()
        for match in re.finditer(rf"\b({word})\b", text, re.IGNORECASE)
    ]


def read(path: Path) -> list[str]:
    """The retired words of a page of docs or of a module of the dashboard."""
    text = path.read_text(encoding="utf-8")
    return retired(prose(text) if path.suffix == ".md" else "\n".join(shown(text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_use_the_field_s_terms(page: Path) -> None:
    if page.relative_to(ROOT).as_posix() not in NOT_READ:
        assert read(page) == []


@pytest.mark.parametrize("folder", sorted((ROOT / "dashboard").glob("*/")), ids=lambda f: f.name)
def test_pages_use_the_field_s_terms(folder: Path) -> None:
    modules = sorted(folder.glob("**/*.py"))
    names = {module: module.relative_to(ROOT).as_posix() for module in modules}
    words = {name: read(module) for module, name in names.items() if name not in NOT_READ}
    assert {name: found for name, found in words.items() if found} == {}


MODULES = sorted((ROOT / "attribution").glob("**/*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.relative_to(ROOT).as_posix())
def test_docstrings_and_comments_use_the_field_s_terms(module: Path) -> None:
    source = module.read_text(encoding="utf-8")
    words = [word for text in explained(source) for word in retired(text)]
    # A place in a file, an array or the code is not a position of evidence.
    assert [word for word in words if not word.startswith(("'place'", "'places'"))] == []


SIGNED = re.compile(r"(?<!%)\{[^{}%\n]*:\+\.\d")
"""A signed number in a text, formatted without `z`: -0.0001 would become -0.000."""


@pytest.mark.parametrize("folder", ["attribution", "cache", "poslens", "dashboard"])
def test_texts_have_no_negative_zero(folder: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")]
    assert texts and [match[0] for text in texts for match in SIGNED.finditer(text)] == []
    assert SIGNED.search("{value:+.3f}") and not SIGNED.search("{value:+z.3f} %{y:+.3f}")


def test_retired_words_are_found_outside_of_code() -> None:
    page = "The score leans late.\n\n```sh\nposlens bias --place end\n```\n\nSet `--place`.\n"
    assert retired(prose(page)) == ["'leans': write last-minus-first difference, index, or tilt"]
    module = '"""A place."""\nst.caption(f"The place of {name}")\nst.button(key="a.place")\n'
    assert [word for text in shown(module) for word in retired(text)] == ["'place': write position"]
    module = '"""What `beside` says."""\n# It lies beside the weights.\n'
    assert {word for text in explained(module) for word in retired(text)} == {
        "'beside': write next to, or with",
        "'lies beside': write is",
    }
    assert retired("What caused it in the first place takes place here; replaced") == []


def test_the_glossary_has_every_heading_of_its_terms_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!term |---)(.*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    terms = [term for term, _, _ in rows]
    assert len(terms) > 60 and len(terms) == len(set(terms))
    assert all(meaning and source for _, meaning, source in rows)
