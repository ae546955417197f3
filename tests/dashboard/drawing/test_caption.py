"""Provenance in words: one line, and the full text."""

from __future__ import annotations

from poslens.figures.captions import caption_line, caption_text

PAIR = {
    "poslens": "0.2.0",
    "model": "MiniLM",
    "weights": "c006",
    "method": "saliency(version=1)",
    "dataset": "sample",
    "selection": "pair p1",
}
MEAN = {**PAIR, "selection": "", "n_pairs": 304, "truncated": 184}


def test_the_line_states_how_entries_differ() -> None:
    assert caption_line([PAIR, MEAN]) == "pair p1; 304 pairs"
    other = {**PAIR, "model": "MiniLM-recency", "weights": "e067"}
    assert caption_line([PAIR, other]) == "MiniLM; MiniLM-recency"
    assert caption_line([PAIR, {**PAIR, "weights": "e067"}]) == "weights: c006; weights: e067"


def test_the_line_states_what_a_single_entry_describes() -> None:
    assert caption_line([PAIR]) == "MiniLM · Gradient saliency · sample"
    assert caption_line([PAIR, PAIR]) == caption_line([PAIR])


def test_the_line_has_method_titles_without_parameters() -> None:
    other = {**PAIR, "method": "deletion_insertion(unit=word) of saliency(version=1)"}
    assert caption_line([PAIR, other]) == ("Gradient saliency; faithfulness of Gradient saliency")
    shuffled = {**PAIR, "method": "segments(order=shuffled, of=saliency(version=1))"}
    assert caption_line([shuffled]) == "MiniLM · segments · sample"
    assert caption_line([shuffled, {**PAIR, "method": "segments(version=1)"}]) == caption_line(
        [shuffled]
    )


def test_the_line_stays_short_and_the_text_keeps_everything() -> None:
    many = [{**PAIR, "model": f"model-with-a-long-name-{n}"} for n in range(9)]
    assert len(caption_line(many)) <= 80
    for value in (*PAIR.values(), "304", "184", "model-with-a-long-name-8"):
        assert str(value) in caption_text([*many, MEAN])
