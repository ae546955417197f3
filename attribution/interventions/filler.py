"""Neutral sentences that replace or extend text and are not about the subject of any query."""

from __future__ import annotations

from collections.abc import Mapping

FILLERS: Mapping[str, tuple[str, ...]] = {
    "eng": (
        "This part was put here only to take up some room.",
        "Nothing that is written in these lines matters for what stands around them.",
        "One sentence follows another, and none of them is about anything.",
        "The words go on for a while and then they come to an end.",
        "Whoever reads this far has learnt neither more nor less than before.",
    ),
    "pol": (
        "Ten fragment znajduje się tutaj tylko po to, żeby zająć trochę miejsca.",
        "Nic z tego, co tu napisano, nie ma znaczenia dla reszty.",
        "Jedno zdanie następuje po drugim i żadne nie mówi o niczym.",
        "Słowa ciągną się jeszcze chwilę, a potem się kończą.",
    ),
    "slk": (
        "Táto časť je tu len preto, aby zabrala trochu miesta.",
        "Nič z toho, čo je tu napísané, nemá význam pre ostatok.",
        "Jedna veta nasleduje za druhou a žiadna nehovorí o ničom.",
        "Slová ešte chvíľu pokračujú a potom sa skončia.",
    ),
    "spa": (
        "Esta parte está aquí solo para ocupar un poco de sitio.",
        "Nada de lo que se escribe en estas líneas importa para lo demás.",
        "Una frase sigue a otra y ninguna trata de nada.",
        "Las palabras continúan un rato y luego se acaban.",
    ),
    "cmn": (
        "这一部分放在这里只是为了占一点地方。",
        "这几行写的内容与前后文没有关系。",
        "一句话接着一句话,没有一句在说什么。",
        "文字再继续一会儿,然后就结束了。",
    ),
    "ara": (
        "وضع هذا الجزء هنا فقط ليشغل بعض المكان.",
        "لا شيء مما كتب في هذه السطور يهم ما حولها.",
        "تتبع الجملة جملة أخرى ولا تتحدث أي منها عن شيء.",
        "تستمر الكلمات قليلا ثم تنتهي.",
    ),
    "tha": (
        "ส่วนนี้วางไว้ตรงนี้เพียงเพื่อให้มีเนื้อที่",
        "สิ่งที่เขียนในบรรทัดเหล่านี้ไม่มีผลต่อส่วนอื่น",
        "ประโยคหนึ่งตามด้วยอีกประโยคหนึ่งและไม่มีประโยคใดกล่าวถึงเรื่องใด",
        "ถ้อยคำดำเนินต่อไปสักครู่แล้วก็จบลง",
    ),
}
"""Neutral sentences by ISO 639-3 code."""


def filler(language: str | None, n_characters: int, first: int = 0) -> str:
    """Neutral text of at least `n_characters`, starting with sentence `first`; in English if there
    is none in the language."""
    sentences = FILLERS.get(language or "eng", FILLERS["eng"])
    space = "" if language == "cmn" else " "
    parts: list[str] = []
    length = -len(space)
    while length < n_characters or not parts:
        parts.append(sentences[(first + len(parts)) % len(sentences)])
        length += len(space) + len(parts[-1])
    return space.join(parts)


def filler_note(language: str | None) -> str:
    """A remark if the filler is not in the text's own language; otherwise empty."""
    if language is None or language in FILLERS:
        return ""
    return f"there is no filler text in {language}, so English was used"
