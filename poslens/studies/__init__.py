"""One module for each question about models and a data set.

Importing a study takes seconds (torch). To keep `poslens --help` fast, names and questions are read
from the sources, and a study is imported when it is first used.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poslens.study import Study


@dataclass(frozen=True, slots=True)
class Declared:
    """A study that is not imported yet: its name, its question, and its module."""

    name: str
    question: str
    module: str

    def load(self) -> Study[Any, Any, Any]:
        """Import the study."""
        import_module(self.module)
        from poslens.study import STUDIES

        return STUDIES[self.name]


@cache
def declared() -> dict[str, Declared]:
    """Every study of this package by name, in alphabetical order."""
    studies = {}
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"^(\w+ = )?register\(", text, re.MULTILINE):
            continue
        parts = path.relative_to(Path(__file__).parent).with_suffix("").parts
        module = ".".join((__name__, *parts))
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and "question" in (texts := _texts(node)):
                studies[texts["name"]] = Declared(texts["name"], texts["question"], module)
    return dict(sorted(studies.items()))


def _texts(node: ast.ClassDef) -> dict[str, str]:
    """The string constants that a class's body assigns to names."""
    return {
        target.id: line.value.value
        for line in node.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name) and isinstance(line.value.value, str)
    }
