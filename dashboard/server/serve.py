"""Start Streamlit for the dashboard: on the loopback address unless told otherwise, without details
of errors and without usage statistics; and end it without losing what was computed."""

from __future__ import annotations

import atexit
import errno
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from poslens.attribution.errors import UserError
from poslens.attribution.paths import expanded
from poslens.commands.command_output import silence_libraries
from poslens.compute.garbage import no_search_for_garbage
from poslens.compute.settings import ALLOW_CODE, SHIPPED
from poslens.dashboard.server import oidc, opening
from poslens.dashboard.server.access import LOOPBACK, OWN_HOSTS, Access, use
from poslens.dashboard.server.opening import Opening

if TYPE_CHECKING:
    from poslens.attribution.retrievers.specs import RetrieverSpec

STOP_S = 25.0
"""How long runs have to end their batches when the server ends: less than the 30 s that Kubernetes
gives."""

# Streamlit's own default listens on every interface, takes any Host header and shows paths of
# this machine in its error boxes.
FLAGS: Mapping[str, object] = {
    "server.address": LOOPBACK,
    "server.headless": True,
    "server.allowedHosts": list(OWN_HOSTS),
    "server.fileWatcherType": "none",
    "server.maxUploadSize": 20,
    # A full collection after each run walks all that torch and Plotly brought, which takes longer
    # than a page whose results are stored; Python's own pace is enough.
    "runner.postScriptGC": False,
    # What stands alone on a line of a page's script, as a constant's docstring does, is not drawn.
    "runner.magicEnabled": False,
    "browser.gatherUsageStats": False,
    "browser.serverAddress": LOOPBACK,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "minimal",
    "client.showSidebarNavigation": False,
    # For each theme by itself: a colour in [theme] alone would switch off the reader's choice.
    "theme.light.primaryColor": "#0B6E99",
    "theme.dark.primaryColor": "#4FB3D9",
}

_FIRST_PAGE_S = 10.0
_drawn = threading.Event()


def serve(
    port: int,
    models: Sequence[str],
    data: Mapping[str, str],
    allow_code: Sequence[str] = (),
    published: Sequence[Path] = (),
    access: Access | None = None,
    runs: Mapping[str, Path] = MappingProxyType({}),
    dataset: str | None = None,
) -> None:
    """Run the dashboard until interrupted, reached as `access` says, by default on this machine's
    loopback address.

    Pages open with `models`, as commands name them, and with `dataset`, or the first of `data`:
    sources of data sets (`datasets.register`), which pages may choose by name. The printed address
    is that of the page which fits this data set (`opening.first_page`). `allow_code` names models
    that may run the code of their repositories; `published` are folders of published results, and
    `runs` files of rankings in TREC's format.

    Raises:
        UserError: the port is taken, a folder is not there, a name is none, a data set cannot be
            read, or a login lacks what it needs.
    """
    access = access or Access()
    auth = oidc.section(access) if access.login else {}
    with no_search_for_garbage():
        from poslens.attribution import datasets
        from poslens.attribution.curves.published import register as register_published
        from poslens.attribution.evaluation.trec_runs import register as register_run
        from poslens.attribution.retrievers import resolve
        from poslens.commands.command_options import data_name, distinct
        from poslens.commands.command_options import resolve as by_name

    given = distinct(map(by_name, models))
    resolve.allow_code([*allow_code, *filter(None, map(str.strip, ALLOW_CODE.get().split(",")))])
    for name, source in data.items():
        for known in datasets.register(name, source):
            datasets.read(known)
    chosen = data_name(dataset) if dataset else next(iter(data), None)
    page = ""
    if chosen:
        first = opening.first_page(chosen)
        if not datasets.embedded(chosen):
            page = first.path
            print(first.reason, file=sys.stderr, flush=True)
    opening.use(Opening(tuple(spec.name for spec in given), chosen))
    for folder in published:
        register_published(expanded(folder))
    for name, file in runs.items():
        if name in resolve.known():
            raise UserError(f"{name} is already the name of a model: give the run another name.")
        register_run(name, file)
    require_free(access.host, port)
    try:
        print("Loading PosLens ...", file=sys.stderr, flush=True)
        with no_search_for_garbage():
            _warm_up(given)
            from streamlit.web import bootstrap

            from poslens.cache.storage.maintenance import older_layouts
            from poslens.compute.compute import service
            from poslens.dashboard.server import fragment_queue, headers, log_records, people
            from poslens.dashboard.server.own_texts import remove_left_over

            gc.freeze()
        remove_left_over()
        if older := older_layouts(service().store):
            print(older, file=sys.stderr, flush=True)
        use(access)
        service().set_reader_key(people.reader)
        if auth:
            oidc.give(auth)
            if text := oidc.trouble(auth["server_metadata_url"]):
                print(text, file=sys.stderr, flush=True)
        # Who a request comes from is what the system says of it, not what it says of itself.
        os.environ["FORWARDED_ALLOW_IPS"] = ""
        headers.install()
        log_records.install()
        fragment_queue.install()
        script = str(Path(__file__).parents[1] / "app.py")
        flags = {**FLAGS, **_flags(access), "server.port": port, "browser.serverPort": port}
        # The command line's spelling of options, which bootstrap expects.
        options = {name.replace(".", "_"): value for name, value in flags.items()}
        bootstrap.load_config_options(flag_options=options)
        print(f"PosLens: {'/'.join(filter(None, (access.url(port), page)))}", flush=True)
        # Until Streamlit has handlers of its own: an exception would end its server half-made.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: _interrupted())
        bootstrap.run(script, False, [], options)
        _end_runs()
    except KeyboardInterrupt:
        _interrupted()
    _leave(0)


