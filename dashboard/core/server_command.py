"""The command that opens the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dashboard.core.command_options import Data, named, sources, spoken

app = typer.Typer()


@app.command()
@spoken
def run(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8501,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="NAME=FOLDER of a local model; repeatable.")
    ] = None,
    data: Data = None,
    published: Annotated[
        list[Path] | None,
        typer.Option(
            "--published",
            help="Folder of published results (.npz, .pkl, .json), offered by name; repeatable.",
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
    """Open the dashboard on this machine's loopback address."""
    from dashboard.core.serve import serve

    serve(
        port,
        dict(named(value, "--model") for value in model or []),
        sources(data),
        allow_code or [],
        published or [],
    )
