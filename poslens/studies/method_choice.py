"""The methods that a study measures, as a parameter, and those that fit a model."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.compute.compute import Compute
from poslens.parameters import Several

METHOD_CHOICE = Several(
    title="Methods",
    option="--method",
    default=(),
    options=tuple(METHODS),
    closed=True,
    help="Repeatable; by default all that fit the model and are not slow.",
)


def methods_for(compute: Compute, spec: RetrieverSpec, names: Sequence[str]) -> list[Method]:
    """The methods with these names, if any of them fits the model; without names, all that fit and
    are not slow.

    Raises:
        UserError: no method fits.
    """
    unfit = compute.unfit(compute.identify(spec))
    fast = [name for name, entry in METHODS.items() if not entry.slow]
    fitting = [name for name in names or fast if name not in unfit]
    if not fitting:
        reasons = dict.fromkeys(unfit[name].rstrip(".") for name in names or fast)
        raise UserError(f"{spec.name} fits none of these methods: {'; '.join(reasons)}.")
    return [make_method(name) for name in names or fitting]
