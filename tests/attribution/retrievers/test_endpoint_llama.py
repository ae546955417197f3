"""llama.cpp's server with the packaged weights, compared with the local model.

Compiling it takes about ten minutes, so the tests don't require it. If it is installed (`pip
install "llama-cpp-python[server]"`, in a separate environment whose interpreter is named in
LLAMA_CPP_PYTHON), this runs.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from poslens.attribution.interventions.relocation import relocation
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.scoring import score_texts
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.types import EvidenceSpan, TextPair
from tests.support import minilm_gguf
from tests.support.ports import free_port
from tests.support.served import answers

SECONDS = 300


def interpreter() -> str:
    """A Python interpreter with llama-cpp-python, or an empty string."""
    if found := os.environ.get("LLAMA_CPP_PYTHON", ""):
        return found
    return sys.executable if importlib.util.find_spec("llama_cpp") else ""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (python := interpreter()):
        pytest.skip("llama-cpp-python is not installed: it takes ten minutes to compile")
    model = minilm_gguf.build(tmp_path_factory.mktemp("gguf") / "minilm.gguf")
    port = free_port()
    options = ["--model", str(model), "--embedding", "true", "--port", str(port)]
    sizes = ["--n_ctx", "512", "--n_batch", "512", "--n_ubatch", "512"]
    running = subprocess.Popen(
        [python, "-m", "llama_cpp.server", *options, *sizes],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://localhost:{port}/v1"
    end = time.monotonic() + SECONDS
    try:
        while not answers(f"{url}/models"):
            assert running.poll() is None and time.monotonic() < end, "the server has not started"
            time.sleep(0.3)
        yield url
    finally:
        running.kill()
        running.wait()


def test_a_real_server_gives_the_same_results_as_the_local_model(server: str, minilm) -> None:
    spec = resolve.register_endpoint(f"Llama={server}#model=all-MiniLM-L6-v2")
    found = load(spec)
    assert check_retriever(found).library.distance < 1e-4
    text = (
        "The moon pulls the sea. The tide turns about every six hours. Harbours print the hours. "
        "Nobody saw more of it than the gulls."
    )
    pair = TextPair("p", "when does the tide turn", text, evidence=EvidenceSpan(24, 61))
    texts = [(pair.query, text), ("what do gulls see", text), ("tide", "Salt is a mineral.")]
    assert np.abs(score_texts(found, texts) - score_texts(minilm, texts)).max() < 1e-3
    actual, expected = relocation(found, pair), relocation(minilm, pair)
    assert np.abs(actual.scores - expected.scores).max() < 1e-3
