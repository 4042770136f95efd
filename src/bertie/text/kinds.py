"""Kinds of tokenizers: what a folder leaves unsaid, by the class that its tokenizer_config.json names.

The class is the hub's (`RobertaTokenizer`, `XLMRobertaTokenizerFast` …); a folder that names none has the one that goes
with its model. Nothing is imported by these names. How a text becomes pieces is in `tokenizer.json`; a kind has only
the names of the special tokens, the columns of a batch, and how pairs are framed where no `tokenizer.json` says it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_PLAIN = ("input_ids", "attention_mask")
_BYTES = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """`special` are the special tokens by role where they are not BERT's; `inputs` a batch's columns, likewise."""

    special: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None
    clean_up: bool | None = None  # whether decoding pulls punctuation back to its word
    two_separators: bool = False  # between the texts of a pair
    # SentencePiece: pieces that stand before the file's own, and how many of the file's they replace
    first_pieces: tuple[tuple[str, float], ...] = ()
    replaced: int = 0
    files: str = "vocab.txt"  # where there is no tokenizer.json

    def reads(self, other: Kind) -> bool:
        """Whether it can stand in for another kind: the same special tokens, over the same files."""
        return (self.special, self.first_pieces, self.files) == (other.special, other.first_pieces, other.files)


_PIECES = (("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0))
_FRENCH = (("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0))
_BERT = Kind()
KINDS: Mapping[str, Kind] = {
    "BertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "DistilBertTokenizer": Kind(inputs=_PLAIN),
    "RobertaTokenizer": Kind(_BYTES, _PLAIN, False, two_separators=True, files="vocab.json with merges.txt"),
    "XLMRobertaTokenizer": Kind(_BYTES, _PLAIN, False, True, _PIECES, replaced=3, files="sentencepiece.bpe.model"),
    "CamembertTokenizer": Kind(_BYTES, _PLAIN, False, True, _FRENCH, replaced=1, files="sentencepiece.bpe.model"),
    "MPNetTokenizer": Kind(_BYTES | {"unk_token": "[UNK]"}, _PLAIN, True, two_separators=True),
}
_OF_MODELS = {
    "distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizer", "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer", "mpnet": "MPNetTokenizer",
}  # fmt: skip


# What lies in a folder that names no kind, where the files tell it.
_BY_FILES = (("sentencepiece.bpe.model", "XLMRobertaTokenizer"), ("merges.txt", "RobertaTokenizer"))


def kind_name(tokenizer_class: object, model_type: object) -> str | None:
    """The class that a folder names for its tokenizer, or the one that goes with its model."""
    named = str(tokenizer_class or "").removesuffix("Fast")
    return named if named in KINDS else _OF_MODELS.get(str(model_type))


def kind_by_files(files: Collection[str]) -> str:
    """The class for a folder that names neither a tokenizer nor a model that has one of its own."""
    if "tokenizer.json" in files or "vocab.txt" in files:
        return "BertTokenizer"
    return next((kind for file, kind in _BY_FILES if file in files), "BertTokenizer")
