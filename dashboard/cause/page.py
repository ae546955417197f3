"""Cause: does the score follow the evidence when it is moved? For one pair and for many."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.curves.positions import document_curve
from poslens.attribution.curves.text_axis import curve_over_text
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import (
    REPLACEMENTS,
    Ablation,
    ablation_method,
)
from poslens.attribution.interventions.agreement import with_ablation, with_relocation
from poslens.attribution.interventions.displacement import Displacement, displacement_method
from poslens.attribution.interventions.relocation import (
    N_POSITIONS,
    Relocation,
    Variant,
    rank_among,
    relocated,
    relocation_method,
)
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Method, Provenance
from poslens.compute.compute import Explained
from poslens.compute.provenance import of_intervention
from poslens.dashboard.cause import corpus, data_set
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, links, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.pair_picker import choose_pair
from poslens.dashboard.widgets.sending import agreed_to, confirmed, propose_sentences
from poslens.figures.curves import Style
from poslens.studies.audit.summary import measured_limit
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.figures import (
    causes_over_curve,
    displacements,
    relocation_scores,
)

RELOCATION = relocation_method()
Intervention = Relocation | Ablation | Displacement
AROUND = 320  # characters shown on either side of the evidence
HELP_BY = (
    "How a part is taken out. delete: what follows moves forward. mask: padding embeddings stand "
    "in its tokens' place. filler: neutral text of as many tokens does."
)

offered = pair = method = None
with st.sidebar:
    with panels.guarded():
        offered = choices.data_set(with_uploader=False)
    models = choices.models(["MiniLM-primacy", "MiniLM-recency"])
    with panels.guarded():
        method = choices.method(models, sentences_for_endpoints=True)
    with st.expander("Ablation settings"):
        by = st.segmented_control(
            "Ablation",
            REPLACEMENTS,
            default="delete",
            key="by",
            bind="query-params",
            required=True,
            help=HELP_BY,
        )
st.markdown(
    "# Cause: does position cause the score?\n"
    "The evidence is cut out and put back elsewhere; the rest of the text and its length stay. "
    "What the score does then is caused by the place."
)
with panels.guarded():
    if offered is not None:
        # The switch for what models can read stands with the data set, further down.
        pair = choose_pair(offered, models, method, narrow=False)
if pair is None or method is None or not models:
    st.info("Choose a pair, a model and a method in the sidebar.")
    st.stop()
the_pair, the_method, ablation = pair, method, ablation_method(by or "delete")
data = choices.data_of(pair)


def may_send(name: str, what: str, *methods: Method, explain: Method | None = None) -> bool:
    """Whether interventions on this pair, and its attribution by `explain`, may be computed: the
    question before an endpoint is sent them, in the place of what they would show.

    Raises:
        UserError: the endpoint does not answer, or the method does not fit.
    """
    compute, spec = service_for(the_pair.dataset), choices.spec(name, the_pair.dataset)
    if not spec.remote or (model := compute.identify(spec)).stored_only:
        return True
    scope = f"pair {the_pair.pair_id}"
    jobs = [interventions.job(compute, spec, one, [the_pair], scope) for one in methods]
    if explain is not None:
        compute.require_fit(model, explain)
        jobs.append(compute.attribution_job(spec, explain, [the_pair], scope))
    if agreed_to(spec, jobs, (methods, explain, the_pair), what):
        return True
    if explain is not None:
        propose_sentences(compute, spec, explain, [the_pair], scope)
    return False


def intervened(name: str, what: Method) -> Any:
    """An intervention on this pair under one of the models; waits for its turn.

    Raises:
        UserError: whatever keeps it from being computed.
    """
    spec = choices.spec(name, the_pair.dataset)
    return wait(interventions.ask(service_for(the_pair.dataset), the_pair, spec, what))


moved: dict[str, Relocation] = {}
variants: tuple[Variant, ...] = ()
unknown: list[str] = []
with panels.guarded():
    found = relocated(pair, N_POSITIONS)
    variants = found.variants
    unmoved = set[str]()
    for name in models:
        with (
            panels.guarded(unmoved),
            st.spinner(f"Moving the evidence under {panels.plain(name)}", show_time=True),
        ):
            if not may_send(name, "moving the evidence", RELOCATION):
                continue
            moved[name] = intervened(name, RELOCATION)
            if limits.unknown(choices.spec(name, pair.dataset)):
                unknown.append(name)
    if found.note:
        st.caption(panels.plain(f"{found.note[0].upper()}{found.note[1:]}."))


def provenance_of(name: str, what: Method, found: Intervention) -> Provenance:
    """Where an intervention on this pair comes from."""
    model = service_for(the_pair.dataset).identify(choices.spec(name, the_pair.dataset))
    return of_intervention(model, the_pair, what, found)


def step(by: int) -> None:
    """Move the evidence by so many places."""
    place = int(st.session_state.get("cause.place", 0)) + by
    st.session_state["cause.place"] = min(max(place, 0), len(variants) - 1)


def may_rank(spec: RetrieverSpec, documents: Sequence[str]) -> bool:
    """The same before an endpoint is sent the other documents."""
    compute = service_for(the_pair.dataset)
    if not spec.remote or compute.identify(spec).stored_only:
        return True
    if interventions.stored_scores_of_others(compute, the_pair, spec, documents) is not None:
        return True
    said = f"up to {len(documents) + 1:,} texts"
    return confirmed(spec, ("others", the_pair), "ranking among other documents", lambda: said)


@fragment()
def mover() -> None:
    """Step the evidence through the document; all scores are there already."""
    figure = st.container()
    others: dict[str, Array] = {}
    if data is not None and st.toggle(
        "Rank among the data set's other documents",
        key="rank",
        bind="query-params",
        help=f"Of the pair's language; {interventions.MAX_OTHERS:,} at most, drawn by lot.",
    ):
        documents = interventions.other_documents(the_pair, data.pairs)
        for name in moved:
            with panels.guarded(), st.spinner(f"Scoring {len(documents)} other documents"):
                spec, compute = choices.spec(name, the_pair.dataset), service_for(the_pair.dataset)
                if not may_rank(spec, documents):
                    continue
                asked = interventions.ask_others(compute, the_pair, spec, documents)
                others[name] = wait(asked)
    st.session_state.setdefault("cause.place", 0)
    step(0)
    with st.container(horizontal=True, vertical_alignment="bottom", wrap=False):
        st.button(
            "",
            icon=":material/arrow_back:",
            key="cause.back",
            on_click=step,
            args=(-1,),
            help="One place towards the beginning",
        )
        place = st.select_slider(
            "Place of the evidence",
            range(len(variants)),
            key="cause.place",
            format_func=lambda k: f"{100 * variants[k].position:.0f}%",
        )
        st.button(
            "",
            icon=":material/arrow_forward:",
            key="cause.forward",
            on_click=step,
            args=(1,),
            help="One place towards the end",
        )
    at = int(place)
    with st.container(horizontal=True, gap="medium"):
        for name, one in moved.items():
            # What belongs to one model stays in one line.
            with st.container(horizontal=True, gap="medium", wrap=False, width="content"):
                change = float(one.scores[at]) - one.original
                st.metric(
                    panels.plain(name),
                    f"{one.scores[at]:.4f}",
                    f"{change:+.4f}",
                    width="content",
                    help="Score here; below it, the difference from the document as it is.",
                )
                if name in others:
                    rank = rank_among(float(one.scores[at]), others[name])
                    st.metric("Rank", f"{rank:,} of {len(others[name]) + 1:,}", width="content")
                if name in unknown:
                    st.metric(
                        "Evidence read",
                        "unknown",
                        width="content",
                        help="An endpoint truncates where it likes and says nothing of it. The "
                        "Audit page measures where.",
                    )
                elif one.read[at] < 1:
                    st.metric(
                        "Evidence read",
                        f"{one.read[at]:.0%}",
                        width="content",
                        help="The document is longer than this model reads. This place "
                        "says nothing about position and counts nowhere.",
                    )
    show_text(variants[at])

    known = [provenance_of(name, RELOCATION, one) for name, one in moved.items()]

    def draw(style: Style, mark: int | None = None) -> go.Figure:
        """Scores by place."""
        return relocation_scores(moved, mark, style, known, unknown)

    with figure:
        panels.show(
            draw(panels.screen_style(height_px=300), at),
            "cause.scores",
            "Score against the position of the evidence",
        )
    for name in unknown:
        measured = data and measured_limit(
            service_for(the_pair.dataset), choices.spec(name, the_pair.dataset), data
        )
        st.caption(
            panels.plain(
                f"How much of a text {name} reads is unknown (rings with a dot): all places count. "
                + (f"Measured by the audit of this data set: {measured}" if measured else "")
            )
        )
    for name, one in moved.items():
        if one.lost is not None:
            n = int((~one.whole).sum())
            st.caption(
                panels.plain(
                    f"{name} does not read the evidence whole at {n} of {len(one.scores)} places "
                    f"(hollow points): {one.lost:+.4f} is lost behind its limit. Its lean is over "
                    "the other places"
                    + ("." if one.last_minus_first is None else f": {one.last_minus_first:+.4f}.")
                )
            )
    panels.caption(known)
    panels.downloads(
        "cause.relocation",
        [the_pair.pair_id, "relocation"],
        known,
        figures={"Relocation": draw},
        frame=intervention_tables.relocation_frame(moved, others, unknown),
    )


def show_text(variant: Variant) -> None:
    """The text around the evidence, where it stands now."""
    start, end = variant.evidence.start, variant.evidence.end
    before, after = variant.text[max(0, start - AROUND) : start], variant.text[end : end + AROUND]
    head = "… " if start > AROUND else ""
    tail = " …" if end + AROUND < len(variant.text) else ""
    evidence = panels.plain(variant.text[start:end])
    with st.container(border=True, key="cause.text"):
        st.markdown(
            f"{head}{panels.plain(before)} :orange-background[{evidence}] "
            f"{panels.plain(after)}{tail}"
        )


if moved:
    with panels.guarded():
        mover()

st.markdown(f"**{METHODS[method.name].title} and what really happened**")
removed: dict[str, Ablation] = {}
failures = set[str]()
explained: dict[str, Explained] = {}
for name in models:
    with (
        panels.guarded(failures),
        st.spinner(f"Taking parts out under {panels.plain(name)}", show_time=True),
    ):
        spec = choices.spec(name, pair.dataset)
        if not may_send(name, "its curve and taking parts out", ablation, explain=method):
            continue
        explained[name] = wait(service_for(pair.dataset).ask(pair, spec, method))
        removed[name] = intervened(name, ablation)


def against(name: str, style: Style) -> go.Figure:
    """One model's curve with both interventions over it."""
    span = the_pair.evidence
    shares = (
        (span.start / len(the_pair.document), span.end / len(the_pair.document)) if span else None
    )
    return causes_over_curve(
        curve_over_text(explained[name].attribution, len(the_pair.document)),
        METHODS[the_method.name].title,
        moved.get(name),
        removed[name],
        style,
        shares,
        sources_of(name),
    )


