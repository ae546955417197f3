"""ColDeR, MultiClaim, cross-lingual PosIR, the hub, and detection of a path's format."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution import datasets
from poslens.attribution.datasets import colder, detect, formats, multiclaim, posir, sources
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.datasets.streams import File
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.filler import filler, filler_note
from poslens.attribution.types import EvidenceSpan
from tests.support.format_files import Rows, write

# -- ColDeR ------------------------------------------------------------------------------------

FOIL = {
    "query": "When was Fog published?",
    "document_1": '" Fog " " Fog " Fog is long .',
    "document_2": "Tea is hot . Fog was published in 1927 . Tea is hot .",
    "id": "validation7",
    "evidence_sents": [["Fog", "was", "published", "in", "1927", "."]],
}


def write_colder(folder: Path, **biases: Rows) -> Path:
    return write(folder, {f"test/{bias}.jsonl": rows for bias, rows in biases.items()})


def test_colder_is_read_with_other_field_names_and_from_one_file(tmp_path: Path) -> None:
    rows = [{"queries": "q", "doc1": "a", "doc2": "b"}] * 2
    path = write_colder(tmp_path, brevity_bias=rows) / "test" / "brevity_bias.jsonl"
    assert detect(path) == "colder"
    found = formats.read(path, "mine")
    assert [pair.pair_id for pair in found.pairs] == [
        "brevity_bias/1/1",
        "brevity_bias/1/2",
        "brevity_bias/2/1",
        "brevity_bias/2/2",
    ]


# -- MultiClaim --------------------------------------------------------------------------------


def cell(original: str, english: str, *shares: tuple[str, float]) -> str:
    """As in the published files: a Python tuple whose line breaks are not escaped."""
    return repr((original, english, list(shares))).replace("\\n", "\n")


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def write_multiclaim(
    folder: Path, mapping: str = "fact_check_id,post_id\n10,1\n11,1\n", pack: bool = False
) -> Path:
    folder.mkdir(exist_ok=True)
    posts = [
        (
            "1",
            "[" + cell("obraz", "picture", ("pol", 1.0)) + "]",
            cell("Pierwsza\nlinia", "First\nline", ("eng", 0.1), ("pol", 0.9)),
        ),
        ("2", "[]", ""),
        ("3", "[]", "__import__('os').getcwd()"),
        ("4", "[]", "('only one',)"),
    ]
    claims = [
        ("10", cell("Tvrzení", "A claim", ("ces", 1.0))),
        ("11", cell("Teza", "Thesis", ("pol", 0.8), ("eng", 0.2))),
        ("12", ""),
    ]
    files = {
        "posts.csv": "post_id,instances,ocr,verdicts,text\n"
        + "".join(
            f"{i},{quoted('[]')},{quoted(ocr)},{quoted('[]')},{quoted(text)}\n"
            for i, ocr, text in posts
        ),
        "fact_checks.csv": "fact_check_id,claim,instances,title\n"
        + "".join(f"{i},{quoted(claim)},[],\n" for i, claim in claims),
        "fact_check_post_mapping.csv": mapping,
    }
    for name, text in files.items():
        if pack:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("pack", [False, True])
def test_multiclaim_gives_posts_and_claims_in_both_versions(tmp_path: Path, pack: bool) -> None:
    root = write_multiclaim(tmp_path / "claims", pack=pack)
    assert detect(root) == "multiclaim"
    assert datasets.register("mc", root) == ["mc", "mc-english"]
    original, english = datasets.read("mc"), datasets.read("mc-english")
    first, second = original.pairs
    assert (first.pair_id, first.query, first.document) == (
        "1/10",
        "Pierwsza\nlinia obraz",
        "Tvrzení",
    )
    assert (first.language, first.asked_in, first.domain) == ("ces", "pol", "two languages")
    assert (second.document, second.language, second.domain) == ("Teza", "pol", "one language")
    first, second = english.pairs
    assert (first.query, first.document) == ("First\nline picture", "A claim")
    assert (first.language, first.asked_in) == ("eng", "eng")
    assert (first.domain, first.dataset) == ("two languages", "mc-english")
    assert original.title == "mc (MultiClaim, original)"
    # Each set refers to the other's version as a pair with the same key and texts.
    for one, another, called in (
        (original, english, "English version"),
        (english, original, "Original"),
    ):
        assert one.version_name == called
        assert [one.version_of(pair) for pair in one.pairs] == list(another.pairs)


def test_a_version_without_text_is_left_out(tmp_path: Path) -> None:
    root = write_multiclaim(tmp_path / "x")
    path = root / "fact_checks.csv"
    path.write_text(path.read_text().replace("'Thesis'", "' '"))
    assert "Thesis" not in path.read_text()
    found = multiclaim.read(root, "mc").data_set()
    assert [pair.pair_id for pair in found.pairs] == ["1/10", "1/11"]
    assert [found.version_of(pair) is None for pair in found.pairs] == [False, True]


@pytest.mark.parametrize(
    ("ocr", "text", "kind"),
    [
        ("[]", "Text", "text"),
        ("", "Text", "text"),
        ("Bild", "", "pictures"),
        ("Bild", "Text", "text and pictures"),
    ],
)
def test_query_types_say_whether_posts_have_pictures(
    tmp_path: Path, ocr: str, text: str, kind: str
) -> None:
    def one(word: str) -> str:
        return repr((word, word.upper(), [("deu", 1.0)]))

    write_multiclaim(tmp_path, "fact_check_id,post_id\n10,1\n")
    cells = (f"[{one(ocr)}]" if ocr.isalpha() else ocr, one(text) if text else "")
    (tmp_path / "posts.csv").write_text("post_id,ocr,text\n1," + ",".join(map(quoted, cells)))
    words = " ".join(filter(None, (text, ocr if ocr.isalpha() else "")))
    for version, expected in (("original", words), ("english", words.upper())):
        (pair,) = formats.read(tmp_path, "mc", variant=version).pairs
        assert (pair.query_type, pair.query) == (kind, expected)


@given(st.text(max_size=40), st.text(max_size=40))
def test_multiclaim_cells_round_trip(original: str, english: str) -> None:
    value = multiclaim._parsed(cell(original, english, ("eng", 1.0)), "text")
    # If a backslash precedes a line break, the published form is ambiguous by design.
    if "\\" not in original + english:
        assert value == (original, english, [("eng", 1.0)])


@pytest.mark.parametrize(
    "text",
    [
        "(" * 99_999,
        "-" * 99_999 + "1",
        "[" * 999 + "]" * 999,
        "f(x)",
        "{**x}",
        "1" * 10_000,
        "\0",
        "x" * 1_000_001,
    ],
)
def test_hostile_cells_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a Python tuple of texts|the limit is"):
        multiclaim._parsed(text, "text")


# -- PosIR across languages --------------------------------------------------------------------


def write_posir(root: Path, language: str, document: str, text: str, ids: list[str]) -> None:
    span = {
        "pos_char_span": [0, len(document)],
        "pos_char_length": len(document),
        "pos_token_length": len(language),
    }
    files: dict[str, Rows] = {
        "queries.parquet": [{"_id": i, "text": text, **span} for i in ids],
        "corpus.parquet": [{"_id": "d1", "text": document}],
        "qrels/test.parquet": [{"query-id": i, "corpus-id": "d1", "score": 1} for i in ids],
    }
    write(root / language / "weather", files)


@pytest.mark.usefixtures("checked")
def test_queries_of_one_language_with_documents_of_another(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_posir(root, "eng", "Fog lifts.", "when", ["q1"])
    write_posir(root, "pol", "Mgła się podnosi.", "kiedy", ["q1", "q2"])
    assert datasets.register("x", f"{root}@eng-pol") == ["x"]
    found = datasets.read("x")
    (pair,) = found.pairs
    assert (pair.query, pair.document, pair.language) == ("when", "Mgła się podnosi.", "pol")
    assert pair.asked_in == "eng"
    assert pair.evidence == EvidenceSpan(0, 17)
    assert [(r.row, r.reason) for r in found.rejected] == [
        (2, "q2/d1: eng query q2 does not exist")
    ]
    assert found.title == "x (queries eng, documents pol)"
    with pytest.raises(UserError, match=r"slk is not in set: .* languages eng, pol"):
        formats.read(root, "x", variant="eng-slk")
    (root / "pol" / "weather").rename(root / "pol" / "water")
    with pytest.raises(UserError, match="no domain in both eng and pol"):
        formats.read(root, "x", variant="eng-pol")
    with pytest.raises(UserError, match="only the PosIR format"):
        formats.read(write_colder(tmp_path / "c", foil=[FOIL]), "x", variant="eng-pol")


PUBLISHED = (
    "ara-Arab",
    "cmn-Hans",
    "deu-Latn",
    "eng-Latn",
    "fra-Latn",
    "ita-Latn",
    "kor-Kore",
    "por-Latn",
    "rus-Cyrl",
    "spa-Latn",
)
"""The folders of the published PosIR."""


@pytest.mark.usefixtures("checked")
def test_folders_as_posir_publishes_them_are_languages(tmp_path: Path) -> None:
    """If scripts were ignored, the filler in a Chinese document would be English."""
    root = tmp_path / "set"
    for name in PUBLISHED:
        write_posir(root, name, f"Fog in {name} lifts.", f"when {name}", ["q1"])
    found = datasets.read(datasets.register("published", root)[0])
    assert {p.query: p.language for p in found.pairs} == {
        f"when {name}": name[:3] for name in PUBLISHED
    }
    chinese = next(p for p in found.pairs if p.language == "cmn")
    assert filler_note(chinese.language) == "" and filler(chinese.language, 5).startswith("这")
    collection = datasets.collection("published")
    assert {(q.part, q.language) for q in collection.queries} == {
        (f"{name}/weather", name[:3]) for name in PUBLISHED
    }
    assert collection.survey.languages["cmn-Hans/weather", "cmn"] == 1


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("variant", "queries", "documents"),
    [
        ("eng", "eng-Latn", "eng-Latn"),
        ("eng-Latn", "eng-Latn", "eng-Latn"),
        ("en", "eng-Latn", "eng-Latn"),
        ("eng-eng", "eng-Latn", "eng-Latn"),
        ("cmn-Hans", "cmn-Hans", "cmn-Hans"),
        ("fra-eng", "fra-Latn", "eng-Latn"),
        ("fra-Latn-eng", "fra-Latn", "eng-Latn"),
        ("fra-cmn-Hans", "fra-Latn", "cmn-Hans"),
        ("fra-Latn-cmn-Hans", "fra-Latn", "cmn-Hans"),
    ],
)
def test_a_language_is_named_with_its_script_or_without(
    tmp_path: Path, variant: str, queries: str, documents: str
) -> None:
    root = tmp_path / "set"
    for name in PUBLISHED:
        write_posir(root, name, f"Fog in {name} lifts.", f"when {name}", ["q1"])
    assert formats.split_variant(f"{root}@{variant}") == (str(root), variant)
    (pair,) = formats.read(root, "x", variant=variant).pairs
    assert (pair.query, pair.document) == (f"when {queries}", f"Fog in {documents} lifts.")
    (query,) = formats.collection(root, "x", variant=variant).queries
    assert query.language == queries[:3] and query.text == pair.query
    assert formats.collection(root, "x", variant=variant).survey.n == 1


@pytest.mark.usefixtures("checked")
def test_a_language_in_two_scripts_has_to_be_named_with_its_script(tmp_path: Path) -> None:
    for name in ("cmn-Hans", "cmn-Hant"):
        write_posir(tmp_path, name, f"Fog in {name} lifts.", "when", ["q1"])
    with pytest.raises(UserError, match=r"cmn is in several scripts .* cmn-Hans, cmn-Hant"):
        formats.read(tmp_path, "x", variant="cmn")
    (pair,) = formats.read(tmp_path, "x", variant="cmn-Hant").pairs
    assert pair.document == "Fog in cmn-Hant lifts." and pair.language == "cmn"


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("eng_Latn", "eng"),
        ("pt-BR", "por"),
        ("zh-Hans-CN", "cmn"),
        ("es-419", "spa"),
        ("ZH-Hans", "cmn"),
        ("eng-pol", "eng-pol"),
        ("x-klingon", "x-klingon"),
        (" pl ", "pol"),
    ],
)
def test_script_and_region_are_not_part_of_a_language(code: str, language: str) -> None:
    assert iso_639_3(code) == language


@pytest.mark.parametrize(
    "codes",
    [
        "zh zho cmn zho_Hans zh-TW",
        "no nb nor nob nob_Latn",
        "am amh amh_Ethi",
        "ar ara arb_Arab",
        "ca cat",
        "et est ekk",
        "fa fas pes",
        "lv lav lvs",
        "ms msa zsm",
        "sw swa swh",
    ],
)
def test_codes_of_a_language_or_macrolanguage_are_one_language(codes: str) -> None:
    assert len({iso_639_3(code) for code in codes.split()}) == 1


def test_varieties_that_differ_in_writing_stay_apart() -> None:
    assert [iso_639_3(code) for code in ("nno", "arz", "prs", "yue")] == "nno arz prs yue".split()


@pytest.mark.usefixtures("checked")
def test_an_existing_path_that_ends_like_a_variant_is_a_path(tmp_path: Path) -> None:
    odd = tmp_path / "set@eng-pol"
    write_posir(odd, "eng", "Fog lifts.", "when", ["q1"])
    assert formats.split_variant(str(odd)) == (str(odd), "")
    assert posir.read(odd, "x").data_set().pairs[0].query == "when"


# -- the hub -----------------------------------------------------------------------------------


def test_an_unreachable_hub_is_reported_in_one_sentence() -> None:
    """HF_HUB_OFFLINE is set for all tests."""
    with pytest.raises(
        UserError, match=r"The hub can't be reached to download BeIR/scifact: download it"
    ):
        datasets.register("x", "hf:BeIR/scifact")
    assert "x" not in datasets.names()


@pytest.mark.parametrize(
    "name", ["hf:", "hf:one", "hf:../..", "hf:a/b/c", "hf:a/b@main", "hf:a/b\n"]
)
def test_an_invalid_hub_id_is_refused_before_any_request(name: str) -> None:
    with pytest.raises(UserError, match=r"is not hf:ORGANIZATION/NAME|is not a valid hub id"):
        sources.fetch_from_hub(name)


def test_only_tables_and_text_are_fetched_from_the_hub(tmp_path: Path, monkeypatch: Any) -> None:
    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(write_colder(tmp_path / "c", foil=[FOIL]))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    datasets.register("x", "hf:mohsenfayyaz/ColDeR")
    assert len(datasets.read("x").pairs) == 2
    assert (asked["name"], asked["repo_type"]) == ("mohsenfayyaz/ColDeR", "dataset")
    endings = {pattern.removesuffix(".gz") for pattern in asked["allow_patterns"]}
    assert endings == {"*.parquet", "*.jsonl", "*.csv", "*.tsv"}


# -- which format ------------------------------------------------------------------------------


def test_the_error_of_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for name in ("empty", "notes.txt"):
        with pytest.raises(UserError) as caught:
            detect(tmp_path / name)
        message = str(caught.value)
        assert message.startswith(f"{name} is not in a known format: a .csv")
        for looked_for in (
            "BEIR",
            "MultiClaim",
            "ColDeR",
            ".csv",
            ".parquet",
            "query and document",
        ):
            assert looked_for in message
        assert str(tmp_path) not in message
    with pytest.raises(UserError, match="is not a folder or a file"):
        detect(tmp_path / "absent")


@pytest.mark.usefixtures("checked")
def test_each_format_is_distinguished_from_the_others(tmp_path: Path) -> None:
    write_posir(tmp_path / "posir", "eng", "Fog lifts.", "when", ["q1"])
    (tmp_path / "own.jsonl").write_text('{"query": "q", "document": "d"}\n')
    assert detect(tmp_path / "posir") == "posir"
    assert detect(tmp_path / "own.jsonl") == "own"
    assert detect(write_multiclaim(tmp_path / "mc")) == "multiclaim"
    assert detect(write_colder(tmp_path / "c", foil=[FOIL]) / "test") == "colder"


@pytest.mark.parametrize("name", ["sample", "x"])
def test_the_name_of_a_bundled_data_set_cannot_be_registered(tmp_path: Path, name: str) -> None:
    root = write_multiclaim(tmp_path / "mc")
    if name == "sample":
        with pytest.raises(UserError, match="sample is the name of a bundled data set"):
            datasets.register(name, root)
        assert "sample-english" not in datasets.names()
    else:
        assert datasets.register(name, root) == ["x", "x-english"]


def test_a_folder_that_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(path: Path) -> bool:  # as for everyone but root
        raise PermissionError(13, "Permission denied", str(path / "posts.csv"))

    monkeypatch.setattr(Path, "is_file", locked)
    with pytest.raises(UserError, match=r"can't be read \(Permission denied\): check"):
        datasets.register("locked", tmp_path)


def test_a_data_set_whose_name_is_not_text_is_refused(tmp_path: Path) -> None:
    pairs = b"query,document,evidence\nq,d,d\n"
    place = tmp_path / os.fsdecode(b"r\xe9sum\xe9.csv")  # a name in Latin-1
    place.write_bytes(pairs)
    with pytest.raises(UserError, match=r"r\ufffdsum\ufffd\.csv is not a valid UTF-8 name: rename"):
        datasets.register(place.name, place)
    datasets.register("named", place)
    assert len(datasets.read("named").pairs) == 1


def test_a_colder_file_may_have_any_name() -> None:
    data = json.dumps(FOIL).encode()
    found = colder.read([File("mine.jsonl", data)], "x")
    assert found.pairs[0].domain == "mine"
