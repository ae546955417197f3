"""The command `passport`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import print_json, print_table
from poslens.commands.command_options import Dataset, Models, pairs_of
from poslens.commands.command_output import cli_command, quiet, watched
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.names import specs_of
from poslens.studies.passport.answers import PassportEntry

if TYPE_CHECKING:
    from poslens.studies.passport.service import ModelPassport

app = typer.Typer()


@app.command()
@cli_command(list[PassportEntry])
def passport(
    model: Models = None,
    all_models: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every model that is installed or has stored results, instead of --model.",
        ),
    ] = False,
    dataset: Dataset = "sample",
    pairs: Annotated[
        int,
        typer.Option(min=2, help="Maximum number of pairs to attribute."),
    ] = 500,
    moved: Annotated[
        int,
        typer.Option(min=2, help="Maximum number of pairs whose evidence is moved."),
    ] = 30,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help=(
                "Only this part of the card, such as ranking (see docs/passport.md for the "
                "names); repeatable."
            ),
        ),
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Compute nothing and show only stored results.")
    ] = False,
    figure: Annotated[
        FigureFile | None,
        FigureOption(
            "the cards; with several models, .html begins with a chart and a table of all of them, "
            "and with --all, the other formats have this chart alone",
            ("html", "pdf", "svg", "png"),
            styled=False,
        ),
    ] = None,
    format: Annotated[
        Literal["json", "csv", "yaml"],
        typer.Option(help="json, csv (a row for each measure), or yaml (for a model card)."),
    ] = "json",
) -> None:
    """Show the results of all studies of a model's position bias on one card. Stop with Ctrl-C; run
    again to resume."""
    data, _ = pairs_of(dataset, False)
    quiet()
    from poslens.compute.compute import service
    from poslens.studies.passport import cohort
    from poslens.studies.passport import service as passports
    from poslens.studies.passport.document import document_bytes

    passports.checked_parts(part or [])
    if all_models and model:
        raise UserError("--all selects every model: remove --model.")
    compute = service()
    names = cohort.names(compute) if all_models else model or ["MiniLM"]
    specs = specs_of(names, data.name)
    cards = []
    for spec in specs:
        card = passports.passport(compute, spec, data, pairs, part, moved)
        absent = all_models and card.model.stored_only
        if card.missing and not stored and not absent:
            watched(spec.name, passports.job(compute, card), unit="computation")
            card = passports.passport(compute, spec, data, pairs, part, moved)
        cards.append(card)
    if all_models:
        cards = cohort.by_current_name(cards)
    if figure is not None:
        if all_models and figure.format != "html":
            if not (provenance := cohort.provenance(cards)):
                raise _no_results(cards, stored)
            figure.draw(cohort.chart(cards, figure.style), provenance)
        else:
            figure.write(document_bytes(cards, figure.format))  # type: ignore[arg-type]
    if format == "yaml":
        print(passports.model_card(cards), end="")
        return
    if format == "csv":
        if not (origin := [provenance for card in cards for provenance in card.provenance]):
            raise _no_results(cards, stored)
        print_table(passports.table(cards), "csv", origin)
        return
    print_json([passports.entry(passport) for passport in cards])


def _no_results(cards: Sequence[ModelPassport], stored: bool) -> UserError:
    if stored:
        return UserError("No model has stored results of these parts: remove --stored.")
    from poslens.studies.passport import service as passports

    return passports.no_results(cards)
