"""MkDocs hooks that add to the pages of docs/: README as the first page, files of the repository to
which pages link, the reference generated from docstrings, and formulas as MathML.

Links in the pages are relative to the repository, because pages are read there too. On the site
docs/ is the top folder, so links are rewritten.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FIRST = "README.md"
STYLE = "site.css"
ALSO = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Further pages that are in the repository's top folder."""

LINK = re.compile(r"""(?<=\]\()[^)\s]+|(?<=src=")[^"]+|(?<=srcset=")[^"]+""")
CODE = re.compile(r"^( *```).*?^\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)

REFERENCE = {
    "poslens": ["poslens", "poslens.results", "poslens.widget", "poslens.pytest_plugin"],
    "attribution": [
        "poslens.attribution.types",
        "poslens.attribution.errors",
        "poslens.attribution.methods.base",
        "poslens.attribution.retrievers.family",
        "poslens.attribution.retrievers.base",
        "poslens.attribution.retrievers.resolve",
        "poslens.attribution.datasets",
        "poslens.attribution.datasets.types",
        "poslens.attribution.datasets.formats",
    ],
    "cache": ["poslens.cache.keys", "poslens.cache.storage.store"],
    "dashboard": [
        "poslens.compute.compute",
        "poslens.compute.runs",
        "poslens.compute.provenance",
        "poslens.studies.check.measures",
        "poslens.studies.check.service",
    ],
}
"""The modules on each reference page: those that extensions use (docs/extending.md)."""


def site_path(path: str) -> str:
    """Convert the path of a file in the repository to its path on the site."""
    if path == FIRST:
        return "index.md"
    return path.removeprefix("docs/")


def repository_path(path: str) -> str:
    """Convert the path of a page on the site to its path in the repository."""
    if path == "index.md":
        return FIRST
    return f"docs/{path}" if (ROOT / "docs" / path).exists() else path


def links(text: str, path: str) -> list[tuple[re.Match[str], str, str]]:
    """Find a page's links to files: the match, the file in the repository and the anchor after `#`
    of each."""
    code = [match.span() for match in CODE.finditer(text)]
    to_files = []
    for match in LINK.finditer(text):
        target, _, anchor = match[0].partition("#")
        inside = any(start <= match.start() < end for start, end in code)
        if target and not inside and not re.match(r"[a-z]+:", target):
            file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            to_files.append((match, file, anchor))
    return to_files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the style sheet, the reference, and the files to which pages link directly or
    indirectly."""
    style = Path(__file__).with_name(STYLE)
    files.append(File.generated(config, STYLE, abs_src_path=str(style)))
    todo = [FIRST, *ALSO, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(todo)
    for path in todo:  # the list grows during the loop
        if not files.get_file_from_path(site_path(path)) and (ROOT / path).is_file():
            files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md") and (ROOT / path).is_file():
            linked = [file for _, file, _ in links((ROOT / path).read_text("utf-8"), path)]
            todo += [file for file in dict.fromkeys(linked) if file not in seen]
            seen.update(linked)
    for package, modules in REFERENCE.items():
        text = "\n\n".join([f"# Reference of {package}", *(f"::: {module}" for module in modules)])
        files.append(File.generated(config, f"reference/{package}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of a page to the paths of their files on the site."""
    path = repository_path(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)
    for match, file, anchor in reversed(links(markdown, path)):
        target = posixpath.relpath(site_path(file), folder or ".")
        target += f"#{anchor}" if anchor else ""
        markdown = markdown[: match.start()] + target + markdown[match.end() :]
    return markdown


FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Replace the formulas of a page (`$...$` and `$$...$$`) with MathML, for which browsers need
    neither a script nor the network."""

    def drawn(match: re.Match[str]) -> str:
        display = "inline" if match[1] == "span" else "block"
        return str(convert(html.unescape(match[2]), display=display))

    return FORMULA.sub(drawn, content)
