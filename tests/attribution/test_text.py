"""Cleaning, words and sentences in many scripts."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.text import (
    MAX_CHARACTERS,
    clean,
    inside,
    joined,
    require_sentences,
    revision,
    script_without_sentences,
    sentences,
    starts_unspaced,
    unit_of,
    words,
)
from poslens.attribution.types import EvidenceSpan, Token, TokenizedText

TEXTS = {
    "eng": "Dr. Smith paid $3.50 on 5 Jan. 2020. It's well-known, isn't it? Yes! (See p. 4.)",
    "pol": "Zażółć gęślą jaźń. Ok. 40% ludzi, tj. większość, śpi.",
    "slk": "Vôl je zviera. Napr. krava tiež. Koniec.",
    "spa": "¿Qué es? El Sr. López vive aquí. ¡Sí!",
    "cmn": "海洋潮汐由月球引力引起。每天两次！为什么？因为地球自转。",
    "ara": "النخلة شجرة مثمرة. هل تعيش في الصحراء؟ نعم، تعيش.",
    "tha": "นกเงือกเป็นนกขนาดใหญ่ อาศัยอยู่ในป่า กินผลไม้",
}


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (TEXTS["tha"], "Thai"),
        ("ຂ້ອຍໄປຕະຫຼາດ ລາວມາ", "Lao"),
        ("ខ្ញុំទៅផ្សារ។ គាត់មក។", "Khmer"),
        ("ང་འགྲོ་གི་ཡིན། ཁོང་ཕེབས་སོང་།", "Tibetan"),
        ("ကျွန်တော်သွားသည်။ သူလာသည်။", ""),
        (f"{TEXTS['eng']} Its Thai name is นกเงือก.", ""),
        (f"{TEXTS['tha']} (Bucerotidae)", "Thai"),
        ("", ""),
        ("40 % !", ""),
        ("…", ""),
        *((TEXTS[one], "") for one in TEXTS if one != "tha"),
    ],
)
def test_scripts_whose_sentences_cannot_be_split_are_refused(text: str, script: str) -> None:
    assert script_without_sentences(text) == script
    if script:
        with pytest.raises(UserError, match=f"in {script} script"):
            require_sentences(text)
    else:
        require_sentences(text)


# -- clean -------------------------------------------------------------------------------------


def test_invalid_characters_are_replaced() -> None:
    dirty = "a\ud800b\x00c\udfff🚀"
    found = clean(dirty, "query")
    assert found == "a\ufffdb\ufffdc\ufffd🚀"
    assert len(found) == len(dirty), "offsets stay those of the original"
    found.encode("utf-8")


@pytest.mark.parametrize("text", ["plain", "  kept \n", "\ufffd", "e\u0301", "\u200b", "a\tb"])
def test_all_other_text_is_unchanged(text: str) -> None:
    assert clean(text, "query") == text


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u3000\u2028"])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^The document is empty"):
        clean(text, "document")


def test_a_text_may_be_two_million_characters_long() -> None:
    assert len(clean("a" * MAX_CHARACTERS, "query")) == MAX_CHARACTERS
    with pytest.raises(UserError, match="2,000,001 characters; the limit is 2,000,000"):
        clean("a" * (MAX_CHARACTERS + 1), "query")


@given(st.text(alphabet=st.characters(exclude_categories=()), min_size=1))
def test_cleaned_text_can_always_be_encoded(text: str) -> None:
    try:
        found = clean(text, "query")
    except UserError:
        assert not text.strip()
        return
    found.encode("utf-8")
    assert len(found) == len(text) and "\x00" not in found
    assert clean(found, "query") == found


# -- words -------------------------------------------------------------------------------------


def cut(text: str, spans) -> list[str]:
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "It's a well-known 3.50, isn't it?",
            ["It's", "a", "well-known", "3.50", ",", "isn't", "it", "?"],
        ),
        ("end. Next", ["end", ".", "Next"]),
        ("cafe\u0301 naïve", ["cafe\u0301", "naïve"]),
        ("海洋 tides", ["海", "洋", "tides"]),
        ("กำ ที่", ["กำ", "ที่"]),
        ("النَّخلة، شجرة", ["النَّخلة", "،", "شجرة"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("GPT4を使う", ["GPT4", "を", "使", "う"]),
        ("a🚀b", ["a", "🚀", "b"]),
        ("(x)", ["(", "x", ")"]),
        ("   ", []),
    ],
)
def test_words_split_by_hand(text: str, expected: list[str]) -> None:
    assert cut(text, words(text)) == expected


def test_parts_are_separated_as_their_script_does() -> None:
    first, second = "海洋潮汐是由月球引力引起的。", "土星有光环。"
    assert joined([first, second]) == first + second
    assert joined(["One.", "Two.", second]) == f"One. Two.{second}"
    quoted = [first, "《史记》有记载。", "他说：“对。”", "2014年又有发现。", "GPS也用它。"]
    assert joined(quoted) == "".join(quoted)
    assert joined(["Он ушёл.", "«Да.»", "2014 год."]) == "Он ушёл. «Да.» 2014 год."
    assert joined(["One.\n", "Two."]) == "One.\nTwo." and joined(["", "One."]) == "One."


def lawful(text: str, spans) -> None:
    """Ordered, without overlap or empty spans, over every character that is not white space."""
    cursor, covered = 0, set()
    for start, end in spans:
        assert cursor <= start < end <= len(text)
        covered.update(range(start, end))
        cursor = end
    missing = {i for i, c in enumerate(text) if not c.isspace()} - covered
    assert not missing, [(i, text[i]) for i in sorted(missing)][:5]


@pytest.mark.parametrize("language", TEXTS)
def test_words_cover_the_text(language: str) -> None:
    spans = words(TEXTS[language])
    lawful(TEXTS[language], spans)
    assert all(not any(c.isspace() for c in TEXTS[language][a:b]) for a, b in spans)


some_text = st.text(
    alphabet=st.one_of(
        st.sampled_from(list("ab1 .,'’-·\n\t\u200d\u0301\u3000กำ่海النَّ🚀👩。؟")),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=60,
)


@given(some_text)
@settings(max_examples=300)
def test_words_partition_any_text(text: str) -> None:
    lawful(text, words(text))


# -- sentences ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("cmn", ["海洋潮汐由月球引力引起。", "每天两次！", "为什么？", "因为地球自转。"]),
        ("ara", ["النخلة شجرة مثمرة.", "هل تعيش في الصحراء؟", "نعم، تعيش."]),
        ("spa", ["¿Qué es?", "El Sr. López vive aquí.", "¡Sí!"]),
    ],
)
def test_sentences_split_by_hand(language: str, expected: list[str]) -> None:
    assert cut(TEXTS[language], sentences(TEXTS[language], language)) == expected


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("bul", ["Вярно ли е?", "Д-р Иванов живее на ул. Шипка."]),
        ("cat", ["És veritat?", "La Dra. Vila va venir."]),
        ("dan", ["Den er f.eks. stor.", "Den 3. oktober 1990 regnede det."]),
        ("ell", ["Είναι αλήθεια;", "Ο κ. Παπαδόπουλος ζει π.χ. εδώ.", "Ναι."]),
        ("fin", ["Se on ns. hyvä.", "Onko totta?"]),
        ("hye", ["Դա ճիշտ է։", "Պրոֆ. Պետրոսյան։"]),
        ("kaz", ["Т.б. бар.", "Ит ұйықтап жатыр."]),
        ("mal", ["നായ ഉറങ്ങുന്നു.", "ഡോ. ശർമ്മ വന്നു."]),
        ("nld", ["Is het waar?", "Dhr. Jansen woont hier, bijv. nu."]),
        ("tam", ["உண்மையா?", "எ.கா. இது."]),
        ("ukr", ["Це правда?", "Д-р Іваненко живе на вул. Шевченка."]),
    ],
)
def test_languages_have_their_own_abbreviations_and_marks(
    language: str, expected: list[str]
) -> None:
    text = " ".join(expected)
    assert cut(text, sentences(text, language)) == expected
    assert cut(text, sentences(text, "eng")) != expected


@pytest.mark.parametrize("language", ["jpn", "kor", "hin", None])
@pytest.mark.parametrize(
    "expected",
    [
        ["高さは３．５メートルです。", "次です。"],
        ["「本当ですか？」と聞いた。", "「行く。」", "彼は言った。"],
        ['그는 "간다."라고 말했다.', "“온다.”고 했다.", "개가 잔다."],
        ["ऊँचाई १.५ मीटर है।", "अंत।"],
    ],
)
def test_numbers_and_reported_speech_are_in_one_sentence(
    language: str | None, expected: list[str]
) -> None:
    text = ("" if starts_unspaced(expected[0][1]) else " ").join(expected)
    assert cut(text, sentences(text, language)) == expected


def test_sentences_of_the_sample_are_those_of_its_included_results() -> None:
    digest = hashlib.sha256()
    for name in ("sample", "sample-multilingual", "sample-bias"):
        for pair in datasets.read(name).pairs:
            assert not revision(pair.language)
            digest.update(
                f"{name} {pair.pair_id} {sentences(pair.document, pair.language)}".encode()
            )
    assert digest.hexdigest()[:16] == "0b3249a240eddd3d"


def test_abbreviations_do_not_end_a_sentence() -> None:
    text = "Dr. Smith paid $3.50. Mrs. Jones did not. They live in the U.S. today."
    assert cut(text, sentences(text, "eng")) == [
        "Dr. Smith paid $3.50.",
        "Mrs. Jones did not.",
        "They live in the U.S. today.",
    ]


def test_repeated_sentences_keep_their_offsets() -> None:
    text = "No. Wait! Wait! Stop it. Wait!"
    spans = sentences(text, "eng")
    lawful(text, spans)
    assert len(set(spans)) == len(spans) >= 3


@pytest.mark.parametrize("language", [*TEXTS, None, "xxx"])
def test_sentences_cover_the_text(language: str | None) -> None:
    for text in TEXTS.values():
        spans = sentences(text, language)
        lawful(text, spans)
        assert all(text[a:b] == text[a:b].strip() for a, b in spans)


def test_offsets_count_characters_after_emoji() -> None:
    text = "🚀 rises. 👩\u200d🚀 waves. 海 ends."
    assert cut(text, sentences(text, "eng")) == ["🚀 rises.", "👩\u200d🚀 waves.", "海 ends."]


@given(some_text, st.sampled_from([None, "eng", "cmn", "ara", "tha", "hin"]))
@example("Vitamin C\u00a0. It is B\u3000\u3000.", "eng")  # made sentencex panic
@settings(max_examples=200)
def test_sentences_partition_any_text(text: str, language: str | None) -> None:
    lawful(text, sentences(text, language))


def test_tokens_belong_to_the_span_they_start_in_or_the_next() -> None:
    #        0123456789
    # text: "ab cd, ef "; spans "ab", "cd", "ef"
    tokens = (
        Token("[CLS]", 0, 0, is_special=True),
        Token("a", 0, 1),
        Token("b", 1, 2),
        Token(" cd", 2, 5),  # starts between two
        Token(",", 5, 6),
        Token("ef", 7, 9),
        Token(" ", 9, 10),  # behind all
    )
    text = TokenizedText.of(tokens, 6, 512)
    spans = [(0, 2), (3, 5), (7, 9)]
    assert unit_of(text, spans).tolist() == [-1, 0, 0, 1, 2, 2, 2]
    assert unit_of(text, []).tolist() == [-1] * 7
    assert inside(text, EvidenceSpan(1, 4)).tolist() == [False, False, True, True] + [False] * 3
