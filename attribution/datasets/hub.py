"""Data sets of the Hugging Face hub, named `hf:organisation/name` by who starts the program."""

from __future__ import annotations

import re
from pathlib import Path

from poslens.attribution.datasets.sources import Source, register
from poslens.attribution.errors import UserError

PREFIX = "hf:"

# Tables and lines of text, packed or not; no code, no archives and no pickles are fetched.
_FILES = [f"*.{ending}{gz}" for ending in ("parquet", "jsonl", "csv", "tsv") for gz in ("", ".gz")]


def fetch(source: str) -> Path:
    """The folder of a data set's files, fetched if they are not in the hub's own cache.

    Raises:
        UserError: not an id, no such data set, or the hub cannot be reached.
    """
    name = source.removeprefix(PREFIX)
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", name, re.ASCII):
        raise UserError(f"{source[:80]!r} is not hf:ORGANIZATION/NAME: use the id of a data set.")
    # Imported late: it takes a second that no other format needs.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        folder = snapshot_download(name, repo_type="dataset", allow_patterns=_FILES, etag_timeout=5)
    except RepositoryNotFoundError as error:
        raise UserError(
            f"The hub has no data set {name}, or it is not public: check its id."
        ) from error
    except HFValidationError as error:
        raise UserError(f"{name} is not a valid hub id: check it.") from error
    # What a broken connection raises depends on the hub library's own HTTP client.
    except Exception as error:
        raise UserError(
            f"The hub can't be reached to download {name}: download it on a machine with network "
            "access and use its folder instead."
        ) from error
    return Path(folder)


register(Source(PREFIX, fetch, lambda name: name.rpartition("/")[2] or name))