def _flags(access: Access) -> dict[str, object]:
    """What Streamlit has to know of it."""
    from poslens.dashboard.server import people

    found: dict[str, object] = {
        "server.address": access.host,
        "server.allowedHosts": list(access.hosts),
        "server.baseUrlPath": access.base_path,
    }
    if access.proxies:
        found["server.trustedUserHeaders"] = json.dumps({access.user_header: people.NAME})
    return found


def _end_runs() -> None:
    """Let each run end the batch at hand; a second signal ends the program at once."""
    from poslens.compute.compute import service

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if not service().runs.active_at_all():
        return
    print("Waiting for the current batches to finish ...", file=sys.stderr, flush=True)
    ended = service().runs.stop_all(STOP_S)
    print(
        "All computed results were kept."
        if ended
        else f"Some runs didn't stop within {STOP_S:.0f} s. Their stored results were kept.",
        file=sys.stderr,
        flush=True,
    )


def _interrupted() -> NoReturn:
    with suppress(OSError):
        os.write(2, b"Interrupted.\n")  # a stream may be in the middle of a line
    _leave(130)


def _leave(code: int) -> NoReturn:
    """End the process now. Threads may be loading or computing a model, and an interpreter that is
    taken down around them aborts."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def require_free(host: str, port: int) -> None:
    """Do nothing, unless nobody can listen there.

    Raises:
        UserError: so it is.
    """
    if not 1 <= port <= 65_535:
        raise UserError(f"{port} isn't a valid port: choose one from 1 to 65535 with --port.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise UserError(
                f"This machine doesn't have the address {host}: change --host."
            ) from error
        if error.errno == errno.EACCES:
            raise UserError(
                f"Port {port} requires administrator rights: choose one from 1024 with --port."
            ) from error
        raise UserError(
            f"Port {port} of {host} is already in use: choose another with --port (`make run "
            "PORT=...`)."
        ) from error


def drawn() -> None:
    """A page has been drawn; the first waits for nothing that it does not need."""
    _drawn.set()


def _warm_up(given: Sequence[RetrieverSpec]) -> None:
    """Import what every page needs now, and ask what stands behind the endpoints. The default model
    is loaded and what ships unpacked when the first page has been drawn: it may need neither."""
    silence_libraries()
    from poslens.attribution.retrievers.specs import presets
    from poslens.compute.compute import service

    def after_the_first_page() -> None:
        _drawn.wait(_FIRST_PAGE_S)
        try:
            default = given[0] if given else next(iter(presets().values()))
            service().retriever(service().identify(default))
        except BaseException:
            logging.getLogger(__name__).exception("the default model could not be loaded early")
        if SHIPPED.get() == "yes":
            # Another process: this one's interpreter is the pages'. What it cannot unpack is said
            # when a page asks for it.
            unpacking = subprocess.Popen(
                [sys.executable, "-m", "poslens.cache.shipped", service().root],
                stderr=subprocess.DEVNULL,
            )
            atexit.register(unpacking.terminate)
            unpacking.wait()  # nobody else asks how it ended

    def ask_endpoints() -> None:
        from poslens.attribution.retrievers.resolve import known

        for spec in known().values():
            if spec.remote:
                try:
                    service().identify(spec)
                except UserError as error:  # pages say so too, until it answers
                    print(error, file=sys.stderr, flush=True)

    threading.Thread(target=after_the_first_page, name="warm-up", daemon=True).start()
    threading.Thread(target=ask_endpoints, name="endpoints", daemon=True).start()
