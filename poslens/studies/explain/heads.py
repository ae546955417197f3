"""The header line above one model's column of a heatmap."""

from __future__ import annotations

from poslens.attribution.curves.positions import evidence_share
from poslens.attribution.retrievers import limits
from poslens.compute import coverage
from poslens.compute.compute import Explained, service
from poslens.heatmap.data import Fact, Head


def head(result: Explained) -> Head:
    """The header of a result: score, share of the evidence, share of the document that was read,
    and caveats."""
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
        return [
            Fact(
                "evidence truncated",
                "The evidence is past the model's context limit.",
                warning=True,
            )
        ]
    return [
        Fact(
            f"{share.share:.1%} falls on the evidence, "
            f"{share.enrichment:.2f} times its share of tokens",
            f"Share of the attribution in the evidence. The evidence has {share.token_share:.1%} "
            "of the tokens, so a uniform attribution would give it that share.",
        )
    ]


def _read(result: Explained) -> Fact:
    document = result.attribution.document
    read = int(document.content.sum())
    reading = coverage.pair_sentence(coverage.of_pair(service(), result))
    checked = service().self_check(result.model)
    more = [reading, checked.sentence() if checked else ""]
    if limits.unknown(result.model.spec):
        more.insert(0, "The endpoint's context limit is unknown. The Audit page measures it.")
        return Fact(f"sent all {read:,} words; context limit unknown", " ".join(filter(None, more)))
    if document.truncated:
        text = f"reads {read:,} of {document.n_tokens_full:,} tokens"
        apart = limits.configured_apart(result.model.spec)
        own = f"; its own configuration truncates at {apart:,}" if apart else ""
        limit = f"{document.max_length:,} tokens, including special tokens"
        more.insert(0, f"The context limit is {limit}{own}.")
    else:
        text = f"reads all {read:,} tokens"
    return Fact(text, " ".join(filter(None, more)), warning=document.truncated or bool(reading))


def _rest(result: Explained) -> list[Fact]:
    """For methods whose attributions sum to the score, the share outside of tokens and the error of
    the sum; for methods with random draws, the standard error."""
    attribution = result.attribution
    if attribution.standard_error is not None:
        return [
            Fact(
                f"± {attribution.standard_error:.1%}",
                "Standard error of a token's attribution over the method's random draws: the "
                "mean over the document's tokens, relative to their mean attribution.",
            )
        ]
    if attribution.bias_share is None or attribution.completeness_error is None:
        return []
    return [
        Fact(
            f"bias share {attribution.bias_share:+z.4f}",
            "Part of the score that isn't attributed to any token: the constants' share "
            "(decomposition) or the score of the padding baseline (integrated gradients).",
        ),
        Fact(
            f"completeness error {attribution.completeness_error:+z.1e}",
            "Score minus the sum of the token attributions minus the bias share.",
        ),
    ]
