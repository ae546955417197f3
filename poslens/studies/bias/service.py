"""Bias tests of several models: scored in runs of their own and kept. No Streamlit here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_pairs import BiasPairs
from poslens.attribution.evaluation.bias_tests import (
    TESTS,
    BiasResult,
    DocumentPair,
    PairScores,
    adjusted,
    paired_test,
)
from poslens.attribution.evaluation.contrast import Contrast, contrast
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance, TextPair
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds import bias as bias_scores
from poslens.cache.kinds.bias import BIAS_SCORES
from poslens.cache.storage.results import Stored
from poslens.compute import provenance
from poslens.compute.compute import Compute, Explained, run_key
from poslens.compute.provenance import ModelIdentity
from poslens.compute.runs import Job, Report, Run
from poslens.studies.bias.answers import BiasRow

NOTHING = 1e-4
"""Shares of the query below this share of the score are rounding, and not shown."""

UNREADABLE = "A model cannot read one of the two documents."


@dataclass(frozen=True, slots=True)
class Tested:
    """One model's result of one test, with the pairs and scores it stands on.

    `missing` pairs have no score yet; `failed` ones cannot be scored, by reason. `adjusted_p` is
    Holm's over all results shown together, None where there is no p.
    """

    model: ModelIdentity
    pairs: BiasPairs
    result: BiasResult
    scores: dict[str, PairScores]
    missing: int
    failed: dict[str, str]
    adjusted_p: float | None = None


def provenance_of(results: Sequence[Tested]) -> Provenance:
    """Everything needed to compute one model's results again."""
    first = results[0]
    return provenance.of_bias(
        first.model,
        BIAS_SCORES,
        [one.result for one in results],
        first.pairs.pairs[0].first.dataset,
        "; ".join(dict.fromkeys(one.pairs.source for one in results)),
    )


def distinct(pairs: BiasPairs) -> list[DocumentPair]:
    """The pairs whose documents differ: the others are counted and not scored."""
    return [pair for pair in pairs.pairs if not pair.identical]


def documents(tests: Sequence[BiasPairs]) -> list[TextPair]:
    """Both documents of every pair, each with its query."""
    return [one for test in tests for pair in test.pairs for one in (pair.first, pair.second)]


def narrowed(
    tests: Sequence[BiasPairs], kept: Sequence[TextPair], selection: str
) -> list[BiasPairs]:
    """The tests over the pairs both of whose documents are among `kept`; `selection` says in words
    which these are. How many went is said under `rejected`; a test may be left without pairs."""
    ids, found = {one.pair_id for one in kept}, []
    for test in tests:
        pairs = tuple(p for p in test.pairs if {p.first.pair_id, p.second.pair_id} <= ids)
        rejected = dict(test.rejected)
        if len(pairs) < len(test.pairs):
            rejected[UNREADABLE] = len(test.pairs) - len(pairs)
        found.append(BiasPairs(test.test, pairs, f"{test.source}; {selection}", rejected))
    return found


def _items(tests: Sequence[BiasPairs]) -> list[DocumentPair]:
    return [pair for pairs in tests for pair in distinct(pairs)]


def job(compute: Compute, spec: RetrieverSpec, tests: Sequence[BiasPairs], scope: str) -> Job:
    """Score the pairs of all `tests`."""
    model, items = compute.identify(spec), _items(tests)

    def work(run: Run, report: Report) -> Progress:
        return bias_scores.run(
            compute.retriever(model),
            model.key,
            items,
            bias_scores.store(compute.root),
            options=compute.run_options(spec, run, report),
        )

    def n_done() -> int:
        missing = bias_scores.store(compute.root).missing(model.key, BIAS_SCORES, items)
        return len(items) - len(missing)

    key = run_key(model, BIAS_SCORES, scope)
    return compute.job(
        key,
        spec.name,
        len(items),
        work,
        doing="bias tests",
        n_done=n_done,
        sending=compute.sending(spec, lambda other: job(other, spec, tests, scope)),
    )


def tested(compute: Compute, spec: RetrieverSpec, tests: Sequence[BiasPairs]) -> list[Tested]:
    """Each test on what is stored of its pairs; computes no score."""
    model = compute.identify(spec)
    stored = bias_scores.store(compute.root).select(model.key, BIAS_SCORES, _items(tests))
    return [_tested(model, pairs, stored) for pairs in tests]


def _tested(model: ModelIdentity, pairs: BiasPairs, stored: Stored[PairScores]) -> Tested:
    items = distinct(pairs)
    scores = {i.item_id: stored.results[i.item_id] for i in items if i.item_id in stored.results}
    failed = {i.item_id: stored.failed[i.item_id] for i in items if i.item_id in stored.failed}
    groups = [item.group for item in items if item.item_id in scores]
    result = paired_test(
        pairs.test, list(scores.values()), len(pairs.pairs) - len(items), groups=groups
    )
    return Tested(model, pairs, result, scores, len(items) - len(scores) - len(failed), failed)


