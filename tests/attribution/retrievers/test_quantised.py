"""Reading quantised weights out of an ONNX file, on a file written here by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attribution.retrievers.quantised import dequantise_onnx

FLOAT, UINT8, INT8, INT64 = 1, 2, 3, 7
ROOT = "/0/auto_model/encoder/layer.0/attention/self/"
LAYER = "encoder.layer.0.attention.self."


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def part(number: int, value: bytes | str | int) -> bytes:
    """One field of a protocol buffer message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, values: np.ndarray, kind: int, raw: bool = True) -> bytes:
    shape = b"".join(part(1, n) for n in values.shape)
    if raw:
        contents = part(9, values.tobytes())
    elif kind == FLOAT:
        contents = part(4, values.astype("<f4").tobytes())
    else:
        contents = part(5, b"".join(varint(int(v)) for v in values.ravel()))
    return part(5, shape + part(2, kind) + part(8, name) + contents)


def node(kind: str, inputs: list[str], outputs: list[str]) -> bytes:
    names = b"".join(part(1, i) for i in inputs) + b"".join(part(2, o) for o in outputs)
    return part(1, names + part(4, kind))


def product(name: str, matrix: str, scale: str, zero: str) -> bytes:
    where = ROOT + name
    return node(
        "MatMulInteger",
        ["x_quantized", matrix, "x_zero", zero],
        [f"{where}/MatMul_output_0_output_quantized"],
    ) + node("Mul", ["x_scale", scale], [f"{where}/MatMul_quant_scales_mul:0"])


RNG = np.random.default_rng(5)
TABLE = RNG.integers(0, 255, (300, 4)).astype("u1")
QUERY = RNG.integers(0, 255, (4, 6)).astype("u1")
KEY = RNG.integers(-128, 127, (4, 6)).astype("i1")
BIAS = RNG.normal(size=6).astype("<f4")


def onnx() -> bytes:
    """A table and two matrices; the second has a name of its own but the first one's scale."""
    graph = (
        tensor("0.auto_model.embeddings.word_embeddings.weight_quantized", TABLE, UINT8)
        + tensor("scale_a", np.array(0.5, "<f4"), FLOAT, raw=False)
        + tensor("zero_a", np.array(131, "u1"), UINT8, raw=False)
        + tensor("MatMul_1_quantized", QUERY, UINT8)
        + tensor("MatMul_2_quantized", KEY, INT8)
        + tensor("scale_b", np.array(0.03, "<f4"), FLOAT)
        + tensor("zero_b", np.array(-7, "i1"), INT8)
        + tensor("0.auto_model." + LAYER + "query.bias", BIAS, FLOAT)
        + tensor("shape", np.array([1, 2], "<i8"), INT64)
        + node("Gather", ["0.auto_model.embeddings.word_embeddings.weight_quantized", "ids"], ["g"])
        + node("DequantizeLinear", ["g", "scale_a", "zero_a"], ["words"])
        + product("query", "MatMul_1_quantized", "scale_b", "zero_a")
        + product("key", "MatMul_2_quantized", "scale_b", "zero_b")
        # Queries times keys: a product of activations, without weights.
        + node("MatMulInteger", ["q_quantized", "k_quantized", "a", "b"], [ROOT + "MatMul_output"])
    )
    return part(1, 8) + part(2, "somebody") + part(7, graph)


def test_scale_and_zero_point_come_from_what_reads_the_matrix() -> None:
    found = dequantise_onnx(onnx())
    expected = {
        "embeddings.word_embeddings.weight": (TABLE.astype("f4") - 131) * 0.5,
        LAYER + "query.weight": ((QUERY.astype("f4") - 131) * np.float32(0.03)).T,
        LAYER + "key.weight": ((KEY.astype("f4") + 7) * np.float32(0.03)).T,
        LAYER + "query.bias": BIAS,
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == torch.float32 and found[name].is_contiguous()
        np.testing.assert_allclose(found[name].numpy(), values, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 100, 1500, -1])
def test_a_file_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="cut off"):
        dequantise_onnx(onnx()[:size])


def test_a_matrix_without_its_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="no dynamically quantised encoder"):
        dequantise_onnx(onnx().replace(b"scale_a", b"scale_c", 1))
