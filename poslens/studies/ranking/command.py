"""Commands about rankings and published results: rank, figure5."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.commands.answers import TableAnswer, answers, print_table, table_answer
from poslens.commands.command_options import (
    Dataset,
    Readable,
    for_data,
    named,
    pairs_of,
    readable_of,
    resolve,
    several_models,
    specs_of,
)
from poslens.commands.command_output import TextFormat, cli_command, quiet, watched
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.rows import frame_of
from poslens.studies.ranking.rows import (
    AgreementRow,
    BinsRow,
    DifferencesRow,
    EvidenceRow,
    GroupsRow,
    LanguagesRow,
    MeasuresRow,
    PoolRow,
    PositionsRow,
    PsiRow,
    PsiStratumRow,
    PublishedCurveRow,
    QueriesRow,
    SplitRow,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from poslens.attribution.datasets import Collection, DataSet
    from poslens.attribution.evaluation.trec_runs import TrecRun
    from poslens.figures.palettes import Style
    from poslens.studies.ranking.service import Measured, Ranked, RankingSetup

app = typer.Typer()


class RankingTableName(StrEnum):
    """What `rank` prints."""

    measures = "measures"
    psi = "psi"
    psi_strata = "psi_strata"
    bins = "bins"
    queries = "queries"
    languages = "languages"
    groups = "groups"
    positions = "positions"
    differences = "differences"
    splits = "splits"
    pools = "pools"
    agreement = "agreement"
    evidence = "evidence"


@app.command()
@cli_command
@answers(
    {
        "--table measures": table_answer(MeasuresRow),
        "--table psi": table_answer(PsiRow),
        "--table psi_strata": table_answer(PsiStratumRow),
        "--table bins": table_answer(BinsRow),
        "--table queries": table_answer(QueriesRow),
        "--table languages": table_answer(LanguagesRow),
        "--table groups": table_answer(GroupsRow),
        "--table positions": table_answer(PositionsRow),
        "--table differences": table_answer(DifferencesRow),
        "--table splits": table_answer(SplitRow),
        "--table pools": table_answer(PoolRow),
        "--table agreement": table_answer(AgreementRow),
        "--table evidence": table_answer(EvidenceRow),
    }
)
def rank(
    model: Annotated[
        list[str] | None,
        several_models("MiniLM by default, if there is no --run."),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            help="NAME=FILE of rankings from another program, in TREC format; repeatable.",
        ),
    ] = None,
    dataset: Dataset = "sample",
    own_corpus: Annotated[
        bool,
        typer.Option(
            "--own-corpus",
            help=(
                "Search only the query's part of the corpus (PosIR's domain), as in published "
                "figures, instead of the whole corpus."
            ),
        ),
    ] = False,
    monolingual: Annotated[
        bool,
        typer.Option(
            "--monolingual",
            help=(
                "Search only documents in the query's language, as in MultiClaim's monolingual "
                "setting."
            ),
        ),
    ] = False,
    first_stage: Annotated[
        str, typer.Option(help="Model whose top 100 documents cross-encoders rerank.")
    ] = "BM25",
    posir: Annotated[
        bool,
        typer.Option(
            "--posir", help=("Use PosIR's query prompt and a context limit of 8,192 tokens.")
        ),
    ] = False,
    readable: Readable = False,
    table: Annotated[
        RankingTableName,
        typer.Option(
            help="measures, psi (by length), psi_strata (by language or domain, and by length, as "
            "PosIR compares them), bins (by evidence), queries, languages; of SQuAD and "
            "FineWeb-PosQ groups (each measure of each group of queries) or positions (nDCG@10 of "
            "the groups, PSI, harmonic mean); differences (of two models or runs: the queries "
            "that set them apart most first); splits (by the query's length and, in MultiClaim, by "
            "year and platform of the post, as its paper compares them); pools (S@10 over growing "
            "pools of documents, as in MultiClaim's paper); agreement (Spearman's correlation of "
            "the models' order with that on the data set --against, as PosIR compares benchmarks); "
            "evidence "
            "(positions of the evidence by length, as PosIR shows them; ranks nothing)."
        ),
    ] = RankingTableName.measures,
    against: Annotated[
        str | None,
        typer.Option(help="Data set whose order of models --table agreement compares."),
    ] = None,
    figure: Annotated[
        FigureFile | None,
        FigureOption(
            "nDCG@10 by position of the evidence, by group of queries where --table is groups or "
            "positions, or the number of queries where it is evidence"
        ),
    ] = None,
    format: Annotated[TextFormat, typer.Option(help="csv or json.")] = TextFormat.json,
) -> None:
    """Rank a data set's whole corpus for each query and print the quality of the rankings."""
    from poslens.compute.protocols import posir_ranking_spec
    from poslens.studies.ranking import benchmarks, tables
    from poslens.studies.ranking import service as ranking_service
    from poslens.studies.ranking.runs import difference_words, ranked_run

    def spec_of(name: str) -> RetrieverSpec:
        spec = resolve(name)
        return posir_ranking_spec(spec) if posir else spec

    def setup_of(data: DataSet) -> RankingSetup:
        collection = ranking_service.collection_of(data)
        if monolingual:
            collection = ranking_service.monolingual(collection)
        for note in collection.notes:
            print(note, file=sys.stderr)
        first = for_data(spec_of(first_stage), data.name)
        return ranking_service.RankingSetup(collection, own_corpus or monolingual, first)

    compares = table is RankingTableName.agreement
    if compares != (against is not None):
        raise UserError("--table agreement and --against DATASET belong together: give both.")
    if table is RankingTableName.pools and (run or monolingual):
        raise UserError("--table pools ranks by models over the whole corpus: leave out "
                        f"{'--run' if run else '--monolingual'}.")  # fmt: skip
    if compares and (run or readable):
        raise UserError("--table agreement ranks every query by models: leave out "
                        f"{'--run' if run else '--readable'}.")  # fmt: skip
    data, pairs = pairs_of(dataset, False)
    setup = setup_of(data)
    collection = setup.collection
    if table is RankingTableName.evidence:
        print_evidence(collection, figure, format)
        return
    by_group = table in tables.BY_GROUP
    tables.require_groups(collection, table)
    quiet()
    specs = specs_of(model or ([] if run else ["MiniLM"]), data.name, spec_of)
    runs = runs_of(run, [spec.name for spec in specs])
    if table is RankingTableName.differences and len(specs) + len(runs) != 2:
        raise UserError(
            "--table differences compares two rankings: give exactly two of --model and --run."
        )
    if readable and not specs:
        raise UserError("--readable excludes what a model truncates: name a model with --model.")
    if readable:
        setup = setup.narrowed(*readable_of(specs, pairs, readable))
        if not setup.queries:
            raise UserError(f"No query of {data.name} remains: each has an excluded pair.")
    setups = [setup]
    if table is RankingTableName.pools:
        setups = [replace(setup, collection=pool) for pool in benchmarks.pools(collection)]
    rankings: list[Measured] = [ranked for pool in setups for ranked in ranked_by(specs, pool)]
    others: list[Measured] = []
    if against is not None:
        other, _ = pairs_of(against, False)
        models = specs_of([spec.name for spec in specs], other.name, spec_of)
        others = [*ranked_by(models, setup_of(other))]
    for trec_run in runs:
        measured = ranked_run(trec_run, setup)
        for note in measured.notes:
            print(note, file=sys.stderr)
        rankings.append(measured)
    if table is RankingTableName.differences:
        frame = tables.differences_frame(*rankings)
        print(difference_words(*rankings), file=sys.stderr)
    elif table is RankingTableName.pools:
        frame = frame_of(PoolRow, map(benchmarks.pool_row, rankings))
    elif compares:
        frame = frame_of(AgreementRow, benchmarks.agreement_rows(rankings, others))
    else:
        frame = tables.ranking_frame(rankings, table)
    provenance = (
        ranking_service.group_provenance(rankings)
        if by_group
        else [measured.provenance() for measured in (*rankings, *others)]
    )
    if figure is not None:
        figure.draw(ranking_figure(rankings, figure.style, by_group), provenance)
    print_table(frame, format.value, provenance)


