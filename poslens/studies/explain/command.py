"""The command `explain`: the attribution of one pair for one model or several."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair
from poslens.commands.answers import (
    Lines,
    print_json,
    print_table,
    table_answer,
)
from poslens.commands.command_options import (
    MethodName,
    Models,
    Normalization,
    Options,
    Resampling,
    choice_of_data,
    method_of,
)
from poslens.commands.command_output import (
    TextFormat,
    cli_command,
    quiet,
    say_cost,
    say_preference,
    share_shown,
)
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.names import data_name, distinct, for_data, resolve
from poslens.studies.explain.answers import (
    ComparisonRow,
    ExplanationAnswer,
    explanation_answer,
)

if TYPE_CHECKING:
    from poslens.attribution.retrievers.specs import RetrieverSpec
    from poslens.attribution.types import Method
    from poslens.compute.compute import Explained

app = typer.Typer()


@app.command()
@cli_command(
    {
        "--table tokens": Lines[ExplanationAnswer],
        "--table comparison": table_answer(ComparisonRow),
    }
)
def explain(
    model: Models = None,
    method: MethodName = "saliency",
    option: Options = None,
    query: Annotated[str | None, typer.Option(help="Text of the query.")] = None,
    document: Annotated[str | None, typer.Option(help="Text of the document.")] = None,
    document_file: Annotated[
        Path | None, typer.Option(help="File with the document's text; - reads stdin.")
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(help="Passage of the document that answers the query, verbatim.")
    ] = None,
    pair: Annotated[
        str | None, typer.Option("--pair", help="Id of a pair of --dataset, instead of texts.")
    ] = None,
    dataset: Annotated[
        str,
        choice_of_data(
            "--statistics",
            help="Data set of --pair, by name or path. With texts: the data set that BM25 takes "
            "its statistics from.",
        ),
    ] = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    table: Annotated[
        Literal["tokens", "comparison"],
        typer.Option(
            help="tokens, or comparison (each model with the first: score, primacy-recency index, "
            "rank correlation of words)."
        ),
    ] = "tokens",
    figure: Annotated[
        FigureFile | None, FigureOption("the heatmap", ("html", "png", "svg", "pdf"), styled=False)
    ] = None,
    format: Annotated[
        TextFormat,
        typer.Option(help="json (one line for each model's tokens), or csv."),
    ] = "json",
) -> None:
    """Attribute one query-document pair with one model or several."""
    specs = distinct(_spec_of(name, dataset) for name in model or ["MiniLM"])
    if table == "comparison" and len(specs) < 2:
        raise UserError("--table comparison compares models: add another --model.")
    chosen = method_of(method, normalization, resampling, False, option)
    subject = _pair_of(query, document, document_file, evidence, dataset, pair)
    results = _explained(subject, specs, chosen, figure)
    if table == "tokens" and format == "json":
        for result in results:
            print_json(explanation_answer(result))
        return
    # Imports Plotly.
    from poslens.studies.explain.tables import comparison_frame, explained_frame

    frame_of = comparison_frame if table == "comparison" else explained_frame
    print_table(frame_of(results), format, [result.provenance() for result in results])


# -- the pair and its attributions ----------------------------------------------------------------


def _pair_of(
    query: str | None,
    document: str | None,
    document_file: Path | None,
    evidence: str | None,
    dataset: str,
    pair_id: str | None,
) -> TextPair:
    """The pair that the options specify, by id or by its texts.

    Raises:
        UserError: the options specify none or two, a text is invalid, or the data set has no such
            pair.
    """
    from poslens.arguments import evidence_span
    from poslens.attribution import datasets
    from poslens.attribution.text import clean

    texts = (query, document, document_file, evidence)
    if pair_id is not None:
        if any(text is not None for text in texts):
            raise UserError("Give either --pair or texts, not both.")
        return datasets.read(data_name(dataset)).pair(pair_id)
    if query is None:
        raise UserError("Give either --query and the document's text, or --pair.")
    if document is None and document_file is None:
        raise UserError("The document is missing: give --document or --document-file.")
    if document is not None and document_file is not None:
        raise UserError("Give either --document or --document-file, not both.")
    text = clean(document if document is not None else _read_text(document_file), "document")
    return TextPair("typed", clean(query, "query"), text, evidence_span(text, evidence))


def _read_text(path: Path | None) -> str:
    from poslens.attribution.text import MAX_CHARACTERS

    most = 4 * MAX_CHARACTERS  # bytes of the longest text in UTF-8
    try:
        # Limited, because a device such as /dev/zero never ends.
        if str(path) == "-":
            raw = sys.stdin.buffer.read(most + 1)
        else:
            with Path(str(path)).open("rb") as file:
                raw = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror}): use a text file.") from error
    if len(raw) > most:
        raise UserError(f"{path} has more than {MAX_CHARACTERS:,} characters: shorten it.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} isn't UTF-8 text: convert it to UTF-8.") from error


def _spec_of(model: str, dataset: str) -> RetrieverSpec:
    """The retriever of this name, with a data set's word statistics if it uses any."""
    from poslens.attribution import datasets
    from poslens.attribution.retrievers.detect import family_of

    spec = resolve(model)
    if not family_of(spec).has_statistics:
        return spec
    corpus = data_name(dataset)
    datasets.read(corpus)
    return for_data(spec, corpus)


def _explained(
    pair: TextPair,
    specs: Sequence[RetrieverSpec],
    method: Method,
    figure: FigureFile | None,
) -> list[Explained]:
    """The pair's attribution for each retriever, whose heatmap is written to `figure`. Prints on
    stderr what is sent to endpoints, a progress bar, and notices."""
    from poslens.compute.compute import service

    quiet()
    compute, explained_pairs = service(), []
    for spec in specs:
        if spec.remote:
            compute.require_fit(compute.identify(spec), method)
            say_cost(compute.attribution_job(spec, method, [pair], pair.dataset))
        with share_shown(spec.name):
            explained = compute.explain(pair, spec, method)
        if explained.notice:
            print(explained.notice, file=sys.stderr)
        explained_pairs.append(explained)
    say_preference(method, specs)
    if figure is not None:
        _write_heatmap(figure, explained_pairs)
    return explained_pairs


def _write_heatmap(file: FigureFile, results: Sequence[Explained]) -> None:
    """Write the heatmap of one pair with a column per model and, if stored, the mean curve of the
    pair's data set."""
    from poslens.attribution import datasets
    from poslens.compute.compute import service
    from poslens.results import Explanation
    from poslens.studies.explain.service import rail_of

    dataset = results[0].pair.dataset
    data = datasets.read(dataset) if dataset in datasets.names() else None
    rails = [rail_of(service(), explained, data) for explained in results]
    file.write(Explanation(tuple(results), tuple(rails)).heatmap(file.format))
