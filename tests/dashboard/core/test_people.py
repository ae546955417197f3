"""With login, people have separate data and a limited number of runs and requests."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import Stopped, UserError
from poslens.cache.jobs.loop import Progress
from poslens.compute.compute import Compute
from poslens.compute.queue import DeviceQueue
from poslens.compute.runs import Job, Report, Run, Runs
from poslens.compute.settings import PEOPLE, UPKEEP
from poslens.dashboard.server import access, own_texts, people
from poslens.dashboard.server.access import access_of

KEY = ("m", "f", "c", "s", "cpu")


class Browser:
    """A tab: the logged-in user and Streamlit's session."""

    def __init__(self, user: dict[str, object], session: str) -> None:
        self.user, self.session_id = user, session
        self.state: dict[str, object] = {}

    def look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(people.st, "user", self.user)
        monkeypatch.setattr(people, "get_script_run_ctx", lambda **_: self)
        monkeypatch.setattr(own_texts.st, "session_state", self.state)


def of(name: str, session: str) -> Browser:
    claims = {"iss": "https://id", "sub": name, "email": f"{name}@example.org"}
    return Browser({"is_logged_in": True, "email_verified": True, **claims}, session)


@pytest.fixture
def _login() -> None:
    access.current = access_of(login=True)


@pytest.fixture
def _proxy() -> None:
    access.current = access_of(trusted_proxies=["10.0.0.1"])


@pytest.mark.usefixtures("_login")
def test_a_person_finds_only_their_own_data_in_each_tab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Compute(tmp_path / "shared")
    monkeypatch.setattr(own_texts, "service", lambda: shared)
    monkeypatch.setattr(own_texts, "_of_people", {})
    monkeypatch.setattr(own_texts, "_tied", lambda session: session.stay())
    annas, second, berts = of("anna", "1"), of("anna", "2"), of("bert", "3")
    annas.look(monkeypatch)
    hers = own_texts.session()
    hers.uploads["upload-a"] = SimpleNamespace()  # type: ignore[assignment]
    second.look(monkeypatch)
    assert own_texts.session() is hers and list(own_texts.uploads()) == ["upload-a"]
    berts.look(monkeypatch)
    assert not own_texts.uploads() and own_texts.owners() == {shared.root}
    his = own_texts.session()
    assert his is not hers and his.folder != hers.folder
    assert hers.compute.root not in own_texts.owners()
    # Their data is deleted with the last of their tabs.
    monkeypatch.setattr(own_texts, "GRACE_S", 0.1)
    hers.leave()
    threading.Event().wait(0.3)
    assert not hers.ended
    while hers._tabs:
        hers.leave()
    for _ in range(1200):
        if hers.ended:
            break
        threading.Event().wait(0.05)
    assert hers.ended
    annas.look(monkeypatch)
    assert not own_texts.uploads() and own_texts.session() is not hers
    for one in (his, own_texts.session()):
        one.end()


def endless(run: Run, report: Report) -> Progress:
    while not run.stopping:
        threading.Event().wait(0.01)
    return run.progress


@pytest.mark.usefixtures("_login")
def test_only_the_person_who_started_a_run_can_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(lambda: 32)
    runs.reader = people.reader
    anna, bert = of("anna", "1"), of("bert", "2")
    anna.look(monkeypatch)
    run = Job(runs, Path("shared"), KEY, "m", 1, endless).start()
    assert people.may_stop(run)
    bert.look(monkeypatch)
    assert Job(runs, Path("shared"), KEY, "m", 1, endless).start() is run and not people.may_stop(
        run
    )
    access.current = access_of()
    assert people.may_stop(run), "where nobody logs in it is everybody's"
    assert runs.stop_all(60) and not run.active


def test_runs_per_reader_are_limited_and_include_parts() -> None:
    runs = Runs(lambda: 32, lambda: 2)
    who = "anna"
    runs.reader = lambda: who
    part = Job(runs, Path("p"), ("part", *KEY[1:]), "part", 1, endless)
    one = Job(runs, Path("1"), KEY, "m", 1, endless, parts=(part,)).start()
    Job(runs, Path("2"), KEY, "m", 1, endless).start()
    with pytest.raises(UserError, match="Your active runs: 2, as many as"):
        Job(runs, Path("3"), KEY, "m", 1, endless).start()
    who = ""  # a run starts its parts outside pages
    assert part.start(within=one).reader == one.reader == "anna"
    who = "bert"
    other = Job(runs, Path("3"), KEY, "m", 1, endless).start()
    assert other.reader == "bert" and runs.active_at_all()
    assert runs.stop_all(60) and not runs.active_at_all()


