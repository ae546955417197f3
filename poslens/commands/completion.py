"""Shell completion of options: names of models, methods and data sets. Imports no heavy library,
because the shell runs it at each press of the Tab key."""

from __future__ import annotations

import ast
from pathlib import Path

from poslens import attribution


def model_names(incomplete: str) -> list[str]:
    """Completions of a model's name: presets, and presets with a suffix, such as @mean."""
    from poslens.attribution.retrievers.specs import POOLINGS, presets

    matching = [name for name in presets() if name.startswith(incomplete)]
    base, at, _ = incomplete.rpartition("@")
    if at and base in presets() and presets()[base].pooling:
        suffixes = (*POOLINGS, "calibrated")
        matching += [
            completed for s in suffixes if (completed := f"{base}@{s}").startswith(incomplete)
        ]
    return matching


def method_names(incomplete: str) -> list[str]:
    """Completions of a method's name, read from source files because importing them loads torch."""
    matching = []
    for path in sorted((Path(attribution.__file__).parent / "methods").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MethodEntry":
                matching += [
                    str(word.value.value)
                    for word in node.keywords
                    if word.arg == "name" and isinstance(word.value, ast.Constant)
                ]
    return [name for name in matching if name.startswith(incomplete)]


def dataset_names(incomplete: str) -> list[str]:
    """Completions of a bundled data set's name; for others, the shell completes the path."""
    from poslens.attribution import datasets

    return [name for name in datasets.names() if name.startswith(incomplete)]
