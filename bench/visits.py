"""CPU time of the server for a page, without a browser: the first visit in a process that has shown
Explain, and the next ones.

    python -m bench.visits [ranking ...] [--rounds 3] [--before FOLDER]

Pages are opened with their defaults over the included results. With `--before`, processes alternate
between this checkout and that one.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

from bench.options import run
from bench.processes import checkouts, output_of

PAGES = ("why", "cause", "curves", "ranking", "debias", "audit", "passport", "map", "methods")

# Another checkout may not have this module.
VISITS = """
import json, sys, time
from tests.support.pages import open_page
open_page("explain").run()
seconds = []
for _ in range(4):
    started = time.process_time()
    assert not open_page(sys.argv[1]).run().exception
    seconds.append(time.process_time() - started)
print(json.dumps(seconds))
"""


def main(*pages: str, rounds: int = 3, before: Path | None = None) -> None:
    """Print a table of medians."""
    compared = checkouts(before)
    with tempfile.TemporaryDirectory() as home:
        # Unpack the included results first.
        output_of("-m", "poslens.cache.shipped", f"{home}/cache", home=Path(home))
        for page in pages or PAGES:
            first: dict[str, list[float]] = {which: [] for which in compared}
            later: dict[str, list[float]] = {which: [] for which in compared}
            for _ in range(rounds):
                for which, checkout in compared.items():
                    printed = output_of("-c", VISITS, page, checkout=checkout, home=Path(home))
                    seconds = json.loads(printed.splitlines()[-1])
                    first[which].append(seconds[0])
                    later[which] += seconds[1:]
            for which in compared:
                of_first, of_later = map(statistics.median, (first[which], later[which]))
                print(f"{page:9} {which:7} first {of_first:5.2f} s, later {of_later:5.2f} s")


if __name__ == "__main__":
    run(main)
