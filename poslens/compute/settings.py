"""Every setting of PosLens: its environment variable, default, limits and help."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from poslens.attribution.errors import UserError

T = TypeVar("T")
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A setting, read from the environment variable `name`."""

    name: str
    default: T
    read: Callable[[str], T]
    help: str

    def get(self) -> T:
        """The current value, or the default.

        Raises:
            UserError: the environment variable has a value that this setting does not accept.
        """
        raw = os.environ.get(self.name)
        if raw is None or raw == "":
            return self.default
        try:
            return self.read(raw)
        except ValueError as error:
            raise UserError(f"{self.name}={raw!r} is invalid: {self.help}") from error


def _within(kind: type[N], low: N, high: N) -> Callable[[str], N]:
    def read(raw: str) -> N:
        value = kind(raw)
        if not low <= value <= high:
            raise ValueError(raw)
        return value

    return read


def _choice(name: str, choices: tuple[str, ...], help: str) -> Setting[str]:
    """A setting with these values, the default first."""

    def read(raw: str) -> str:
        if raw not in choices:
            raise ValueError(raw)
        return raw

    return Setting(name, choices[0], read, help)


def _text(name: str, help: str) -> Setting[str]:
    """A setting that accepts any text and is empty by default."""
    return Setting(name, "", str, help)


DEVICE = Setting("POSLENS_DEVICE", "auto", str, "auto, cpu, cuda, cuda:N or mps.")
PRECISION = _choice(
    "POSLENS_PRECISION",
    ("auto", "float32", "bfloat16", "float16"),
    "auto, float32, bfloat16 or float16; auto selects float32, or bfloat16 for models above 2 GB "
    "on a GPU.",
)
MODEL_MEMORY_GB = Setting(
    "POSLENS_MODEL_MEMORY_GB",
    0.0,
    _within(float, 0, 4096),
    "maximum size of the loaded weights in GB, 0 to 4096; 0 means 40% of the device's memory. "
    "Before another model loads, the least recently used models that are not in use are unloaded.",
)
HOME = _text(
    "POSLENS_HOME",
    "folder for the cache, models from the package index, and data sets of ir_datasets and mteb; "
    "by default, poslens in the user's data folder (~/.local/share).",
)
ALLOW_CODE = _text(
    "POSLENS_ALLOW_CODE",
    "comma-separated names of models that may run code from their repositories; none by default.",
)
QUEUE_LIMIT = Setting(
    "POSLENS_QUEUE_LIMIT",
    32,
    _within(int, 1, 10_000),
    "maximum number of page requests waiting for the device, 1 to 10000; further requests are "
    "rejected immediately.",
)
RUN_LIMIT = Setting(
    "POSLENS_RUN_LIMIT",
    32,
    _within(int, 2, 1000),
    "maximum number of active runs on data sets, for all readers together, 2 to 1000.",
)
KEEP_OWN_TEXTS = _choice(
    "POSLENS_KEEP_OWN_TEXTS",
    ("no", "yes"),
    "no or yes: whether to store results of uploaded and typed texts in the shared cache.",
)
SHIPPED = _choice(
    "POSLENS_SHIPPED",
    ("yes", "no"),
    "yes or no: whether to show the included results where the cache has none.",
)
UPKEEP = _choice(
    "POSLENS_UPKEEP",
    ("auto", "yes", "no"),
    "auto, yes or no: who may delete, import and compact results and download models on pages; "
    "auto allows readers whose browser runs on this machine, yes everyone, no nobody.",
)
FETCH_LIMIT_GB = Setting(
    "POSLENS_FETCH_LIMIT_GB",
    5.0,
    _within(float, 0, 4096),
    "maximum size in GB of a model that a page may download, 0 to 4096; 0 disables downloads. The "
    "command line has no limit.",
)
RUNS_EACH = Setting(
    "POSLENS_RUNS_EACH",
    16,
    _within(int, 1, 1000),
    "maximum number of active runs on data sets per reader, 1 to 1000. A reader is one person with "
    "a login, otherwise one browser tab.",
)
REQUESTS_EACH = Setting(
    "POSLENS_REQUESTS_EACH",
    8,
    _within(int, 1, 10_000),
    "maximum number of page requests per reader waiting for the device, 1 to 10000.",
)
PEOPLE = _text(
    "POSLENS_PEOPLE",
    "comma-separated people with access: e-mail addresses, @example.org for a whole domain, "
    "or names as the proxy sends them; by default, everyone who can log in.",
)
SECRETS = _text(
    "POSLENS_SECRETS",
    "file with the login configuration in Streamlit's secrets.toml format; by default, "
    "~/.streamlit/secrets.toml.",
)
OIDC_METADATA_URL = _text(
    "POSLENS_OIDC_METADATA_URL",
    "for --login: address of the provider's metadata, ending in /.well-known/openid-configuration.",
)
OIDC_CLIENT_ID = _text("POSLENS_OIDC_CLIENT_ID", "for --login: client id from the provider.")
OIDC_CLIENT_SECRET = _text(
    "POSLENS_OIDC_CLIENT_SECRET", "for --login: client secret from the provider."
)
OIDC_REDIRECT_URI = _text(
    "POSLENS_OIDC_REDIRECT_URI",
    "for --login: redirect address after login, https://NAME/BASE-PATH/oauth2callback.",
)
COOKIE_SECRET = _text(
    "POSLENS_COOKIE_SECRET",
    "for --login: at least 32 random characters that sign login cookies.",
)

SETTINGS = tuple(value for value in globals().values() if isinstance(value, Setting))
"""All settings, in the order of their definitions."""