def sources_of(name: str) -> list[Provenance]:
    """Where one model's curve and both interventions over it come from."""
    found = [explained[name].provenance(), provenance_of(name, ablation, removed[name])]
    return found + ([provenance_of(name, RELOCATION, moved[name])] if name in moved else [])


for number, name in enumerate(removed):
    with panels.guarded():
        curve = document_curve(explained[name].attribution)
        said = []
        if name in moved and (value := with_relocation(curve, moved[name])) is not None:
            said.append(f"{value:+.2f} with relocation")
        if (value := with_ablation(curve, removed[name])) is not None:
            said.append(f"{value:+.2f} with ablation")
        note = f" · {removed[name].note}" if removed[name].note else ""
        st.markdown(
            f"{panels.plain(name)} · Spearman correlation {panels.plain(', '.join(said))}"
            f"{panels.plain(note)}"
            if said
            else f"{panels.plain(name)}{panels.plain(note)}"
        )
        panels.show(
            against(name, panels.screen_style(height_px=320)),
            f"cause.against.{number}",
            "A method's curve with relocation and ablation over it",
        )
if removed:
    panels.caption([one for name in removed for one in sources_of(name)])
    panels.downloads(
        "cause.against",
        [pair.pair_id, method.name, "ablation", by],
        [provenance_of(name, ablation, one) for name, one in removed.items()],
        figures={name: partial(against, name) for name in removed},
        frame=intervention_tables.ablation_frame(removed),
    )

