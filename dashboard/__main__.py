"""`python -m dashboard`: the dashboard, and everything it does without a browser."""

from __future__ import annotations

import typer

from dashboard.bias import command as bias
from dashboard.cache_page import command as cache
from dashboard.core import listing_command, server_command
from dashboard.curves import command as curves
from dashboard.explain import command as explain
from dashboard.interventions import command as interventions
from dashboard.ranking import command as ranking

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="PosLens: where a text retriever looks in a document.",
)
for group in (
    server_command,
    explain,
    curves,
    interventions,
    bias,
    ranking,
    listing_command,
    cache,
):
    app.add_typer(group.app)

if __name__ == "__main__":
    app()
