"""The notebooks of `examples/`, executed unchanged; they use shipped results, so each takes
seconds."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
# The table's contents in a format that line width doesn't affect.
LEANS = "print({row['model']: float(row['last minus first']) for row in rows})"
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def shown(notebook: Any, kind: str) -> str:
    """All outputs of the cells in this format, concatenated."""
    return "\n".join(
        str(output.data[kind])
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if kind in output.get("data", {})
    )


def printed(notebook: Any) -> str:
    """Everything that the cells print."""
    return "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "stream" and output.name == "stdout"
    )


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory, poslens_home: Path) -> dict[str, Any]:
    """Each executed notebook by name, in a separate folder. One interpreter imports the libraries
    for all three; each starts without the previous one's names."""
    place = tmp_path_factory.mktemp("examples")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_SHIPPED", "yes")
        patch.setenv("PYTHONPATH", str(ROOT))
        kernel = KernelManager(kernel_name="python3")
        try:
            for path in NOTEBOOKS:
                notebook = nbformat.read(path, as_version=4)
                notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
                if path.stem == "primacy_against_recency":
                    notebook.cells.append(nbformat.v4.new_code_cell(LEANS))
                within = {"metadata": {"path": str(place)}}
                NotebookClient(notebook, km=kernel, timeout=600, resources=within).execute()
                found[path.stem] = notebook
        finally:
            if kernel.has_kernel:
                kernel.shutdown_kernel(now=True)
    assert (place / "tide.html").is_file()
    return found


def test_the_first_steps_notebook_runs(executed: dict[str, Any]) -> None:
    notebook = executed["first_steps"]
    assert 'sandbox="allow-scripts"' in shown(notebook, "text/html")
    assert "application/vnd.jupyter.widget-view+json" in str(notebook.cells)
    assert "PosLens" in shown(notebook, "text/html") and printed(notebook).strip()


def test_the_planted_models_have_their_trained_bias(executed: dict[str, Any]) -> None:
    leans = ast.literal_eval(printed(executed["primacy_against_recency"]))
    assert leans["MiniLM-primacy"] < 0 < leans["MiniLM-recency"]


def test_a_custom_model_has_its_built_in_bias(executed: dict[str, Any]) -> None:
    said = printed(executed["your_own_model_and_data"])
    assert float(said.split()[0]) < 0, "later words count less"
    assert "saliency is unavailable for Fading-" in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
