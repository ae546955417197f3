"""The declaration of the study `positions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poslens.arguments import chosen_pairs
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison, adjusted_fields
from poslens.attribution.evaluation.comparison_words import change_in_words
from poslens.attribution.evaluation.position_effect import (
    MARGIN,
    null_pair,
    position_effect,
    position_ranks_method,
)
from poslens.attribution.interventions.relocation import (
    N_POSITIONS,
    relocation_method,
    require_movable,
)
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.kinds.interventions import causes, position_ranks
from poslens.cache.kinds.rankings import fingerprint
from poslens.compute.compute import Compute
from poslens.compute.item_job import stored_job
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job
from poslens.paired import MeasuredModel
from poslens.parameters import Integer, Parameters, Settings, Switch
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.positions.run import run_positions
from poslens.studies.positions.summary import (
    TABLES,
    Moved,
    PositionSummary,
    RankedQueries,
    band_words,
    ndcg_by_position,
    no_effect,
    ranked_queries,
)
from poslens.studies.ranking.service import collection_of
from poslens.studies.why.search import require_ranking
from poslens.study import Asked, Figure, Study, register
from poslens.study_part import CONSTANT, MOVABLE, ONE_SIDED, Number, StudyPart, moved_pairs, number


def _change(effect: Comparison, moved: str, order_blind: bool) -> str:
    """How nDCG@10 changes if the verdict is that it does or cannot; otherwise only the difference,
    because any change may be due to chance."""
    if order_blind or effect.verdict in ("higher", "lower"):
        change = change_in_words(effect.difference.times(-1))
        return f"nDCG@10 {change} when {moved} moves from the first to the last position"
    return f"nDCG@10 with {moved} first minus last is {effect.difference.text('+.3f')}"


_PSI = (
    "position sensitivity index of the same queries at every position: 1 minus the ratio of the "
    "lowest to the highest mean nDCG@10"
)
_LAST = (
    "If the model can't read the whole document, the last position is the latest of these at which "
    "it reads all of the evidence, so a drop there is not due to truncated evidence."
)


def _numbers(summary: PositionSummary) -> list[Number]:
    effect = summary.effect
    difference = "nDCG@10, evidence first minus last (positive: primacy)"
    return [
        *number("first", "nDCG@10 with the evidence first", effect.first, ".3f"),
        *number("middle", "nDCG@10 with the evidence in the middle", effect.middle, ".3f"),
        *number("last", "nDCG@10 with the evidence last", effect.last, ".3f"),
        *number("first_minus_last", difference, effect.effect.difference, measure=summary.by_query),
        *number("controlled_psi", f"controlled PSI ({_PSI})", effect.psi, ".3f", ONE_SIDED),
    ]


PART = StudyPart(
    "position_effect",
    "Effect of the evidence's position on rank",
    f"The evidence moves to {N_POSITIONS} positions, spread evenly over its document. {_LAST} "
    "Moving a sentence may break references between sentences. The document with the moved "
    "evidence counts as the only relevant one.",
    "queries",
    _numbers,
    subject=moved_pairs,
)


class Positions(Study[Moved, Asked[Moved], PositionSummary]):
    """Ranks each query's document with its evidence at several positions."""

    name = "positions"
    title = "Position effect on rank"
    question = "Does a document rank higher with its evidence at one position than at another?"
    unit = "pair"
    reads = (
        "PosLens moves the evidence to several positions, spread evenly over its document, and "
        "ranks the document against the unchanged rest of the corpus each time. "
        f"{_LAST} The chart shows nDCG@10 at each position. Every position has the same queries, "
        "so differences between positions are not due to the queries."
    )
    limits = (
        "nDCG@10 counts the document with the moved evidence as the only relevant one. First minus "
        "last: nDCG@10 with the evidence first minus nDCG@10 with it last, so positive means "
        f"primacy. Controlled PSI: {_PSI}; {ONE_SIDED}. Brackets are 95% bootstrap intervals over "
        f"documents; {CONSTANT}. Bands show variation within queries: before they are computed, "
        "each query's mean over positions is subtracted. p values are Holm-adjusted "
        "for the number of models, and separately for the number of pairs of models; intervals are "
        "not adjusted. So p can be above 0.05 although the interval excludes 0. Equivalent: "
        f"the 90% interval of first minus last is within {MARGIN:g} of 0 (two one-sided tests at "
        '5%). Moving a sentence may break references to it. "Control: move another sentence" on '
        "the Ranking page shows how much moving any sentence changes nDCG@10."
    )
    parameters = Parameters(
        positions=Integer(
            default=N_POSITIONS,
            low=2,
            high=101,
            help="Number of positions to move the evidence to, 2 to 101. The default reuses the "
            "scores of the Cause page and of the command `cause`.",
        ),
        pairs=Integer(
            default=2 * DEFAULT_PAIRS,
            low=0,
            help="Number of pairs whose evidence is moved, spread evenly over the data set; 0 "
            "means all. By default twice as many as on the Cause page, and including those: "
            "position changes fewer ranks than scores.",
        ),
        null=Switch(
            title="Control: move another sentence",
            help="Repeat with another sentence of about the same length, chosen at random, moved "
            "instead of the evidence. Doubles the computation.",
        ),
    )
    compared = ("MiniLM-primacy", "MiniLM", "MiniLM-recency")
    tables = TABLES
    figures = (
        Figure(
            "nDCG@10 by position of the evidence", ndcg_by_position, intervals="", band=band_words
        ),
    )
    part = PART

    def corpus(self, data: DataSet, settings: Settings) -> Moved:
        """The pairs whose evidence can be moved, and the corpus.

        Raises:
            UserError: no pair has evidence that can be moved, or no corpus can be searched.
        """
        usable, reason = require_movable(data)
        collection = collection_of(data)
        pairs, selection = chosen_pairs(usable, settings.pairs, MOVABLE)
        nulls, notes = [], [reason] if reason else []
        if selection:
            other = "other " if reason else ""
            used = f"{len(pairs):,} of the {other}{len(usable):,} pairs with evidence are used"
            notes.append(f"{used}, spread evenly over the data set.")
        for pair in pairs if settings.null else ():
            try:
                nulls.append(null_pair(pair))
            except UserError:
                continue
        if settings.null and len(nulls) < len(pairs):
            notes.append(
                f"{len(pairs) - len(nulls):,} pairs have no null control: their evidence covers "
                "every sentence of the document, or has no words."
            )
        return Moved(
            data.name,
            tuple(pairs),
            tuple(nulls),
            collection,
            fingerprint(collection),
            selection,
            tuple(notes),
        )

    def notes(self, data: DataSet, corpus: Moved) -> list[str]:
        return list(corpus.notes)

    def require_fit(self, spec: RetrieverSpec) -> None:
        require_ranking(spec)

    def job(self, compute: Compute, subject: Asked[Moved]) -> Job:
        """A job that computes the missing ranks; progress counts pairs, then documents."""
        moved, positions = subject.corpus, subject.settings.positions
        items = moved.items
        scope = ", ".join(filter(None, (moved.dataset, moved.selection)))
        return stored_job(
            compute,
            subject.spec,
            position_ranks_method(positions),
            items,
            position_ranks,
            lambda given, retriever, model, options: run_positions(
                given.root, retriever, model, positions, items, moved.collection, options=options
            ),
            scope=f"{scope}{' and null' if moved.nulls else ''}",
            doing="position effect",
        )

    def estimate(
        self,
        compute: Compute,
        subject: Asked[Moved],
        *,
        load: bool = False,
        retry_failed: bool = False,
    ) -> str:
        """The maximum number of texts that the model will read."""
        model, positions = compute.identify(subject.spec), subject.settings.positions
        store, method = position_ranks(compute.root), position_ranks_method(positions)
        missing = store.missing(model.key, method, subject.corpus.items, retry=retry_failed)
        todo, moved = [pair.pair for pair in missing], relocation_method(positions)
        n = len(causes(compute.root, moved).missing(model.key, moved, todo, retry=retry_failed))
        return (
            f"up to {n * (positions + 1):,} texts with moved sentences and "
            f"{subject.corpus.collection.survey.n:,} documents of the corpus."
        )

    def summarize(self, compute: Compute, subject: Asked[Moved]) -> PositionSummary | None:
        """The effect of one model; None while ranks are missing.

        Raises:
            UserError: no pair could be ranked, or the model reads the evidence in full at fewer
                than two positions in every pair.
        """
        model, moved = compute.identify(subject.spec), subject.corpus
        items, positions = moved.items, subject.settings.positions
        method = position_ranks_method(positions)
        store = position_ranks(compute.root)
        if store.missing(model.key, method, items):
            return None
        relocating = relocation_method(positions)
        relocations = causes(compute.root, relocating).select(
            model.key, relocating, [pair.pair for pair in items]
        )
        ranks = store.select(model.key, method, items)
        key = (
            model.key,
            subject.spec.name,
            repr(method),
            moved.fingerprint,
            tuple(pair.pair_id for pair in (*moved.pairs, *moved.nulls)),
            relocations.digest,
            ranks.digest,
        )

        def summary() -> PositionSummary:
            queries, nulls = (
                ranked_queries(pairs, relocations.results, ranks.results, positions)
                for pairs in (moved.pairs, moved.nulls)
            )
            blind = family_of(subject.spec).order_blind
            effect = position_effect(queries, blind)
            if effect is None:
                raise no_effect(subject.spec.name, ranks.failed, len(moved.pairs))
            ids = {pair.pair_id for pair in moved.pairs}
            failed = {name: why for name, why in ranks.failed.items() if name in ids}
            return PositionSummary(
                model,
                subject,
                RankedQueries(tuple(queries), blind),
                effect,
                position_effect(nulls, blind),
                len(moved.pairs) - len(queries) - len(failed),
                failed,
            )

        return self.summaries.get(key, summary)

    def together(self, summaries: Sequence[PositionSummary]) -> list[PositionSummary]:
        effects = adjusted_fields([summary.effect for summary in summaries], ["effect"])
        return [
            replace(summary, effect=effect)
            for summary, effect in zip(summaries, effects, strict=True)
        ]

    def measured(self, summary: PositionSummary) -> MeasuredModel:
        """nDCG@10 first minus last by query."""
        return MeasuredModel(summary.name, (summary.by_query,))

    def verdict(self, summary: PositionSummary) -> str:
        """nDCG@10 at three positions, first minus last, its interpretation, and the null
        control."""
        by_position = summary.effect
        effect = by_position.effect
        side = {"higher": "first", "lower": "last"}.get(effect.verdict)
        certainty = effect.sentence.removeprefix(effect.verdict.capitalize())
        blind = summary.ranked.order_blind
        if blind:
            meaning = f"{summary.name} ignores word order, so position cannot matter."
        elif side is not None:
            meaning = f"Documents rank higher with the evidence {side}{certainty}"
        elif effect.verdict == "equivalent":
            meaning = f"The first and the last position are {effect.clause}."
        else:
            meaning = effect.sentence
        sentences = [
            f"{summary.name}: {_change(effect, 'the evidence', blind)} "
            f"({by_position.first.value:.3f} first, {by_position.middle.value:.3f} in the middle, "
            f"{by_position.last.value:.3f} last; {counted(by_position.n, 'query')}, "
            f"{counted(by_position.n_documents, 'document')}). {meaning}"
        ]
        if summary.null is not None:
            sentences.append(f"Control: {_change(summary.null.effect, 'another sentence', blind)}.")
        return " ".join(sentences)

    def provenance(self, summary: PositionSummary) -> Provenance:
        moved, effect = summary.asked.corpus, summary.effect
        return of_model(
            summary.model,
            position_ranks_method(summary.asked.settings.positions),
            moved.dataset,
            n_queries=effect.n,
            n_documents=effect.n_documents,
            truncated=sum(not query.whole for query in summary.queries),
            selection=(moved.selection, f"ranked among {moved.collection.survey.n:,} documents"),
            control="another sentence moved" if summary.null is not None else "",
        )


POSITIONS = register(Positions())
