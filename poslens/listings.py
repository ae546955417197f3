"""Tables of the models, methods and data sets known by name."""

from __future__ import annotations

import pandas as pd

from poslens.attribution import datasets as known_datasets
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.detect import families_with


def models() -> pd.DataFrame:
    """A table of the models known by name: installed or not, family, pooling, context limit,
    license."""
    return pd.DataFrame(
        [
            {
                "name": spec.name,
                "installed": resolve.installed(spec),
                "family": spec.family,
                "pooling": spec.pooling or "",
                "max_length": spec.max_length,
                "license": spec.terms,
                "title": spec.title,
            }
            for spec in resolve.known().values()
        ]
    )


def methods() -> pd.DataFrame:
    """A table of the attribution methods, the model families they support, and their parameters."""
    return pd.DataFrame(
        [
            {
                "name": entry.name,
                "title": entry.title,
                "families": ", ".join(family.name for family in families_with(entry.needs)),
                "parameters": {option.name: option.choices for option in entry.parameters},
                "help": entry.help,
                "caveat": entry.caveat,
            }
            for entry in METHODS.values()
        ]
    )


def datasets() -> pd.DataFrame:
    """A table of the data sets known by name; if one cannot be read, its title is the reason."""
    rows = []
    for name in known_datasets.names():
        known_datasets.reload_if_changed(name)
        try:
            data = known_datasets.read(name)
            rows.append({"name": name, "title": data.title, "pairs": len(data.pairs)})
        except UserError as reason:
            rows.append({"name": name, "title": str(reason), "pairs": 0})
    return pd.DataFrame(rows)
