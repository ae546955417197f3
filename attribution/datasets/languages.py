"""Converts the language codes of data sets to ISO 639-3, with one code for each language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from poslens.attribution.datasets.schema import as_label
from poslens.attribution.errors import UserError

# Two-letter codes of the languages of PosIR, BEIR's translations, MultiClaim and other multilingual
# data sets, and of the macrolanguages below. A macrolanguage and its standard variety, of which
# data sets use either code (FLORES, for example, has `arb_Arab` and `zho_Hans`), count as one
# language. Chinese is `cmn`, as in PosIR; others have the macrolanguage's code. Varieties that
# differ in writing, such as `nno`, `arz` and `prs`, remain languages of their own.
_CODES = dict(
    code.split(":")
    for code in (
        "af:afr am:amh ar:ara as:asm az:aze be:bel bg:bul bn:ben bo:bod bs:bos ca:cat cs:ces "
        "cy:cym da:dan de:deu el:ell en:eng es:spa et:est eu:eus fa:fas fi:fin fr:fra ga:gle "
        "gl:glg gu:guj ha:hau he:heb hi:hin hr:hrv hu:hun hy:hye id:ind ig:ibo is:isl it:ita "
        "iw:heb ja:jpn ka:kat kk:kaz km:khm kn:kan ko:kor ky:kir lo:lao lt:lit lv:lav mk:mkd "
        "ml:mal mn:mon mr:mar ms:msa mt:mlt my:mya nb:nor ne:nep nl:nld no:nor pa:pan pl:pol "
        "ps:pus pt:por ro:ron ru:rus rw:kin si:sin sk:slk sl:slv so:som sq:sqi sr:srp sv:swe "
        "sw:swa ta:tam te:tel tg:tgk th:tha ti:tir tl:tgl tr:tur ug:uig uk:ukr ur:urd uz:uzb "
        "vi:vie xh:xho yi:yid yo:yor zh:cmn zu:zul "
        "zho:cmn als:sqi arb:ara azj:aze ekk:est khk:mon lvs:lav nob:nor npi:nep pes:fas swh:swa "
        "uzn:uzb zsm:msa"
    ).split()
)
_KNOWN_CODES = frozenset(_CODES.values())

# A language with a script or a region, as in PosIR's `eng-Latn`, FLORES' `eng_Latn`, `pt-BR`.
_SUBTAGS = re.compile(r"([A-Za-z]{2,3})(?:[-_](?:[A-Za-z]{4}|[A-Za-z]{2}|[0-9]{3}))+")

_CODE = re.compile(r"[A-Za-z]{2,3}")

# The published sets of BEIR (Thakur et al. 2021); all of them are English.
_BEIR = frozenset(
    "arguana bioasq climate-fever cqadupstack dbpedia-entity fever fiqa hotpotqa "
    "msmarco nfcorpus nq quora robust04 scidocs scifact signal1m trec-covid trec-news "
    "webis-touche2020".split()
)


def iso_639_3(code: str | None) -> str | None:
    """`code` as ISO 639-3 if it is a known two-letter code; codes of the same language become one:
    `zh`, `zho` and `cmn` are `cmn`. Other codes are not changed.

    A script or region is removed: `eng-Latn` is `eng`, `pt-BR` is `por`.
    """
    if code is None or not code.strip():
        return None
    code = code.strip()
    if match := _SUBTAGS.fullmatch(code):
        code = match[1].lower()
    return _CODES.get(code.lower(), code)


def as_language(value: Any, name: str) -> str | None:
    """The type of a column of languages: a code of two or three letters, as ISO 639-3."""
    code = as_label(value, name)
    if not (_CODE.fullmatch(code) or _SUBTAGS.fullmatch(code)):
        raise UserError(
            f"the {name} {code[:40]!r} is not an ISO 639 code of two or three letters, such as en"
        )
    return iso_639_3(code)


def of_folder(folder: Path) -> tuple[str | None, str]:
    """Language and domain stated by the name of a BEIR folder or of its parent folder.

    `beir/scifact` is English because the published set is; `scifact-pl` and `beir-pl/scifact` are
    Polish because a name ends in that code. The language is None if neither name states it. The
    domain of a CQADupStack forum begins with the name of that set. In the hub's cache, names are
    those of the repository: `datasets--organization--name/snapshots/<commit>`.
    """
    names = [folder.parent.name, folder.name]
    if names[0] == "snapshots":
        names = folder.parent.parent.name.split("--")[1:] or names[1:]
    folder_name = names[-1]
    bare, code = _ending(folder_name.lower())
    outer, outer_code = _ending(names[-2].lower() if len(names) > 1 else "")
    forum = outer == "cqadupstack"
    if code is None and (forum or outer.startswith("beir")):
        code = outer_code
    if code is None and (forum or bare in _BEIR):
        code = "eng"
    name = folder_name[: len(bare)]
    return code, f"cqadupstack/{name}" if forum else name


def _ending(name: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"(.+)[-_.]([a-z]{2,3})", name)
    if match is None:
        return name, None
    code = iso_639_3(match[2])
    return (match[1], code) if code in _KNOWN_CODES else (name, None)
