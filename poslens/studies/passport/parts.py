"""The parts of a position passport: each asks one question of a model, over one data set, and says
what its answer does not show. No Streamlit here.

Nothing is computed here. A part reads what is stored; its jobs fill what is missing, under the
services of the pages that show more of the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import (
    SCORE_MARGIN,
    SHARE_MARGIN,
    change_in_words,
    judged,
)
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.evaluation.why_causes import CAUSES
from poslens.attribution.interventions.null_controls import (
    INDEX_MARGIN,
    QUERY_CONTROLS,
)
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.interventions.segments import (
    documents_of,
    require_vector,
    segments_method,
)
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.kinds.interventions import cause_key
from poslens.cache.kinds.rankings import fingerprint
from poslens.cache.shipped.preferences import verdict
from poslens.compute.provenance import of_controlled
from poslens.compute.runs import Job
from poslens.figures.curves import mean_curves
from poslens.figures.figure_base import quantity
from poslens.figures.needles import needle_heatmap
from poslens.studies.audit.study import AUDIT
from poslens.studies.audit.summary import store_of, tokens_read
from poslens.studies.cause import service as interventions
from poslens.studies.cause.figures import minus_null_curves
from poslens.studies.curves.words import too_few
from poslens.studies.debias import service as debiasing
from poslens.studies.debias.figures import front
from poslens.studies.needles import NEEDLE_STUDY
from poslens.studies.passport.subject import MAX_PAIRS, Item, Number, Part, Subject
from poslens.studies.positions.figures import ndcg_by_position
from poslens.studies.positions.study import POSITIONS
from poslens.studies.ranking import service as rankings
from poslens.studies.ranking.figures import evidence_bins
from poslens.studies.why.figures import causes_chart
from poslens.studies.why.study import WHY

NO_QUERIES = "This data set has no queries, so there are no pairs to attribute."

NEEDLE_LENGTHS, NEEDLE_DEPTHS = (256, 512), (0, 25, 50, 75, 100)
"""Tokens of the texts, and percent of them before the needle."""

SURE = 0.05
"""Probability by chance below which PSI counts as more than chance gives."""

NOT_YET = "Not computed yet."
UNDECIDED = "Too few documents to decide."


def curve_method(spec: RetrieverSpec) -> Method:
    """The method whose curve a passport shows: gradient saliency, or the first that fits."""
    fitting = [entry for entry in METHODS.values() if entry.fits(family_of(spec))]
    quick = [entry for entry in fitting if not entry.slow] or fitting
    return make_method(quick[0].name)


def parts(of: Subject, only: Collection[str] | None = None) -> list[Part]:
    """Every part, or those with the keys `only`, in the order of the card."""
    found = []
    for part, fill in _PARTS:
        if only is not None and part.key not in only:
            continue
        try:
            filled = fill(of, part)
        except UserError as reason:
            filled = replace(part, absent=str(reason))
        numbers = (replace(each, unit=each.unit or part.unit) for each in filled.numbers)
        found.append(replace(filled, numbers=tuple(numbers)))
    return found


def _attribution(of: Subject, part: Part) -> Part:
    """Attribution by position, and the query-free profile: computed here where there are no
    queries, and with them shown as far as it is stored (`_null` computes it)."""
    compute, spec, method = of.compute, of.spec, curve_method(of.spec)
    wanted = [(method, of.pairs, len(of.data.pairs))] if of.has_queries else []
    if _has_profile(spec):
        wanted.append((make_method("profile"), of.of_each, len(documents_of(of.data.pairs))))
    stored = [compute.attribution_job(spec, one, pairs, of.scope) for one, pairs, _ in wanted]
    if not wanted:
        raise UserError(NO_QUERIES)
    jobs = tuple(stored[:1])
    found = []
    for (one, pairs, total), job in zip(wanted, stored, strict=True):
        # Asking for a curve of nothing is an error, and of a few no data set's.
        if job.n_done() and not too_few(spec.name, job.n_done(), job.total):
            found.append(compute.curve(spec, one, pairs, of.data.name, of.words(pairs, total)))
    if not found:
        return replace(part, absent=_why(jobs), jobs=jobs)
    numbers = []
    for each in found:
        entry = METHODS[each.summary.curve.method.name]
        for key, name, value, form in (
            (
                "primacy_recency_index",
                "primacy-recency index (negative: primacy)",
                each.summary.primacy_recency_index,
                "+.3f",
            ),
            ("center_of_mass", "center of mass", each.summary.center_of_mass, ".3f"),
        ):
            if value is not None:
                numbers.append(Number(f"{entry.name}_{key}", f"{entry.title}, {name}", value, form))
    index = found[0].summary.primacy_recency_index
    known = tuple(each.provenance() for each in found)
    # All of one model: its lines are told apart by their methods.
    curves = [
        replace(each.summary.curve, model=METHODS[each.summary.curve.method.name].title)
        for each in found
    ]
    title = quantity(curves[0].method) if len(curves) == 1 else "1 = document's 99th percentile"
    entry = METHODS[wanted[0][0].name]
    return replace(
        part,
        limits=f"{verdict(wanted[0][0])} {part.limits} {entry.caveat}".strip(),
        finding=_leans(entry.title, index),
        numbers=tuple(numbers),
        draw=lambda style: mean_curves(curves, style, y_title=title, provenance=known),
        provenance=known,
        jobs=jobs,
    )


def _has_profile(spec: RetrieverSpec) -> bool:
    return METHODS["profile"].fits(family_of(spec))


def _null(of: Subject, part: Part) -> Part:
    """The same curve minus that of an unrelated query, and whether the query-free profile
    agrees."""
    compute, spec, method, kind = of.compute, of.spec, curve_method(of.spec), QUERY_CONTROLS[0]
    if not of.has_queries:
        raise UserError(NO_QUERIES)
    nulls = interventions.controls(kind, of.pairs, of.data.pairs)
    own = compute.attribution_job(spec, method, of.pairs, of.scope)
    null = compute.attribution_job(spec, method, nulls, f"{of.scope} minus {kind}")
    jobs: tuple[Job, ...] = (own, null)
    if _has_profile(spec):
        profile = make_method("profile")
        jobs += (compute.attribution_job(spec, profile, of.of_each, of.scope),)
    if too_few(spec.name, null.n_done(), len(nulls)) or not own.n_done():
        return replace(part, absent=_why(jobs), jobs=jobs)
    found = interventions.controlled(compute, spec, method, kind, of.pairs, of.data.pairs)
    known = of_controlled(
        compute.identify(spec), method, of.data.name, found, of.words(of.pairs, len(of.data.pairs))
    )
    numbers = [
        Number(key, name, value, form)
        for key, name, value, form in (
            (
                "index_minus_control",
                "primacy-recency index minus that of the control",
                found.index,
                "+.3f",
            ),
            (
                "distance",
                "distance from the control's curve (0: the same curve)",
                found.distance,
                ".3f",
            ),
        )
        if value is not None
    ]
    # Over what a passport computes itself, whatever else is stored.
    whole = {pair.pair_id for pair in of.pairs}
    both = [pair for pair in of.of_each if pair.pair_id in whole]
    agreed = interventions.query_controls_agree(compute, spec, method, both, of.data.pairs)
    if agreed is not None:
        numbers.append(
            Number(
                "controls_agree",
                "correlation of the control's mean curve with the query-free profile's",
                agreed,
                ".2f",
            )
        )
    return replace(
        part,
        finding=found.sentence,
        numbers=tuple(numbers),
        draw=lambda style: minus_null_curves([(spec.name, found)], method, style, known),
        provenance=(known,),
        jobs=jobs,
    )


def _relocation(of: Subject, part: Part) -> Part:
    """The score by position of the evidence."""
    what = relocation_method()
    if len(of.moved) < 2:
        raise UserError("Fewer than two pairs of this data set have evidence that can be moved.")
    usable, _ = movable(of.data.pairs)
    jobs = (interventions.job(of.compute, of.spec, what, of.moved, of.scope),)
    if too_few(of.spec.name, jobs[0].n_done(), len(of.moved)):
        return replace(part, absent=_why(jobs), jobs=jobs)
    found = interventions.data_set_cause(
        of.compute, of.spec, what, of.moved, of.data.name, of.words(of.moved, len(usable))
    )
    results = interventions.stored(of.compute, of.spec, what, of.moved).results
    items = tuple(
        Item(pair.pair_id, cause_key(pair).fingerprint, pair.document, difference)
        for pair in of.moved
        if (one := results.get(pair.pair_id)) is not None
        and (difference := one.last_minus_first) is not None
    )
    numbers = [
        Number(key, name, value, "+.4f", items=items if key == "last_minus_first" else ())
        for key, name, value in (
            (
                "last_minus_first",
                "score with the evidence in the last third minus first third (negative: primacy)",
                found.last_minus_first,
            ),
            ("lost", "score lost with the evidence past the context limit", found.lost),
        )
        if value is not None
    ]
    known = (found.provenance(),)
    curve = found.summary.curve
    return replace(
        part,
        finding=_moves(
            "The score",
            found.last_minus_first,
            "when the evidence moves from the first to the last third",
            "Evidence near the {} scores higher.",
            SCORE_MARGIN,
        ),
        numbers=tuple(numbers),
        draw=lambda style: mean_curves(
            [curve], style, y_title="Score minus the pair's mean over positions", provenance=known
        ),
        provenance=known,
        jobs=jobs,
    )


def _position_effect(of: Subject, part: Part) -> Part:
    """nDCG@10 by the position of the evidence, over the pairs that `_relocation` moves."""
    settings = POSITIONS.parameters.settings()
    corpus = POSITIONS.corpus(of.data, settings)
    n = len(movable(of.data.pairs)[0])
    corpus = replace(corpus, pairs=of.moved, selection=of.words(of.moved, n))
    (asked,) = POSITIONS.subjects(of.compute, of.spec, corpus, settings)
    jobs = (POSITIONS.job(of.compute, asked),)
    found = POSITIONS.summarize(of.compute, asked)
    if found is None:
        return replace(part, absent=_why(jobs), jobs=jobs)
    effect, known = found.effect, (POSITIONS.provenance(found),)
    numbers = [
        Number("first", "nDCG@10 with the evidence first", effect.first, ".3f"),
        Number("middle", "nDCG@10 with the evidence in the middle", effect.middle, ".3f"),
        Number("last", "nDCG@10 with the evidence last", effect.last, ".3f"),
        Number(
            "first_minus_last",
            "nDCG@10, evidence first minus last (positive: primacy)",
            effect.effect.difference,
            items=tuple(
                Item(
                    one.pair.pair_id,
                    f"{cause_key(one.pair).fingerprint}:{corpus.fingerprint}",
                    one.pair.document,
                    float(one.gains[0] - one.gains[-1]),
                )
                for one in found.queries
            ),
        ),
    ]
    if effect.psi is not None:
        numbers.append(Number("controlled_psi", "controlled PSI", effect.psi, ".3f"))
    return replace(
        part,
        finding=POSITIONS.verdict(found),
        numbers=tuple(numbers),
        draw=lambda style: ndcg_by_position([found], style, known),
        provenance=known,
        jobs=jobs,
    )


def _segments(of: Subject, part: Part) -> Part:
    """Segments' own vectors against the whole text's, in order and shuffled."""
    require_vector(of.spec)
    total = len(documents_of(of.data.pairs))
    wanted = {
        "in order": segments_method("segments"),
        "in random order": segments_method("shuffled"),
    }
    jobs = tuple(
        interventions.job(of.compute, of.spec, one, of.documents, of.scope)
        for one in wanted.values()
    )
    if any(too_few(of.spec.name, job.n_done(), len(of.documents)) for job in jobs):
        return replace(part, absent=_why(jobs), jobs=jobs)
    found = {
        name: interventions.data_set_cause(
            of.compute, of.spec, one, of.documents, of.data.name, of.words(of.documents, total)
        )
        for name, one in wanted.items()
    }
    known = tuple(one.provenance() for one in found.values())
    curves = [replace(one.summary.curve, model=f"segments {name}") for name, one in found.items()]
    numbers = tuple(
        Number(
            "segments" if name == "in order" else "shuffled",
            f"cosine, last minus first third, segments {name} (negative: primacy)",
            one.last_minus_first,
        )
        for name, one in found.items()
        if one.last_minus_first is not None
    )
    return replace(
        part,
        finding=_moves(
            "With the segments in random order, the similarity of a segment to the whole text",
            found["in random order"].last_minus_first,
            "from the first to the last third",
            "Content near the {} of a text weighs more in its vector.",
            SCORE_MARGIN,
        ),
        numbers=numbers,
        draw=lambda style: mean_curves(
            curves, style, y_title="Cosine to the whole text", provenance=known
        ),
        provenance=known,
        jobs=jobs,
    )


def _ranking(of: Subject, part: Part) -> Part:
    """nDCG@10 by position of the evidence, PSI with its mean under permutation."""
    setup = rankings.RankingSetup(rankings.collection_of(of.data))
    jobs = (rankings.job(of.compute, of.spec, setup),)
    debias = debiasing.debias_result(of.compute, of.spec, [], setup)
    if debias is None:
        return replace(part, absent=_why(jobs), jobs=jobs)
    plain = debias.plain
    own, profile = plain.quality, plain.ranked.evaluation.profile
    corpus, scores = fingerprint(setup.collection), plain.ranked.evaluation.per_query[NDCG]
    items = tuple(
        Item(query.query_id, corpus, query.document, float(score))
        for query, score in zip(setup.queries, scores, strict=True)
        if query.evidence is not None
    )
    numbers = [
        Number("ndcg_at_10", "nDCG@10", own.mean, ".3f", items=items),
        Number(
            "harmonic_mean",
            "harmonic mean of nDCG@10 over bins of evidence position",
            own.harmonic,
            ".3f",
        ),
    ]
    finding = "Too few positions have queries to compute PSI."
    if own.psi is not None and own.psi_under_permutation is not None and own.p is not None:
        note = f"mean under permutation {own.psi_under_permutation:.3f}, p = {own.p:.2g}"
        numbers.append(Number("psi", "PSI", Estimate(own.psi, n=own.n), ".3f", note))
        beyond = Estimate(own.psi - own.psi_under_permutation, n=own.n)
        numbers.append(
            Number("psi_minus_permutation", "PSI minus its mean under permutation", beyond)
        )
        finding = (
            f"PSI is {own.psi:.3f} ({note}). Rankings depend on the position of the evidence."
            if own.p < SURE
            else (
                f"PSI is {own.psi:.3f} ({note}). {own.n:,} queries are too few to distinguish this "
                "from the PSI of a model that ignores position."
            )
        )
    known = (plain.ranked.provenance(),)
    name = of.spec.name
    return replace(
        part,
        finding=finding,
        numbers=tuple(numbers),
        draw=None
        if profile is None
        else lambda style: evidence_bins({name: profile}, style, provenance=known),
        provenance=known,
        jobs=jobs,
    )


def _misses(of: Subject, part: Part) -> Part:
    """Share of wanted documents that are missed, and of the misses that have each cause."""
    if not of.has_queries:
        raise UserError(NO_QUERIES)
    settings = WHY.parameters.settings({"queries": MAX_PAIRS})
    (asked,) = WHY.subjects(of.compute, of.spec, WHY.corpus(of.data, settings), settings)
    jobs = (WHY.job(of.compute, asked),)
    found = WHY.summarize(of.compute, asked)
    if found is None:
        return replace(part, absent=_why(jobs), jobs=jobs)
    items = tuple(
        Item(name, item.corpus, item.document_id, float(found.explained[name].cause != "found"))
        for name, item in found.items.items()
    )
    shares = [("missed", "share of relevant documents not in the top 10", found.missed)]
    shares += [
        (cause.replace(" ", "_"), f'share of misses with the cause "{cause}"', found.share(cause))
        for cause in CAUSES
    ]
    known = (WHY.provenance(found),)
    return replace(
        part,
        finding=WHY.verdict(found),
        numbers=tuple(
            Number(key, name, share, ".3f", items=items)
            if key == "missed"
            else Number(key, name, share, ".3f", unit="misses")
            for key, name, share in shares
            if share is not None
        ),
        draw=lambda style: causes_chart([found], style, known),
        provenance=known,
        jobs=jobs,
    )


def _needles(of: Subject, part: Part) -> Part:
    """A sentence hidden at every depth, and asked for."""
    asked = NEEDLE_STUDY.parameters.settings({"lengths": NEEDLE_LENGTHS, "depths": NEEDLE_DEPTHS})
    corpus = NEEDLE_STUDY.corpus(of.data, asked)
    (grid,) = NEEDLE_STUDY.subjects(of.compute, of.spec, corpus, asked)
    jobs = (NEEDLE_STUDY.job(of.compute, grid),)
    found = NEEDLE_STUDY.summarize(of.compute, grid)
    if found is None:
        return replace(part, absent=_why(jobs), jobs=jobs)
    by_chance = f"chance level {1 / grid.n:.3f}"
    numbers = [
        Number(
            f"found_{length}",
            f"share of needles retrieved in texts of {length} tokens",
            value,
            ".3f",
            by_chance,
        )
        for length in found.grid.lengths
        if (value := found.grid.mean(length)) is not None
    ]
    difference = found.grid.last_minus_first
    if difference is not None:
        numbers.append(
            Number(
                "late_minus_early",
                "share of needles retrieved, last minus first third of the text (negative: "
                "primacy)",
                difference,
            )
        )
    known = (NEEDLE_STUDY.provenance(found),)
    return replace(
        part,
        finding=_moves(
            "The share of retrieved needles",
            difference,
            "from the first to the last third of the text",
            "Needles near the {} are easier to retrieve.",
            SHARE_MARGIN,
        ),
        numbers=tuple(numbers),
        draw=lambda style: needle_heatmap({of.spec.name: found.grid}, style, provenance=known),
        provenance=known,
        jobs=jobs,
    )


def _audit(of: Subject, part: Part) -> Part:
    """Where the model truncates, and which sentences its index does not retrieve: in the top 10, or
    first where the corpus has no more documents than that."""
    settings = AUDIT.parameters.settings()
    (index,) = AUDIT.subjects(of.compute, of.spec, AUDIT.corpus(of.data, settings), settings)
    if index.top >= len(store_of(of.compute, index.collection).keys):
        index = replace(index, top=1)
    jobs = (AUDIT.job(of.compute, index),)
    summary = AUDIT.summarize(of.compute, index)
    if summary is None:
        return replace(part, absent=_why(jobs), jobs=jobs)
    corpus = store_of(of.compute, index.collection).fingerprint
    items = tuple(
        Item(one.document_id, corpus, one.document_id, share)
        for one in summary.documents
        if (share := one.share("original", index.query_form, index.top)) is not None
    )
    numbers = [
        Number(key, name, value, form, items=items if key == "unretrieved" else ())
        for key, name, value, form in (
            ("unretrieved", "share of unretrieved sentences", summary.shares["original"], ".3f"),
            (
                "unretrieved_random_order",
                "share of unretrieved sentences, sentences in random order",
                summary.shares["random"],
                ".3f",
            ),
            (
                "unretrieved_truncated",
                "share of unretrieved sentences among those not read whole",
                summary.share_among(read=False),
                ".3f",
            ),
            (
                "last_minus_first_random_order",
                "last minus first third, sentences in random order (positive: primacy)",
                summary.last_minus_first["random"],
                "+.3f",
            ),
        )
        if value is not None
    ]
    if summary.truncations:
        read = Estimate(tokens_read(summary.truncations), n=len(summary.truncations))
        numbers.append(
            Number(
                "tokens_read",
                "tokens that the model reads of the longest texts",
                read,
                ",.0f",
                unit="texts",
            )
        )
    known = (AUDIT.provenance(summary),)
    return replace(
        part,
        finding=AUDIT.verdict(summary),
        numbers=tuple(numbers),
        draw=lambda style: AUDIT.figures[0].draw([summary], style, known),
        provenance=known,
        jobs=jobs,
    )


def _calibration(of: Subject, part: Part) -> Part:
    """What attention calibration changes, and whether it is recommended."""
    points = debiasing.grid(of.spec)
    setup = rankings.RankingSetup(rankings.collection_of(of.data))
    jobs = (debiasing.job(of.compute, of.spec, points, setup),)
    found = debiasing.debias_result(of.compute, of.spec, points, setup)
    if found is None or found.missing:
        return replace(part, absent=_why(jobs), jobs=jobs)
    judged = found.judgement
    numbers = []
    if judged is not None and judged.change is not None:
        for key, name, value in (
            ("ndcg_at_10_change", "change of nDCG@10", judged.change.mean),
            (
                "harmonic_mean_change",
                "change of the harmonic mean of nDCG@10 over positions",
                judged.change.harmonic,
            ),
            ("psi_change", "change of PSI", judged.change.psi),
        ):
            if value is not None:
                numbers.append(
                    Number(
                        key,
                        f"{judged.point.name}, {name}",
                        value.difference,
                        note=value.clause,
                    )
                )
    known = tuple(found.provenance())
    return replace(
        part,
        finding=debiasing.verdict(found),
        numbers=tuple(numbers),
        draw=lambda style: front(found, "harmonic", style, provenance=known),
        provenance=known,
        jobs=jobs,
    )


def _why(jobs: Sequence[Job]) -> str:
    """Why a part has no numbers yet: what went wrong, if anything did."""
    return next((job.error for job in jobs if job.error), NOT_YET)


def _leans(what: str, index: Estimate | None) -> str:
    if index is None:
        return f"{what}: the curve has no primacy-recency index."
    verdict = judged(index, INDEX_MARGIN)
    side = {"higher": "end", "lower": "beginning"}.get(verdict)
    meaning = (
        f"Attribution is concentrated near the {side} of the tokens read."
        if side is not None
        else f"Equivalent to 0 within the margin of {INDEX_MARGIN}."
        if verdict == "equivalent"
        else UNDECIDED
    )
    return f"{what}: the primacy-recency index is {index.text('+.3f')}. {meaning}"


def _moves(what: str, difference: Estimate | None, where: str, meaning: str, margin: float) -> str:
    """A change, its interval, and `meaning` of the side that is higher."""
    if difference is None or difference.interval is None:
        return "Too few documents to decide whether position matters."
    verdict = judged(difference, margin)
    side = {"higher": "end", "lower": "beginning"}.get(verdict)
    follows = (
        meaning.format(side)
        if side is not None
        else f"Equivalent within the margin of {margin:g}."
        if verdict == "equivalent"
        else UNDECIDED
    )
    return f"{what} {change_in_words(difference)} {where}. {follows}"


_PARTS: tuple[tuple[Part, Callable[[Subject, Part], Part]], ...] = (
    (
        Part(
            "attribution",
            "Attribution by position",
            "Attribution isn't causation; see the effect of moving the evidence, below.",
            "pairs",
        ),
        _attribution,
    ),
    (
        Part(
            "null_control",
            "Dependence on the query",
            "The unrelated query comes from the same data set, so what the two queries share is "
            "subtracted too.",
            "pairs",
        ),
        _null,
    ),
    (
        Part(
            "relocation",
            "Effect of the evidence's position on the score",
            "Moving evidence removes it from its context. The first and last "
            "third include only positions where the model reads the evidence whole.",
            "pairs",
        ),
        _relocation,
    ),
    (
        Part(
            "position_effect",
            "Effect of the evidence's position on rank",
            "Moving a sentence may break references between sentences. The document with the moved "
            "evidence counts as the only relevant one.",
            "queries",
        ),
        _position_effect,
    ),
    (
        Part(
            "segments",
            "Weight of each position in the document vector",
            "Segments are consecutive parts of a text of about equal length. This compares vectors "
            "only and doesn't show the ranking of any query.",
            "documents",
        ),
        _segments,
    ),
    (
        Part(
            "ranking",
            "Ranking by position of the evidence",
            "The queries of one position are not those of another, and may be harder.",
            "queries",
        ),
        _ranking,
    ),
    (
        Part(
            "misses",
            "Causes of missed documents",
            "PosLens tries changes in a fixed order. The cause is named after the first that "
            'brings the document into the top 10, although later changes may do so too; "no match" '
            "means that none does.",
            "pairs",
        ),
        _misses,
    ),
    (
        Part(
            "needles",
            "Retrieval of a hidden sentence",
            "A needle is a generated sentence hidden in unrelated text and then searched for; real "
            "answers are part of their text.",
            "needles",
        ),
        _needles,
    ),
    (
        Part(
            "audit",
            "Truncation and unretrieved sentences",
            "The queries are the documents' own sentences; users phrase theirs differently.",
            "documents",
        ),
        _audit,
    ),
    (
        Part(
            "calibration",
            "Effect of attention calibration",
            "The setting is selected on one half of the data set and evaluated on the other half; "
            "on another data set, another setting may be better.",
            "queries",
        ),
        _calibration,
    ),
)

KEYS = tuple(part.key for part, _ in _PARTS)
"""What the parts are called."""
