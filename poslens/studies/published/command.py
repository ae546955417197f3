"""The command that draws published curves: figure5."""

from __future__ import annotations

from typing import Annotated, TypedDict

import typer

from poslens.commands.answers import Model, TableAnswer, answers, print_table
from poslens.commands.command_options import named
from poslens.commands.command_output import TextFormat, cli_command
from poslens.commands.result_files import FigureFile, FigureOption

app = typer.Typer()


class PublishedCurveRow(TypedDict):
    """One position of a published mean curve."""

    model: Model
    position: Annotated[float, "Position in the text, 0 to 1."]
    mean: Annotated[float, "Mean over the published curves."]
    std: Annotated[float, "Standard deviation over the published curves."]
    n: Annotated[int, "Curves averaged."]


@app.command()
@cli_command
@answers(TableAnswer[PublishedCurveRow])
def figure5(
    curves: Annotated[
        list[str],
        typer.Option(
            "--curves",
            help="NAME=FILE of a model's published saliency curves, .npz or .pkl; repeatable.",
        ),
    ],
    figure: Annotated[FigureFile | None, FigureOption("figure 5")] = None,
    format: Annotated[TextFormat, typer.Option(help="json or csv.")] = TextFormat.json,
) -> None:
    """Draw figure 5 of the PosIR paper from its published curves: mean and standard deviation."""
    from poslens.attribution.curves.published import read_bytes, read_curves
    from poslens.compute.provenance import of_published
    from poslens.figures.curves import mean_curves
    from poslens.studies.published.service import curves_frame, means

    files = [named(value, "--curves", "FILE") for value in curves]
    curves_of_files = [read_curves(name, path.name, read_bytes(path)) for name, path in files]
    provenance = [of_published(published) for published in curves_of_files]
    if figure is not None:
        title = "Normalized gradient L2 norm"  # as in the paper
        drawn = mean_curves(
            [], figure.style, published=means(curves_of_files), y_title=title, provenance=provenance
        )
        figure.draw(drawn, provenance)
    print_table(curves_frame(curves_of_files), format.value, provenance)
