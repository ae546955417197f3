"""What the line over a heatmap's column says of one result."""

from __future__ import annotations

from poslens.attribution.curves.positions import evidence_share
from poslens.attribution.retrievers import limits
from poslens.compute import coverage
from poslens.compute.compute import Explained, service
from poslens.heatmap import Fact, Head


def head(result: Explained) -> Head:
    """Score, share of the evidence, what was read of the document, and what to beware of."""
    facts = [*_evidence(result), _read(result), *_rest(result)]
    if result.notice:
        facts.append(Fact(result.notice, warning=True))
    return Head(f"{result.attribution.score:.4f}", tuple(facts))


def _evidence(result: Explained) -> list[Fact]:
    span = result.pair.evidence
    if span is None:
        return []
    share = evidence_share(result.attribution, span)
    if share is None:
        return [Fact("evidence not read", "The model read none of the evidence.", warning=True)]
    return [
        Fact(
            f"in the evidence {share.share:.1%}, {share.enrichment:.2f} times an even share",
            f"Share of the attribution inside the evidence. The evidence is "
            f"{share.token_share:.1%} of the tokens, so an even spread would give it as much.",
        )
    ]


def _read(result: Explained) -> Fact:
    document = result.attribution.document
    read = int(document.content.sum())
    reading = coverage.pair_sentence(coverage.of_pair(service(), result))
    checked = service().self_check(result.model)
    more = [reading, checked.sentence() if checked else ""]
    if limits.unknown(result.model.spec):
        more.insert(0, "An endpoint truncates where it likes: the Audit page measures where.")
        return Fact(f"sent all {read:,} words, read: unknown", " ".join(filter(None, more)))
    if document.truncated:
        said = f"read {read:,} of {document.n_tokens_full:,} tokens"
        apart = limits.configured_apart(result.model.spec)
        own = f"; its configuration truncates at {apart:,}" if apart else ""
        more.insert(0, f"Its limit is {document.max_length:,} with special tokens{own}.")
    else:
        said = f"read all {read:,} tokens"
    return Fact(said, " ".join(filter(None, more)), warning=document.truncated or bool(reading))


def _rest(result: Explained) -> list[Fact]:
    """What no token carries and what is missing from the sum, of methods that claim one; how sure
    the numbers are, of those that draw at random."""
    found = result.attribution
    if found.standard_error is not None:
        return [
            Fact(
                f"± {found.standard_error:.1%}",
                "Standard error of a token's number over the random draws of the method, averaged "
                "over the document's tokens, in parts of their mean.",
            )
        ]
    if found.bias_share is None or found.completeness_error is None:
        return []
    return [
        Fact(
            f"bias share {found.bias_share:+.4f}",
            "What no token carries: the constants' share (decomposition) or the score of the "
            "padding baseline (integrated gradients).",
        ),
        Fact(
            f"completeness error {found.completeness_error:+.1e}",
            "Score minus the sum of the tokens' shares minus the bias share.",
        ),
    ]
