"""The Dockerfile's command, run as in the container: not as root, on a read-only disk. Tests its
health check, a page, and its shutdown during a run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.e2e.conftest import TIMEOUT_MS, idle
from tests.e2e.test_app import no_error, ready
from tests.e2e.waiting import expect
from tests.support.ports import free_port
from tests.support.served import ROOT, served

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
USER = "10001"
BASE = "tools/poslens"
# Only the container's /data and /tmp are writable; everything else belongs to root.
ENCLOSED = """
set -e
mount --make-rprivate /
mount --bind "$DATA" /mnt
case "$PREFIX" in /root/*) # a Python of root's own, which nobody else may reach
  mount --bind "$PREFIX" /media
  mount -t tmpfs -o mode=755 tmpfs /root
  mkdir -p "$PREFIX"
  mount --move /media "$PREFIX" 2>/dev/null || mount --bind /media "$PREFIX"
esac
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmpfs /tmp
! touch "$PWD/x" 2>/dev/null
exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs -- "$@"
"""


def instruction(name: str) -> str:
    """The argument of the Dockerfile's last instruction of this name."""
    found = re.findall(rf"^{name} ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)[-1]
    return str(found).replace("\\\n", " ")


def variables() -> dict[str, str]:
    return dict(part.split("=", 1) for part in shlex.split(instruction("ENV")))


def enclosed(folder: Path) -> list[str]:
    """The command that starts a program as in the container; skips if this machine does not allow
    it."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("only root may mount")
    assert instruction("USER") == f"{USER}:{USER}"
    command = ["unshare", "--mount", "sh", "-c", ENCLOSED, "sh"]
    asked = [*command, "test", "-r", sys.executable, "-a", "-r", str(ROOT / "dashboard")]
    environment = {**os.environ, "DATA": str(folder), "PREFIX": sys.base_prefix}
    tried = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this machine does not let it: {tried.stderr}")
    return command


def test_the_program_runs_as_in_the_container_and_keeps_results(
    tmp_path: Path, browser: Browser
) -> None:
    data = tmp_path / "data"
    (data / "bin").mkdir(parents=True)
    program = data / "bin" / "poslens"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m poslens "$@"\n')
    program.chmod(0o755)
    for path in (data, program.parent):
        path.chmod(0o777)
    port = free_port()
    start, *rest = json.loads(instruction("ENTRYPOINT"))
    # Another port, as 8501 may be in use here.
    rest = [part.replace("8501", str(port)) for part in rest]
    environment = {
        **variables(),
        "DATA": str(data),
        "PREFIX": sys.base_prefix,
        "HF_HOME": "/mnt/hub",
        "POSLENS_HOME": "/mnt/poslens",
        "BASE_PATH": BASE,
        "PATH": f"/mnt/bin:{os.environ['PATH']}",
    }
    options = ["--no-login", "--allowed-host=poslens.localhost"]
    with served(
        tmp_path,
        port=port,
        base_path=BASE,
        environment=environment,
        instead=[*enclosed(data), start, *rest, *options],
    ) as app:
        check = json.loads(instruction("HEALTHCHECK").split("CMD")[1])
        check = [part.replace("8501", str(port)) for part in check]
        for base, code in ((BASE, 0), ("elsewhere", 1)):
            asked = subprocess.run(
                [sys.executable, *check[1:]],
                env={**os.environ, "BASE_PATH": base},
                capture_output=True,
            )
            assert asked.returncode == code, asked.stderr

        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"http://poslens.localhost:{port}/{BASE}/")
        expect(page.locator(".hm-pane[data-side=document] .hm-text")).to_be_visible()
        ready(page)
        no_error(page)
        page.goto(f"http://poslens.localhost:{port}/{BASE}/curves?models=BM25&method=ablation")
        expect(page.get_by_role("button", name=re.compile("^Compute")).first).to_be_visible()
        idle(page).get_by_role("button", name=re.compile("^Compute")).first.click()
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()

        app.process.send_signal(signal.SIGTERM)
        assert app.process.wait(120) == 0, app.said()
        said = app.said()
        assert "Waiting for runs to stop" in said and "stored results were kept" in said
        assert not re.search("Traceback|Read-only|Permission denied", said), said
        page.context.close()
    assert (data / "poslens" / "cache").is_dir()
    assert (data / "poslens").stat().st_uid == int(USER)
