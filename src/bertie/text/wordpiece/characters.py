"""What kind of character is this? The Unicode facts a BERT tokenizer asks about, one character at a time.

The Rust `tokenizers` library carries its own Unicode tables: general categories from Unicode 8, canonical
decompositions from Unicode 9, lower-casing from Unicode 17. Python's `unicodedata` moves on with every Python release,
so a reference built on it would disagree with Rust on newer characters, and with itself between two Pythons. The tables
that decide are therefore written out here; `unicodedata` is asked only for facts that Unicode promises never to change
(the decomposition and the combining class of a character that already has one).

A test walks all 1,112,064 code points and compares every answer with the Rust library.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache


def _code_points(ranges: str) -> frozenset[str]:
    """`"41-43 5A"` -> the characters A, B, C and Z."""
    found: list[str] = []
    for entry in ranges.split():
        first, _, last = entry.partition("-")
        found.extend(map(chr, range(int(first, 16), int(last or first, 16) + 1)))
    return frozenset(found)


# Unicode White_Space (it has not changed since Unicode 6.3).
WHITESPACE = _code_points("9-D 20 85 A0 1680 2000-200A 2028-2029 202F 205F 3000")

# Categories Cc and Cf of Unicode 8 without tab, line feed and carriage return, which are whitespace here.
_CONTROL = _code_points(
    """
    0-8 B-C E-1F 7F-9F AD 600-605 61C 6DD 70F 180E 200B-200F 202A-202E 2060-2064 2066-206F FEFF FFF9-FFFB 110BD
    1BCA0-1BCA3 1D173-1D17A E0001 E0020-E007F
    """
)

# Category P of Unicode 8, and the ASCII symbols ($ + < = > ^ ` | ~) that Google's tokenizer also calls punctuation.
PUNCTUATION = _code_points(
    """
    21-2F 3A-40 5B-60 7B-7E
    A1 A7 AB B6-B7 BB BF 37E 387 55A-55F 589-58A 5BE 5C0 5C3 5C6 5F3-5F4 609-60A 60C-60D 61B 61E-61F 66A-66D 6D4 700-70D
    7F7-7F9 830-83E 85E 964-965 970 AF0 DF4 E4F E5A-E5B F04-F12 F14 F3A-F3D F85 FD0-FD4 FD9-FDA 104A-104F 10FB 1360-1368
    1400 166D-166E 169B-169C 16EB-16ED 1735-1736 17D4-17D6 17D8-17DA 1800-180A 1944-1945 1A1E-1A1F 1AA0-1AA6 1AA8-1AAD
    1B5A-1B60 1BFC-1BFF 1C3B-1C3F 1C7E-1C7F 1CC0-1CC7 1CD3 2010-2027 2030-2043 2045-2051 2053-205E 207D-207E 208D-208E
    2308-230B 2329-232A 2768-2775 27C5-27C6 27E6-27EF 2983-2998 29D8-29DB 29FC-29FD 2CF9-2CFC 2CFE-2CFF 2D70 2E00-2E2E
    2E30-2E42 3001-3003 3008-3011 3014-301F 3030 303D 30A0 30FB A4FE-A4FF A60D-A60F A673 A67E A6F2-A6F7 A874-A877
    A8CE-A8CF A8F8-A8FA A8FC A92E-A92F A95F A9C1-A9CD A9DE-A9DF AA5C-AA5F AADE-AADF AAF0-AAF1 ABEB FD3E-FD3F FE10-FE19
    FE30-FE52 FE54-FE61 FE63 FE68 FE6A-FE6B FF01-FF03 FF05-FF0A FF0C-FF0F FF1A-FF1B FF1F-FF20 FF3B-FF3D FF3F FF5B FF5D
    FF5F-FF65 10100-10102 1039F 103D0 1056F 10857 1091F 1093F 10A50-10A58 10A7F 10AF0-10AF6 10B39-10B3F 10B99-10B9C
    11047-1104D 110BB-110BC 110BE-110C1 11140-11143 11174-11175 111C5-111C9 111CD 111DB 111DD-111DF 11238-1123D 112A9
    114C6 115C1-115D7 11641-11643 1173C-1173E 12470-12474 16A6E-16A6F 16AF5 16B37-16B3B 16B44 1BC9F 1DA87-1DA8B
    """
)

# Category Mn of Unicode 8: what accent stripping removes.
NONSPACING_MARKS = _code_points(
    """
    300-33F 342 345-36F 483-487 591-5BD 5BF 5C1-5C2 5C4-5C5 5C7 610-61A 64B-65F 670 6D6-6DC 6DF-6E4 6E7-6E8 6EA-6ED 711
    730-74A 7A6-7B0 7EB-7F3 816-819 81B-823 825-827 829-82D 859-85B 8E3-902 93A 93C 941-948 94D 951-957 962-963 981 9BC
    9C1-9C4 9CD 9E2-9E3 A01-A02 A3C A41-A42 A47-A48 A4B-A4D A51 A70-A71 A75 A81-A82 ABC AC1-AC5 AC7-AC8 ACD AE2-AE3 B01
    B3C B3F B41-B44 B4D B56 B62-B63 B82 BC0 BCD C00 C3E-C40 C46-C47 C4A-C4D C55-C56 C62-C63 C81 CBC CBF CC6 CCC-CCD
    CE2-CE3 D01 D41-D44 D4D D62-D63 DCA DD2-DD4 DD6 E31 E34-E3A E47-E4E EB1 EB4-EB9 EBB-EBC EC8-ECD F18-F19 F35 F37 F39
    F71-F72 F74 F77 F79-F7E F80 F82-F84 F86-F87 F8D-F92 F94-F97 F99-F9C F9E-FA1 FA3-FA6 FA8-FAB FAD-FB8 FBA-FBC FC6
    102D-1030 1032-1037 1039-103A 103D-103E 1058-1059 105E-1060 1071-1074 1082 1085-1086 108D 109D 135D-135F 1712-1714
    1732-1734 1752-1753 1772-1773 17B4-17B5 17B7-17BD 17C6 17C9-17D3 17DD 180B-180D 18A9 1920-1922 1927-1928 1932
    1939-193B 1A17-1A18 1A1B 1A56 1A58-1A5E 1A60 1A62 1A65-1A6C 1A73-1A7C 1A7F 1AB0-1ABD 1B00-1B03 1B34 1B36-1B3A 1B3C
    1B42 1B6B-1B73 1B80-1B81 1BA2-1BA5 1BA8-1BA9 1BAB-1BAD 1BE6 1BE8-1BE9 1BED 1BEF-1BF1 1C2C-1C33 1C36-1C37 1CD0-1CD2
    1CD4-1CE0 1CE2-1CE8 1CED 1CF4 1CF8-1CF9 1DC0-1DF5 1DFC-1DFF 20D0-20DC 20E1 20E5-20F0 2CEF-2CF1 2D7F 2DE0-2DFF
    302A-302D 3099-309A A66F A674-A67D A69E-A69F A6F0-A6F1 A802 A806 A80B A825-A826 A8C4 A8E0-A8F1 A926-A92D A947-A951
    A980-A982 A9B3 A9B6-A9B9 A9BC A9E5 AA29-AA2E AA31-AA32 AA35-AA36 AA43 AA4C AA7C AAB0 AAB2-AAB4 AAB7-AAB8 AABE-AABF
    AAC1 AAEC-AAED AAF6 ABE5 ABE8 ABED FB1E FE00-FE0F FE20-FE2F 101FD 102E0 10376-1037A 10A01-10A03 10A05-10A06
    10A0C-10A0F 10A38-10A3A 10A3F 10AE5-10AE6 11001 11038-11046 1107F-11081 110B3-110B6 110B9-110BA 11100-11102
    11127-1112B 1112D 11130-11134 11173 11180-11181 111B6-111BE 111CA-111CC 1122F-11231 11234 11236-11237 112DF
    112E3-112EA 11300-11301 1133C 11340 11366-1136C 11370-11374 114B3-114B8 114BA 114BF-114C0 114C2-114C3 115B2-115B5
    115BC-115BD 115BF-115C0 115DC-115DD 11633-1163A 1163D 1163F-11640 116AB 116AD 116B0-116B5 116B7 1171D-1171F
    11722-11725 11727-1172B 16AF0-16AF4 16B30-16B36 16F8F-16F92 1BC9D-1BC9E 1D167-1D169 1D17B-1D182 1D185-1D18B
    1D1AA-1D1AD 1D242-1D244 1DA00-1DA36 1DA3B-1DA6C 1DA75 1DA84 1DA9B-1DA9F 1DAA1-1DAAF 1E8D0-1E8D6 E0100-E01EF
    """
)

# Other characters with a combining class in Unicode 9: Mc, and Mn that are younger than Unicode 8.
_OTHER_COMBINING = _code_points(
    """
    8D4-8E1 1B44 1BAA 1BF2-1BF3 1DFB 302E-302F A953 A9C0 111C0 11235 1134D 11442 11446 116B6 11C3F 1D165-1D166
    1D16D-1D172 1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A 1E944-1E94A
    """
)

# Beyond the basic plane, the characters that have a canonical decomposition in Unicode 9.
_SUPPLEMENTARY_DECOMPOSABLE = _code_points(
    "1109A 1109C 110AB 1112E-1112F 1134B-1134C 114BB-114BC 114BE 115BA-115BB 1D15E-1D164 1D1BB-1D1C0 2F800-2FA1D"
)

# Lower case of letters that became cased after Unicode 14, for Pythons that do not know them yet.
_YOUNG_LOWERCASE = {
    "\u1c89": "\u1c8a",
    "\ua7cb": "\u0264",
    "\ua7cc": "\ua7cd",
    "\ua7ce": "\ua7cf",
    "\ua7d2": "\ua7d3",
    "\ua7d4": "\ua7d5",
    "\ua7da": "\ua7db",
    "\ua7dc": "\u019b",
    **{chr(c): chr(c + 0x20) for c in range(0x10D50, 0x10D66)},
    **{chr(c): chr(c + 0x1B) for c in range(0x16EA0, 0x16EB9)},
}


def is_removed(char: str) -> bool:
    """True for what cleaning drops: control, format and private-use characters, NUL and U+FFFD.

    Unassigned code points stay: the Rust tables do not list them.
    """
    return char in _CONTROL or char == "\ufffd" or _is_private_use(ord(char))


def _is_private_use(code: int) -> bool:
    return 0xE000 <= code <= 0xF8FF or 0xF0000 <= code <= 0xFFFFD or 0x100000 <= code <= 0x10FFFD


def is_chinese(char: str) -> bool:
    """True for CJK ideographs, which are made words of their own; kana and Hangul are not.

    These are Google's blocks except one: Rust starts CJK extension E at U+2B920, a slip (it should be U+2B820) that is
    kept, because the ids of every checkpoint in use come from it.
    """
    code = ord(char)
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B81F
        or 0x2B920 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


@lru_cache(maxsize=8192)
def lowercase(char: str) -> str:
    """Lower case of one character, alone: a capital sigma gives σ even at the end of a word; İ gives two characters."""
    return _YOUNG_LOWERCASE.get(char) or char.lower()


@lru_cache(maxsize=8192)
def decompose(char: str) -> str:
    """The full canonical decomposition (NFD) of one character."""
    if ord(char) > 0xFFFF and char not in _SUPPLEMENTARY_DECOMPOSABLE:
        return char
    return unicodedata.normalize("NFD", char)


def combining_class(char: str) -> int:
    """0 for a starter; marks with a class are sorted by it when text is decomposed."""
    if char in NONSPACING_MARKS or char in _OTHER_COMBINING:
        return unicodedata.combining(char)
    return 0


def is_word_character(char: str) -> bool:
    r"""Unicode's `\w`: letters, marks, digits, connecting punctuation, joiners. Only `never_split` asks for it.

    This set is large, so `unicodedata` gives most of it, and a table what Python 3.11 does not know yet (Unicode 16).
    """
    code = ord(char)
    return (
        unicodedata.category(char) in _WORD_CATEGORIES
        or char in "\u200c\u200d"
        or char in _YOUNG_WORD_CHARACTERS
        or 0x24B6 <= code <= 0x24E9  # letters in circles and squares: symbols by category, alphabetic by property
        or 0x1F130 <= code <= 0x1F149
        or 0x1F150 <= code <= 0x1F169
        or 0x1F170 <= code <= 0x1F189
    )


_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"})

_YOUNG_WORD_CHARACTERS = _code_points(
    """
    897 CF3 ECE 1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D40-10D65 10D69-10D6D 10D6F-10D85 10EC2-10EC4 10EFC-10EFF
    1123F-11241 11380-11389 1138B 1138E 11390-113B5 113B7-113C0 113C2 113C5 113C7-113CA 113CC-113D3 113E1-113E2
    116D0-116E3 11BC0-11BE0 11BF0-11BF9 11F00-11F10 11F12-11F3A 11F3E-11F42 11F50-11F5A 1342F 13440-13455 13460-143FA
    16100-16139 16D40-16D6C 16D70-16D79 18CFF 1B132 1B155 1CCF0-1CCF9 1DF25-1DF2A 1E030-1E06D 1E08F 1E4D0-1E4F9
    1E5D0-1E5FA 2B739 2EBF0-2EE5D 31350-323AF
    """
)
