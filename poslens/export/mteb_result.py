"""Results as a JSON object that MTEB's tools read (`mteb.results.TaskResult`, Muennighoff et al.
2023)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from poslens.compute.provenance import poslens_version

# Scripts (ISO 15924) other than Latin, with the languages of `attribution.datasets.languages` that
# are written in them.
_SCRIPTS = {
    "Arab": ("ara", "fas", "urd"),
    "Beng": ("ben",),
    "Cyrl": ("bul", "rus", "srp", "ukr"),
    "Deva": ("hin",),
    "Grek": ("ell",),
    "Hans": ("cmn", "zho"),
    "Hebr": ("heb",),
    "Jpan": ("jpn",),
    "Kore": ("kor",),
    "Telu": ("tel",),
    "Thai": ("tha",),
}
_SCRIPT_OF = {language: script for script, languages in _SCRIPTS.items() for language in languages}


def mteb_result(
    task: str,
    revision: str,
    main_score: str,
    scores: Mapping[str, float],
    languages: Iterable[str | None],
    seconds: float,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The result of one model on one task, with the fields of MTEB's `TaskResult`.

    `revision` identifies the task's texts; `scores` are measures by name (measures that are not
    finite are omitted), and `main_score` is the one that leaderboards sort by; `languages` are ISO
    639-3 codes, None if unknown; `seconds` is the evaluation time. `about` and the version of
    PosLens are added to the scores. `mteb_version` is null, because MTEB did not compute them.
    """
    stated = sorted({language for language in languages if language})
    entry = {
        "main_score": scores[main_score],
        **{name: value for name, value in scores.items() if math.isfinite(value)},
        "hf_subset": "default",
        "languages": [f"{language}-{_SCRIPT_OF.get(language, 'Latn')}" for language in stated],
        "poslens_version": poslens_version(),
        **about,
    }
    return {
        "dataset_revision": revision,
        "task_name": task,
        "mteb_version": None,
        "scores": {"test": [entry]},
        "evaluation_time": seconds,
        "kg_co2_emissions": None,
        "date": datetime.now(UTC).timestamp(),
    }
