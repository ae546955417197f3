"""The program `poslens`, also `python -m poslens` or `python -m dashboard`: starts the dashboard or
runs a command without a browser."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Until `main` runs, Ctrl-C ends the process without a traceback from an unfinished import.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from poslens import cli
from poslens.dashboard.server import command

app = cli.command_line(command.app)


def main() -> None:
    """Run the program."""
    cli.main(app)


if __name__ == "__main__":
    main()
