"""Every setting of the program: one table of name, default, limits and help."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from poslens.attribution.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A setting, read from the environment variable `name`."""

    name: str
    default: T
    read: Callable[[str], T]
    help: str

    def get(self) -> T:
        """The value in force.

        Raises:
            UserError: the environment holds a value that this setting does not take.
        """
        raw = os.environ.get(self.name)
        if raw is None or raw == "":
            return self.default
        try:
            return self.read(raw)
        except ValueError as error:
            raise UserError(f"{self.name}={raw!r} cannot be used: {self.help}") from error


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(raw: str) -> float:
        value = float(raw)
        if not low <= value <= high:
            raise ValueError(raw)
        return value

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(raw: str) -> int:
        value = int(raw)
        if not low <= value <= high:
            raise ValueError(raw)
        return value

    return read


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if raw not in choices:
            raise ValueError(raw)
        return raw

    return read


DEVICE = Setting("POSLENS_DEVICE", "auto", str, "auto, cpu, cuda, cuda:N or mps.")
PRECISION = Setting(
    "POSLENS_PRECISION",
    "auto",
    _one_of("auto", "float32", "bfloat16", "float16"),
    "auto, float32, bfloat16 or float16; auto is float32, but bfloat16 for models above 2 GB on a "
    "GPU.",
)
MODEL_MEMORY_GB = Setting(
    "POSLENS_MODEL_MEMORY_GB",
    0.0,
    _number(0, 4096),
    "gigabytes of weights kept loaded, 0 to 4096; 0 is 40% of the device's memory. The least "
    "recently used models go first.",
)
HOME = Setting(
    "POSLENS_HOME",
    "",
    str,
    "folder of the cache, of models fetched from the package index and of data sets of ir_datasets "
    "and mteb; empty is poslens in the user's data folder (~/.local/share).",
)
ALLOW_CODE = Setting(
    "POSLENS_ALLOW_CODE",
    "",
    str,
    "names of models, separated by commas, that may run the code of their repositories; empty is "
    "none.",
)
QUEUE_LIMIT = Setting(
    "POSLENS_QUEUE_LIMIT",
    32,
    _whole(1, 10_000),
    "requests of pages that may wait for the device, 1 to 10000; the next one is refused at once.",
)

KEEP_OWN_TEXTS = Setting(
    "POSLENS_KEEP_OWN_TEXTS",
    "no",
    _one_of("no", "yes"),
    "no or yes: whether results of uploaded and typed texts go into everybody's cache.",
)
SHIPPED = Setting(
    "POSLENS_SHIPPED",
    "yes",
    _one_of("yes", "no"),
    "yes or no: whether the results that ship with PosLens are shown where the cache has none.",
)
RUN_LIMIT = Setting(
    "POSLENS_RUN_LIMIT",
    32,
    _whole(2, 1000),
    "runs over data sets that may go on at a time, all readers together, 2 to 1000.",
)
UPKEEP = Setting(
    "POSLENS_UPKEEP",
    "auto",
    _one_of("auto", "yes", "no"),
    "auto, yes or no: whether readers may delete from, import into and compact the cache and fetch "
    "models; auto lets those whose browser runs on this machine, yes everybody, no nobody.",
)
FETCH_LIMIT_GB = Setting(
    "POSLENS_FETCH_LIMIT_GB",
    5.0,
    _number(0, 4096),
    "gigabytes of a model that a page may fetch, 0 to 4096; 0 is none. The command line has no "
    "limit.",
)
RUNS_EACH = Setting(
    "POSLENS_RUNS_EACH",
    16,
    _whole(1, 1000),
    "runs over data sets that one reader may have at work at a time, 1 to 1000: one person where "
    "people log in, else one browser tab.",
)
REQUESTS_EACH = Setting(
    "POSLENS_REQUESTS_EACH",
    8,
    _whole(1, 10_000),
    "requests of pages that one reader may have waiting for the device, 1 to 10000.",
)
PEOPLE = Setting(
    "POSLENS_PEOPLE",
    "",
    str,
    "who may come in of those who can log in, separated by commas: e-mail addresses, @example.org "
    "for all of a domain, or names as the proxy sends them; empty is all of them.",
)
SECRETS = Setting(
    "POSLENS_SECRETS",
    "",
    str,
    "file with what a login needs, in Streamlit's secrets.toml format; empty is "
    "~/.streamlit/secrets.toml.",
)
OIDC_METADATA_URL = Setting(
    "POSLENS_OIDC_METADATA_URL",
    "",
    str,
    "for --login: where the provider describes itself (ends in /.well-known/openid-configuration).",
)
OIDC_CLIENT_ID = Setting(
    "POSLENS_OIDC_CLIENT_ID", "", str, "for --login: what the provider calls this PosLens."
)
OIDC_CLIENT_SECRET = Setting(
    "POSLENS_OIDC_CLIENT_SECRET", "", str, "for --login: the provider's secret with this PosLens."
)
OIDC_REDIRECT_URI = Setting(
    "POSLENS_OIDC_REDIRECT_URI",
    "",
    str,
    "for --login: the address that the provider sends people back to, "
    "https://NAME/BASE-PATH/oauth2callback.",
)
COOKIE_SECRET = Setting(
    "POSLENS_COOKIE_SECRET",
    "",
    str,
    "for --login: at least 32 random characters, which sign who is logged in.",
)

SETTINGS: tuple[Setting[Any], ...] = (
    DEVICE,
    PRECISION,
    MODEL_MEMORY_GB,
    HOME,
    ALLOW_CODE,
    QUEUE_LIMIT,
    RUN_LIMIT,
    KEEP_OWN_TEXTS,
    SHIPPED,
    UPKEEP,
    FETCH_LIMIT_GB,
    RUNS_EACH,
    REQUESTS_EACH,
    PEOPLE,
    SECRETS,
    OIDC_METADATA_URL,
    OIDC_CLIENT_ID,
    OIDC_CLIENT_SECRET,
    OIDC_REDIRECT_URI,
    COOKIE_SECRET,
)
