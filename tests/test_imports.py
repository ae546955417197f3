"""Imports go one way, and nothing in PosLens can execute data that it reads."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.forked import Forked

ROOT = Path(__file__).parents[1]
PACKAGES = ("attribution", "cache", "dashboard", "poslens")
# dashboard -> poslens -> cache -> attribution. A module of the library itself is anything in the
# folder poslens/.
FORBIDDEN = {
    "attribution": {"poslens.cache", "poslens.dashboard", "poslens library", "streamlit", "plotly"},
    "cache": {"poslens.dashboard", "poslens library", "streamlit", "plotly"},
    "poslens": {"poslens.dashboard", "streamlit"},
    "dashboard": set(),
}
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
PRODUCT = [*FILES, *sorted((ROOT / "bench").rglob("*.py"))]
# A standard library module whose import reads code out of data.
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST, path: Path) -> Iterator[str]:
    """Dotted names of all imports anywhere in a module, with relative imports resolved."""
    folder = path.relative_to(ROOT).parent.parts
    package = folder if folder[:1] == ("poslens",) else ("poslens", *folder)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(
            ("import_module", "__import__")
        ):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def parse(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


# The only place that may run a model's code: for models named by whoever started the server.
CODE_ALLOWED = ("attribution/retrievers/dense_loading.py", "code")


# The only place that may import pickle: an unpickler that admits only its own stand-ins.
PICKLE_ALLOWED = "attribution/curves/array_pickle.py"


def unsafe(tree: ast.AST, path: Path) -> list[str]:
    """Calls and arguments that would execute or trust data."""
    found = [f"imports {n}" for n in imports(tree, path) if n.split(".")[0] in UNSAFE_MODULES]
    if name_of(path) == PICKLE_ALLOWED:
        found.remove("imports pickle")
        used = {dotted(n) for n in ast.walk(tree) if dotted(n).startswith("pickle.")}
        found += [f"uses {name}" for name in used - {"pickle.Unpickler"}]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in ("torch.load", "eval", "exec", "os.system", "os.popen") or name.endswith(
                (".read_pickle", ".to_pickle")
            ):
                found.append(f"line {node.lineno}: {name}")
            if name.endswith(".load") and any(k.arg == "allow_pickle" for k in node.keywords):
                found.append(f"line {node.lineno}: allow_pickle")
            for keyword in node.keywords:
                value = keyword.value
                off = isinstance(value, ast.Constant) and value.value is False
                place = (name_of(path), ast.unparse(value))
                if keyword.arg == "trust_remote_code" and place == CODE_ALLOWED:
                    continue
                if keyword.arg in ("trust_remote_code", "unsafe_allow_html", "shell") and not off:
                    found.append(f"line {node.lineno}: {keyword.arg}")
                if keyword.arg == "use_safetensors" and off:
                    found.append(f"line {node.lineno}: use_safetensors=False")
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if (
                    isinstance(key, ast.Constant)
                    and key.value
                    in (
                        "trust_remote_code",
                        "unsafe_allow_html",
                    )
                    and not (isinstance(value, ast.Constant) and value.value is False)
                ):
                    found.append(f"line {node.lineno}: {key.value}")
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            found += [f"line {node.lineno}: torch.load" for a in node.names if a.name == "load"]
    return found


def test_the_checks_find_the_modules() -> None:
    assert len(FILES) > 20
    assert all(any(name_of(f).startswith(f"{p}/") for f in FILES) for p in PACKAGES)


def test_imports_go_one_way() -> None:
    # Imported under its own name, a folder would be a second copy of the package.
    forbidden = {"tests", "bench", "tools", "attribution", "cache", "dashboard"}
    wrong = {}
    for path in FILES:
        layers = {layer_of(name) for name in imports(parse(path), path)}
        if upward := layers & (FORBIDDEN[path.relative_to(ROOT).parts[0]] | forbidden):
            wrong[name_of(path)] = upward
    assert wrong == {}


def layer_of(name: str) -> str:
    """The layer that a dotted name belongs to; its first part for other projects."""
    first, _, rest = name.partition(".")
    if first != "poslens":
        return first
    second = rest.partition(".")[0]
    return f"poslens.{second}" if second in PACKAGES else "poslens library" if rest else first


def test_the_check_distinguishes_layers() -> None:
    assert layer_of("poslens.cache.storage.store") == "poslens.cache"
    assert layer_of("poslens.compute.runs") == "poslens library"
    assert layer_of("streamlit.web") == "streamlit" and layer_of("cache") == "cache"


def test_no_module_executes_or_trusts_data_it_reads() -> None:
    wrong = {name_of(path): found for path in PRODUCT if (found := unsafe(parse(path), path))}
    assert wrong == {}


def test_no_module_imports_peft_at_import_time() -> None:
    """peft and transformers import each other. If a page imported peft while transformers is
    loading with the first model, it would see a partly imported transformers."""
    importing = set()
    for path in FILES:
        tree = parse(path)
        assert isinstance(tree, ast.Module)
        outer = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [name for node in outer for name in imports(node, path)]
        if any(name.split(".")[0] == "peft" for name in names):
            importing.add(name_of(path))
    assert importing == set()


@pytest.mark.parametrize(
    "module", ["poslens.attribution.curves.curve_summary", "poslens.cache.storage.store"]
)
def test_computing_curves_imports_neither_torch_nor_a_page(module: str) -> None:
    """Reading stored curves must not load torch, and no layer may import a higher one."""
    script = (
        f"import sys, {module}; print(sorted({{'torch', 'transformers', 'streamlit', 'plotly', "
        "'poslens.dashboard'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


def test_the_server_answers_before_model_libraries_are_imported() -> None:
    """They take some five seconds, and stored results are shown without them."""
    slow = (
        "transformers",
        "kaleido",
        "sentence_transformers",
        "captum",
        "sklearn",
        "peft",
        "umap",
        "ray",
    )
    script = (
        "import sys, poslens.dashboard.explain.view, poslens.dashboard.server.serve, "
        "poslens.studies.passport.service; "
        f"print(sorted(set({slow}) & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


HEAVY = {
    "captum",
    "matplotlib",
    "pandas",
    "plotly",
    "pyarrow",
    "scipy.special",
    "scipy.stats",
    "sentence_transformers",
    "sklearn",
    "streamlit",
    "torch",
    "transformers",
}
TEXTS = ("--query", "tides", "--document", "The tides turn.")
NEEDED: dict[tuple[str, ...], set[str]] = {
    ("--help",): set(),
    ("models",): set(),
    ("explain", "--model", "BM25", "--method", "terms", *TEXTS): {"pandas", "pyarrow", "torch"},
    ("rank", "--model", "MiniLM"): {"pandas", "plotly", "pyarrow", "scipy.special", "torch"},
}
"""Commands, and the heavy modules that each may import; they include those of the one before."""


def test_a_command_imports_only_what_it_needs() -> None:
    """All in one process: in a new one, each would import torch again."""
    assert all(earlier <= later for earlier, later in pairwise(NEEDED.values()))
    script = (
        "import sys\n"
        "from poslens.dashboard.__main__ import main\n"
        f"for command in {list(NEEDED)!r}:\n"
        " sys.argv = ['poslens', *command]\n"
        " try:\n"
        "  main()\n"
        " except SystemExit as end:\n"
        "  assert not end.code, command\n"
        f" print('\\f', *sorted({HEAVY!r} & set(sys.modules)), end='\\f')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "POSLENS_SHIPPED": "yes"},
        capture_output=True,
        text=True,
        check=True,
    )
    *answers, rest = done.stdout.split("\f")
    assert all(answers[::2]) and rest == ""
    for (command, needed), imported in zip(NEEDED.items(), answers[1::2], strict=True):
        assert set(imported.split()) <= needed, command


@pytest.mark.parametrize("method", ["decomposition", "occlusion"])
def test_methods_with_their_own_passes_do_not_import_captum(method: str, forked: Forked) -> None:
    """Captum imports matplotlib. A model's self-check doesn't need it, either."""
    script = (
        "import sys\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'captum']:\n"
        " sys.modules[name] = None\n"
        f"sys.argv = ['poslens', 'explain', '--method', *{(method, *TEXTS)!r}]\n"
        "from poslens.dashboard.__main__ import main; main()"
    )
    status, output, errors = forked.run(code=script)
    assert status == 0 and '"score"' in output, errors


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    whole = parts if parts[0] == "poslens" else ("poslens", *parts)
    return ".".join(whole[:-1] if whole[-1] == "__init__" else whole)


def import_graph() -> dict[str, set[str]]:
    """For each module of PosLens, the modules it imports at its top or in functions, except for
    type checking."""
    modules = {module_of(path): path for path in FILES}
    graph = {}
    for name, path in modules.items():
        tree = Untyped().visit(parse(path))
        asked = set(imports(tree, path))
        # `from package import module` depends on the module and not on the package's contents.
        packages = {module.rpartition(".")[0] for module in asked if module in modules}
        graph[name] = (asked & modules.keys()) - {name} - (packages & named_by_parts(tree, modules))
    return graph


class Untyped(ast.NodeTransformer):
    """Removes code under `if TYPE_CHECKING`."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)