if st.toggle(
    "Position or content? Move the whole text",
    key="displace",
    bind="query-params",
    help="Behind neutral text of several lengths, and, where positions are embeddings added to "
    "the words, with positions counted from another number. A score that changes, changes for "
    "where the text stands.",
):
    shifted: dict[str, Displacement] = {}
    known = []
    for name in models:
        may = False
        with panels.guarded():
            may = may_send(name, "moving the text", displacement_method("prefix"))
        for way in ("prefix", "positions") if may else ():
            what = displacement_method(way)
            try:
                with st.spinner(f"Moving the text under {panels.plain(name)}"):
                    label = f"{name}, {'neutral prefix' if way == 'prefix' else 'shifted ids'}"
                    shifted[label] = intervened(name, what)
                known.append(provenance_of(name, what, shifted[label]))
            except UserError as reason:
                st.caption(panels.plain(str(reason)))
    if shifted:
        with panels.guarded():
            alt = "Score against how far the text was moved"
            style = panels.screen_style(height_px=300)
            panels.show(displacements(shifted, style), "cause.displacements", alt)
            for note in dict.fromkeys(one.note for one in shifted.values() if one.note):
                st.caption(panels.plain(f"{note[0].upper()}{note[1:]}."))
            panels.caption(known)
            panels.downloads(
                "cause.displacement",
                [pair.pair_id, "displacement"],
                known,
                figures={"Displacement": lambda style: displacements(shifted, style, known)},
                frame=intervention_tables.displacement_frame(shifted),
            )

if data is not None:
    links.other_views("cause", data.name, pair.pair_id, models, method)
    with panels.guarded():
        data_set.section(models, the_method, ablation, data)
    if st.toggle(
        "Without queries: the documents by themselves",
        key="documents",
        bind="query-params",
        help="What each part of a text is to the text's own vector, in order and shuffled, and "
        "what putting text in or taking it out does. Needs dense models.",
    ):
        with panels.guarded():
            corpus.section(models, data)
