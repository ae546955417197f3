"""No text from a user, an address, a file or a model is rendered as markup: all of it goes through
`plain` before Streamlit renders it, directly or in the functions of `widgets/say.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from poslens.figures.plain import plain, with_code

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for path in sorted((ROOT / "dashboard").rglob("*.py"))
    if "import streamlit" in path.read_text(encoding="utf-8")
]

# Arguments that Streamlit 1.67 renders as Markdown: positions and keywords of each call. Taken from
# its front end: options of select boxes and lists are shown literally, those of buttons and sliders
# are not.
LABELED = (
    "button",
    "checkbox",
    "download_button",
    "expander",
    "file_uploader",
    "form_submit_button",
    "link_button",
    "multiselect",
    "number_input",
    "pills",
    "popover",
    "radio",
    "segmented_control",
    "select_slider",
    "selectbox",
    "slider",
    "spinner",
    "status",
    "text_area",
    "text_input",
    "toggle",
    "toast",
    "caption",
    "error",
    "header",
    "info",
    "latex",
    "markdown",
    "subheader",
    "success",
    "title",
    "warning",
    "write",
)
POSITIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(LABELED, (0,)),
    **dict.fromkeys(("pills", "radio", "segmented_control", "select_slider"), (0, 1)),
    "metric": (0, 1, 2),
    "progress": (1,),
    "page_link": (),
    "tabs": (0,),
}
KEYWORDS = {"help", "label", "text", "body", "value", "delta", "title", "caption", "captions"}
DRAWN = {"pills", "radio", "segmented_control", "select_slider"}
NUMERIC = re.compile(r"[+]?z?(,|,?(\.\d+)?[defg%]|,?(\.\d+)?)")
"""Format specifications that only fit numbers."""


class Checker(ast.NodeVisitor):
    """Calls of one module that render unescaped text."""

    def __init__(self) -> None:
        self.scopes: list[ast.AST] = []
        self.found: list[str] = []

    def visit_Module(self, node: ast.Module) -> None:
        self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inside(node)

    def _inside(self, node: ast.AST) -> None:
        self.scopes.append(node)
        self.generic_visit(node)
        self.scopes.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return
        name, receiver = node.func.attr, ast.unparse(node.func.value)
        column = name.endswith("Column") and receiver == "st.column_config"
        elsewhere = receiver.startswith(("logging", "panels", "say"))
        if (name not in POSITIONS and not column) or elsewhere:
            return
        shown = [node.args[at] for at in POSITIONS.get(name, (0,)) if at < len(node.args)]
        if name in DRAWN and any(keyword.arg == "format_func" for keyword in node.keywords):
            del shown[1:]  # its return value is drawn instead
        for keyword in node.keywords:
            if keyword.arg in KEYWORDS - ({"value"} if name != "metric" else set()):
                shown.append(keyword.value)
            if keyword.arg == "format_func" and name in DRAWN:
                shown.append(keyword.value)
        for argument in shown:
            if not self.safe(argument):
                self.found.append(f"line {argument.lineno}: {name}({ast.unparse(argument)})")

    def safe(self, node: ast.AST | None) -> bool:
        """Whether an expression contains only text of the program, numbers, and the output of
        `plain`."""
        match node:
            case None | ast.Constant():
                return True
            case ast.JoinedStr(values):
                return all(self.safe(one) for one in values)
            case ast.FormattedValue(value, _, ast.JoinedStr([ast.Constant(str(form))])):
                return bool(NUMERIC.fullmatch(form)) or self.safe(value)
            case ast.FormattedValue(value, conversion, _):
                return conversion == -1 and self.safe(value)
            case ast.IfExp(_, body, otherwise):
                return self.safe(body) and self.safe(otherwise)
            case ast.BinOp(left, ast.Add(), right):
                return self.safe(left) and self.safe(right)
            case ast.BoolOp(_, values) | ast.List(values) | ast.Tuple(values):
                return all(self.safe(one) for one in values)
            case ast.Starred(value) | ast.Lambda(_, value) | ast.GeneratorExp(value):
                return self.safe(value)
            case ast.Call(ast.Name("counted"), [_, noun], _):
                return self.safe(noun)
            case ast.Call(ast.Name("plain" | "with_code" | "len" | "range"), _, _):
                return True
            case ast.Call(ast.Attribute(ast.Name("panels"), "plain"), _, _):
                return True
            case ast.Call(ast.Attribute(ast.Constant(), "join"), [argument], _):
                return self.safe(argument)
            case ast.Call(ast.Attribute(held, "values"), [], _):
                return self.safe(held)
            case ast.Call(ast.Name("list"), [argument], _):
                return self.safe(argument)
            case ast.Attribute(ast.Name("panels"), "plain"):
                return True
            case ast.Attribute(held) | ast.Subscript(held):
                return _rooted_in_a_constant(held)
            case ast.Name(name):
                return name.isupper() or name == "plain" or self._assigned(name)
        return False

    def _assigned(self, name: str) -> bool:
        """Whether all assignments to `name` in the nearest scope that has any are safe."""
        for scope in reversed(self.scopes):
            values = list(_values(scope, name))
            if values:
                return all(value is not None and self.safe(value) for value in values)
        return False


def _rooted_in_a_constant(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id.isupper()


def _values(scope: ast.AST, name: str) -> Iterator[ast.AST | None]:
    """Values assigned to `name` in a scope; None if they can't be determined."""
    arguments = getattr(scope, "args", None)
    if isinstance(arguments, ast.arguments):
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if one.arg == name:
                yield None
    body = getattr(scope, "body", [])
    for node in [n for top in (body if isinstance(body, list) else [body]) for n in _own(top)]:
        match node:
            case ast.Assign([ast.Name(target)], value) if target == name:
                yield value
            case ast.AugAssign(ast.Name(target), ast.Add(), value) if target == name:
                yield value
            case ast.AnnAssign(ast.Name(target), _, value) if target == name:
                yield value
            case ast.NamedExpr(ast.Name(target), value) if target == name:
                yield value
            case ast.Assign(targets) if any(_binds(one, name) for one in targets):
                yield None
            case ast.For(target) | ast.comprehension(target) if _binds(target, name):
                yield None
            case ast.withitem(_, ast.AST() as target) if _binds(target, name):
                yield None
            case ast.ExceptHandler(_, caught) if caught == name:
                yield None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and its descendants, except nested functions."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
        for below in ast.iter_child_nodes(node):
            yield from _own(below)


