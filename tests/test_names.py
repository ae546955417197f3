"""Names are unambiguous: public classes have distinct names, and variables are named after their
contents."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for package in ("attribution", "cache", "poslens", "dashboard"):
        # A checkout may link the other packages into `poslens`; `**` does not follow links.
        for path in (ROOT / package).glob("**/*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_variables_are_named_after_their_contents() -> None:
    nothing = {"found", "one", "said", "known", "kept", "made"}
    bound = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for package in ("attribution", "cache", "poslens", "dashboard", "bench", "tools")
        for path in (ROOT / package).glob("**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [node.id]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else [node.arg]
            if isinstance(node, ast.arg)
            else []
        )
        if name in nothing
    ]
    assert bound == []
