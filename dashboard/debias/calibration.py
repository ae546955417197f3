"""The Debias page's second tab: attention calibration over a grid of settings."""

from __future__ import annotations

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import any_active, run_board
from poslens.dashboard.widgets.tables import chosen_row, show_table
from poslens.figures.curves import Style, mean_curves
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.debias import curves as debias_curves
from poslens.studies.debias import service as debiasing
from poslens.studies.debias import tables
from poslens.studies.debias.curves import CurveChoice
from poslens.studies.debias.figures import front
from poslens.studies.debias.service import DebiasResult, Point
from poslens.studies.ranking import service as ranking_service
from poslens.studies.ranking.service import RankingSetup

STRENGTHS = [number / 10 for number in range(1, 11)]
BLOCKS = [16, 32, 64, 128, 256]


def front_section(result: DebiasResult) -> None:
    """The recommended setting, the Pareto front, and every setting's numbers."""
    st.markdown(panels.plain(debiasing.verdict(result)))
    provenance = result.provenance()

    def draw_mean(style: Style) -> go.Figure:
        """Mean nDCG@10 against PSI."""
        return front(result, "mean", style, provenance=provenance)

    def draw_harmonic(style: Style) -> go.Figure:
        """Harmonic mean of nDCG@10 over positions against PSI."""
        return front(result, "harmonic", style, provenance=provenance)

    style = panels.screen_style(width_px=panels.BESIDE_PX, height_px=400)
    left, right = panels.side_by_side("debias.front")
    with left:
        panels.show(draw_mean(style), "debias.mean", "Mean nDCG@10 against PSI")
    with right:
        panels.show(draw_harmonic(style), "debias.harmonic", "Harmonic mean against PSI")
    numbers = st.column_config.NumberColumn(format="%.3f")
    show_table(
        tables.POINTS.text_frame([result]),
        column_config={"PSI": numbers, "PSI under permutation": numbers},
    )
    st.caption(
        "Brackets are 95% bootstrap intervals over documents; changes compare the same queries "
        "before and after, with p adjusted by Holm. With few queries per position, PSI is large "
        "even without a bias: compare it with PSI under permutation. A setting is selected on half "
        "of the documents and tested on the other half. It is recommended (ringed) only if the "
        "harmonic mean is higher or PSI is lower there, no measure is worse, a loss of 0.01 in "
        "nDCG@10 is ruled out, and it isn't worse in both PSI and nDCG@10 over all queries."
    )
    panels.caption(provenance)
    panels.downloads(
        "debias.front",
        [result.setup.collection.name, "debias", result.plain.name],
        provenance,
        figures={"Mean": draw_mean, "Harmonic mean": draw_harmonic},
        frame=tables.POINTS.frame([result]),
    )


def queries_section(result: DebiasResult, point: Point) -> None:
    """The queries with nDCG@10 before and after calibration."""
    st.markdown(f"**Which queries {panels.plain(point.name)} helps, and which it harms**")
    frame = tables.queries_frame(result, point)
    helped, harmed = int((frame["change"] > 0).sum()), int((frame["change"] < 0).sum())
    st.caption(
        f"{NDCG} rises for {helped:,} of {len(frame):,} queries and falls for {harmed:,}; choose a "
        "row to open its pair under both models."
    )
    numbers = st.column_config.NumberColumn(format="%.3f")
    row = chosen_row(
        frame.drop(columns="pair"),
        f"debias.queries.{point.name}",
        "id",
        height=280,
        column_config={
            "query": st.column_config.TextColumn(width="large"),
            "before": numbers,
            "after": numbers,
            "change": st.column_config.NumberColumn(format="%+.3f"),
            "evidence": st.column_config.NumberColumn("evidence position", format="%.0f%%"),
        },
    )
    if row is not None and frame["pair"].iloc[row]:
        links.explain_link(
            "Explain the pair under both models",
            result.setup.collection.name,
            str(frame["pair"].iloc[row]),
            [result.plain.name, point.name],
        )
    panels.downloads(
        "debias.queries",
        [result.setup.collection.name, "debias", "queries"],
        [result.plain.ranked.provenance(), point.ranked.provenance()],
        frame=frame,
    )