def named_by_parts(tree: ast.AST, modules: dict[str, Path]) -> set[str]:
    """Packages of which only modules are imported."""
    own, parts = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                is_module = f"{node.module}.{alias.name}" in modules
                (parts if is_module else own).add(node.module)
    return parts - own


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that form a circular import; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if circular := walk(other, [*path, name]):
                return circular
        done.add(name)
        return []

    return next(filter(None, (walk(name, []) for name in sorted(graph))), [])


def test_there_are_no_circular_imports() -> None:
    graph = import_graph()
    assert graph["poslens.attribution.retrievers.load"] >= {"poslens.attribution.retrievers.detect"}
    assert circle(graph) == []


def test_the_check_detects_a_circular_import() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def tells_families_apart(tree: ast.AST) -> list[int]:
    """Lines that compare or match a family by name."""
    asked = [n for n in ast.walk(tree) if isinstance(n, (ast.Compare, ast.Match))]
    subjects = [n.subject if isinstance(n, ast.Match) else n for n in asked]
    return [
        node.lineno
        for node in subjects
        if any(isinstance(part, ast.Attribute) and part.attr == "family" for part in ast.walk(node))
    ] + [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value in ("late_interaction", "cross_encoder", "lexical")
    ]


def test_only_retrievers_distinguish_families() -> None:
    """The capabilities of a family are read from its record."""
    others = [p for p in PRODUCT if not name_of(p).startswith("attribution/retrievers/")]
    wrong = {name_of(p): lines for p in others if (lines := tells_families_apart(parse(p)))}
    assert wrong == {}


