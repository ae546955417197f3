"""People log in with OpenID Connect, at a provider that runs here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from oidc_provider_mock import User, run_server_in_thread
from playwright.sync_api import Browser, Page

from tests.e2e.conftest import TIMEOUT_MS, contents, idle
from tests.e2e.test_accessibility import violations
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect
from tests.support.forked import Forked
from tests.support.ports import free_port
from tests.support.served import Served, served

BASE = "tools/poslens"
CLIENT_SECRET = "client-secret-of-the-test"
COOKIE_SECRET = "cookie-secret-of-the-test-0123456789"
NAMES = ("anna", "bert", "carl")


@dataclass(frozen=True)
class Guarded:
    url: str
    app: Served


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[Guarded]:
    folder, port = tmp_path_factory.mktemp("login"), free_port()
    url = f"http://poslens.localhost:{port}/{BASE}"
    people = [
        User(
            sub=name, claims={"email": f"{name}@lab.example.org", "email_verified": name != "carl"}
        )
        for name in NAMES
    ]
    with run_server_in_thread(user_claims=people) as provider:
        at = f"http://localhost:{provider.server_port}"
        secrets = folder / "secrets.toml"
        secrets.write_text(f'[auth]\nclient_secret = "{CLIENT_SECRET}"\n')
        environment = {
            "POSLENS_OIDC_METADATA_URL": f"{at}/.well-known/openid-configuration",
            "POSLENS_OIDC_CLIENT_ID": "poslens",
            "POSLENS_OIDC_REDIRECT_URI": f"{url}/oauth2callback",
            "POSLENS_COOKIE_SECRET": COOKIE_SECRET,
            "POSLENS_SECRETS": str(secrets),
            "POSLENS_PEOPLE": "@lab.example.org",
        }
        options = ["--login", "--allowed-host=poslens.localhost"]
        with served(
            folder,
            *options,
            port=port,
            base_path=BASE,
            environment=environment,
            forked=forked,
        ) as app:
            yield Guarded(url, app)


def entered(browser: Browser, url: str, name: str) -> Page:
    """A separate browser in which this person has logged in."""
    page = browser.new_context().new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(url)
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    # Nothing of the page is shown before.
    expect(page.get_by_test_id("stTopNav")).to_have_count(0)
    assert violations(page) == []
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name=name, exact=True).first.click()
    page.wait_for_url(f"{url.split('?')[0].removesuffix('/curves')}/**")
    return page


def log_out(name: str) -> re.Pattern[str]:
    """The button's label; a joiner keeps the address from becoming a link."""
    return re.compile(f"Log out {name}@.?lab.example.org")


def test_each_person_has_their_own_data_and_can_log_out(
    guarded: Guarded, browser: Browser, tmp_path: Path
) -> None:
    anna = entered(browser, guarded.url, "anna")
    out = anna.get_by_role("button", name=log_out("anna"))
    expect(out).to_be_visible()
    anna.goto(f"{guarded.url}/curves")
    upload = tmp_path / "ledger.csv"
    upload.write_text("query,document\nwho owes,The zephyrine ledger names every debtor.\n")
    idle(anna).get_by_text("Your own file").click()
    anna.get_by_test_id("stFileUploaderDropzoneInput").first.set_input_files(upload)
    expect(anna.get_by_text("1 row accepted")).to_be_visible()
    no_error(anna)
    asked = anna.evaluate("location.search")

    bert = entered(browser, guarded.url, "bert")
    expect(bert.get_by_role("button", name=log_out("bert"))).to_be_visible()
    bert.goto(f"{guarded.url}/curves{asked}")
    expect(bert.get_by_text("There is no data set")).to_be_visible()

    # After logging out, the same browser shows nothing.
    out.click()
    anna.get_by_role("button", name="End session").click()  # the provider's form
    anna.goto(f"{guarded.url}/curves{asked}")
    expect(anna.get_by_role("button", name="Log in")).to_be_visible()
    expect(anna.get_by_text("zephyrine")).to_have_count(0)
    for page in (anna, bert):
        page.context.close()


def test_people_who_are_not_listed_are_refused(guarded: Guarded, browser: Browser) -> None:
    carl = entered(browser, guarded.url, "carl")  # with an unverified address
    expect(carl.get_by_text("doesn't state that it verified the address")).to_be_visible()
    expect(carl.get_by_test_id("stTopNav")).to_have_count(0)
    carl.get_by_role("button", name="Log out").click()
    carl.get_by_role("button", name="End session").click()
    carl.goto(guarded.url)
    expect(carl.get_by_role("button", name="Log in")).to_be_visible()
    carl.context.close()


def test_no_secret_is_logged_or_stored(guarded: Guarded) -> None:
    said = guarded.app.said()
    assert CLIENT_SECRET not in said and COOKIE_SECRET not in said and "Traceback" not in said
    files = contents(guarded.app.home).values()
    assert files and not [
        f for f in files if CLIENT_SECRET.encode() in f or COOKIE_SECRET.encode() in f
    ]
