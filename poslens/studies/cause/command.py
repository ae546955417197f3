"""The command `cause`: interventions on a data set, and their agreement with methods."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import answers, print_json, print_table, source
from poslens.commands.command_options import (
    Dataset,
    Model,
    Readable,
    for_data,
    pairs_of,
    readable_of,
    resolve,
)
from poslens.commands.command_output import TextFormat, cli_command, quiet, watched
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.studies.cause.answers import (
    AgreementEntry,
    Cause,
    CauseEstimate,
    EditMeans,
    SegmentCurveAnswer,
)

if TYPE_CHECKING:
    from poslens.attribution.curves.bootstrap import Estimate
    from poslens.attribution.types import Array, Method

app = typer.Typer()


@app.command()
@cli_command
@answers(
    {
        "--intervention relocation or ablation": Cause,
        "--intervention segments, shuffled or thirds": SegmentCurveAnswer,
        "--intervention insertion or removal": EditMeans,
    }
)
def cause(
    model: Model = "MiniLM",
    dataset: Dataset = "sample",
    intervention: Annotated[
        str,
        typer.Option(
            help="relocation of the evidence, or ablation of parts. Of documents alone, without "
            "queries: segments, shuffled (segments in random order), thirds, insertion, removal."
        ),
    ] = "relocation",
    by: Annotated[
        str | None,
        typer.Option(help="How ablation takes parts out: delete (unless said), mask or filler."),
    ] = None,
    pairs: Annotated[
        int,
        typer.Option(min=0, help="How many pairs (or documents), spread evenly; 0 means all."),
    ] = 0,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Method whose curves are compared with the causal ones; repeatable."),
    ] = None,
    readable: Readable = False,
    figure: Annotated[FigureFile | None, FigureOption("the causal curve")] = None,
    format: Annotated[
        TextFormat, typer.Option(help="json, or csv (the causal curve, 100 rows).")
    ] = TextFormat.json,
) -> None:
    """Move the evidence, or remove parts of the documents, over a data set; stop with Ctrl-C,
    resume by running again."""
    from poslens.attribution.datasets.types import spread_evenly
    from poslens.attribution.interventions import segments
    from poslens.attribution.interventions.ablation import ablation_method
    from poslens.attribution.interventions.relocation import movable, relocation_method
    from poslens.attribution.methods import make_method

    if by is not None and intervention != "ablation":
        raise UserError("--by says how ablation takes parts out: add --intervention ablation.")
    of_documents: dict[str, Method] = {cut: segments.segments_method(cut) for cut in segments.CUTS}
    of_documents.update((edit, segments.edits_method(edit)) for edit in segments.EDITS)
    if intervention in of_documents:
        if against or readable:
            raise UserError(
                f"--against and --readable are of pairs, and {intervention} of documents alone: "
                "leave them out."
            )
        _of_documents(of_documents[intervention], model, dataset, pairs, figure, format)
        return
    if intervention not in ("relocation", "ablation"):
        names = ", ".join(("relocation", "ablation", *of_documents))
        raise UserError(f"There is no intervention {intervention[:40]!r}: choose one of {names}.")
    intervention_method = (
        relocation_method() if intervention == "relocation" else ablation_method(by or "delete")  # type: ignore[arg-type]
    )
    judged = [make_method(name) for name in against or []]
    spec = resolve(model)
    data, chosen_pairs = pairs_of(dataset, False)
    spec = for_data(spec, data.name)
    usable, left_out = (chosen_pairs, "") if intervention == "ablation" else movable(chosen_pairs)
    if left_out:
        print(left_out, file=sys.stderr)
    if not usable:
        raise UserError(
            f"No pair of {dataset} has an evidence span that could be moved: choose another data "
            "set, or --intervention ablation."
        )
    n = min(pairs or len(usable), len(usable))
    chosen = spread_evenly(usable, n)
    words = "" if n == len(usable) else f"{n} pairs spread evenly"
    quiet()
    chosen, left_out = readable_of([spec], chosen, readable)
    words = ", ".join(filter(None, (words, left_out)))
    from poslens.compute.compute import service
    from poslens.studies.cause import service as interventions
    from poslens.studies.cause.figures import causal_curves

    compute = service()

    watched(
        intervention_method.name,
        interventions.job(compute, spec, intervention_method, chosen, data.name),
    )
    for method in judged:
        watched(method.name, compute.attribution_job(spec, method, chosen, data.name))
    result = interventions.data_set_cause(
        compute, spec, intervention_method, chosen, data.name, words
    )
    if figure is not None:
        figure.draw(causal_curves([result], figure.style), [result.provenance()])
    if format is TextFormat.csv:
        from poslens.studies.cause.tables import causal_curve_frame

        print_table(causal_curve_frame([result]), "csv", [result.provenance()])
        return
    agreements: list[AgreementEntry] = []
    for method in judged:
        agreed = interventions.agreement_of(compute, spec, method, intervention_method, chosen)
        agreements.append(
            {
                "method": repr(method),
                "n": agreed.n,
                "documents": agreed.n_documents,
                "left_out": agreed.n_left_out,
                "of_the_means": _interval(agreed.means),
                "mean_over_pairs": _interval(agreed.each),
            }
        )
    curve = result.summary.curve
    answer: Cause = {
        "model": spec.name,
        "intervention": repr(intervention_method),
        "n": curve.n,
        "documents": curve.n_documents,
        "failed": curve.n_failed,
        "left_out": result.n_left_out,
        "last_minus_first": _interval(result.last_minus_first),
        "lost_past_the_limit": _interval(result.lost),
        "notes": list(result.notes),
        "curve": curve.mean.tolist(),
        "ci_low": _listed(curve.ci_low),
        "ci_high": _listed(curve.ci_high),
        "agreement": agreements,
        "provenance": source(result.provenance()),
    }
    print_json(answer)


def _of_documents(
    intervention: Method,
    model: str,
    dataset: str,
    limit: int,
    figure: FigureFile | None,
    format: TextFormat,
) -> None:
    """Compute and print an intervention that needs no query, averaged over documents."""
    from poslens.attribution.datasets.types import spread_evenly
    from poslens.attribution.interventions.segments import (
        EDITS,
        documents_of,
        require_vector,
    )

    spec = resolve(model)
    data, pairs = pairs_of(dataset, False)
    spec = for_data(spec, data.name)
    require_vector(spec)
    documents = documents_of(pairs)
    n = min(limit or len(documents), len(documents))
    chosen = spread_evenly(documents, n)
    words = "" if n == len(documents) else f"{n} documents spread evenly"
    quiet()
    from poslens.compute.compute import service
    from poslens.studies.cause import service as interventions
    from poslens.studies.cause.edits import edits_frame, mean_edits
    from poslens.studies.cause.figures import causal_curves, edit_means
    from poslens.studies.cause.tables import causal_curve_frame

    compute = service()
    watched(
        intervention.name,
        interventions.job(compute, spec, intervention, chosen, data.name),
        "document",
    )
    if intervention.name in EDITS:
        edits = mean_edits(compute, spec, intervention, chosen, data.name, words)
        if figure is not None:
            provenance = edits.provenance()
            figure.draw(edit_means([edits], figure.style, [provenance]), [provenance])
        frame, provenance = edits_frame([edits]), edits.provenance()
        answer: EditMeans | SegmentCurveAnswer = {
            "model": spec.name,
            "intervention": repr(intervention),
            "n": edits.n,
            "failed": edits.n_failed,
            "shortened": edits.n_shortened,
            "shares": list(edits.shares),
            "cosine": {
                position: [_interval(value) for value in row]
                for position, row in edits.means.items()
            },
            "notes": list(edits.notes),
            "provenance": source(provenance),
        }
    else:
        curves = interventions.data_set_cause(compute, spec, intervention, chosen, data.name, words)
        if figure is not None:
            figure.draw(causal_curves([curves], figure.style), [curves.provenance()])
        frame, provenance = causal_curve_frame([curves]), curves.provenance()
        curve = curves.summary.curve
        answer = {
            "model": spec.name,
            "intervention": repr(intervention),
            "n": curve.n,
            "failed": curve.n_failed,
            "last_minus_first": _interval(curves.last_minus_first),
            "notes": list(curves.notes),
            "curve": curve.mean.tolist(),
            "ci_low": _listed(curve.ci_low),
            "ci_high": _listed(curve.ci_high),
            "provenance": source(provenance),
        }
    if format is TextFormat.csv:
        print_table(frame, "csv", [provenance])
        return
    print_json(answer)


def _interval(value: Estimate | None) -> CauseEstimate | None:
    if value is None:
        return None
    return {
        "value": value.value,
        "low": value.low,
        "high": value.high,
        "n": value.n,
        "documents": value.n_resampled,
    }


def _listed(values: Array | None) -> list[float | None] | None:
    return None if values is None else values.tolist()
