"""The command that opens the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poslens.commands.command_options import Data, Endpoints, several_models
from poslens.commands.command_output import one_sentence
from poslens.commands.completion import dataset_names
from poslens.dashboard.server.access import LOOPBACK, USER_HEADER, access_of
from poslens.names import named, sources, unique_by_name

app = typer.Typer()


@app.command()
@one_sentence
def run(
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8501,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; addresses other than this machine's loopback need "
            "--login, --trusted-proxy or --no-login."
        ),
    ] = LOOPBACK,
    base_url_path: Annotated[
        str, typer.Option(help="Path prefix of the server, as in tools/poslens.")
    ] = "",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="NAME or *.NAME that browsers may use for this server; repeatable. This "
            "machine's own names are always allowed.",
        ),
    ] = None,
    login: Annotated[
        bool | None,
        typer.Option(
            "--login/--no-login",
            help="--login: people log in with OpenID Connect, configured by environment "
            "variables or a file (docs/servers.md). --no-login: everyone who can reach the "
            "server may use it.",
            show_default=False,
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            help="ADDRESS or network of a proxy that handles logins; only its requests are "
            "answered, and it names the user; repeatable.",
        ),
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option(
            help=f"Header in which the trusted proxy names the user; {USER_HEADER} by default.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        several_models("Models that pages open with; by default, each page has its own."),
    ] = None,
    endpoint: Endpoints = None,  # registered when parsed, as data sets are
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            "--corpus",
            autocompletion=dataset_names,
            help="Name or path of the data set that pages open with; by default, the first --data.",
        ),
    ] = None,
    data: Data = None,
    published: Annotated[
        list[Path] | None,
        typer.Option(
            "--published",
            help="Folder of published results (.npz, .pkl, .json) to offer by name; repeatable.",
        ),
    ] = None,
    trec_run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            help="NAME=FILE of rankings from another program, in TREC format, to compare on the "
            "Ranking page; repeatable.",
        ),
    ] = None,
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-code",
            help="NAME of a model that may run code from its repository on this machine; review "
            "that code first; repeatable.",
        ),
    ] = None,
) -> None:
    """Start the dashboard, by default on the loopback address. With your own data set, the
    printed address opens the page that fits it (docs/data.md)."""
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
