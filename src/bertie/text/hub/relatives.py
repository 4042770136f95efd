"""The tokenizers of BERT's relatives by the hub's names, for scripts that import them.

    from bertie import RobertaTokenizerFast

    RobertaTokenizerFast.from_pretrained("path/to/checkpoint")
    RobertaTokenizerFast("vocab.json", "merges.txt")

`BertTokenizer.from_pretrained` reads all of these too, as a folder's files say. Such a class reads its own kind only,
and a folder that says nothing is taken for one (kinds.py). `…Fast` is another name for the same class.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

from tokenizers import Tokenizer

from bertie.arguments import is_path
from bertie.errors import TokenizerTypeError
from bertie.text.building import parts_from_files
from bertie.text.converting import from_merges
from bertie.text.files import TokenizerFiles, kind_settings, read_tokenizer_files
from bertie.text.kinds import KINDS
from bertie.text.settings import Settings, check_others
from bertie.text.tokenizer import BertTokenizer


class ElectraTokenizer(BertTokenizer):
    """ELECTRA's tokenizer is BERT's."""

    kind = "ElectraTokenizer"


class DistilBertTokenizer(BertTokenizer):
    """DistilBERT's tokenizer: BERT's, and a batch has no `token_type_ids`."""

    kind = "DistilBertTokenizer"
    model_input_names: list[str] = ["input_ids", "attention_mask"]  # noqa: RUF012  # as on the hub


class _FromFiles(BertTokenizer):
    kind: ClassVar[str]

    def __init__(
        self,
        vocab_file: str | Path | None = None,
        merges_file: str | Path | None = None,
        *,
        tokenizer_file: str | Path | None = None,
        tokenizer_object: Tokenizer | None = None,
        check_case: bool = True,
        **settings: Any,
    ) -> None:
        """From the vocabulary's file `vocab_file` (and RoBERTa's `merges_file`), or else from a `tokenizer.json`
        (`tokenizer_file`) or a Rust tokenizer (`tokenizer_object`). `settings` are those of `BertTokenizer`."""
        given = cast(Settings, {name: value for name, value in settings.items() if name in Settings.__annotations__})
        rest = {name: value for name, value in settings.items() if name not in given}
        others = check_others(type(self), rest, Settings.__annotations__)
        source = vocab_file if tokenizer_file is None else tokenizer_file
        files = TokenizerFiles(str(source), "", settings=cast(Settings, kind_settings(self.kind)), kind=self.kind)
        if tokenizer_object is not None:
            files = replace(files, source="tokenizer_object", tokenizer_json=tokenizer_object.to_str())
        elif not is_path(source) or not (merges_file is None or is_path(merges_file)):
            raise TokenizerTypeError(
                f"{self.kind} was given {source!r:.60} and {merges_file!r:.60}; expected are the paths of its files.",
                "For a checkpoint's folder call from_pretrained. Name all other settings: do_lower_case=True.",
            )
        elif merges_file is not None:
            merges, kind = Path(merges_file), KINDS[self.kind]
            text = from_merges(Path(source), merges, kind, add_prefix_space=given.get("add_prefix_space"))
            files = replace(files, tokenizer_json=text)
        else:
            files = read_tokenizer_files(source, self.kind)
        self._fill(parts_from_files(files, given, check_case=check_case), "", others)


class RobertaTokenizer(_FromFiles):
    """RoBERTa's tokenizer: byte-level BPE, from `vocab.json` and `merges.txt` or from `tokenizer.json`."""

    kind = "RobertaTokenizer"


class XLMRobertaTokenizer(_FromFiles):
    """XLM-RoBERTa's tokenizer: SentencePiece, from `sentencepiece.bpe.model` or `tokenizer.json`."""

    kind = "XLMRobertaTokenizer"


class CamembertTokenizer(_FromFiles):
    """CamemBERT's tokenizer: SentencePiece, from `sentencepiece.bpe.model` or `tokenizer.json`."""

    kind = "CamembertTokenizer"


class MPNetTokenizer(_FromFiles):
    """MPNet's tokenizer: WordPiece with RoBERTa's special tokens, from `vocab.txt` or `tokenizer.json`."""

    kind = "MPNetTokenizer"


CamembertTokenizerFast = CamembertTokenizer
DistilBertTokenizerFast = DistilBertTokenizer
ElectraTokenizerFast = ElectraTokenizer
MPNetTokenizerFast = MPNetTokenizer
RobertaTokenizerFast = RobertaTokenizer
XLMRobertaTokenizerFast = XLMRobertaTokenizer
