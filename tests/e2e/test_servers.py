"""The dashboards of browser tests: shared by workers, and ended with the last of them."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.e2e.servers import ROOT, SECONDS, app_in

HOLDER = """
import sys, time
from pathlib import Path
from tests.e2e.servers import app_in
held = app_in(Path(sys.argv[1]), lambda: [])
print(held.url, flush=True)
time.sleep(3600)
"""
# Answers like a dashboard but starts faster.
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Well(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[-1])), Well).serve_forever()
"""


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=10):
            return True
    except OSError:
        return False


def test_a_server_is_shared_and_ends_with_its_last_user_even_if_killed(tmp_path: Path) -> None:
    first = app_in(tmp_path, lambda: [], start=(sys.executable, "-c", SERVER))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None and other.stdout.readline().strip() == first.url
            first.release()
            time.sleep(1)
            assert answers(first.url), "the other one holds it"
        finally:
            other.kill()
    end = time.monotonic() + SECONDS
    while answers(first.url):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert not (tmp_path / "url").exists()
