"""`python -m dashboard`: the dashboard, and everything it does without a browser."""

from __future__ import annotations

import typer

from dashboard.commands import bias, cache, causes, listing, pairs, precompute, ranking, server

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="PosLens: where a text retriever looks in a document.",
)  # fmt: skip
for group in (server, pairs, precompute, causes, bias, ranking, listing, cache):
    app.add_typer(group.app)

if __name__ == "__main__":
    app()
