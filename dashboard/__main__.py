"""`python -m dashboard`: the dashboard, and everything it does without a browser."""

from __future__ import annotations

import typer

<<<<<<< HEAD
from dashboard.commands import cache, listing, pairs, server
=======
from dashboard.commands import bias, listing, pairs, server
>>>>>>> work-store

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="PosLens: where a text retriever looks in a document.",
)  # fmt: skip
<<<<<<< HEAD
for group in (server, pairs, listing, cache):
=======
for group in (server, pairs, bias, listing):
>>>>>>> work-store
    app.add_typer(group.app)

if __name__ == "__main__":
    app()
