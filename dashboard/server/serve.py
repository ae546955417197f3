"""Start and stop Streamlit for the dashboard: by default on the loopback address, without error
details and usage statistics, and without losing computed results on exit."""

from __future__ import annotations

import atexit
import errno
import gc
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
from typing import TYPE_CHECKING, NoReturn

from poslens.attribution.errors import UserError
from poslens.attribution.paths import expanded
from poslens.commands.command_output import silence_libraries
from poslens.compute.garbage import no_search_for_garbage
from poslens.compute.settings import ALLOW_CODE, SETTINGS, SHIPPED
from poslens.dashboard.server import access as access_module
from poslens.dashboard.server import oidc, opening
from poslens.dashboard.server.access import Access
from poslens.dashboard.server.opening import Opening

if TYPE_CHECKING:
    from poslens.attribution.retrievers.specs import RetrieverSpec

STOP_S = 25.0
"""Seconds that runs have to finish their batches when the server stops: less than the 30 s grace
period of Kubernetes."""

_FIRST_PAGE_S = 10.0
_drawn = threading.Event()


def serve(
    port: int,
    models: Sequence[str],
    data: Mapping[str, str],
    allow_code: Sequence[str],
    published: Sequence[Path],
    access: Access,
    runs: Mapping[str, Path],
    dataset: str | None,
) -> None:
    """Run the dashboard until interrupted, reached as `access` specifies.

    Pages open with `models`, named as in commands, and with `dataset`, or the first of `data`:
    sources of data sets (`datasets.register`) that pages offer by name. The printed address is that
    of the page that fits this data set (`opening.first_page`). `allow_code` names models that may
    run the code of their repositories; `published` are folders of published results, and `runs`
    ranking files in TREC format.

    Raises:
        UserError: the port is in use, a folder doesn't exist, a name is invalid, a data set can't
            be read, a setting has an invalid value, or a login setting is missing.
    """
    for setting in SETTINGS:
        setting.get()  # refuse invalid values now rather than on the pages that use them
    auth = oidc.section(access) if access.login else {}
    oidc.hide_secrets()
    with no_search_for_garbage():
        from poslens.attribution import datasets
        from poslens.attribution.curves.published import register as register_published
        from poslens.attribution.evaluation.trec_runs import register as register_run
        from poslens.attribution.retrievers import resolve
        from poslens.attribution.text import listed
        from poslens.heatmap.data import MAX_COLUMNS
        from poslens.names import data_name, distinct, register_data, with_rejections
        from poslens.names import resolve as by_name

    given = distinct(map(by_name, models))
    resolve.allow_code([*allow_code, *filter(None, map(str.strip, ALLOW_CODE.get().split(",")))])
    registered = register_data(data)
    chosen = data_name(dataset) if dataset else next(iter(data), None)
    page = ""
    for name in dict.fromkeys([*registered, *filter(None, [chosen])]):
        with_rejections(datasets.read(name))
        if not datasets.embedded(name):
            path, reason = opening.first_page(name)
            print(reason, file=sys.stderr, flush=True)
            page = path if name == chosen else page
    opening.current = Opening(tuple(spec.name for spec in given), chosen)
    if len(given) > MAX_COLUMNS:
        some = listed([spec.name for spec in given[:MAX_COLUMNS]])
        print(f"Pages open with {some}; their lists offer all models.", file=sys.stderr, flush=True)
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
            from poslens.cache.storage.maintenance import older_layouts
            from poslens.compute.compute import service
            from poslens.dashboard.server import log_records, people
            from poslens.dashboard.server.own_texts import remove_left_over
            from poslens.dashboard.server.streamlit_app import dashboard_app, options

            gc.freeze()
        remove_left_over()
        if older := older_layouts(service().store):
            print(older, file=sys.stderr, flush=True)
        access_module.current = access
        service().runs.reader = service().queue.reader = people.reader
        if auth and (text := oidc.trouble(auth["server_metadata_url"])):
            print(text, file=sys.stderr, flush=True)
        # A client's address is that of its connection, not one from a header that it sends.
        os.environ["FORWARDED_ALLOW_IPS"] = ""
        log_records.install()
        stopped = threading.Event()
        app = dashboard_app(auth, stopped)
        print(f"PosLens: {'/'.join(filter(None, (access.url(port), page)))}", flush=True)
        # While the server runs it handles signals itself, and repeats them here when it has
        # stopped. An exception while it starts would leave it half-started.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None if stopped.is_set() else _interrupted())
        app.run(config=options(access, port))
        _end_runs()
    except KeyboardInterrupt:
        _interrupted()
    _leave(0)


def _end_runs() -> None:
    """Stop each run; a second signal ends the program at once."""
    from poslens.compute.compute import service

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if not service().runs.active_at_all():
        return
    print("Waiting for runs to stop ...", file=sys.stderr, flush=True)
    ended = service().runs.stop_all(STOP_S)
    print(
        "All stored results were kept."
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
    """End the process now. Threads may be loading or running a model, and shutting down the
    interpreter while they run aborts the process."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def require_free(host: str, port: int) -> None:
    """Check that the server can listen on this address and port.

    Raises:
        UserError: it can't.
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
    """Signal that a page has been drawn, so that preparations that the first page doesn't need can
    start."""
    _drawn.set()


def _warm_up(given: Sequence[RetrieverSpec]) -> None:
    """Import what every page needs, check the given models' folders, and identify the endpoints'
    models. The default model is loaded, shipped results are unpacked, and other pages' studies are
    imported only after the first page has been drawn, which may need none of them.

    Raises:
        UserError: a given folder can't be loaded.
    """
    silence_libraries()
    from poslens.attribution.retrievers.load import plan
    from poslens.attribution.retrievers.specs import presets
    from poslens.compute.compute import service
    from poslens.studies import declared

    for spec in given:
        if spec.source.startswith("folder:"):
            plan(spec)

    def after_the_first_page() -> None:
        _drawn.wait(_FIRST_PAGE_S)
        try:
            default = given[0] if given else next(iter(presets().values()))
            service().retriever(service().identify(default))
        except UserError as error:  # pages report it too
            print(error, file=sys.stderr, flush=True)
        except BaseException:
            logging.getLogger(__name__).exception("the default model could not be loaded early")
        unpacking = None
        if SHIPPED.get() == "yes":
            # A separate process, because this interpreter serves the pages. Files it can't unpack
            # are reported when a page needs them.
            unpacking = subprocess.Popen(
                [sys.executable, "-m", "poslens.cache.shipped", service().root],
                stderr=subprocess.DEVNULL,
            )
            atexit.register(unpacking.terminate)
        for study in declared().values():
            study.load()
        if unpacking is not None:
            unpacking.wait()  # avoids a zombie process

    def ask_endpoints() -> None:
        from poslens.attribution.retrievers.resolve import known

        for spec in known().values():
            if spec.remote:
                try:
                    service().identify(spec)
                except UserError as error:  # pages report it too, until the endpoint answers
                    print(error, file=sys.stderr, flush=True)

    threading.Thread(target=after_the_first_page, name="warm-up", daemon=True).start()
    threading.Thread(target=ask_endpoints, name="endpoints", daemon=True).start()
