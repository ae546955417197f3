"""Does `poslens why` name the planted cause? Prints a confusion matrix.

    python -m bench.why [--cases 50] [--proposed] [--write docs/why.md]
    python -m bench.why --causes position dilution --cases 1000 --shares

The corpus consists of passages of five sentences of the sample's English documents. Each case
starts with a text that the model retrieves in the top 10. One change is made to it, and the case
counts if the text is then missed:

not read    the model reads 128 tokens, and the passage is moved after other text of its document
position    the model has a planted adapter, and the evidence is at the end that it neglects; with
            the evidence at the other end, the same text is retrieved
dilution    sentences of other documents are appended to a passage, within the context limit; the
            evidence alone is retrieved (otherwise the query matches other sentences)
competitor  ten near-duplicates are added to the corpus
no match    the evidence is a paraphrase that shares no word with the query (BM25)

With --proposed the model proposes the evidence instead of being given it. With --shares the shares
that separate position and dilution are selected on documents with even numbers and evaluated on the
others.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated

import numpy as np

from bench.options import run, write_table
from poslens.attribution import datasets
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.evaluation.why import Searched, Wanted, why
from poslens.attribution.evaluation.why_causes import (
    CAUSES,
    LEAST_OF_ALONE,
    MOST_BY_CHANCE,
    Cause,
    Why,
)
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import sentences
from poslens.attribution.types import EvidenceSpan
from poslens.cache.jobs.loop import RunOptions
from poslens.compute.compute import Compute
from poslens.studies.why.search import Searcher, opened

TOP = 10
CUT = 128
PER_PASSAGE = 5
WORDS = (120, 180, 240, 300)
"""Lengths of added text in words; the first one with which the passage is missed counts."""
SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
CHANCES = (0.5, 0.75, 1.0)
"""Values of LEAST_OF_ALONE and MOST_BY_CHANCE that --shares tries."""
Attempts = list[tuple[tuple["Case", ...], "Case"]]
"""Texts that must be retrieved, and the changed text that must be missed, in the order in which
they are tried."""


@dataclass(frozen=True)
class Passage:
    """Sentences of a document; `evidence` has the numbers of those that answer the query."""

    document: int
    sentences: tuple[str, ...]
    evidence: tuple[int, ...] = ()
    query: str = ""

    @property
    def text(self) -> str:
        """The sentences, joined."""
        return " ".join(self.sentences)

    @property
    def answer(self) -> str:
        """The evidence's sentences, joined."""
        return " ".join(self.sentences[i] for i in self.evidence)


@dataclass(frozen=True)
class Case:
    """A passage that is missed for a known reason."""

    cause: Cause
    model: str
    query: str
    text: str
    evidence: str
    document: int
    copies: tuple[str, ...] = ()


def passages() -> tuple[list[Passage], list[Passage]]:
    """The corpus, and a passage for each query whose evidence is within one."""
    texts: dict[str, int] = {}
    corpus: list[Passage] = []
    asked: list[Passage] = []
    for pair in datasets.read("sample").pairs:
        if pair.language != "eng" or pair.evidence is None:
            continue
        spans = sentences(pair.document, "eng")
        new = pair.document not in texts
        number = texts.setdefault(pair.document, len(texts))
        for first in range(0, len(spans), PER_PASSAGE):
            part = spans[first : first + PER_PASSAGE]
            texts_of_part = tuple(pair.document[a:b] for a, b in part)
            if new:
                corpus.append(Passage(number, texts_of_part))
            span = pair.evidence
            touched = [i for i, (a, b) in enumerate(part) if a < span.end and b > span.start]
            if touched and part[0][0] <= span.start and span.end <= part[-1][1]:
                asked.append(Passage(number, texts_of_part, tuple(touched), pair.query))
    return corpus, asked