def fitting(compute: Compute, spec: RetrieverSpec) -> list[str]:
    """Methods that fit a model, those with a contrast first."""
    unfit = compute.unfit(compute.identify(spec))
    fit = [entry for name, entry in METHODS.items() if name not in unfit]
    # Shares that are terms of the score itself come before those of a gradient.
    fit.sort(key=lambda entry: (not entry.additive, entry.uses_gradients, entry.order))
    return [entry.name for entry in fit]


def with_adjusted_p(results: Sequence[Tested]) -> list[Tested]:
    """The results with Holm's p over all of them."""
    found = adjusted([one.result for one in results])
    return [replace(one, adjusted_p=p) for one, p in zip(results, found, strict=True)]


def test_frame(results: Sequence[Tested]) -> pd.DataFrame:
    """A row for each model and test: what `BiasResult` holds, Holm's p, and what remarks say."""
    rows: list[BiasRow] = []
    for one in results:
        found, test = one.result, TESTS[one.result.test]
        rows.append(
            {
                "model": one.model.spec.name,
                "test": found.test,
                "n": found.n,
                "documents": found.n_documents,
                "t": found.t,
                "p": found.p,
                "p (Holm)": one.adjusted_p,
                "mean difference": found.difference,
                "low": found.low,
                "high": found.high,
                "d_z": found.effect_size,
                "d1 preferred": found.share_first,
                "resistance (mteb)": found.resistance,
                "mteb prefers": test.mteb_prefers,
                "mean s(d1)": found.mean_first,
                "mean s(d2)": found.mean_second,
                "identical": found.n_identical,
                "truncated": found.n_truncated,
                "evidence not read whole": found.n_unread,
                "mean difference there": found.lost,
                "failed": len(one.failed),
                "missing": one.missing,
                "t > 0 means": test.positive,
                "pairs": one.pairs.source,
                "remarks": " ".join(found.remarks),
            }
        )
    return pd.DataFrame(rows)


def remarks(results: Sequence[Tested]) -> dict[str, list[str]]:
    """Each sentence that some results need, with the results it is about; nothing of those whose
    pairs are not all scored yet."""
    found: dict[str, list[str]] = {}
    for one in results:
        if one.missing:
            continue
        label = f"{one.model.spec.name}, {TESTS[one.result.test].title.lower()}"
        for sentence in one.result.remarks:
            found.setdefault(sentence, []).append(label)
        for sentence in dict.fromkeys(one.failed.values()):
            found.setdefault(sentence, []).append(label)
    return found


def pair_frame(one: Tested) -> pd.DataFrame:
    """A row for each scored pair, the largest difference first."""
    rows = [
        {
            "difference": scores.first - scores.second,
            "s(d1)": scores.first,
            "s(d2)": scores.second,
            "evidence read": None if limits.unknown(one.model.spec) else scores.read,
            "query": pair.first.query,
            "d1": pair.first.document,
            "d2": pair.second.document,
            "pair": pair.item_id,
        }
        for pair in one.pairs.pairs
        if (scores := one.scores.get(pair.item_id)) is not None
    ]
    columns = ["difference", "s(d1)", "s(d2)", "evidence read", "query", "d1", "d2", "pair"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values("difference", ascending=False, ignore_index=True, kind="stable")


@dataclass(frozen=True, slots=True)
class Contrasted:
    """Both documents of a pair under one method. Without `contrast` they stand beside each other
    as they are, and `reason` says why."""

    first: Explained
    second: Explained
    contrast: Contrast | None
    reason: str = ""

    def shown(self) -> list[Explained]:
        """Both results with the shares that are drawn: d2's negated in a contrast."""
        found = self.contrast
        pair = (
            (found.first, found.second)
            if found
            else (
                self.first.attribution,
                self.second.attribution,
            )
        )
        return [
            replace(one, attribution=replace(attribution, model=label, matrix=None))
            for one, attribution, label in zip(
                (self.first, self.second), pair, ("d1", "d2"), strict=True
            )
        ]

    def provenance(self) -> list[Provenance]:
        """Of both documents as they are drawn."""
        first, second = self.first.provenance(), self.second.provenance()
        return [first, second if self.contrast is None else provenance.negated(second)]


def contrast_note(found: Contrast) -> str:
    """What the two documents' shares add up to, in words."""
    scale = max(abs(found.first.score), abs(found.second.score))
    query = (
        f", query tokens {found.query:+.4f}"
        if abs(found.query) > NOTHING * scale
        else ("; the query's tokens share the same difference among themselves")
    )
    return (
        "d1 carries its shares as they are, d2 its shares negated, in one colour range: together "
        f"{found.tokens:+.4f} of the difference {found.difference:+.4f}. The bias shares are "
        f"{found.bias:+.4f}, the completeness error {found.error:+.1e}{query}."
    )


def contrasted(first: Explained, second: Explained) -> Contrasted:
    """The contrast s(q, d1) - s(q, d2) by tokens, of both documents' attributions."""
    try:
        return Contrasted(first, second, contrast(first.attribution, second.attribution))
    except UserError as reason:
        return Contrasted(first, second, None, str(reason))
