"""The pairs behind one point of a curve, with links to Explain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.types import Method
from poslens.compute.compute import DataSetCurve
from poslens.dashboard.widgets import links


def pairs_behind_bin(curves: Sequence[DataSetCurve], data: DataSet, method: Method) -> None:
    """The pairs with the most weight in the bin that the user selects."""
    list_of_pairs = st.expander(
        "Pairs with the most weight at a position", key="curves.pairs", on_change="rerun"
    )
    # The list needs all curves, which take seconds to read for hundreds of thousands of pairs.
    if not list_of_pairs.open:
        return
    with list_of_pairs:
        left, right = st.columns(2)
        bin_index = left.number_input(
            "Position (%)",
            0,
            99,
            key="curves.bin",
            step=1,
            help="One of the curve's 100 points: 30 covers 30 to 31% of the tokens read, or of "
            "the whole text. Clicking a point on a curve selects its position.",
        )
        by_name = {curve.model.spec.name: curve for curve in curves}
        name = right.selectbox("Model", list(by_name), key="curves.bin_model")
        stored = by_name[name or next(iter(by_name))].stored
        values = stored.curves[:, int(bin_index)]
        # For curves over whole texts, only pairs that the model read at that position.
        order = [k for k in np.argsort(-values).tolist() if np.isfinite(values[k])][:50]
        frame = pd.DataFrame(
            {
                "value": values[order],
                "query": [data.pair(stored.pair_ids[i]).query for i in order],
                "score": stored.scores[order],
                "pair": [stored.pair_ids[i] for i in order],
            }
        )
        links.open_pairs(
            frame, data.name, list(by_name), f"curves.behind.{name}.{bin_index}", method
        )
