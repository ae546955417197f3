"""Scripts that a page will need, named in its head, so that they come while it starts.

Streamlit's page asks for the script of a chart when the first chart has arrived, and draws nothing
of it until those megabytes are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dashboard.core import access

EVERY_PAGE = ("Selectbox", "Multiselect")
"""Elements of the sidebar."""

FIRST: Mapping[str, tuple[str, ...]] = {
    "": (),
    "explain": (),
    "compare": (),
    "cache": ("DataFrame",),
}
"""What a page shows first, by its address, where that is no chart. Text comes with its script."""

_CHART = ("PlotlyChart",)
_IMPORTED = re.compile(r"""(?:from|import)\s*["']\./([\w.-]+\.js)["']""")
_HEAD = 20_000
"""Characters of a script that hold its imports, which stand first."""


def links(path: str) -> str:
    """Elements for the head of the page at `path`; empty where Streamlit keeps its scripts
    otherwise than expected."""
    page = path.strip("/").removeprefix(access.current().base_path).strip("/")
    return _links((*EVERY_PAGE, *FIRST.get(page, _CHART)))


@cache
def _links(elements: tuple[str, ...]) -> str:
    from streamlit import file_util

    static = Path(file_util.get_static_dir())
    folder = static / "static" / "js"
    # What Streamlit's own page names already.
    seen = set(re.findall(r"js/([\w.-]+\.js)", (static / "index.html").read_text("utf-8")))
    waiting = [file.name for name in elements for file in folder.glob(f"{name}.*.js")]
    found = []
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        found.append(name)
        with (folder / name).open(encoding="utf-8") as script:
            waiting += _IMPORTED.findall(script.read(_HEAD))
    return "".join(
        f'<link rel="modulepreload" crossorigin href="./static/js/{name}">' for name in found
    )
