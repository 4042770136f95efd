"""Users' files in and out: text, jsonl, csv, tsv, parquet, arrow rows; GLUE, CoNLL, SQuAD and their like. No torch."""

from __future__ import annotations

from bertie.data.choices import ChoiceQuestion, choice_rows, read_choices
from bertie.data.columns import Example, choose_label, choose_pair, choose_text, examples, pairs, text_of, texts
from bertie.data.conll import read_conll, tagged_rows
from bertie.data.documents import Document, read_documents
from bertie.data.glue import GLUE_TASKS, GlueTask, glue_task, read_glue
from bertie.data.lists import as_rows
from bertie.data.reading import BadRows, Reader
from bertie.data.retrieval import AnswerRetrieval, read_answer_retrieval
from bertie.data.rows import FORMATS, Row, RowReader, read_rows
from bertie.data.squad import Answer, Question, QuestionReader, question_rows, read_squad
from bertie.data.tags import Scheme, Sentence, TagSpan, convert_tags, span_tags, tag_scheme, tag_spans
from bertie.data.writing import WRITABLE, RowWriter, plain

__all__ = [
    "FORMATS", "GLUE_TASKS", "WRITABLE", "Answer", "AnswerRetrieval", "BadRows", "ChoiceQuestion", "Document",
    "Example", "GlueTask", "Question", "QuestionReader", "Reader", "Row", "RowReader", "RowWriter", "Scheme",
    "Sentence", "TagSpan", "as_rows", "choice_rows", "choose_label", "choose_pair", "choose_text", "convert_tags",
    "examples", "glue_task", "pairs", "plain", "question_rows", "read_answer_retrieval", "read_choices", "read_conll",
    "read_documents", "read_glue", "read_rows", "read_squad", "span_tags", "tag_scheme", "tag_spans", "tagged_rows",
    "text_of", "texts",
]  # fmt: skip
