"""Settings of Streamlit's login (OpenID Connect): read from the environment and from a file,
validated, and passed to Streamlit. Secrets are never accepted on the command line, which every user
of a machine can read, or shown on a page."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from poslens.attribution.errors import UserError
from poslens.attribution.paths import expanded
from poslens.compute.settings import (
    COOKIE_SECRET,
    OIDC_CLIENT_ID,
    OIDC_CLIENT_SECRET,
    OIDC_METADATA_URL,
    OIDC_REDIRECT_URI,
    SECRETS,
    Setting,
)
from poslens.dashboard.server.access import Access

CALLBACK = "oauth2callback"
MIN_COOKIE_SECRET = 32
PATIENCE_S = 10.0
_DEFAULT_FILE = Path("~/.streamlit/secrets.toml")
_KEYS: Mapping[str, Setting[str]] = {
    "server_metadata_url": OIDC_METADATA_URL,
    "client_id": OIDC_CLIENT_ID,
    "client_secret": OIDC_CLIENT_SECRET,
    "redirect_uri": OIDC_REDIRECT_URI,
    "cookie_secret": COOKIE_SECRET,
}


def section(access: Access) -> dict[str, str]:
    """Streamlit's section `[auth]`: each key from the environment, else from the file.

    Raises:
        UserError: a package or a value is missing, or a value is invalid; the message contains no
            secrets.
    """
    if find_spec("authlib") is None or find_spec("httpx") is None:
        raise UserError(
            "--login needs additional packages: run `pip install '.[server]'` in a checkout of "
            "PosLens."
        )
    read = _from_file()
    values = {key: setting.get() or read.get(key, "") for key, setting in _KEYS.items()}
    missing = [key for key, value in values.items() if not value]
    if missing:
        names = ", ".join(_KEYS[key].name for key in missing)
        raise UserError(
            f"--login needs {', '.join(missing)}: set {names}, or add them under [auth] to the "
            f"file that {SECRETS.name} names."
        )
    if len(values["cookie_secret"]) < MIN_COOKIE_SECRET:
        raise UserError(
            f"{COOKIE_SECRET.name} has fewer than {MIN_COOKIE_SECRET} characters: generate one "
            "with `openssl rand -hex 32`."
        )
    _require_url(values["server_metadata_url"], OIDC_METADATA_URL.name)
    _require_url(values["redirect_uri"], OIDC_REDIRECT_URI.name)
    _require_way_back(values["redirect_uri"], access)
    return values


def hide_secrets() -> None:
    """Remove the secrets from the environment: child processes don't need them."""
    for setting in (OIDC_CLIENT_SECRET, COOKIE_SECRET):
        os.environ.pop(setting.name, None)


def trouble(metadata_url: str) -> str:
    """Why nobody can log in now, as a sentence; empty if the provider's metadata is available."""
    import httpx

    try:
        answer = httpx.get(metadata_url, timeout=PATIENCE_S, follow_redirects=True)
        metadata = answer.json() if answer.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        metadata = None
    needed = {"issuer", "authorization_endpoint", "token_endpoint"}
    if isinstance(metadata, dict) and needed <= metadata.keys():
        return ""
    return (
        f"Nobody can log in, because {metadata_url} doesn't return a provider's metadata: check "
        f"{OIDC_METADATA_URL.name} and the network."
    )


def _from_file() -> dict[str, str]:
    named = SECRETS.get()
    file = expanded(Path(named)) if named else _DEFAULT_FILE.expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            raise UserError(f"The file {file} that {SECRETS.name} names doesn't exist.") from None
        return {}
    except (OSError, UnicodeDecodeError):
        raise UserError(f"PosLens can't read {file}: check its permissions and encoding.") from None
    try:
        auth = tomllib.loads(text).get("auth", {})
    except tomllib.TOMLDecodeError:
        raise UserError(f"{file} isn't a valid TOML file.") from None
    if not isinstance(auth, dict):
        raise UserError(f"{file} has no section [auth].")
    return {key: value for key in _KEYS if isinstance(value := auth.get(key), str)}


def _require_url(given: str, name: str) -> None:
    try:
        parts = urlsplit(given)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise UserError(f"{name} isn't a valid address: {given[:200]!r}.")


def _require_way_back(uri: str, access: Access) -> None:
    """Require that the provider redirects users to this server."""
    parts = urlsplit(uri)
    path = "/".join(filter(None, ("", access.base_path, CALLBACK)))
    if parts.path != f"/{path}":
        raise UserError(f"{OIDC_REDIRECT_URI.name} must end in /{path}, not in {parts.path!r}.")
    host = (parts.hostname or "").rstrip(".")
    if not any(host == name or fnmatchcase(host, name) for name in access.hosts):
        raise UserError(
            f"{OIDC_REDIRECT_URI.name} refers to {host}, which isn't an allowed host name: add "
            f"--allowed-host {host}."
        )