def curves_section(choice: CurveChoice) -> None:
    """Relocation and saliency curves before and after calibration."""
    relocations, saliencies = choice.relocations(), choice.saliencies()
    left, right = panels.side_by_side("debias.curves")
    style = panels.screen_style(width_px=panels.BESIDE_PX, height_px=340)
    if relocations:
        provenance = [relocation.provenance() for relocation in relocations]

        def draw_relocation(style: Style) -> go.Figure:
            """The score by position of the evidence."""
            curves = [relocation.summary.curve for relocation in relocations]
            title = "Score minus the pair's mean over positions"
            return mean_curves(curves, style, y_title=title, provenance=provenance)

        with left:
            st.markdown("**Relocation of the evidence**")
            panels.show(
                draw_relocation(style), "debias.relocation", "Score by position of the evidence"
            )
            for relocation in relocations:
                difference = relocation.last_minus_first
                text = "not defined" if difference is None else difference.text("+.4f")
                st.caption(
                    panels.plain(
                        f"{relocation.model.spec.name}: last third minus first third {text}, "
                        f"{relocation.summary.curve.n} pairs"
                    )
                )
            panels.caption(provenance)
            panels.downloads(
                "debias.relocation",
                [choice.dataset, "debias", "relocation"],
                provenance,
                figures={"Relocation": draw_relocation},
            )
    if saliencies:
        of_saliency = [saliency.provenance() for saliency in saliencies]

        def draw_saliency(style: Style) -> go.Figure:
            """Mean saliency by position."""
            curves = [saliency.summary.curve for saliency in saliencies]
            return mean_curves(curves, style, provenance=of_saliency)

        with right:
            st.markdown("**Saliency**")
            panels.show(draw_saliency(style), "debias.saliency", "Mean saliency by position")
            panels.caption(of_saliency)
            panels.downloads(
                "debias.saliency",
                [choice.dataset, "debias", "saliency"],
                of_saliency,
                figures={"Saliency": draw_saliency},
            )


def section() -> None:
    """Settings in the sidebar; progress, the Pareto front, queries and curves on the page."""
    chosen: tuple[RetrieverSpec, list[RetrieverSpec], RankingSetup] | None = None
    with st.sidebar, panels.guarded():
        data = choices.data_set()
        name = choices.model("Model", "model", "MiniLM-primacy")
        with st.expander("Settings to try"):
            strengths = st.multiselect(
                "Strength",
                sorted({*STRENGTHS, *debiasing.STRENGTHS}),
                default=list(debiasing.STRENGTHS),
                key="strength",
                bind="query-params",
                help="0 is the plain model; at 1 every token block has the same weight.",
            )
            blocks = st.multiselect(
                "Tokens of a block",
                BLOCKS,
                default=list(debiasing.BLOCKS),
                key="block",
                bind="query-params",
            )
            depths = st.multiselect(
                "Layers",
                [debiasing.HALF, debiasing.ALL],
                default=list(debiasing.LAYERS),
                key="layers",
                bind="query-params",
                help="Calibrate the last half of the layers, or all of them.",
            )
        spec = choices.spec(name, data.name)
        setup = RankingSetup(ranking_service.collection_of(data))
        chosen = (spec, debiasing.grid(spec, strengths, blocks, depths), setup)
    st.markdown("**Does attention calibration reduce position bias, and what does it cost?**")
    st.markdown(
        "Calibration shifts attention toward equal weight for every block of tokens; "
        "nothing is trained. In the charts, further left is less position bias, further up better "
        "retrieval."
    )
    if chosen is None:
        return
    plain, points, the_setup = chosen
    compute = service_for(data.name)
    ticking = debiasing.job(compute, plain, points, the_setup).active

    @fragment(run_every=2.0 if ticking else None)
    def board() -> None:
        """Progress and the Pareto front, refreshed automatically while settings are ranked."""
        with panels.guarded():
            job = debiasing.job(compute, plain, points, the_setup)
            result = debiasing.debias_result(compute, plain, points, the_setup)
            missing = len(points) + 1 if result is None else len(result.missing)
            if missing or job.active:
                run_board(
                    [job],
                    "debias.",
                    unit="settings ranked",
                    verb="Rank all",
                    idle=f"{missing} of {len(points) + 1} settings are not ranked yet. Computed "
                    "results are kept.",
                )
            if job.active != ticking:
                st.rerun()
            if result is not None:
                front_section(result)

    board()
    with panels.guarded():
        ranked = debiasing.debias_result(compute, plain, points, the_setup)
        calibrated = [] if ranked is None else list(ranked.points[1:])
        if ranked is not None and calibrated:
            names = [point.name for point in calibrated]
            best = ranked.judgement.point.name if ranked.judgement else names[0]
            selected = st.selectbox(
                "Setting",
                names,
                index=names.index(best) if best in names else 0,
                key=f"debias.point.{best}",
                help="The setting tested on held-out queries comes first.",
            )
            point = next(point for point in calibrated if point.name == selected)
            queries_section(ranked, point)
            st.markdown("**Before and after, by position**")
            choice = debias_curves.curve_choice(compute, ranked, point, data, DEFAULT_PAIRS)
            curves_active = any_active(choice.jobs())

            @fragment(run_every=2.0 if curves_active else None)
            def curves_board() -> None:
                """Progress and curves, refreshed automatically while curves are computed."""
                with panels.guarded():
                    active = any_active(choice.jobs())
                    run_board(choice.jobs(), "debias.curves.", unit="results")
                    if active != curves_active:
                        st.rerun()
                    curves_section(choice)

            curves_board()
