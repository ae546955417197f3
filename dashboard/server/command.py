"""The command that opens the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poslens.commands.command_options import (
    Data,
    Endpoints,
    named,
    several_models,
    sources,
    unique_by_name,
)
from poslens.commands.command_output import one_sentence
from poslens.commands.completion import dataset_names
from poslens.dashboard.server.access import LOOPBACK, USER_HEADER, access_of

app = typer.Typer()


@app.command()
@one_sentence
def run(
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8501,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; beyond this machine with --login, --trusted-proxy or "
            "--no-login alone."
        ),
    ] = LOOPBACK,
    base_url_path: Annotated[
        str, typer.Option(help="Path below which it is reached, as in tools/poslens.")
    ] = "",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="NAME that browsers reach it by, or *.NAME; repeatable. This machine's own always "
            "count.",
        ),
    ] = None,
    login: Annotated[
        bool | None,
        typer.Option(
            "--login/--no-login",
            help="People log in with OpenID Connect, set up by environment variables or a file "
            "(docs/servers.md); or everybody who reaches it may use it.",
            show_default=False,
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            help="ADDRESS or network of a proxy that logs people in: it alone is answered, and "
            "says who comes; repeatable.",
        ),
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option(
            help=f"Header in which the trusted proxy names the person; {USER_HEADER} unless said.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None, several_models("Pages open with these; by default each with its own.")
    ] = None,
    endpoint: Endpoints = None,  # registered as they are read, as data sets are
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            "--corpus",
            autocompletion=dataset_names,
            help="Name, or path, of the data set that pages open with; the first --data by "
            "default.",
        ),
    ] = None,
    data: Data = None,
    published: Annotated[
        list[Path] | None,
        typer.Option(
            "--published",
            help="Folder of published results (.npz, .pkl, .json), offered by name; repeatable.",
        ),
    ] = None,
    trec_run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            help="NAME=FILE of rankings that another program made, in TREC's format, to compare "
            "on Ranking; repeatable.",
        ),
    ] = None,
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-code",
            help="NAME of a model that may run the code of its repository on this machine; read "
            "that code first; repeatable.",
        ),
    ] = None,
) -> None:
    """Open the dashboard, on this machine's loopback address unless told otherwise."""
    access = access_of(
        host, base_url_path, allowed_host or [], login, trusted_proxy or [], user_header
    )
    from poslens.dashboard.server.serve import serve

    serve(
        port,
        model or [],
        sources(data),
        allow_code or [],
        published or [],
        access,
        unique_by_name((named(value, "--run", "FILE") for value in trec_run or []), "--run"),
        dataset,
    )