@pytest.mark.parametrize(
    "source",
    [
        'spec.family == "dense"',
        'x = spec.family not in ("sparse", "dense")',
        'match retriever.family:\n    case "dense": pass',
        'kinds = {"cross_encoder": 1}',
    ],
)
def test_the_check_detects_code_that_distinguishes_families(source: str) -> None:
    assert tells_families_apart(ast.parse(source))
    assert not tells_families_apart(ast.parse("f(spec.family)"))


def test_no_dashboard_module_shadows_the_standard_library() -> None:
    """`streamlit run` puts dashboard/ ahead of the standard library."""
    modules = {path.stem for path in (ROOT / "dashboard").glob("*.py")}
    folders = {path.name for path in (ROOT / "dashboard").iterdir() if path.is_dir()}
    standard = sys.stdlib_module_names - {"__main__"}
    assert not (modules | folders) & standard
    assert not (modules | folders) & {"streamlit", "plotly", "numpy", "torch", "pandas"}


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ("import pickle", 1),
        ("from pickle import loads", 2),
        ("import torch\ntorch.load(x)", 1),
        ("from torch import load", 1),
        ("f(trust_remote_code=True)", 1),
        ("f(trust_remote_code=allowed)", 1),
        ("f(trust_remote_code=False)", 0),
        ("f(**{'trust_remote_code': True})", 1),
        ("st.markdown(x, unsafe_allow_html=True)", 1),
        ("np.load(p, allow_pickle=True)", 1),
        ("pd.read_pickle(p)", 1),
        ("eval(x)", 1),
        ("subprocess.run(x, shell=True)", 1),
        ("model.eval()", 0),
        ("# pickle, torch.load(", 0),
        ("__import__('pickle')", 1),
        ("f(use_safetensors=False)", 1),
    ],
)
def test_the_check_detects_unsafe_code(source: str, n: int) -> None:
    assert len(unsafe(ast.parse(source), ROOT / "dashboard" / "x.py")) == n


def test_the_check_detects_every_form_of_import() -> None:
    source = """
import a.b as c
from d import e
from . import f
from .g import h
from ..i import j
def later():
    import k
    importlib.import_module("l.m")
"""
    found = set(imports(ast.parse(source), ROOT / "dashboard" / "pages" / "x.py"))
    assert {
        "a.b",
        "d",
        "d.e",
        "poslens.dashboard.pages.f",
        "poslens.dashboard.pages.g",
        "poslens.dashboard.i",
        "k",
        "l.m",
    } <= found


# The only place that may use Streamlit's fragment directly: it puts the guard inside.
FRAGMENT_ALLOWED = "dashboard/widgets/guard.py"


def unguarded(tree: ast.AST) -> list[str]:
    """Uses of Streamlit's own fragment, under whatever name it was imported."""
    used = [
        f"line {node.lineno}: {dotted(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("fragment", "experimental_fragment")
    ]
    return used + [
        f"line {node.lineno}: from {node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] == "streamlit"
        and any("fragment" in alias.name for alias in node.names)
    ]


def test_page_fragments_are_guarded() -> None:
    """Exceptions in Streamlit's fragment are shown with a traceback before any guard around it."""
    pages = [path for path in FILES if name_of(path).startswith("dashboard/")]
    found = {name_of(path): uses for path in pages if (uses := unguarded(parse(path)))}
    assert set(found) == {FRAGMENT_ALLOWED}, found


@pytest.mark.parametrize(
    ("code", "n"),
    [
        ("import streamlit as st\n@st.fragment\ndef f(): pass", 1),
        ("import streamlit\n@streamlit.fragment(run_every=1)\ndef f(): pass", 1),
        ("from streamlit import fragment\n@fragment\ndef f(): pass", 1),
        ("from poslens.dashboard.widgets.guard import fragment\n@fragment()\ndef f(): pass", 0),
    ],
)
def test_the_check_detects_an_unguarded_fragment(code: str, n: int) -> None:
    assert len(unguarded(ast.parse(code))) == n


def test_every_linked_page_exists() -> None:
    """Streamlit looks a page up when its link is drawn, and raises if no file is there."""
    pages = [path for path in FILES if name_of(path).startswith("dashboard/")]
    missing = {
        f"{name_of(path)}: {node.value}"
        for path in pages
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.endswith("/page.py")
        and not (ROOT / "dashboard" / node.value).is_file()
    }
    assert not missing