class Bench:
    """Plants cases of every cause in one corpus."""

    def __init__(self, n: int) -> None:
        self.n, self.compute = n, Compute()
        self.corpus, self.asked = passages()
        documents = [Document(f"p{i}", passage.text) for i, passage in enumerate(self.corpus)]
        self.collection = Collection("bench", "bench", (), lambda: iter(documents))
        self.owners = np.array([passage.document for passage in self.corpus])
        self.random = random.Random(0)
        self.random.shuffle(self.asked)
        self._searchers: dict[str, Searcher] = {}

    def searcher(self, name: str) -> Searcher:
        """The searcher of the corpus for a model."""
        if name not in self._searchers:
            spec = spec_of(name)
            model = self.compute.identify(spec)
            retriever = self.compute.retriever(model)
            corpus = opened(self.compute, model.key, retriever, self.collection)
            self._searchers[name] = Searcher(corpus, retriever, RunOptions())
        return self._searchers[name]

    def searched(self, case: Case) -> Searched:
        """The search over the corpus without the passages of the case's document, followed by the
        case's copies and its text."""
        base = self.searcher(case.model).search(case.query)
        others = np.flatnonzero(self.owners != case.document)
        added = [*case.copies, case.text]
        texts = [*(self.corpus[i].text for i in others), *added]
        return replace(
            base,
            scores=np.concatenate([base.scores[others], base.score(added)]),
            ids=[f"d{i}" for i in range(len(texts))],
            texts=lambda numbers: [texts[number] for number in numbers],
        )

    def rank(self, case: Case) -> int:
        """The rank of the case's text."""
        searched = self.searched(case)
        number = len(searched.scores) - 1
        return searched.rank(float(searched.scores[number]), number)

    def elsewhere(self, passage: Passage, n_words: int) -> list[str]:
        """Random sentences of other documents with about `n_words` words in total."""
        chosen: list[str] = []
        others = [other for other in self.corpus if other.document != passage.document]
        for other in self.random.sample(others, len(others)):
            for sentence in other.sentences:
                if sum(len(text.split()) for text in chosen) >= n_words:
                    return chosen
                chosen.append(sentence)
        return chosen

    def cases(self, cause: Cause) -> list[Case]:
        """At most `n` cases of a cause."""
        self.random = random.Random(cause)  # so that cases don't depend on the other causes
        makers = {
            "not read": self._not_read,
            "position": self._position,
            "dilution": self._dilution,
            "no match": self._no_match,
            "competitor": self._competitor,
        }
        cases: list[Case] = []
        left_out = 0
        for attempts in makers[cause]():
            for (base, *parts), planted in attempts:
                if self.rank(base) <= TOP < self.rank(planted):
                    if all(self.rank(part) <= TOP for part in parts):
                        cases.append(planted)
                    else:
                        left_out += 1
                    break
            if len(cases) == self.n:
                break
        if left_out:
            print(f"{cause}: {left_out} left out, whose evidence alone is not retrieved")
        return cases

    def _case(self, cause: Cause, model: str, passage: Passage, text: str, **more: object) -> Case:
        whole = Case(cause, model, passage.query, text, passage.answer, passage.document)
        return replace(whole, **more)  # type: ignore[arg-type]

    def _not_read(self) -> Iterator[Attempts]:
        model = f"MiniLM:{CUT}"
        for passage in self.asked:
            others = [
                p for p in self.corpus if p.document == passage.document and p.text != passage.text
            ]
            for siblings in (others[:3], others[3:6]):
                before = " ".join(p.text for p in siblings)
                if len(before.split()) > CUT:
                    planted = self._case("not read", model, passage, f"{before} {passage.text}")
                    yield [((self._case("not read", model, passage, passage.text),), planted)]

    def _position(self) -> Iterator[Attempts]:
        for number, passage in enumerate(self.asked):
            model = ("MiniLM-primacy", "MiniLM-recency")[number % 2]
            attempts: Attempts = []
            for n_words in WORDS:
                other = " ".join(self.elsewhere(passage, n_words))
                first, last = f"{passage.answer} {other}", f"{other} {passage.answer}"
                good, bad = (first, last) if model.endswith("primacy") else (last, first)
                base = self._case("position", model, passage, good)
                attempts.append(((base,), self._case("position", model, passage, bad)))
            yield attempts

    def _dilution(self) -> Iterator[Attempts]:
        for number, passage in enumerate(self.asked):
            model = ("MiniLM", "BM25")[number % 4 == 3]
            bases = tuple(
                self._case("dilution", model, passage, text)
                for text in (passage.text, passage.answer)
            )
            texts = [" ".join([passage.text, *self.elsewhere(passage, n)]) for n in WORDS]
            yield [(bases, self._case("dilution", model, passage, text)) for text in texts]

    def _competitor(self) -> Iterator[Attempts]:
        for number, passage in enumerate(self.asked):
            model = ("MiniLM", "BM25")[number % 2]
            rest = [i for i in range(len(passage.sentences)) if i not in passage.evidence]
            dropped = [*combinations(rest, 1), *combinations(rest, 2), *combinations(rest, 3)]
            copies = tuple(
                " ".join(text for i, text in enumerate(passage.sentences) if i not in out)
                for out in dropped
            )[:TOP]
            planted = self._case("competitor", model, passage, passage.text, copies=copies)
            yield [((self._case("competitor", model, passage, passage.text),), planted)]

    def _no_match(self) -> Iterator[Attempts]:
        file = Path(__file__).with_name("paraphrases.tsv")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            query, paraphrase = line.split("\t")
            passage = Passage(-1, (paraphrase,), (0,), query)
            rest = self.elsewhere(replace(passage, document=number), 60)
            half = len(rest) // 2
            text = " ".join([*rest[:half], paraphrase, *rest[half:]])
            literal = self._case("no match", "BM25", passage, query)
            yield [((literal,), self._case("no match", "BM25", passage, text))]

    def explained(self, case: Case, proposed: bool) -> Why:
        """The explanation of a case; a wrong one is printed."""
        searched = self.searched(case)
        start = case.text.index(case.evidence)
        span = None if proposed else EvidenceSpan(start, start + len(case.evidence))
        number = len(searched.scores) - 1
        wanted = Wanted(case.query, searched.ids[number], number, case.text, span, language="eng")
        result = why(wanted, searched, TOP, frozenset())
        if result.cause != case.cause:
            steps = {cause: (step.rank, step.null) for cause, step in result.steps.items()}
            print(f"  {case.cause} ({case.model}): {result.cause}, {result.rank} {steps}")
        return result


