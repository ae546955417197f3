"""Compose the documents of the bias tests from `entities.toml` and write them as ColDeR's files.

The documents follow the equations of Fayyaz et al. 2025, sections 3.3 to 3.5. Edit
`entities.toml`; PosLens reads `attribution/datasets/sample/colder/test/<bias>.jsonl`. Both are in
the repository, and a test compares them.

    python -m tools.sample.build_bias --check
    python -m tools.sample.build_bias
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "entities.toml"
COLDER = Path(__file__).parents[2] / "attribution" / "datasets" / "sample" / "colder"


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity and sentences about it, with `{head}` in place of its name."""

    id: str
    head: str
    alias: str
    query: str
    answer: str
    wrong: str
    evidence: str
    with_head: tuple[str, ...]
    without: tuple[str, ...]

    def named(self, sentence: str, name: str = "") -> str:
        """`sentence` with the entity's name (or another one) and a capital first letter."""
        filled = sentence.replace("{head}", name or self.head)
        return filled[0].upper() + filled[1:]


def read(path: Path = SOURCE) -> list[Entity]:
    """All entities; ValueError names what to change."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    entities = [
        Entity(
            **{**entry, "with_head": tuple(entry["with_head"]), "without": tuple(entry["without"])}
        )
        for entry in raw["entity"]
    ]
    for entity in entities:
        if sentences := problems(entity):
            raise ValueError(f"{entity.id}: {sentences[0]}")
    if len({entity.id for entity in entities}) != len(entities):
        raise ValueError("two entities have one id")
    return entities


def problems(entity: Entity) -> list[str]:
    """The requirements of the tests that an entity's sentences don't meet; empty if none."""
    unmet: list[str] = []

    def need(ok: bool, sentence: str) -> None:
        if not ok:
            unmet.append(sentence)

    def holds(sentence: str, words: str) -> bool:
        return words.casefold() in sentence.casefold()

    need(entity.evidence.count("{head}") == 1, "the evidence names the entity once")
    need(entity.evidence.count(entity.answer) == 1, "the evidence holds the answer once")
    need(entity.query.count("{head}") == 1, "the query names the entity once")
    need(len(entity.with_head) == 2, "two sentences name the entity")
    need(len(entity.without) == 4, "four sentences do not name the entity")
    for sentence in entity.with_head:
        need(sentence.count("{head}") == 1, f"{sentence!r} names the entity once")
        need(not holds(sentence, entity.answer), f"{sentence!r} holds the answer")
    for sentence in entity.without:
        for words in ("{head}", entity.head, entity.alias, entity.answer, entity.wrong):
            need(not holds(sentence, words), f"{sentence!r} holds {words!r}")
    return unmet


def documents(entity: Entity, unrelated: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """The documents d1 and d2 of each test, by ColDeR's file names. `unrelated` are sentences about
    another entity."""

    def text(*sentences: str, name: str = "") -> str:
        return " ".join(entity.named(sentence, name) for sentence in sentences)

    evidence, with_head, without = entity.evidence, entity.with_head, entity.without
    foil = f'"{entity.named("{head}")}" "{entity.named("{head}")}" {text(with_head[0])}'
    wrong = evidence.replace(entity.answer, entity.wrong)
    buried = text(*unrelated, evidence, *unrelated)
    everything = (evidence, *with_head, *without)
    return {
        "answer_importance": (text(evidence, *without), text(with_head[0], *without)),
        "position_bias": (text(evidence, *without), text(*without, evidence)),
        "literal_bias": (text(*everything), text(*everything, name=entity.alias)),
        "brevity_bias": (text(evidence), text(evidence, *without)),
        "repetition_bias": (text(evidence, *with_head), text(evidence, *without[:2])),
        "foil": (foil, buried),
        "poison": (f"{foil} {text(wrong)}", buried),
    }


def rows(entities: list[Entity]) -> dict[str, list[dict[str, object]]]:
    """The rows of each file, by its name."""
    by_file: dict[str, list[dict[str, object]]] = {}
    for number, entity in enumerate(entities):
        unrelated = entities[(number + 1) % len(entities)].without
        for bias, (first, second) in documents(entity, unrelated).items():
            by_file.setdefault(bias, []).append(
                {
                    "query": entity.named(entity.query),
                    "document_1": first,
                    "document_2": second,
                    "id": entity.id,
                    "evidence_sents": [entity.named(entity.evidence).split(" ")],
                }
            )
    return by_file


def write(entities: list[Entity], root: Path = COLDER) -> None:
    """Write `test/<bias>.jsonl`."""
    folder = root / "test"
    folder.mkdir(parents=True, exist_ok=True)
    for bias, listed in rows(entities).items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in listed)
        (folder / f"{bias}.jsonl").write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 2 if an entity is invalid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="validate only, write nothing")
    options = parser.parse_args(arguments)
    try:
        entities = read()
    except (ValueError, KeyError, TypeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(entities)} entities, {len(rows(entities))} tests")
    if not options.check:
        write(entities)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
