"""Weights out of an ONNX file whose matrices were quantised to 8 bits for onnxruntime.

The file is a protocol buffer; the few fields needed are read here, so that no ONNX package has to
be installed to fetch one model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PREFIX = "0.auto_model."
"""What sentence-transformers' export puts before the names of the first module's weights."""

_FLOAT, _UINT8, _INT8 = 1, 2, 3


@dataclass
class _Node:
    """One operation of the graph: its kind, what it reads and what it gives."""

    kind: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def dequantise_onnx(data: bytes) -> dict[str, torch.Tensor]:
    """Weights by the names transformers gives them, float32, of an encoder that
    sentence-transformers exported and onnxruntime quantised dynamically.

    Scale and zero point of a matrix are those that the operation reading it names: equal ones are
    stored once and shared between matrices, so a matrix's own name finds some of them only.

    Raises:
        ValueError: the file is not built so.
    """
    tensors, nodes = _graph(memoryview(data))
    made_by = {output: node for node in nodes for output in node.outputs}
    found = {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(_PREFIX) and name.endswith((".weight", ".bias"))
    }
    try:
        for node in nodes:
            if node.kind == "DequantizeLinear":
                # A table of embeddings: rows are looked up first, then widened.
                name = made_by[node.inputs[0]].inputs[0]
                weight = _widen(*(tensors[key] for key in (name, *node.inputs[1:])))
                found[name.removeprefix(_PREFIX).removesuffix("_quantized")] = weight
            elif node.kind == "MatMulInteger" and node.inputs[1] in tensors:
                # Not a product of activations, as queries times keys.
                where = node.outputs[0].partition("/MatMul_output")[0]
                scales = made_by[f"{where}/MatMul_quant_scales_mul:0"]
                weight = _widen(
                    *(tensors[k] for k in (node.inputs[1], scales.inputs[1], node.inputs[3]))
                )
                name = where.strip("/").replace("/", ".").removeprefix(_PREFIX)
                # ONNX multiplies from the right, torch's linear layers from the left.
                found[f"{name}.weight"] = weight.T.contiguous()
    except (KeyError, IndexError) as error:
        raise ValueError("no dynamically quantised encoder") from error
    return found


def _widen(values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return (values.float() - zero.float()) * scale


def _graph(file: memoryview) -> tuple[dict[str, torch.Tensor], list[_Node]]:
    tensors: dict[str, torch.Tensor] = {}
    nodes: list[_Node] = []
    for number, graph in _fields(file):
        if number != 7 or isinstance(graph, int):
            continue
        for key, value in _fields(graph):
            if key == 1 and not isinstance(value, int):
                nodes.append(_node(value))
            elif key == 5 and not isinstance(value, int):
                name, tensor = _tensor(value)
                if tensor is not None:
                    tensors[name] = tensor
    return tensors, nodes


def _node(data: memoryview) -> _Node:
    node = _Node()
    for key, value in _fields(data):
        if isinstance(value, int):
            continue
        if key == 1:
            node.inputs.append(str(value, "utf-8"))
        elif key == 2:
            node.outputs.append(str(value, "utf-8"))
        elif key == 4:
            node.kind = str(value, "utf-8")
    return node


def _tensor(data: memoryview) -> tuple[str, torch.Tensor | None]:
    """Name and contents; None for types that weights do not have."""
    import numpy as np
    import torch

    shape: list[int] = []
    kind, name, raw = 0, "", b""
    values: list[float] = []
    for key, value in _fields(data):
        if key == 1:
            shape.extend([value] if isinstance(value, int) else _varints(value))
        elif key == 2 and isinstance(value, int):
            kind = value
        elif key == 4 and not isinstance(value, int):
            values.extend(np.frombuffer(value, "<f4").tolist())
        elif key == 5:
            values.extend([value] if isinstance(value, int) else _varints(value))
        elif key == 8 and not isinstance(value, int):
            name = str(value, "utf-8")
        elif key == 9 and not isinstance(value, int):
            raw = bytes(value)
    dtype = {_FLOAT: "<f4", _UINT8: "u1", _INT8: "i1"}.get(kind)
    if dtype is None:
        return name, None
    array = np.frombuffer(raw, dtype) if raw else np.array(values, dtype)
    return name, torch.from_numpy(array.reshape(shape).copy())


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of each field of a protocol buffer message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("no protocol buffer")
        if at + size > len(data):
            raise ValueError("a file that is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varints(data: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a file that is cut off")
