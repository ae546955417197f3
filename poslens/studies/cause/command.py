"""The command `cause`: interventions on a data set, and their agreement with methods."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import Answer, answer_from, print_json, print_table, source
from poslens.commands.command_options import (
    Dataset,
    Model,
    Readable,
    pairs_of,
    readable_of,
)
from poslens.commands.command_output import TextFormat, cli_command, quiet, watched
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.names import for_data, resolve
from poslens.studies.cause.answers import (
    AgreementEntry,
    Cause,
    CauseEstimate,
    EditMeans,
    SegmentCurveAnswer,
)

if TYPE_CHECKING:
    from poslens.attribution.curves.bootstrap import Estimate
    from poslens.attribution.interventions.agreement import Agreement
    from poslens.studies.cause.edits import MeanEdits
    from poslens.studies.cause.service import DataSetCause

app = typer.Typer()


@app.command()
@cli_command(
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
            help="relocation of the evidence, or ablation of parts. Without queries: segments, "
            "shuffled (segments in random order), thirds, insertion or removal."
        ),
    ] = "relocation",
    by: Annotated[
        str, typer.Option(help="How ablation removes parts: delete, mask or filler.")
    ] = "delete",
    pairs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of pairs (or documents), spread evenly over the data set; 0 means all.",
        ),
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
    """Move the evidence or remove parts of the documents of a data set, and measure the change in
    the score. Stop with Ctrl-C; run again to resume."""
    from poslens.attribution.interventions.segments import EDITS, require_vector
    from poslens.attribution.methods import make_method
    from poslens.studies.cause import service as interventions

    chosen_method = interventions.named(intervention, by)  # type: ignore[arg-type]
    of_pairs = interventions.is_of_pairs(chosen_method)
    if not of_pairs and (against or readable):
        raise UserError(
            f"--against and --readable apply to pairs, but {intervention} uses only documents: "
            "remove them."
        )
    judged = [make_method(name) for name in against or []]
    spec = resolve(model)
    data, _ = pairs_of(dataset, False)
    spec = for_data(spec, data.name)
    if not of_pairs:
        require_vector(spec)
    usable, left_out = interventions.usable(chosen_method, data)
    if left_out:
        print(left_out, file=sys.stderr)
    from poslens.arguments import chosen_pairs

    chosen, words = chosen_pairs(usable, pairs, "pairs" if of_pairs else "documents")
    quiet()
    chosen, left_out = readable_of([spec], chosen, readable)
    words = ", ".join(filter(None, (words, left_out)))
    from poslens.compute.compute import service
    from poslens.studies.cause.edits import edits_frame, mean_edits
    from poslens.studies.cause.figures import causal_curves, edit_means
    from poslens.studies.cause.tables import causal_curve_frame

    compute = service()
    watched(
        chosen_method.name,
        interventions.job(compute, spec, chosen_method, chosen, data.name),
        "pair" if of_pairs else "document",
    )
    for method in judged:
        watched(method.name, compute.attribution_job(spec, method, chosen, data.name))
    if chosen_method.name in EDITS:
        edits = mean_edits(compute, spec, chosen_method, chosen, data.name, words)
        frame, provenance = edits_frame([edits]), edits.provenance()
        draw = partial(edit_means, [edits])
    else:
        result = interventions.data_set_cause(
            compute, spec, chosen_method, chosen, data.name, words
        )
        frame, provenance = causal_curve_frame([result]), result.provenance()
        draw = partial(causal_curves, [result])
    if figure is not None:
        figure.draw(draw(figure.style), [provenance])
    if format is TextFormat.csv:
        print_table(frame, "csv", [provenance])
    elif chosen_method.name in EDITS:
        print_json(_of_edits(edits))
    elif not of_pairs:
        print_json(_of_curve(SegmentCurveAnswer, result))
    else:
        agreements = [
            _of_agreement(interventions.agreement_of(compute, spec, method, chosen_method, chosen))
            for method in judged
        ]
        print_json(
            _of_curve(
                Cause,
                result,
                documents=result.summary.curve.n_documents,
                left_out=result.n_left_out,
                lost_past_the_limit=_interval(result.lost),
                agreement=agreements,
            )
        )


def _of_curve(shape: type[Answer], result: DataSetCause, **more: Any) -> Answer:
    curve = result.summary.curve
    return answer_from(
        shape,
        curve,
        intervention=repr(curve.method),
        failed=curve.n_failed,
        last_minus_first=_interval(result.last_minus_first),
        notes=result.notes,
        curve=curve.mean,
        provenance=source(result.provenance()),
        **more,
    )


def _of_edits(edits: MeanEdits) -> EditMeans:
    return answer_from(
        EditMeans,
        edits,
        model=edits.model.spec.name,
        intervention=repr(edits.method),
        failed=edits.n_failed,
        shortened=edits.n_shortened,
        cosine={position: list(map(_interval, row)) for position, row in edits.means.items()},
        provenance=source(edits.provenance()),
    )


def _of_agreement(agreement: Agreement) -> AgreementEntry:
    return answer_from(
        AgreementEntry,
        agreement,
        method=repr(agreement.method),
        documents=agreement.n_documents,
        left_out=agreement.n_left_out,
        of_the_means=_interval(agreement.means),
        mean_over_pairs=_interval(agreement.each),
    )


def _interval(value: Estimate | None) -> CauseEstimate | None:
    if value is None:
        return None
    return answer_from(CauseEstimate, value, documents=value.n_resampled)
