"""The plan for PosIR: the formula compared with the simulation, and the page with the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.plan import MODELS, TABLES, Inputs, check, forecast, simulate, storage, table

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
GPUS = (1, 8, 64)
FAST_WRITER = replace(Inputs(), writes_per_second=1e9)


def test_one_reliable_worker_needs_loading_and_computing_time_only() -> None:
    """By hand: 12,000 pairs at 100 a second are 120 s, after 0.61 s of loading."""
    inputs = replace(FAST_WRITER, pairs=12_000, lost_per_hour=0.0, rates={"bge-m3": 100.0})
    loading = 568e6 * 2 / 2e9
    assert simulate(inputs, "bge-m3", 1).seconds == pytest.approx(120 + loading, rel=1e-6)
    assert forecast(inputs, "bge-m3", 1).seconds == pytest.approx(120 + loading, rel=1e-6)


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("model", ["bge-m3", "KaLM-Embedding-Gemma3-12B-2511"])
def test_the_formula_agrees_with_the_simulation(model: str, gpus: int) -> None:
    inputs = replace(FAST_WRITER, pairs=100_000, lost_per_hour=1.0)
    found = simulate(inputs, model, gpus)
    assert set(found.stored) == {1}, "a batch was stored twice or never"
    assert forecast(inputs, model, gpus).seconds == pytest.approx(found.seconds, rel=0.05)


def test_lost_workers_are_simulated_and_take_time() -> None:
    calm = replace(FAST_WRITER, pairs=50_000, lost_per_hour=0.0)
    harsh = replace(calm, lost_per_hour=20.0)
    model = "NV-Embed-v2"
    quiet, rough = simulate(calm, model, 8), simulate(harsh, model, 8)
    assert quiet.deaths == 0 and rough.deaths > 10 and set(rough.stored) == {1}
    assert rough.seconds > quiet.seconds
    assert forecast(harsh, model, 8).seconds == pytest.approx(rough.seconds, rel=0.1)


def test_a_slow_writer_is_the_bottleneck() -> None:
    inputs = replace(Inputs(), pairs=100_000, writes_per_second=50.0)
    said, found = forecast(inputs, "bge-m3", 64), simulate(inputs, "bge-m3", 64)
    assert said.writing and said.seconds >= 2000
    assert said.seconds == pytest.approx(found.seconds, rel=0.02)


def test_a_measured_rate_replaces_the_estimate() -> None:
    measured = replace(Inputs(), rates={"bge-m3": 3.5})
    assert measured.rate("bge-m3") == 3.5 and measured.rate("NV-Embed-v2") < Inputs().rate("bge-m3")


def test_word_embeddings_add_no_operations() -> None:
    """By hand: bge-m3 has 568 million parameters, 256 of them in its table."""
    inputs = replace(Inputs(), encodes_per_second=1e12)
    flops = 4.6 * (568e6 - 256.002048e6) * (1100 + 30)
    assert inputs.rate("bge-m3") == pytest.approx(0.09 * 989e12 / flops, rel=1e-6)
    assert all(0 < TABLES[m] < MODELS[m] for m in MODELS)


def test_the_page_shows_the_output_of_the_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    inputs = Inputs()
    for part in (table(inputs, GPUS), storage(inputs), check(inputs, GPUS)):
        assert part in page, "run `python -m bench.plan` and put its tables into docs/scale.md"