def _binds(target: ast.AST, name: str) -> bool:
    return any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == name
        for n in ast.walk(target)
    )


def rendered_raw(source: str) -> list[str]:
    """The calls of a module that render unescaped text."""
    checker = Checker()
    checker.visit(ast.parse(source))
    return checker.found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_all_rendered_text_is_escaped(path: Path) -> None:
    assert rendered_raw(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ("st.error(str(error))", 1),
        ("st.error(plain(str(error)))", 0),
        ("say.error(error)", 0),
        ("st.info('x')", 0),
        ("st.warning(f'no {name}')", 1),
        ("st.warning(f'no {panels.plain(name)}')", 0),
        ("st.caption(f'{n:,} of {m:.2f}')", 0),
        ("st.caption(f'{n!r}')", 1),
        ("st.caption(f'{n}')", 1),
        ("left.metric('x', f'{v:.1%}', help=h)", 1),
        ("st.metric(name, 'x')", 1),
        ("st.metric('x', value)", 1),
        ("bar.progress(1, text=t)", 1),
        ("t = 'a'\nif b:\n    t += name\nst.caption(t)", 1),
        ("t = 'a'\nif b:\n    t += f' {n:,}'\nst.caption(t)", 0),
        ("for t in x:\n    st.caption(t)", 1),
        ("st.caption(', '.join(t for t in x))", 1),
        ("st.caption(', '.join(plain(t) for t in x))", 0),
        ("def f(t):\n    st.caption(t)", 1),
        ("t = 'a'\ndef f(t):\n    st.caption(t)", 1),
        ("try:\n    f()\nexcept E as t:\n    st.error(t)", 1),
        ("st.caption(HELP)", 0),
        ("st.caption(METHODS[n].help)", 0),
        ("st.pills('x', names)", 1),
        ("st.selectbox('x', names)", 0),
        ("st.select_slider('x', A, format_func=f)", 1),
        ("st.radio('x', A, format_func=lambda k: f'{k:.0%}')", 0),
        ("st.code(x)", 0),
        ("with st.spinner(f'Computing {name}'):\n    f()", 1),
        ("st.text(x)", 0),
        ("st.column_config.TextColumn(help=x)", 1),
        ("st.page_link('v.py', label=x)", 1),
        ("logging.getLogger(x).error(y)", 0),
        ("if (t := f()):\n    st.error(t)", 1),
    ],
)
def test_the_check_detects_unescaped_text(source: str, n: int) -> None:
    assert len(rendered_raw(source)) == n


@pytest.mark.parametrize(
    "text",
    [
        "http://evil.example",
        "see https://evil.example/x",
        "HTTP://EVIL.example",
        "www.evil.example",
        "me@evil.example",
        "mailto:me@evil.example",
        "a.b+c@evil.example.org",
    ],
)
def test_addresses_do_not_become_links(text: str) -> None:
    """The front end looks for addresses after resolving escapes (GitHub's "autolink literals"), so
    escaping alone doesn't keep them from becoming links."""
    seen = re.sub(r"\\(.)", r"\1", plain(text))
    assert seen.replace("\u2060", "") == text
    url = re.compile(r"(https?://|www(?=\.))[-.\w]+", re.I)
    email = re.compile(r"[-.\w+]+@[-\w]+(\.[-\w]+)+")
    assert url.search(text) or email.search(text)
    assert not url.search(seen) and not email.search(seen)


@pytest.mark.parametrize("text", ["MiniLM@last", "MiniLM-recency@0.5", "a/b", "eng-pol", "p < .05"])
def test_escaped_names_can_be_copied(text: str) -> None:
    assert re.sub(r"\\(.)", r"\1", plain(text)) == text


def test_commands_in_messages_are_code_and_nothing_else_is() -> None:
    assert with_code("E5 is missing: run `pip install '.[data]'`.") == (
        "E5 is missing\\: run `pip install '.[data]'`\\."
    )
    for text in ("`<b>` x", "`https://evil.example`", "`:red[x]`", "``` x", "a ` b", "`![a](b)`"):
        assert with_code(text) == plain(text)
