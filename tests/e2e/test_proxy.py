"""Two processes of PosLens on one cache behind nginx, with the shipped configuration: base path,
web sockets, and each person always served by the same process."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from poslens.cache.storage.files import Files
from poslens.cache.storage.maintenance import listing
from poslens.dashboard.widgets.url_state import MAX_IN_LINK
from tests.e2e.conftest import TIMEOUT_MS, idle
from tests.e2e.test_app import no_error, ready
from tests.e2e.waiting import expect
from tests.support.forked import Forked
from tests.support.ports import free_port
from tests.support.served import ROOT, Served, answers, served

BASE = "tools/poslens"
HOST = "poslens.localhost"
"""Browsers resolve subdomains of localhost to this machine."""


PEOPLE = {
    "anna": "tide",
    "bert": "moss",
    "carl": "clay",
    "dora": "salt",
    "emil": "dew",
    "fay": "rust",
    "gina": "fog",
    "hugo": "ice",
    "ines": "flint",
    "jens": "peat",
    "kira": "chalk",
    "lena": "amber",
    "milo": "slate",
    "nora": "loam",
}
"""So many that they are hardly ever all served by the same process, which depends on their names
and two random ports."""


@dataclass(frozen=True)
class Proxied:
    """`url` is that of nginx; `met` gives the processes that have served each person so far."""

    url: str
    app: Served
    other: Served
    log: Path

    def met(self) -> dict[str, set[int]]:
        ports: dict[str, set[int]] = {}
        for line in self.log.read_text().splitlines():
            name, upstream = line.split()
            if name != "-":
                ports.setdefault(name, set()).add(int(upstream.rsplit(":")[-1]))
        return ports


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[Proxied]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("proxy")
    # nginx connects from a separate address that no other program on this machine uses.
    options = [f"--allowed-host={HOST}", "--trusted-proxy=127.0.0.9"]
    (folder / "other").mkdir()
    own = {"POSLENS_SHIPPED": "no", "POSLENS_HOME": str(folder / "home")}
    with (
        served(folder, *options, base_path=BASE, environment=own, forked=forked) as app,
        served(folder / "other", *options, base_path=BASE, environment=own, forked=forked) as other,
    ):
        port = free_port()
        accounts = (f"{name}:{{PLAIN}}{password}\n" for name, password in PEOPLE.items())
        (folder / "passwords").write_text("".join(accounts))
        site = (ROOT / "deploy" / "nginx.conf.template").read_text(encoding="utf-8")
        for name, value in {
            "PROXY_LISTEN": f"127.0.0.1:{port}",
            "PROXY_PASSWORDS": str(folder / "passwords"),
            "POSLENS_NAME": HOST,
            # As nginx resolves a name with two addresses.
            "POSLENS_UPSTREAM": f"127.0.0.1:{app.port}; server 127.0.0.1:{other.port}",
            "POSLENS_BASE_PATH": BASE,
        }.items():
            site = site.replace(f"${{{name}}}", value)
        assert "${" not in site
        temporary = "".join(
            f"{kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"{'user root;' if os.geteuid() == 0 else ''}\n"
            f"daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{\n"
            f"log_format met '$remote_user $upstream_addr';\naccess_log {folder}/access.log met;\n"
            f"proxy_bind 127.0.0.9;\n"
            f"{temporary}{site}}}\n"
        )
        command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")]
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            health = f"http://127.0.0.1:{port}/{BASE}/_stcore/health"
            end = time.monotonic() + 60
            while not answers(health, Host=HOST):
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.1)
            yield Proxied(f"http://{HOST}:{port}", app, other, folder / "access.log")
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()
                process.wait()


def visit(browser: Browser, url: str, name: str, password: str) -> Page:
    context = browser.new_context(http_credentials={"username": name, "password": password})
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(url)
    return page


def status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as a:
            return int(a.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_pages_open_through_the_proxy_and_each_person_has_their_own_data(
    proxied: Proxied, browser: Browser, tmp_path: Path
) -> None:
    first = visit(browser, f"{proxied.url}/", "anna", "tide")
    expect(first.locator(".hm-pane[data-side=document] .hm-text")).to_be_visible()
    ready(first)
    assert first.url.startswith(f"{proxied.url}/{BASE}/")
    first.get_by_test_id("stTopNav").get_by_role("link", name="Curves").click()
    expect(first.get_by_role("heading", name="Where in a document")).to_be_visible()
    assert first.url.startswith(f"{proxied.url}/{BASE}/curves")
    idle(first)
    upload = tmp_path / "ledger.csv"
    upload.write_text("query,document\nwho owes,The zephyrine ledger names every debtor.\n")
    first.get_by_text("Your own file").click()
    first.get_by_test_id("stFileUploaderDropzoneInput").first.set_input_files(upload)
    expect(first.get_by_text("1 row accepted")).to_be_visible()
    no_error(first)

    # Another tab of the same person shows the file, and another person's doesn't.
    asked = f"{proxied.url}/{BASE}/curves?dataset=" + own_name(first)
    second = first.context.new_page()
    second.goto(asked)
    expect(second.get_by_text("1 row accepted")).to_be_visible()
    bert = visit(browser, asked, "bert", "moss")
    expect(bert.get_by_text("There is no data set")).to_be_visible()
    expect(bert.get_by_text("1 row accepted")).to_have_count(0)

    # Nobody counts as a local visitor, though the proxy is local.
    bert.goto(f"{proxied.url}/{BASE}/storage")
    expect(bert.get_by_text("Only the administrator can do this").first).to_be_visible()
    for page in (first, bert):
        page.context.close()
    for process in (proxied.app, proxied.other):
        assert "tide" not in process.said() and "Traceback" not in process.said()


def own_name(page: Page) -> str:
    (name,) = page.evaluate("new URLSearchParams(location.search).getAll('dataset')")
    return str(name)


def test_each_person_is_served_by_one_process_and_processes_share_results(
    proxied: Proxied, browser: Browser
) -> None:
    for name, password in 2 * list(PEOPLE.items()):
        secret = base64.b64encode(f"{name}:{password}".encode()).decode()
        asked = f"{proxied.url.replace(HOST, '127.0.0.1')}/{BASE}/_stcore/host-config"
        assert status(asked, Authorization=f"Basic {secret}", Host=HOST) == 200
    met = proxied.met()
    assert set(met) == set(PEOPLE) and all(len(ports) == 1 for ports in met.values()), met
    by_process = {next(iter(ports)): name for name, ports in met.items()}
    assert set(by_process) == {proxied.app.port, proxied.other.port}

    kept = []
    for name in by_process.values():
        page = visit(browser, f"{proxied.url}/{BASE}/?models=BM25", name, PEOPLE[name])
        expect(page.locator(".hm-pane[data-side=document] .hm-text")).to_be_visible()
        ready(page)
        no_error(page)
        page.context.close()
        entries = listing(Files(proxied.app.home / "cache"))
        kept.append([(entry.results, entry.bytes) for entry in entries])
    # Not computed again: the file is unchanged.
    assert kept[0] and kept[0] == kept[1]


def test_requests_that_bypass_the_proxy_are_refused(proxied: Proxied) -> None:
    direct = f"http://127.0.0.1:{proxied.app.port}/{BASE}"
    assert status(f"{direct}/_stcore/health") == 200
    anna = {"X-Forwarded-User": "anna"}
    assert status(f"{direct}/", **anna) == 403
    # Not even with a forged forwarding header.
    assert status(f"{direct}/", **anna, **{"X-Forwarded-For": "127.0.0.9"}) == 403
    assert status(f"{direct}/", Host="evil.example") == 421
    through = proxied.url.replace(HOST, "127.0.0.1") + f"/{BASE}"
    assert status(f"{through}/_stcore/health", Host=HOST) == 200
    assert status(f"{through}/", Host=HOST, **anna) == 401


def test_headers_cannot_redirect_the_browser(proxied: Proxied) -> None:
    port = int(proxied.url.rsplit(":", 1)[-1])
    secret = "Basic " + base64.b64encode(b"anna:tide").decode()

    def asked(target: str, host: str) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest("GET", target, skip_host=True)
        connection.putheader("Host", host)
        connection.putheader("Authorization", secret)
        connection.endheaders()
        with connection.getresponse() as answer:
            return answer.status, answer.getheader("Location")

    assert asked("/", f"{HOST}:{port}") == (302, f"/{BASE}/")
    assert asked("/", "evil.example") == (421, None)
    assert asked(f"/{BASE}/", "evil.example") == (421, None)
    # nginx chooses the server by the name in an absolute address, whatever the header says.
    assert asked(f"http://{HOST}/", "evil.example") == (302, f"/{BASE}/")


def test_the_longest_links_of_pages_pass_the_proxy(proxied: Proxied) -> None:
    asked = f"/{BASE}/?d={MAX_IN_LINK * 'a'}&models=MiniLM"
    assert status(f"http://127.0.0.1:{proxied.app.port}{asked}") == 403
    assert status(proxied.url.replace(HOST, "127.0.0.1") + asked, Host=HOST) == 401
