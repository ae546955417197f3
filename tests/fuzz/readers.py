"""Damaged files of every format, through every reader: each gives usable data or one sentence.

    python -m tests.fuzz.readers --mutations 1000000 [--only beir] [--first N]

A mutation depends only on its reader's name and its number, so each can be run again.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poslens.attribution import isolated
from poslens.attribution.curves.published import curves_of, read_measures
from poslens.attribution.datasets import (
    beir,
    colder,
    documents,
    fineweb_posq,
    multiclaim,
    own,
    posir,
    squad,
    traces,
)
from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.datasets.judged_pairs import Judged, from_pairs, judged_passages
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.trec_runs import placed, read_run
from poslens.studies.check.baseline import parse
from tests.fuzz.mutations import COLUMNS, damaged, json_text, odd_column, odd_json

Random = random.Random
Check = Callable[[Random, Path], None]

ROWS = [
    {
        "query": f"when does fog {n} lift",
        "document": f"Fog {n} lifts at noon. Then rain.",
        "evidence": "lifts at noon",
        "language": "en",
        "domain": "fog",
        "query_type": "when",
        "pair_id": f"p{n}",
        "query_id": f"q{n}",
        "document_id": f"d{n}",
    }
    for n in range(4)
]
CORPUS = [{"_id": f"d{n}", "title": "Fog", "text": f"It {n} lifts at noon."} for n in range(4)]
QUERIES = [
    {
        "_id": f"q{n}",
        "text": f"when {n}",
        "pos_char_span": [0, 4],
        "pos_char_length": 4,
        "pos_token_length": 9,
        "query_type": "when",
    }
    for n in range(4)
]
JUDGED = [{"query-id": f"q{n}", "corpus-id": f"d{n}", "score": 1} for n in range(4)]
TEXT = "('Hmla', 'Fog', [('slk', 1.0)])"
COLDER = [
    {
        "query": "when",
        "document_1": "Fog lifts .",
        "document_2": "Rain .",
        "id": f"x{n}",
        "evidence_sents": [["Fog", "lifts"]],
    }
    for n in range(3)
]
FOG = "Fog lifts at noon."
SQUAD_ROWS: list[dict[str, object]] = [
    {
        "id": f"q{n}",
        "title": "Fog",
        "context": f"{FOG} {n // 2}",
        "question": f"when {n}",
        "answers": {"text": ["noon", "at noon"][: n % 3], "answer_start": [13, 10][: n % 3]},
    }
    for n in range(4)
]
QUESTION = {"id": "q0", "question": "when", "answers": [{"text": "noon", "answer_start": 13}]}
PARAGRAPH = {"context": FOG, "qas": [QUESTION, QUESTION | {"id": "q1", "answers": []}]}
SQUAD = {"data": [{"title": "Fog", "paragraphs": [PARAGRAPH, PARAGRAPH]}]}
POSQ: list[dict[str, object]] = [
    {"content": f"{FOG} {n // 2}", "question": f"when {n}", "span_class": [place]}
    for n, place in enumerate(("beginning", "middle", "end", "end"))
]
ALONE: list[dict[str, object]] = [
    {"_id": f"d{n}", "title": "Fog", "text": f"{FOG} {n}", "language": "en"} for n in range(4)
]
KEPT: dict[str, object] = {
    "openinference.span.kind": "RETRIEVER",
    "input.value": "when does fog lift",
    "retrieval.documents.0.document.content": FOG,
    "retrieval.documents.0.document.id": "d0",
    "retrieval.documents.1.document.content": f"{FOG} 1",
    "retrieval.documents.1.document.score": 0.5,
}
SPANS = [
    {"context": {"span_id": "s0"}, "attributes": KEPT},
    {
        "spanId": "s1",
        "attributes": [{"key": key, "value": {"stringValue": str(v)}} for key, v in KEPT.items()],
    },
    {
        "span_kind": "RERANKER",
        "attributes": {
            "reranker": {"query": "when", "output_documents": [{"document": {"content": FOG}}]}
        },
    },
]
EXPORTED = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": SPANS}]}]}
RUN = "".join(f"row-{2 + n % 4} Q0 row-{2 + n // 4} 1 {n / 8} x\n" for n in range(16))
RANKED = from_pairs(
    own.read_upload(
        "x.csv", b"query,document\n" + b"".join(b"when %d,Fog %d.\n" % (n, n) for n in range(4))
    )
)
CARDS = [
    {
        "format": 1,
        "model": "M",
        "weights": "w",
        "dataset": "d",
        "n_pairs": 4,
        "n_documents": 2,
        "poslens": "1",
        "parts": {"ranking": {"numbers": {"psi_minus_permutation": {"value": 0.1}}}},
        "scores": {"p": {"texts": "t", "score": 0.5}},
    }
]
NAMES = ("nDCG@10", "PSI")
MEASURES = {
    "m": {"eng-pol": {f"{m}{b}": 0.5 for m in NAMES for b in ("", "(Q1)", "(Q2)", "(Q3)", "(Q4)")}}
}


# -- results --------------------------------------------------------------------------------------


def require_usable(found: DataSet) -> None:
    """Assert that everything can be stored and shown: plain texts, numbers in range, distinct
    ids."""
    assert len(found.pairs.once) == len(found.pairs), "two pairs share an id"
    for pair in found.pairs:
        said = (
            pair.pair_id,
            pair.query,
            pair.document,
            pair.language,
            pair.domain,
            pair.query_type,
        )
        for text in said:
            assert text is None or (isinstance(text, str) and "\0" not in text), text
            (text or "").encode()
        assert type(pair.document_tokens or 0) is int and 0 <= (pair.document_tokens or 0) < 2**31
        span = pair.evidence
        assert span is None or (type(span.start), type(span.end)) == (int, int)
    for one in found.rejected:
        assert one.reason and one.row > 0
        f"{one.file} {one.reason}".encode()


def require_searchable(found: Collection) -> None:
    rejected: list[object] = []
    for document in found.documents(rejected.append):
        f"{document.key} {document.text} {document.language}".encode()
    for query in found.queries:
        assert all(type(grade) is int and grade > 0 for grade in query.relevant.values())
        f"{query.query_id} {query.text} {query.language} {list(query.relevant)}".encode()
    assert len(found.queries_digest) == 16 and found.survey.n >= 0


# -- files ---------------------------------------------------------------------------------------


def json_lines(rows: Sequence[object], draw: Random) -> bytes:
    listed = [json_text(row) for row in rows]
    if draw.random() < 0.6:
        at = draw.randrange(len(listed))
        listed[at] = json_text(odd_json(rows[at], draw))
        return b"\n".join(listed) + b"\n"
    return damaged(b"\n".join(listed) + b"\n", draw)


def delimited(rows: Sequence[dict[str, str]], mark: str, draw: Random) -> bytes:
    lines = [mark.join(rows[0])]
    quoted = ([f'"{cell}"' for cell in row.values()] for row in rows)
    return damaged("\n".join([*lines, *map(mark.join, quoted), ""]).encode(), draw)


def parquet(rows: Sequence[dict[str, object]], draw: Random) -> bytes:
    """With a column of another type, a missing column, or changed bytes."""
    table = pa.Table.from_pylist(list(rows))
    kind = draw.randrange(4)
    at = draw.randrange(table.num_columns)
    name = table.column_names[at]
    if kind == 0:
        table = table.drop_columns([name])
    elif kind < 3:
        table = table.set_column(at, name, odd_column(len(rows), draw.choice(COLUMNS), draw))
    out = io.BytesIO()
    try:
        pq.write_table(table, out, compression=draw.choice(("none", "snappy", "zstd")))
    except pa.ArrowInvalid:  # a moment that Parquet can't represent, either
        return b"PAR1"
    return damaged(out.getvalue(), draw) if kind == 3 else out.getvalue()


def one_of(draw: Random, folder: Path, files: dict[str, Callable[[], bytes]], whole: Whole) -> None:
    """Write one of the files damaged and the others intact. Intact files are not rewritten."""
    broken = draw.choice(list(files))
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == broken:
            path.write_bytes(files[name]())
        elif whole.get(str(path)) is None or path.stat().st_size != whole[str(path)]:
            path.write_bytes(WHOLE[name])
        whole[str(path)] = len(WHOLE[name]) if name != broken else None


Whole = dict[str, int | None]


def _whole_parquet(rows: Sequence[dict[str, object]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), out)
    return out.getvalue()


QRELS = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(4))
POSTS = [{"post_id": str(n), "text": TEXT, "ocr": f"[{TEXT}]"} for n in range(3)]
CLAIMS = [{"fact_check_id": str(n), "claim": TEXT} for n in range(3)]
MAPPING = [{"fact_check_id": str(n), "post_id": str(n)} for n in range(3)]
CSV: dict[str, list[dict[str, str]]] = {
    "posts.csv": POSTS,
    "fact_checks.csv": CLAIMS,
    "fact_check_post_mapping.csv": MAPPING,
}
LINES = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES}
TABLES = {"queries.parquet": QUERIES, "corpus.parquet": CORPUS, "qrels/test.parquet": JUDGED}


def _quoted(rows: list[dict[str, str]]) -> bytes:
    cells = (",".join(f'"{cell}"' for cell in row.values()) for row in rows)
    return "\n".join([",".join(rows[0]), *cells, ""]).encode()


BEIR_QUERIES = [{"_id": one["_id"], "text": one["text"]} for one in QUERIES]
LINES["queries.jsonl"] = BEIR_QUERIES
WHOLE: dict[str, bytes] = {
    **{name: b"".join(json_text(row) + b"\n" for row in rows) for name, rows in LINES.items()},
    "qrels/test.tsv": QRELS.encode(),
    **{name: _quoted(rows) for name, rows in CSV.items()},
    **{f"eng/fog/{name}": _whole_parquet(rows) for name, rows in TABLES.items()},
}
_written: Whole = {}


# -- readers -------------------------------------------------------------------------------------


def upload(suffix: str, write: Callable[[Random], bytes]) -> Check:
    def check(draw: Random, folder: Path) -> None:
        found = own.read_upload(f"x{suffix}", write(draw))
        require_usable(found)
        require_searchable(from_pairs(found))

    return check


def check_judged(judged: Judged, draw: Random) -> None:
    """As pairs or as a collection."""
    if draw.random() < 0.5:
        require_usable(judged.data_set())
    else:
        require_searchable(judged.collection())


def check_beir(draw: Random, folder: Path) -> None:
    files: dict[str, Callable[[], bytes]] = {
        name: lambda rows=rows: json_lines(rows, draw) for name, rows in LINES.items()
    } | {"qrels/test.tsv": lambda: damaged(QRELS.encode(), draw)}
    one_of(draw, folder, files, _written)
    check_judged(beir.read(folder, "x"), draw)


def check_posir(draw: Random, folder: Path) -> None:
    files: dict[str, Callable[[], bytes]] = {
        f"eng/fog/{name}": lambda rows=rows: parquet(rows, draw) for name, rows in TABLES.items()
    }
    one_of(draw, folder, files, _written)
    check_judged(posir.read(folder, "x"), draw)


def check_multiclaim(draw: Random, folder: Path) -> None:
    files: dict[str, Callable[[], bytes]] = {
        name: lambda rows=rows: delimited(rows, ",", draw) for name, rows in CSV.items()
    }
    one_of(draw, folder, files, _written)
    check_judged(multiclaim.read(folder, "x"), draw)


def check_colder(draw: Random, folder: Path) -> None:
    require_usable(colder.read([File("x.jsonl", json_lines(COLDER, draw))], "x"))


def check_squad(draw: Random, folder: Path) -> None:
    """As JSON or as Parquet."""
    if draw.random() < 0.5:
        path, text = folder / "x.json", json_text(odd_json(SQUAD, draw))
        path.write_bytes(text if draw.random() < 0.7 else damaged(text, draw))
    else:
        path = folder / "x.parquet"
        path.write_bytes(parquet(SQUAD_ROWS, draw))
    files = [File(path.name, path)]
    check_judged(judged_passages(squad.judgments, files, "x", "x"), draw)


def check_fineweb_posq(draw: Random, folder: Path) -> None:
    """As JSON lines or as Parquet."""
    kind = draw.choice(("jsonl", "parquet"))
    path = folder / f"x.{kind}"
    path.write_bytes((json_lines if kind == "jsonl" else parquet)(POSQ, draw))
    files = [File(path.name, path)]
    check_judged(judged_passages(fineweb_posq.judgments, files, "x", "x"), draw)


def check_documents(draw: Random, folder: Path) -> None:
    """As JSON lines, as CSV or as Parquet; the corpus is read too."""
    kind = draw.choice(("jsonl", "csv", "parquet"))
    path = folder / f"alone.{kind}"
    for other in folder.glob("alone.*"):
        other.unlink()
    if kind == "csv":
        rows = [{key: str(value) for key, value in row.items()} for row in ALONE]
        path.write_bytes(delimited(rows, ",", draw))
    else:
        path.write_bytes((json_lines if kind == "jsonl" else parquet)(ALONE, draw))
    if draw.random() < 0.5:
        require_usable(documents.read(path, "x"))
    else:
        require_searchable(documents.documents(path, "x"))


def check_traces(draw: Random, folder: Path) -> None:
    """As lines of spans or as one export."""
    if draw.random() < 0.5:
        path = folder / "x.jsonl"
        path.write_bytes(json_lines(SPANS, draw))
    else:
        path, text = folder / "x.json", json_text(odd_json(EXPORTED, draw))
        path.write_bytes(text if draw.random() < 0.7 else damaged(text, draw))
    files = [File(path.name, path)]
    check_judged(judged_passages(traces.judgments, files, "x", "x"), draw)


def check_run(draw: Random, folder: Path) -> None:
    """A run in TREC's format, applied to a collection."""
    text = damaged(RUN.encode(), draw)
    found = placed(read_run("x", File("x.run", text)), RANKED)
    assert [one.query_id for one in found.rankings] == list(RANKED.row_of)
    for ranking in found.rankings:
        assert np.isfinite(ranking.scores).all() and (np.diff(ranking.scores) <= 0).all()
        assert len(set(ranking.document_ids)) == len(ranking.document_ids) == len(ranking.scores)


