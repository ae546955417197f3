"""A model hub on this machine with one repository, which records every request."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SHA = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves the files of `folder` as the repository `name`, and counts requests. `said` replaces
    the announced size of its weights."""

    def __init__(self, name: str, folder: Path, said: int | None = None) -> None:
        self.name, self.folder, self.said = name, folder, said
        self.requests: list[str] = []
        self.url = ""

    def environment(self, home: Path) -> dict[str, str]:
        """Environment of a process that uses this hub, and `home` as its cache of models."""
        return {**os.environ, "HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home)}

    def sizes(self) -> dict[str, int]:
        """The sizes of files that the hub announces."""
        found = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        if self.said is not None:
            found["model.safetensors"] = self.said
        return found


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """`hub`, answering on a port of the system's choice."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append(f"{self.command} {path}")
            headers = {"X-Repo-Commit": SHA}
            if path.startswith(f"/api/models/{hub.name}/tree/"):
                body = json.dumps(
                    [
                        {"type": "file", "path": name, "size": size, "oid": etag(name)}
                        for name, size in hub.sizes().items()
                    ]
                ).encode()
            elif path.startswith(f"/api/models/{hub.name}"):
                siblings = [{"rfilename": n, "size": s} for n, s in hub.sizes().items()]
                body = json.dumps(
                    {"id": hub.name, "modelId": hub.name, "sha": SHA, "siblings": siblings}
                ).encode()
            elif path.startswith(f"/{hub.name}/resolve/{SHA}/"):
                name = path.partition(f"/resolve/{SHA}/")[2]
                body = (hub.folder / name).read_bytes()
                headers["ETag"] = f'"{etag(name)}"'
            else:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    def etag(name: str) -> str:
        return hashlib.sha1((hub.folder / name).read_bytes()).hexdigest()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
