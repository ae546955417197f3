"""The commands `benchmark squad-posq` and `benchmark fineweb-posq`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import answers, table_answer
from poslens.commands.command_options import Dataset, Models, for_data, pairs_of, resolve, specs_of
from poslens.commands.command_output import TextFormat, cli_command, quiet
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.studies.ranking.rows import GroupsRow, PositionsRow

if TYPE_CHECKING:
    from poslens.attribution.datasets.types import Groups

app = typer.Typer()
benchmark = typer.Typer(
    no_args_is_help=True,
    help="Run published benchmarks of position bias and print their tables or draw their figures.",
)
app.add_typer(benchmark, name="benchmark")


class BenchmarkTableName(StrEnum):
    """Tables of benchmarks with groups of queries."""

    positions = "positions"
    groups = "groups"


Seed = Annotated[int, typer.Option(help="Seed of the random order.")]
FirstStage = Annotated[
    str, typer.Option(help="Model whose top 100 documents cross-encoders rerank.")
]
Printed = Annotated[
    BenchmarkTableName,
    typer.Option(
        help=(
            "positions (nDCG@10 of each group, PSI and its mean under permutation, harmonic "
            "mean) or groups (Recall and nDCG at 5, 10, 20, 30, 50, 100)."
        )
    ),
]
Figure = Annotated[FigureFile | None, FigureOption("nDCG@10 by group of queries")]
Format = Annotated[TextFormat, typer.Option(help="csv or json.")]

BY_GROUPS = {
    "--table positions": table_answer(PositionsRow),
    "--table groups": table_answer(GroupsRow),
}


@benchmark.command("squad-posq")
@cli_command
@answers(BY_GROUPS)
def squad_posq(
    dataset: Dataset = "",
    model: Models = None,
    queries: Annotated[
        int, typer.Option(min=0, help="Queries of each group, in random order; 0 means all.")
    ] = 0,
    seed: Seed = 0,
    first_stage: FirstStage = "BM25",
    table: Printed = BenchmarkTableName.positions,
    figure: Figure = None,
    format: Format = TextFormat.json,
) -> None:
    """SQuAD-PosQ (arXiv 2505.13950): SQuAD 2.0's answered questions by the answer's first
    character, all passages searched; stop with Ctrl-C, resume by running again."""
    from poslens.attribution.datasets.squad import GROUPS

    _by_groups(GROUPS, dataset, model, queries, seed, first_stage, table, figure, format)


@benchmark.command("fineweb-posq")
@cli_command
@answers(BY_GROUPS)
def fineweb_posq(
    dataset: Dataset = "",
    model: Models = None,
    queries: Annotated[
        int, typer.Option(min=0, help="Queries of each class, in random order; 0 means all.")
    ] = 1000,
    seed: Seed = 0,
    first_stage: FirstStage = "BM25",
    table: Printed = BenchmarkTableName.positions,
    figure: Figure = None,
    format: Format = TextFormat.json,
) -> None:
    """FineWeb-PosQ (arXiv 2505.13950): questions by the third of a long passage that answers them,
    all passages searched; stop with Ctrl-C, resume by running again."""
    from poslens.attribution.datasets.fineweb_posq import GROUPS

    _by_groups(GROUPS, dataset, model, queries, seed, first_stage, table, figure, format)


def _by_groups(
    groups: Groups,
    source: str,
    models: list[str] | None,
    n: int,
    seed: int,
    first_stage: str,
    table: BenchmarkTableName,
    figure: FigureFile | None,
    format: TextFormat,
) -> None:
    """Rank a data set that has these groups of queries, and print and draw the measures by group.

    Raises:
        UserError: the data set has other groups, or a model cannot rank.
    """
    from poslens.commands.study_command import computed, print_summaries
    from poslens.studies.ranking.service import RankingSetup, collection_of
    from poslens.studies.ranking.study import RANKING, RankingTask

    data, _ = pairs_of(source, False)
    collection = collection_of(data)
    if collection.groups != groups:
        raise UserError(
            f"{data.name} doesn't have the format of {groups.title}: see docs/data.md for the "
            "expected files."
        )
    if n:
        collection = collection.sampled(n, seed)
    first = for_data(resolve(first_stage), data.name)
    task = RankingTask((RankingSetup(collection, first_stage=first),), data.name, data.pairs)
    quiet()
    specs = specs_of(models or ["MiniLM"], data.name)
    summaries, refused = computed(RANKING, specs, task, RANKING.parameters.settings())
    if refused:
        raise UserError(refused[0])
    print_summaries(RANKING, summaries, table, figure, format)