def check_baseline(draw: Random, folder: Path) -> None:
    """A stored passport."""
    text = json_text(odd_json(CARDS, draw))
    found = parse(text if draw.random() < 0.7 else damaged(text, draw), "x.json", "M")
    for numbers in found.numbers.values():
        assert all(np.isfinite(number.value) for number in numbers.values())
    assert all(np.isfinite(entry["score"]) for entry in found.scores.values()) and found.heading


def check_measures(draw: Random, folder: Path) -> None:
    text = json_text(odd_json(MEASURES, draw))
    for row in read_measures("x.json", text if draw.random() < 0.7 else damaged(text, draw)):
        assert 0 <= row.ndcg <= 1 and 0 <= row.psi <= 1


def check_curves(suffix: str, write: Callable[[Random], bytes]) -> Check:
    wholes = {n: write(Random(n)) for n in range(12)}

    def check(draw: Random, folder: Path) -> None:
        data = damaged(wholes[draw.randrange(len(wholes))], draw)
        for part in curves_of(data, "x", suffix):
            assert np.isfinite(np.frombuffer(part, "<f8")).all()

    return check


def pickled(draw: Random) -> bytes:
    """Pickled like numpy arrays, with any protocol."""
    import pickle

    values = [np.linspace(0, 1, 100, dtype=draw.choice(("<f4", "<f8", ">f8")))] * 2
    return pickle.dumps(values, draw.randrange(6))