def print_evidence(collection: Collection, figure: FigureFile | None, format: TextFormat) -> None:
    """Print the positions of a data set's evidence, and draw them in `figure`.

    Raises:
        UserError: the data set does not say where its evidence is.
    """
    from poslens.studies.ranking import benchmarks
    from poslens.studies.ranking.figures import evidence_positions

    rows = benchmarks.evidence_rows(collection)
    provenance = [benchmarks.evidence_provenance(collection)]
    if figure is not None:
        figure.draw(evidence_positions(rows, figure.style, provenance=provenance), provenance)
    print_table(frame_of(EvidenceRow, rows), format.value, provenance)


def ranking_figure(rankings: Sequence[Measured], style: Style, by_group: bool = True) -> go.Figure:
    """nDCG@10 of each group of queries, or in 20 bins of the evidence's position.

    Raises:
        UserError: the data set does not say where its evidence is.
    """
    from poslens.studies.ranking.figures import evidence_bins, position_groups

    if by_group:
        groups = {
            measured.name: measured.by_group
            for measured in rankings
            if measured.by_group is not None
        }
        return position_groups(groups, style)
    profiles = {
        measured.name: measured.evaluation.profile
        for measured in rankings
        if measured.evaluation.profile is not None
    }
    if not profiles:
        raise UserError("This data set does not say where its evidence is: leave out --figure.")
    return evidence_bins(profiles, style)


def runs_of(values: Sequence[str] | None, taken: Sequence[str]) -> list[TrecRun]:
    """The runs that `--run` names.

    Raises:
        UserError: a name is taken or given twice, or a file is none in TREC's format.
    """
    from poslens.attribution.datasets.streams import File
    from poslens.attribution.evaluation.trec_runs import read_run

    trec_runs: dict[str, TrecRun] = {}
    for value in values or []:
        name, path = named(value, "--run", "FILE")
        if name in (*taken, *trec_runs):
            raise UserError(f"Two rankings have the name {name}: give the run another name.")
        trec_runs[name] = read_run(name, File(path.name, path))
    return list(trec_runs.values())


def ranked_by(specs: Sequence[RetrieverSpec], setup: RankingSetup) -> list[Ranked]:
    """Rankings by each of `specs`, computed with a bar on stderr where they are not stored.

    Raises:
        UserError: one of them cannot rank.
    """
    from poslens.compute.compute import service
    from poslens.studies.ranking import service as ranking_service

    ranked_models = []
    for spec in specs:
        if ranking_service.ranked(service(), spec, setup) is None:
            watched(spec.name, ranking_service.job(service(), spec, setup), unit="it")
        ranked = ranking_service.ranked(service(), spec, setup)
        if ranked is None:
            raise UserError(
                f"{spec.name} has no complete rankings of {setup.collection.name}: run the "
                "command again."
            )
        ranked_models.append(ranked)
    return ranked_models


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
