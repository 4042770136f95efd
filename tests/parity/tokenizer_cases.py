"""Texts for the tokenizer tests: real lines, strings made to hurt, small vocabularies, and where the real data lies."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

from bertie.text import BertTokenizer, train_vocabulary
from bertie.text.wordpiece.characters import NONSPACING_MARKS, OTHER_COMBINING

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
VOCABS = DATA / "vocabs"
NO_DATA = "the real vocabularies are not here (../shared/data)"

PROSE = [
    "The quick brown fox jumps over the lazy dog. It was not amused, and neither was she!",
    "Dr. O'Neill's co-operation (see §4.2) cost $1,234.50 -- or about 1.100 € in 2019.",
    "Unaffable, unbelievable, incomprehensible: antidisestablishmentarianism is a word.",
    "Die Äpfel fielen über den Zaun; Größe und Maß waren dem Gärtner völlig gleichgültig.",
    "El niño pidió un café y una piña. ¿Qué más podría querer? ¡Nada, señor!",
    "L'été dernier, Élodie a vu un œuvre d'art à côté de l'église où naquit François.",
    "Η γρήγορη αλεπού ΟΔΟΣ. Быстрая лисица прыгает через ленивую собаку ЁЖ.",
    "İstanbul'da ılık bir gün; IĞDIR ışıl ışıl.",
    "敏捷的棕色狐狸跳过了懒狗。我们在北京大学学习自然语言处理技术。",
    "素早い茶色のキツネがのろまな犬を飛び越える。カタカナとひらがな。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다. 한국어 문장입니다.",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। नमस्ते दुनिया।",
    "الثعلب البني السريع يقفز فوق الكلب الكسول. مرحبا بالعالم، كيف حالك؟",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ Việt Nam đất nước tôi yêu.",
    "A tab\there, a  double space, a\u00a0hard one,\nand a line; emoji 😀👨‍👩‍👧 too. [MASK] me [SEP] now.",
    "",
]

_POOLS = (
    "abcdefgHIJKLMNOPthe ",
    " \t\n\r\x0b\x0c\x85\u3000\u2028\u2029\u00a0",
    "éèÄÖüßİıΣσςǅﬁŉǰΐ",
    "".join(map(chr, range(0x300, 0x370))),
    "".join(sorted(NONSPACING_MARKS | OTHER_COMBINING)),
    "漢字日本語한국어カナ\U0002b820\U0002b920\uf900각",
    "😀👨‍👩‍👧🏽🇩🇪",
    "\x00\x01\ufffd\ue000\u200d\u200b\xad\ufeff\U000e0041",
    ".,!?-_$+<>|~`^。、「」#'\"[]",
    "\ud800\udbff\udc00\udfff",
)
_CHUNKS = (
    "[MASK]", "[CLS]", "[mask]", "[ MASK ]", "[[SEP]]", "the", "The", "[UNK]", "[PAD]", "##ing", "ing", "ΟΔΟΣ",
    "\u0344", "\u1f82\u0323", "\U0001d15e\u0323", "don't", "e\u0301\u0323", "\u1e69", "한\u11a8", "http://x.y/z?q=1&r=%20",
)  # fmt: skip


def fuzz_string(rng: random.Random) -> str:
    """A short string that mixes scripts, marks, control characters, lone surrogates, special tokens and long words."""
    parts: list[str] = []
    for _ in range(rng.randint(0, 25)):
        kind = rng.random()
        if kind < 0.15:
            parts.append(rng.choice(_CHUNKS))
        elif kind < 0.35:
            parts.append(
                chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000), rng.randrange(0x3000))))
            )
        elif kind < 0.5:
            parts.append(rng.choice(_POOLS[0]) * rng.choice((1, 1, 3, 60, 101, 201)))
        else:
            parts.append(rng.choice(rng.choice(_POOLS)))
    return "".join(parts)


def fuzz_strings(count: int, *, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [fuzz_string(rng) for _ in range(count)]


def small_tokenizer(*, lowercase: bool = True, vocab_size: int = 1500, **settings: object) -> BertTokenizer:
    """A tokenizer trained on the prose above, in a moment."""
    return train_vocabulary(
        PROSE * 3, vocab_size=vocab_size, lowercase=lowercase, min_frequency=1, model_max_length=64, **settings
    )


def real_lines() -> Iterator[str]:
    """Real text in five languages, a paragraph or question to a line; without end in practice (59 M words of books)."""
    for path in sorted((DATA / "qa").rglob("*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                yield paragraph["context"]
                yield from (question["question"] for question in paragraph["qas"])
    for path in sorted((DATA / "text" / "wikitext-2").glob("*.txt")):
        yield from path.read_text(encoding="utf-8").split("\n")
    for path in sorted((DATA / "text" / "books").glob("*.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)
