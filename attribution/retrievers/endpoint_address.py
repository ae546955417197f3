"""Endpoints by name: their addresses, settings and keys.

An endpoint is written as `NAME=URL`. Settings can follow as a fragment, which is not sent to the
server: `E5=http://127.0.0.1:8080/v1#model=e5-small&query_prompt=query: `. An address that ends in
`/rerank` returns scores of documents, any other vectors of texts (`/embeddings` is appended if it
is missing).

The key is read from the environment, or from a file named there, when a client is created. It is
not part of a spec, and therefore not of an address, caption, result or log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import ENDPOINT, RetrieverSpec
from poslens.attribution.text import MAX_CHARACTERS

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
_MAX_KEY = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an endpoint, and its settings.

    `batch` is the maximum number of texts in a request, `rate` the maximum number of requests per
    minute (0 for no limit), and `timeout` the maximum time of a response in seconds. `price` is the
    price of a million tokens in any currency; None if unknown. `query_prompt` and `document_prompt`
    are prepended to texts. Only the first `words` of a text are sent; None if all are.
    """

    name: str
    url: str
    model: str = ""
    similarity: str = "cosine"
    query_prompt: str | None = None
    document_prompt: str | None = None
    batch: int = 32
    rate: float = 0.0
    timeout: float = 60.0
    price: float | None = None
    words: int | None = None

    @property
    def reranks(self) -> bool:
        """Whether it returns scores of documents rather than vectors of texts."""
        return urlsplit(self.url).path.endswith("/rerank")

    @property
    def texts_a_request(self) -> int:
        """Number of texts of a computation in one request; an embedding request for several texts
        also contains the probe."""
        return self.batch if self.reranks else max(1, self.batch - 1)

    @property
    def loopback(self) -> bool:
        """Whether it is on this machine."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def spec(self) -> RetrieverSpec:
        """The specification of the endpoint as a retriever."""
        return RetrieverSpec(
            name=self.name,
            title=self.name,
            family="rerank_endpoint" if self.reranks else "endpoint",
            source=f"{ENDPOINT}{self.url}{f'#{self.model}' if self.model else ''}",
            similarity=None if self.reranks else self.similarity,
            query_prompt=self.query_prompt,
            document_prompt=self.document_prompt,
            max_length=self.words,
            note="An endpoint: texts are sent there.",
        )


_SETTINGS = tuple(field.name for field in fields(Address) if field.name not in ("name", "url"))
_LIMITS: Mapping[str, tuple[float, float]] = {
    "batch": (1, 2048),
    "rate": (0, 1e6),
    "timeout": (0.1, 3600),
    "price": (0, 1e6),
    "words": (1, MAX_CHARACTERS),
}
_WHOLE = ("batch", "words")


def parse(value: str) -> Address:
    """The endpoint that `NAME=URL#SETTINGS` describes.

    Raises:
        UserError: it has no valid name or address, or an unknown setting.
    """
    name, separator, rest = value.partition("=")
    if not separator or not rest:
        raise UserError(f"--endpoint must be NAME=URL, not {_shown(value)!r}.")
    if not _NAME.fullmatch(name):
        raise UserError(
            f"An endpoint cannot be named {name[:40]!r}: use letters, digits, dots, hyphens and "
            "underscores."
        )
    url, _, settings = rest.partition("#")
    return Address(name, _checked(name, url), **_settings(name, settings))


def _shown(value: str) -> str:
    """The part of an address that messages may quote: without what precedes an @, which could be a
    password."""
    return value.rpartition("@")[2][:80]


def _checked(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise UserError(
            f"{name} has no valid address: it must begin with http:// or https://, as in "
            "http://127.0.0.1:8080/v1."
        )
    if parts.username is not None or parts.password is not None or parts.query:
        raise UserError(
            f"{name}'s address contains a user name, a password or a query string, which would be "
            f"shown: remove them, and set the key in {key_name(name)}."
        )
    path = re.sub("/{2,}", "/", parts.path).rstrip("/")
    if not path.endswith(("/embeddings", "/rerank")):
        path += "/embeddings"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _settings(name: str, text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in filter(None, text.split("&")):
        key, separator, raw = part.partition("=")
        value = unquote(raw)
        if not separator or key not in _SETTINGS:
            raise UserError(
                f"{name} has no setting {key[:40]!r}: choose from {', '.join(_SETTINGS)}, written "
                "as #NAME=VALUE&NAME=VALUE."
            )
        settings[key] = _number(name, key, value) if key in _LIMITS else value
    if settings.get("similarity", "cosine") not in ("cosine", "dot"):
        raise UserError(f"{name}'s similarity must be cosine or dot.")
    if not str(settings.get("model", "")).isprintable():
        raise UserError(f"{name}'s setting model has characters that can't be shown: remove them.")
    return settings


def _number(name: str, key: str, value: str) -> float:
    low, high = _LIMITS[key]
    try:
        number: float = int(value) if key in _WHOLE else float(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise UserError(f"{name}'s {key} must be a number from {low:,g} to {high:,.0f}.")
    return number


# -- keys ------------------------------------------------------------------------------------------


def key_name(name: str) -> str:
    """The environment variable with an endpoint's key; with the suffix `_FILE`, the variable with
    the path of a file that contains it."""
    return "POSLENS_KEY_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def key_of(address: Address) -> str:
    """The endpoint's key; empty if there is none.

    Raises:
        UserError: its file cannot be read, it is not a valid key, or it would be sent unencrypted.
    """
    variable = key_name(address.name)
    key = os.environ.get(variable, "")
    if not key and (file := os.environ.get(f"{variable}_FILE", "")):
        try:
            with Path(file).open(encoding="utf-8") as stream:
                key = stream.read(_MAX_KEY + 2)
        except (OSError, ValueError):
            raise UserError(
                f"The file that {variable}_FILE names can't be read: check its path and "
                "permissions."
            ) from None
    key = key.strip()
    if not key:
        return ""
    if len(key) > _MAX_KEY or not re.fullmatch(r"[\x21-\x7e]+", key):
        raise UserError(f"{variable} is not a valid key: it has characters that can't be sent.")
    if urlsplit(address.url).scheme != "https" and not address.loopback:
        raise UserError(
            f"{address.name}'s key would be sent unencrypted: use an address that begins with "
            "https://."
        )
    return key


# -- registered endpoints --------------------------------------------------------------------------

_registered: dict[str, Address] = {}


def remember(address: Address) -> None:
    """Register an endpoint. Only the person who starts the program can do this; browsers select
    names."""
    _registered[address.name] = address


def address_of(spec: RetrieverSpec) -> Address:
    """The address of the endpoint of `spec`.

    Raises:
        UserError: it was not registered at startup.
    """
    address = _registered.get(spec.alias_of or spec.name)
    if address is None or address.spec.source != spec.source:
        raise UserError(
            f"{spec.name} is an endpoint that this program was not started with: add --endpoint "
            f"{spec.name}=URL."
        )
    return address