def test_a_run_that_does_not_stop_in_time_is_reported() -> None:
    runs = Runs(lambda: 32)
    go = threading.Event()

    def deaf(run: Run, report: Report) -> Progress:
        go.wait()
        return run.progress

    run = Job(runs, Path("1"), KEY, "m", 1, deaf).start()
    assert not runs.stop_all(0.05) and run.stopping
    go.set()
    assert runs.stop_all(60)


def test_requests_per_reader_are_limited() -> None:
    queue = DeviceQueue(lambda: 32, each=lambda: 2)
    who = "anna"
    queue.reader = lambda: who

    def work() -> None:
        while True:
            try:
                checkpoint()
            except Stopped:
                return
            threading.Event().wait(0.01)

    places = [queue.ask(n, work) for n in range(2)]
    with pytest.raises(UserError, match="2 of your requests"):
        queue.ask(2, work)
    places.append(queue.ask(1, work))  # joining a running request is free
    who = "bert"
    places.append(queue.ask(2, work))
    for place in places:
        place.leave()


@pytest.mark.parametrize(
    ("listed", "claims", "enters"),
    [
        ("", {}, True),
        ("anna@example.org", {}, True),
        (" Anna@Example.org , x", {}, True),
        ("@example.org", {}, True),
        ("@example.org", {"email": "Anna@Example.ORG"}, True),
        ("bert@example.org", {}, False),
        ("@ample.org", {}, False),
        ("example.org", {}, False),
        ("anna@example.org", {"email_verified": False}, False),
        ("anna@example.org", {"email_verified": None}, False),
        ("@example.org", {"email": None}, False),
        ("@example.org", {"email": "x@example.org@evil.org"}, False),
    ],
)
@pytest.mark.usefixtures("_login")
def test_only_listed_people_are_admitted(
    listed: str, claims: dict[str, object], enters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = of("anna", "1")
    browser.user.update(claims)
    browser.look(monkeypatch)
    monkeypatch.setenv(PEOPLE.name, listed)
    assert people.may_enter() is enters


DOMAIN = "@lab.example.org"

NOT_OF_THE_DOMAIN = [
    "lab.example.org",
    "@lab.example.org",
    "x@y@lab.example.org",
    "x@@lab.example.org",
    "@x@lab.example.org",
    "a@lab.example.org, b@lab.example.org",
    "a@evil.org,b@lab.example.org",
    "a@evil.org b@lab.example.org",
    "a@evil.org;b@lab.example.org",
    "a b@lab.example.org",
    " a@lab.example.org",
    "a@lab.example.org ",
    "a@ lab.example.org",
    "a@lab.example.org\n",
    "a\t@lab.example.org",
    "a\0@lab.example.org",
    "a@lab.example.org.",
    "a@.lab.example.org",
    "a@sub.lab.example.org",
    "a@evillab.example.org",
    "a@lab.example.org.evil.org",
    "a@evil.org@lab.example.org",
    '"a"@lab.example.org',
    '"x@evil.org"@lab.example.org',
    "<a@lab.example.org>",
    "Anna <a@lab.example.org>",
    "a@lab.example.org (Anna)",
    ".a@lab.example.org",
    "a.@lab.example.org",
    "a..b@lab.example.org",
    "a@lab\u3002example.org",  # ideographic full stop
    "a@lab\uff0eexample.org",  # full-width full stop
    "a\uff20lab.example.org",  # full-width @
    "x@y\uff20lab.example.org",
    "a@lab.ex\u0430mple.org",  # Cyrillic a
    "a@lab.example.\u2126rg",
    "a@\u2113ab.example.org",
    "a@\u200blab.example.org",
    "\u202ea@lab.example.org",
    "a@[127.0.0.1]",
    "@",
    "",
]


def admitted(
    monkeypatch: pytest.MonkeyPatch, listed: str, sent: object, *, proxy: bool = False
) -> bool:
    """Whether a list admits the name from an identity provider or a proxy."""
    options = {"trusted_proxies": ["10.0.0.1"]} if proxy else {"login": True}
    access.current = access_of(**options)  # type: ignore[arg-type]
    user = {people.NAME: sent.encode().decode("latin-1")} if proxy else {}  # type: ignore[attr-defined]
    claims = {"is_logged_in": True, "sub": "1", "email_verified": True, "email": sent}
    Browser(user or claims, "1").look(monkeypatch)
    monkeypatch.setenv(PEOPLE.name, listed)
    return people.may_enter()


@pytest.mark.parametrize("name", NOT_OF_THE_DOMAIN, ids=ascii)
def test_a_domain_admits_no_other_addresses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not admitted(monkeypatch, DOMAIN, name)
    # Leading and trailing white space is not part of a header's value.
    if name == name.strip():
        assert not admitted(monkeypatch, DOMAIN, name, proxy=True)


@pytest.mark.parametrize("proxy", [False, True])
@pytest.mark.parametrize(
    "name", ["a@lab.example.org", "A.B+c@LAB.example.ORG", "o'neil_7@lab.example.org"]
)
def test_a_domain_admits_its_addresses(
    name: str, proxy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admitted(monkeypatch, f"bert@example.org, {DOMAIN}", name, proxy=proxy)


@pytest.mark.parametrize(
    ("listed", "name", "enters"),
    [
        ("kate", "kate", True),
        ("Kate", "KATE", True),
        ("kate", "\u212aate", False),  # the Kelvin sign
        ("\u212aate", "kate", False),
        ("istanbul", "\u0130stanbul", False),
        ("strasse", "stra\u00dfe", False),
        ("zo\u00eb", "zo\u00eb", True),
        ("zo\u00eb", "ZO\u00cb", False),
        ("zo\u00eb", "zoe\u0308", False),
        ("kate", "kate@example.org", False),
        ("kate,bert", "kate,bert", False),
        ("kate@example.org", "kate", False),
        ("kate@example.org", "kate@example.org.", False),
        ("kate@example.org", "x@kate@example.org", False),
        ("@", "kate", False),
        ("@", "kate@", False),
        (",", "kate", False),
        (" , ,", "", False),
        ("kate,", "", False),
        (" ", "kate", True),
    ],
    ids=ascii,
)
def test_names_are_compared_letter_by_letter(
    listed: str, name: str, enters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admitted(monkeypatch, listed, name) is enters
    assert admitted(monkeypatch, listed, name, proxy=True) is enters


@pytest.mark.parametrize("claim", [None, 5, True, ["a@lab.example.org"], {"a@lab.example.org": 1}])
def test_an_address_that_is_not_text_is_refused(
    claim: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not admitted(monkeypatch, DOMAIN, claim)


@pytest.mark.usefixtures("_proxy")
def test_the_name_is_taken_from_the_proxys_header(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = "zoë".encode().decode("latin-1")  # a header in Streamlit's encoding
    Browser({people.NAME: sent}, "1").look(monkeypatch)
    assert people.person() == people.shown_name() == "zoë" and people.reader() == "zoë"
    monkeypatch.setenv(PEOPLE.name, "zoë,anna")
    assert people.may_enter()
    monkeypatch.setenv(PEOPLE.name, "anna")
    assert not people.may_enter()


def test_without_login_each_tab_is_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    Browser({}, "tab 1").look(monkeypatch)
    assert people.person() == "" and people.reader() == "tab 1"
    monkeypatch.setattr(people, "get_script_run_ctx", lambda **_: None)
    assert people.reader() == ""


@pytest.mark.usefixtures("_proxy")
def test_only_local_visitors_may_change_storage_unless_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = SimpleNamespace(ip_address=None, headers={})
    monkeypatch.setattr(people.st, "context", nowhere)
    access.current = access_of()
    assert people.may_change()
    beyond = access_of(allowed_hosts=["poslens.example.org"], trusted_proxies=["127.0.0.1"])
    access.current = beyond
    assert not people.may_change()
    monkeypatch.setenv(UPKEEP.name, "yes")
    assert people.may_change()