def archived(draw: Random) -> bytes:
    out = io.BytesIO()
    save = np.savez_compressed if draw.random() < 0.5 else np.savez
    save(out, curves=np.ones((2, 100), draw.choice(("<f4", "<f8", "<i8"))))
    return out.getvalue()


READERS: dict[str, Check] = {
    "csv": upload(".csv", lambda draw: delimited(ROWS, ",", draw)),
    "tsv": upload(".tsv", lambda draw: delimited(ROWS, "\t", draw)),
    "jsonl": upload(".jsonl", lambda draw: json_lines(ROWS, draw)),
    "parquet": upload(".parquet", lambda draw: parquet(list(ROWS), draw)),
    "beir": check_beir,
    "posir": check_posir,
    "multiclaim": check_multiclaim,
    "colder": check_colder,
    "squad": check_squad,
    "fineweb-posq": check_fineweb_posq,
    "documents": check_documents,
    "traces": check_traces,
    "run": check_run,
    "baseline": check_baseline,
    "measures": check_measures,
    "pickle": check_curves(".pkl", pickled),
    "npz": check_curves(".npz", archived),
}


def here(
    function: Callable[..., object],
    arguments: Sequence[object] = (),
    data: bytes = b"",
    **_: object,
) -> bytes:
    """Replaces `isolated.call`, because starting a child would take most of the time. A file that
    crashes the process ends the fuzzer, which reports the mutation."""
    return b"".join(function(data, *arguments))  # type: ignore[arg-type]


