"""Text in: WordPiece tokenizing, vocabularies, and windows over long documents. Nothing here needs torch."""

from __future__ import annotations

from bertie.text.encoding import BatchEncoding, CharSpan, EncodedRow, TokenSpan
from bertie.text.hub.names import BertTokenizerFast, BertTokenizerSlow
from bertie.text.tokenizer import BertTokenizer
from bertie.text.windows import Window, WindowedDocument, max_context_windows, split_document, split_documents
from bertie.text.wordpiece.basic import BasicTokenizer, WordpieceTokenizer
from bertie.text.wordpiece.learning import train_vocabulary
from bertie.text.wordpiece.reference import Token, WordPieceTokenizer
from bertie.text.wordpiece.vocabulary import read_vocabulary

__all__ = [
    "BasicTokenizer",
    "BatchEncoding",
    "BertTokenizer",
    "BertTokenizerFast",
    "BertTokenizerSlow",
    "CharSpan",
    "EncodedRow",
    "Token",
    "TokenSpan",
    "Window",
    "WindowedDocument",
    "WordPieceTokenizer",
    "WordpieceTokenizer",
    "max_context_windows",
    "read_vocabulary",
    "split_document",
    "split_documents",
    "train_vocabulary",
]
