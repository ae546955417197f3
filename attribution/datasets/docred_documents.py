"""Documents of the seven bias tests (Fayyaz et al. 2025) from a document with annotated entities.

A fact (head, relation, tail) gives a question about its head that its tail answers. Its evidence is
the one sentence that names both. The other sentences are those that name the head and not the tail,
and those that name neither; sentences with the tail alone are left out. Sentences are lists of
tokens, joined by spaces as in ColDeR's files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

QUESTIONS: Mapping[str, str] = tomllib.loads(
    (Path(__file__).parent / "docred_questions.toml").read_text(encoding="utf-8")
)
"""A question for each of DocRED's relations, with `{head}` in place of the entity's name."""

ADDED = 3
"""Maximum number of sentences that variants of the repetition test add."""

UNRELATED = 4
"""Number of sentences of another document on either side of the evidence in the foil and poison
tests."""

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mention:
    """Tokens [start, end) of a sentence that name an entity of a type such as PER or LOC."""

    sentence: int
    start: int
    end: int
    type: str


@dataclass(frozen=True, slots=True)
class AnnotatedFact:
    """A relation between two entities, and the sentences that support it."""

    head: int
    tail: int
    relation: str
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnnotatedDocument:
    """A document with its entities, each a list of mentions, and facts about them."""

    title: str
    sentences: tuple[Tokens, ...]
    entities: tuple[tuple[Mention, ...], ...]
    facts: tuple[AnnotatedFact, ...]

    def names(self, entity: int) -> list[Tokens]:
        """Different names of an entity in order of occurrence."""
        mentions = self.entities[entity]
        return list(dict.fromkeys(self.sentences[m.sentence][m.start : m.end] for m in mentions))

    def named(self, sentence: int, entity: int, name: Tokens) -> str:
        """A sentence in which this name replaces each mention of the entity."""
        tokens = list(self.sentences[sentence])
        mentions = [m for m in self.entities[entity] if m.sentence == sentence]
        for mention in sorted(mentions, key=lambda m: -m.start):
            tokens[mention.start : mention.end] = name
        return " ".join(tokens)


Cells = Mapping[str, object]
"""d1 and d2 of a test for one query, as a row of ColDeR's files. `id` distinguishes the test's rows
from one document; `evidence_sents` has the forms of the evidence sentence in the documents."""


def _cells(id: str, query: str, first: str, second: str, evidence: Sequence[str]) -> Cells:
    return {
        "id": id,
        "query": query,
        "document_1": first,
        "document_2": second,
        "evidence_sents": [[sentence] for sentence in evidence],
    }


def document_pairs(
    documents: Sequence[AnnotatedDocument], number: int
) -> Mapping[str, Sequence[Cells]]:
    """The rows from one of the documents by test, named by ColDeR's file; empty if no fact is
    suitable.

    Each test uses the document's first fact that has the sentences for it, so a document has one
    pair for each test (literal: one with the short and one with the long name in the query). The
    unrelated sentences and the wrong answer come from the following documents.
    """
    chosen: dict[str, list[Cells]] = {}
    for fact in _suitable(documents[number]):
        of_fact: dict[str, list[Cells]] = {}
        for test, cells in _pairs(documents, number, fact):
            of_fact.setdefault(test, []).append(cells)
        chosen = of_fact | chosen
    return chosen


def _suitable(document: AnnotatedDocument) -> Iterator[AnnotatedFact]:
    """Facts with a question, one answer, and one sentence of evidence that names both entities."""
    for fact in document.facts:
        asked = fact.head, fact.relation
        answers = {other.tail for other in document.facts if (other.head, other.relation) == asked}
        if fact.relation not in QUESTIONS or len(fact.evidence) != 1 or len(answers) != 1:
            continue
        heads, tails = (
            [m for m in document.entities[entity] if m.sentence == fact.evidence[0]]
            for entity in (fact.head, fact.tail)
        )
        apart = all(h.end <= t.start or t.end <= h.start for h in heads for t in tails)
        if heads and tails and apart and fact.head != fact.tail:
            yield fact


def _pairs(
    documents: Sequence[AnnotatedDocument], number: int, fact: AnnotatedFact
) -> Iterator[tuple[str, Cells]]:
    document, (place,) = documents[number], fact.evidence
    heads, tails = document.names(fact.head), document.names(fact.tail)
    with_head: list[int] = []
    without: list[int] = []
    for index, tokens in enumerate(document.sentences):
        if index != place and not _names_any(tokens, tails):
            (with_head if _names_any(tokens, heads) else without).append(index)
    texts = [" ".join(tokens) for tokens in document.sentences]
    mention = next(m for m in document.entities[fact.head] if m.sentence == place)
    head = document.sentences[place][mention.start : mention.end]
    question, evidence = QUESTIONS[fact.relation], texts[place]

    def pair(test: str, first: Sequence[str], second: Sequence[str]) -> tuple[str, Cells]:
        query = question.replace("{head}", " ".join(head))
        return test, _cells(document.title, query, " ".join(first), " ".join(second), [evidence])

    more, rest = [texts[i] for i in with_head], [texts[i] for i in without]
    if rest:
        yield pair("position_bias", [evidence, *rest], [*rest, evidence])
        yield pair("brevity_bias", [evidence], [evidence, *rest])
    if rest and more:
        yield pair("answer_importance", [evidence, *rest], [more[0], *rest])
    if min(len(rest), len(more)) >= 2:
        yield pair("repetition_bias", [evidence, *more[:2]], [evidence, *rest[:2]])
    if min(len(rest), len(more)) >= ADDED:
        for n in range(1, ADDED + 1):
            for m in range(1, n + 1):
                first = [evidence, *more[:m], *rest[: n - m]]
                yield pair(f"repetition_{m}_of_{n}", first, [evidence, *rest[:n]])
    short, long = (choose(heads, key=lambda name: len(" ".join(name))) for choose in (min, max))
    if len(" ".join(short)) < len(" ".join(long)):
        order = (place, *with_head, *without)
        versions = [[document.named(i, fact.head, name) for i in order] for name in (short, long)]
        both = [" ".join(version) for version in versions]
        for side, (name, form) in enumerate(((short, "short"), (long, "long"))):
            query = question.replace("{head}", " ".join(name))
            forms = [version[0] for version in versions]
            row = _cells(f"{document.title}/{form}", query, both[side], both[1 - side], forms)
            yield "literal_bias", row
    others = [*documents[number + 1 :], *documents[:number]]
    unrelated = _unrelated(others, [*heads, *tails])
    if more and unrelated:
        foil = [" ".join(head), " ".join(head), more[0]]
        buried = [*unrelated, evidence, *unrelated]
        yield pair("foil", foil, buried)
        if wrong := _wrong(others, document.entities[fact.tail][0].type, tails):
            yield pair("poison", [*foil, document.named(place, fact.tail, wrong)], buried)


def _names_any(tokens: Sequence[str], names: Sequence[Tokens]) -> bool:
    """Whether tokens contain one of the names, ignoring case. Compares tokens because annotations
    miss some mentions."""
    lower = [token.casefold() for token in tokens]
    return any(
        lower[start : start + len(name)] == [token.casefold() for token in name]
        for name in names
        for start in range(len(lower) - len(name) + 1)
    )


def _unrelated(others: Sequence[AnnotatedDocument], names: Sequence[Tokens]) -> list[str]:
    """Sentences without these names, from the first of other documents that has enough of them."""
    for other in others:
        free = [" ".join(tokens) for tokens in other.sentences if not _names_any(tokens, names)]
        if len(free) >= UNRELATED:
            return free[:UNRELATED]
    return []


def _wrong(others: Sequence[AnnotatedDocument], type: str, answers: Sequence[Tokens]) -> Tokens:
    """The name of another entity of this type, from the first document with one."""
    for other in others:
        for number, mentions in enumerate(other.entities):
            name = other.names(number)[0]
            if mentions[0].type == type and not _names_any(name, answers):
                return name
    return ()