def fuzz(name: str, mutations: int, first: int = 0, said: str = "") -> list[str]:
    """The tracebacks of a reader over `mutations` damaged files, at most ten. The number of the
    current mutation is written to the file `said`."""
    isolated.call = here  # type: ignore[assignment]
    isolated.Reader.call = lambda _, *given, **named: here(*given, **named)  # type: ignore
    isolated.Reader._start = lambda _: None  # type: ignore[method-assign]
    problems: list[str] = []
    _written.clear()
    with tempfile.TemporaryDirectory(prefix="poslens-fuzz-") as place:
        folder = Path(place)
        for number in range(first, first + mutations):
            if said:
                Path(said).write_text(f"{name} {number}")
            try:
                READERS[name](Random(f"{name} {number}"), folder)
            except UserError as error:
                assert str(error).encode()
            except Exception:
                problems.append(f"{name} {number}\n{traceback.format_exc()}")
                if len(problems) == 10:
                    break
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000, help="of each reader")
    parser.add_argument("--only", choices=READERS, help="one reader")
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--said", default="", help="a file for the number under way")
    options = parser.parse_args()
    failed = False
    for name in [options.only] if options.only else READERS:
        started = time.perf_counter()
        problems = fuzz(name, options.mutations, options.first, options.said)
        seconds = time.perf_counter() - started
        print(f"{name}: {options.mutations:,} in {seconds:.1f} s, {len(problems)} problems")
        print("\n".join(problems), flush=True)
        failed |= bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