def spec_of(name: str) -> RetrieverSpec:
    """A model by name; `MiniLM:128` reads 128 tokens."""
    base, _, limit = name.partition(":")
    spec = resolve(base)
    return replace(spec, name=name, max_length=int(limit)) if limit else spec


def table(named: dict[Cause, Counter[Cause]]) -> list[str]:
    """The lines of the confusion matrix, with a row for each planted cause and a column for each
    named cause."""
    head = ["planted cause", "cases", *CAUSES, "right"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cause, counts in named.items():
        total = counts.total()
        cells = [str(counts[name]) for name in CAUSES]
        right = f"{counts[cause] / max(1, total):.0%}"
        rows.append(f"| {' | '.join([cause, str(total), *cells, right])} |")
    return rows


def best_shares(results: Sequence[tuple[Case, Why]]) -> list[str]:
    """The lines of a table with the number of cases whose cause is named correctly on each half of
    the documents, with the shares that are best on the first half and with those in use. Of equally
    good shares, the strictest count as the best."""

    def right(cause: Cause, half: int, rule: tuple[float, float]) -> tuple[int, int]:
        explanations = [
            explanation
            for case, explanation in results
            if case.cause == cause and case.document % 2 == half
        ]
        return sum(each.named(*rule) == cause for each in explanations), len(explanations)

    causes: tuple[Cause, Cause] = ("position", "dilution")
    rules = [(least, most) for most in CHANCES for least in SHARES]
    best = max(
        rules,
        key=lambda rule: (sum(right(cause, 0, rule)[0] for cause in causes), rule[0], -rule[1]),
    )
    halves = [f"{cause}, {half} half" for half in ("first", "other") for cause in causes]
    rows = [f"| least of alone | most by chance | {' | '.join(halves)} |", "|---" * 6 + "|"]
    for rule in dict.fromkeys([(0.0, MOST_BY_CHANCE), (LEAST_OF_ALONE, MOST_BY_CHANCE), best]):
        cells = [right(cause, half, rule) for half in (0, 1) for cause in causes]
        numbers = [f"{n} of {total}" for n, total in cells]
        rows.append(f"| {rule[0]:g} | {rule[1]:g} | {' | '.join(numbers)} |")
    return rows


def main(
    cases: int = 50,
    causes: tuple[Cause, ...] = CAUSES,
    proposed: Annotated[bool, {"help": "Do not give the evidence."}] = False,
    shares: Annotated[bool, {"help": "Choose and judge the two shares."}] = False,
    write: Annotated[Path | None, {"help": "Markdown file to write the matrix into."}] = None,
) -> None:
    """Print the matrix, and with --write replace it in a file."""
    bench = Bench(cases)
    named: dict[Cause, Counter[Cause]] = {}
    results: list[tuple[Case, Why]] = []
    for cause in causes:
        explained = [(case, bench.explained(case, proposed)) for case in bench.cases(cause)]
        results += explained
        named[cause] = Counter(explanation.cause for _, explanation in explained)
        print(cause, dict(named[cause]), flush=True)
    lines = table(named)
    print("\n".join(lines))
    if shares:
        print("\n".join(best_shares(results)))
    if write:
        write_table(write, "why", lines)


if __name__ == "__main__":
    run(main)
