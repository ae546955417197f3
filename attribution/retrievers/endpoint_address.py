"""What an endpoint is by name: its address, how it is asked, and where its key is.

`NAME=URL`, behind which settings may stand as a fragment, which no server is ever sent:
`E5=http://127.0.0.1:8080/v1#model=e5-small&query_prompt=query: `. An address that ends in `/rerank`
is asked for scores of documents, any other for vectors of texts (`/embeddings` is put behind it
where it is missing).

The key is read from the environment or from a file that it names, when a request is made. It
is in no spec, and therefore in no address, caption, result or log.
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

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)
_MAX_KEY = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint is and how it is asked.

    `batch` texts at most go into a request, `rate` requests at most are made in a minute (0 is as
    many as may be), and an answer may take `timeout` seconds. `price` is what a million tokens
    cost, in the reader's money; None where nobody said. `query_prompt` and `document_prompt` are
    put in front of texts.
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

    @property
    def reranks(self) -> bool:
        """Whether it gives scores of documents rather than vectors of texts."""
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
        """The retriever that it is."""
        return RetrieverSpec(
            name=self.name,
            title=self.name,
            family="rerank_endpoint" if self.reranks else "endpoint",
            source=f"{ENDPOINT}{self.url}{f'#{self.model}' if self.model else ''}",
            similarity=None if self.reranks else self.similarity,
            query_prompt=self.query_prompt,
            document_prompt=self.document_prompt,
            note="An endpoint: texts are sent there.",
        )


_SETTINGS = tuple(field.name for field in fields(Address) if field.name not in ("name", "url"))
_LIMITS: Mapping[str, tuple[float, float]] = {
    "batch": (1, 2048),
    "rate": (0, 1e6),
    "timeout": (0.1, 3600),
    "price": (0, 1e6),
}


def parse(value: str) -> Address:
    """The endpoint that `NAME=URL#SETTINGS` describes.

    Raises:
        UserError: it has no name or address, or a setting that there is not.
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
    """What may be repeated of an address: nothing in front of an @, which could be a password."""
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
        number: float = int(value) if key == "batch" else float(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise UserError(f"{name}'s {key} must be a number from {low:g} to {high:,.0f}.")
    return number


# -- keys ------------------------------------------------------------------------------------------


def key_name(name: str) -> str:
    """The environment variable that holds an endpoint's key; with the suffix `_FILE`, the path
    of a file that does."""
    return "POSLENS_KEY_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def key_of(address: Address) -> str:
    """The endpoint's key; empty where there is none.

    Raises:
        UserError: its file cannot be read, it is no key, or it would be sent readable for all.
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


# -- those that were named -------------------------------------------------------------------------

_named: dict[str, Address] = {}


def remember(address: Address) -> None:
    """Let the endpoint be asked. Only the person who starts the program can do this: a browser
    chooses among names."""
    _named[address.name] = address


def address_of(spec: RetrieverSpec) -> Address:
    """How the endpoint of `spec` is asked.

    Raises:
        UserError: it was not named at the start.
    """
    address = _named.get(spec.name)
    if address is None or address.spec.source != spec.source:
        raise UserError(
            f"{spec.name} is an endpoint that this program was not started with: add --endpoint "
            f"{spec.name}=URL."
        )
    return address
