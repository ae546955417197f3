"""The Methods page's first tab: deletion and insertion tests of one pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.evaluation.faithfulness import ErasureParameters, Faithfulness
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.compute.provenance import of_faithfulness
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, links, panels, say
from poslens.dashboard.widgets.pair_picker import choose_pair
from poslens.dashboard.widgets.tables import show_table
from poslens.studies.faithfulness import service as faithfulness_service
from poslens.studies.faithfulness.figures import deletion_insertion, scalable

PARAMETERS = ErasureParameters()
GAINS = {
    "gain over random (deletion)": st.column_config.NumberColumn("deletion gain", format="%.4f"),
    "gain over random (insertion)": st.column_config.NumberColumn("insertion gain", format="%.4f"),
}
RUN_TIME = {"seconds": st.column_config.NumberColumn("run time (s)", format="%.2f")}
_ASKED = "faithfulness.asked"


def section(offered: DataSet, models: Sequence[str], methods: Mapping[str, Method]) -> None:
    """The pair picker, and the tests of the selected pair."""
    pair = choose_pair(offered)
    if pair is None:
        return
    results, provenance = _tested(pair, models, methods)
    n_tests = len(models) * (len(methods) + len(faithfulness_service.BASELINES))
    n_stored = len(results)
    if n_stored < n_tests and st.session_state.get(_ASKED) != pair:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(
                f"{n_stored:,} of {n_tests:,} tests of this pair are stored.", width="content"
            )
            st.button(
                "Test this pair",
                key="faithfulness.pair",
                on_click=st.session_state.__setitem__,
                args=(_ASKED, pair),
            )
    with panels.guarded():
        _curves(pair, results, provenance)
    method = next(iter(methods.values()))
    links.other_views("methods", choices.data_of(pair), pair.pair_id, models, method)


def _tested(
    pair: TextPair, models: Sequence[str], methods: Mapping[str, Method]
) -> tuple[dict[str, Faithfulness], list[Provenance]]:
    """The test of each method and of the orders by position with each model, by label, and their
    provenance. A test takes seconds to minutes, so missing ones are computed only on request."""
    results: dict[str, Faithfulness] = {}
    provenance: list[Provenance] = []
    for name in models:
        for title, method in faithfulness_service.with_baselines(methods.values()).items():
            label = title if len(models) == 1 else f"{name}, {title}"
            with panels.guarded():
                compute, spec = service_for(pair.dataset), choices.spec(name, pair.dataset)
                stored = faithfulness_service.stored(compute, spec, method, [pair], PARAMETERS)
                result = stored.results.get(pair.pair_id)
                if result is None and st.session_state.get(_ASKED) == pair:
                    with st.spinner(f"Testing {panels.plain(label)}", show_time=True):
                        result = wait(
                            faithfulness_service.ask(compute, pair, spec, method, PARAMETERS)
                        )
                if result is not None:
                    results[label] = result
                    provenance.append(of_faithfulness(compute.identify(spec), pair, result))
    return results, provenance


MEASURES = (
    "A faithful method has a small area under the deletion curve and a large one under the "
    "insertion curve. Comprehensiveness (higher is better) is the score lost without "
    "the top words; sufficiency (lower is better) is the share lost with only the top words. Both "
    "are averaged over cut-offs from 1% to 50%. Enrichment is the evidence's share of the "
    'attribution divided by its share of the tokens. "Front to back" and "back to front" order '
    "words by position alone; a faithful method beats both."
)


def _frame(results: Mapping[str, Faithfulness]) -> pd.DataFrame:
    """One row per method and order by position: areas, comprehensiveness, sufficiency and gains
    over random orders."""
    rows = []
    for label, result in results.items():
        measures, gain = result.measures, result.gain
        if measures is None or gain is None:
            continue
        rows.append(
            {
                "method": label,
                "deletion area": measures.deletion_area,
                "insertion area": measures.insertion_area,
                "comprehensiveness": measures.comprehensiveness,
                "sufficiency": measures.sufficiency,
                "gain over random (deletion)": gain.deletion_area,
                "gain over random (insertion)": gain.insertion_area,
                "enrichment": result.enrichment,
                "seconds": result.attribution_seconds,
            }
        )
    return pd.DataFrame(rows)


def _curves(
    pair: TextPair, results: Mapping[str, Faithfulness], provenance: Sequence[Provenance]
) -> None:
    drawn = scalable(results)
    if without := [label for label in results if label not in drawn]:
        say.info(
            f"{', '.join(without)}: this document's score doesn't change when all words are "
            "removed, so there is nothing to test. It may share no word with the query."
        )
    if not drawn:
        return
    columns = panels.side_by_side("faithfulness.curves")
    style = panels.screen_style(width_px=panels.BESIDE_PX, height_px=360)
    for column, kind in zip(columns, ("deletion", "insertion"), strict=True):
        with column:
            say.heading(kind.capitalize())
            panels.show(
                deletion_insertion(drawn, kind, style),
                f"faithfulness.{kind}",
                f"{kind} curves of each method, of orders by position and of random orders",
            )
    table = _frame(results)
    four = st.column_config.NumberColumn(format="%.4f")
    show_table(table, column_config=dict.fromkeys(table.columns[1:], four) | GAINS | RUN_TIME)
    st.caption(MEASURES)
    panels.caption(provenance)
    panels.downloads(
        "faithfulness.pair",
        [pair.pair_id, "faithfulness"],
        provenance,
        figures={
            kind.capitalize(): partial(deletion_insertion, drawn, kind, provenance=provenance)
            for kind in ("deletion", "insertion")
        },
        tables={"Numbers": lambda: table},
    )
