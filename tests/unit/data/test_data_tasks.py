"""Columns, GLUE, CoNLL and tags, SQuAD, multiple choice, documents and search collections."""

from __future__ import annotations

import json
import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie import data
from bertie.data import Answer, Example, Sentence, TagSpan
from bertie.errors import DataError


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("columns", "text"),
    [(["label", "Sentence"], "Sentence"), (["id", "review", "label"], "review"), (["only"], "only")],
)
def test_text_column_is_guessed(columns: list[str], text: str) -> None:
    assert data.choose_text(columns) == text


@pytest.mark.parametrize(
    ("columns", "pair"),
    [
        (["idx", "question", "context"], ("question", "context")),
        (["hypothesis", "premise", "label"], ("premise", "hypothesis")),
        (["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], ("#1 String", "#2 String")),
        (["left", "right", "label"], ("left", "right")),
    ],
)
def test_pair_columns_are_guessed(columns: list[str], pair: tuple[str, str]) -> None:
    assert data.choose_pair(columns) == pair


def test_columns_that_cannot_be_settled() -> None:
    rows = [{"left": "a", "right": "b"}]
    with pytest.raises(DataError, match=r"which column is the text\? There are: 'left', 'right'"):
        list(data.texts(rows))
    with pytest.raises(DataError, match=r"no column 'rigt'[\s\S]*Did you mean 'right'\?"):
        list(data.texts(rows, "rigt"))
    with pytest.raises(DataError, match=r"which two columns"):
        list(data.pairs([{"a": "x", "b": "y", "c": "z"}]))
    with pytest.raises(DataError, match=r"which column is the label"):
        list(data.examples([{"text": "x"}]))


def test_values_that_are_no_text(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", '{"text": "x"}\n{"text": 3}\n{"text": null}\n{"txt": "y"}\n')
    with pytest.raises(DataError, match=r"line 2: the column 'text' should be text, and holds int 3"):
        list(data.texts(data.read_rows(path)))
    reader = data.texts(data.read_rows(path, skip_bad=True))
    assert list(reader) == ["x"]
    assert reader.bad.count == 3
    assert list(data.texts(data.read_rows(put(tmp_path, "empty.jsonl", "")))) == []


def test_examples_with_labels_and_scores() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": "2.5"}]
    assert list(data.examples(rows, paired=True, scored=True)) == [Example("1", "a", "b", 2.5)]
    assert list(data.examples([{"t": "a", "c": 1}], column="t", label="c")) == [Example("1", "a", None, "1")]
    for wrong in ("x", None, "nan", "inf"):
        with pytest.raises(DataError, match="should be a number"):
            list(data.examples([{"text": "a", "score": wrong}], scored=True))
    with pytest.raises(DataError, match="should be a label"):
        list(data.examples([{"text": "a", "label": None}]))


# As the files are: MRPC's copy has 3667 rows after its header.
GLUE_COUNTS = {"SST-2": 67349, "MRPC": 3667, "CoLA": 8551, "RTE": 2490, "STS-B": 5749, "WNLI": 635}


@pytest.mark.parametrize("task", GLUE_COUNTS)
def test_glue_as_it_is_shipped(shared_data: Path, task: str) -> None:
    examples = list(data.read_glue(task, shared_data / "glue" / task / "train.tsv"))
    assert len(examples) == GLUE_COUNTS[task]
    labels = data.GLUE_TASKS[task].labels
    assert all(0 <= float(e.label or 0) <= 5 if labels is None else e.label in labels for e in examples)
    assert all((e.text_b is None) == (task in ("SST-2", "CoLA")) for e in examples)
    dev = list(data.read_glue(task, shared_data / "glue" / task / "dev.tsv"))
    assert dev[0].guid == "dev-0"


def test_qnli_dev(shared_data: Path) -> None:
    assert len(list(data.read_glue("qnli", shared_data / "glue/QNLI/dev.tsv"))) == 5463


def test_glue_quirks(tmp_path: Path) -> None:
    mrpc = put(
        tmp_path, "dev.tsv", '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\t" open quote\tb "c" .\n'
    )
    assert list(data.read_glue("mrpc", mrpc)) == [Example("dev-0", '" open quote', 'b "c" .', "1")]
    cola = put(tmp_path, "train.tsv", "gj04\t1\t\tA sentence.\ngj04\t0\t*\tA sentence were.\n")
    assert [e.label for e in data.read_glue("CoLA", cola)] == ["1", "0"]
    test = put(tmp_path, "test.tsv", "index\tsentence\n7\tA sentence.\n")
    assert list(data.read_glue("cola", test)) == [Example("test-7", "A sentence.", None, None)]


def test_glue_mistakes(tmp_path: Path) -> None:
    path = put(tmp_path, "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n1\ta\tb\tentailment\n")
    with pytest.raises(DataError, match=r"line 2: the label 'maybe' is not one of RTE's: entailment, not_entailment"):
        list(data.read_glue("RTE", path))
    assert len(list(data.read_glue("RTE", path, skip_bad=True))) == 1
    with pytest.raises(DataError, match=r"no column 'question', which QNLI has"):
        list(data.read_glue("QNLI", path))
    with pytest.raises(DataError, match=r"no GLUE task 'SST2b'[\s\S]*Did you mean SST-2"):
        data.read_glue("SST2b", path)


@pytest.mark.parametrize(
    ("name", "sentences", "tokens"),
    [("wnut17train.conll", 3394, 62730), ("emerging.dev.conll", 1009, 15733), ("emerging.test.annotated", 1287, 23394)],
)
def test_wnut(shared_data: Path, name: str, sentences: int, tokens: int) -> None:
    reader = data.read_conll(shared_data / "wnut17" / name, check_prefixes=True)
    read = list(reader)
    assert (len(read), sum(len(sentence.tokens) for sentence in read)) == (sentences, tokens)
    assert data.tag_scheme(reader) == "BIO"


def test_conll_layouts(tmp_path: Path) -> None:
    conll = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\r\n\t\nPeter NNP B-NP B-PER\n"
    path = put(tmp_path, "a.conll", conll)
    read = list(data.read_conll(path))
    assert [(s.tokens, s.tags, s.lines) for s in read] == [
        (("EU", "rejects"), ("B-ORG", "O"), (3, 4)),
        (("Peter",), ("B-PER",), (6,)),
    ]
    words = put(tmp_path, "b.conll", "two words\tO\n\xa0\tO\n")
    assert next(iter(data.read_conll(words))).tokens == ("two words", "\xa0")
    assert next(iter(data.read_conll(put(tmp_path, "c", "a\nb\n"), tagged=False))).tags == ()


def test_conll_mistakes(tmp_path: Path) -> None:
    for content, message in [
        ("a\tO\nb\n\nc\tO\n", r"line 2: one column, 'b'[\s\S]*tagged=False"),
        ("a\tO\nb\tX\tO\n\nc\tO\n", r"line 2: 3 columns; expected 2, as in the lines before"),
        ("1 2 3 4 5\n\nc\tO\n", r"line 1: 5 columns; expected 2 to 4"),
        ("a\tO\n\tO\n\nc\tO\n", r"line 2: no token"),
        ("a\tO\nb\t \n\nc\tO\n", r"line 2: no tag"),
        ("a\tO\nb\tQ-PER\n\nc\tO\n", r"line 2: the tag 'Q-PER' is neither"),
    ]:
        path = put(tmp_path, "a.conll", content)
        with pytest.raises(DataError, match=message):
            list(data.read_conll(path, check_prefixes=True))
        reader = data.read_conll(path, check_prefixes=True, skip_bad=True)
        assert [sentence.tokens for sentence in reader] == [("c",)]
        assert reader.bad.count == 1


def test_tagged_rows() -> None:
    assert [s.tags for s in data.tagged_rows([{"words": ["a"], "labels": [3]}])] == [("3",)]
    for row, message in [
        ({"tokens": ["a"], "tags": []}, "1 tokens and 0 tags"),
        ({"tokens": "a", "tags": ["O"]}, "should be a list of strings"),
        ({"text": "a"}, "no column 'tokens' or 'words'; there are: text"),
    ]:
        with pytest.raises(DataError, match=message):
            list(data.tagged_rows([row]))


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        ([["B-X", "I-X", "O", "B-Y"]], "BIO"),
        ([["I-X", "I-X", "B-X", "O"]], "IOB1"),
        ([["I-X", "O", "I-Y"]], "IO"),
        ([["B-X", "E-X", "S-X", "O"], ["B-X", "I-X", "E-X"]], "BIOES"),
        ([["B-X", "L-X", "U-X"]], "BIOES"),
        ([["NN", "VB", "O"]], "plain"),
        ([["O"]], "BIO"),
    ],
)
def test_schemes_are_told_apart(sentences: list[list[str]], scheme: str) -> None:
    assert data.tag_scheme(sentences) == scheme


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (("B-X", "O", "I-X"), r"f.conll, line 9: 'I-X' between 'O' and 'O' is not BIO, and other tags are not IOB1"),
        (("B-X", "E-X", "E-X"), r"f.conll, line 9: 'E-X' between 'E-X' and 'O' is not BIOES"),
        (("B-X", "I-X", "PER"), r"f.conll, line 9: 'PER' has no prefix that is known, though 'B-X' has"),
        (("B-X", "I-X", "B-"), r"f.conll, line 9: the tag 'B-' is neither"),
    ],
)
def test_tags_of_no_scheme_are_named_with_their_line(tags: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.tag_scheme([Sentence(("a", "b", "c"), tags, (7, 8, 9), "f.conll")])


@st.composite
def entities(draw: st.DrawFn) -> tuple[list[TagSpan], int]:
    length = draw(st.integers(1, 12))
    cuts = sorted(draw(st.sets(st.integers(0, length), min_size=1)))
    kept = [pair for pair in pairwise(cuts) if draw(st.booleans())]
    return [TagSpan(draw(st.sampled_from(["PER", "creative-work"])), *pair) for pair in kept], length


@given(entities(), st.sampled_from(["BIO", "BIOES", "IOB1"]), st.sampled_from(["BIO", "BIOES", "IOB1"]))
def test_spans_survive_every_scheme(case: tuple[list[TagSpan], int], first: Any, second: Any) -> None:
    spans, length = case
    tags = data.span_tags(spans, length, scheme=first)
    assert data.tag_spans(tags) == spans
    assert data.convert_tags(tags, scheme=second) == data.span_tags(spans, length, scheme=second)
    data.tag_scheme([tags])


def test_spans_that_cannot_be_tags() -> None:
    for spans in ([TagSpan("X", 0, 2), TagSpan("X", 1, 3)], [TagSpan("X", 2, 9)], [TagSpan("X", 1, 1)]):
        with pytest.raises(DataError, match="overlaps another or is outside"):
            data.span_tags(spans, 4)
    with pytest.raises(DataError, match="cannot write spans"):
        data.span_tags([], 4, scheme="plain")


@pytest.mark.parametrize(
    ("name", "count"),
    [("squad2_half_dev.json", 6078), ("xquad/xquad.zh.json", 1190), ("policyqa/dev.json", 3809)],
)
def test_squad_files(shared_data: Path, name: str, count: int) -> None:
    questions = list(data.read_squad(shared_data / "qa" / name))
    assert len(questions) == count
    assert all(q.context[a.start :].startswith(a.text) for q in questions for a in q.answers)
    assert any(q.is_impossible for q in questions) == (name == "squad2_half_dev.json")


def test_cmrc_has_wrong_offsets(shared_data: Path) -> None:
    path = shared_data / "qa/cmrc2018/dev.json"
    with pytest.raises(DataError, match=r"\(question DEV_6_QUERY_2\): at character -1 expected the answer '2010年"):
        list(data.read_squad(path))
    skipping = data.read_squad(path, skip_bad=True)
    assert len(list(skipping)) + skipping.bad.count == 3219
    # 200 of its 9657 answers do not stand where they say; 7 stand elsewhere, the others have a neighbour that is right.
    repairing = data.read_squad(path, repair=True)
    assert len(list(repairing)) == 3219
    assert (repairing.repaired, repairing.dropped) == (7, 193)


def squad(**changes: Any) -> str:
    question = {"id": "q1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 4}], **changes}
    return json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "Say Ann, or Ann.", "qas": [question]}]}]})


def test_squad_mistakes(tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", squad(answers=[{"text": "Ann", "answer_start": 10}]))
    with pytest.raises(
        DataError,
        match=r"data\[0\].paragraphs\[0\].qas\[0\] \(question q1\): at character 10 expected the answer 'Ann', got",
    ) as caught:
        list(data.read_squad(path))
    assert "repair=True" in str(caught.value)
    reader = data.read_squad(path, repair=True)
    assert [q.answers for q in reader] == [(Answer("Ann", 12),)]
    assert reader.repaired == 1
    for content, message in [
        (squad(answers=[{"text": "Bob", "answer_start": 4}]), "it is nowhere in the context"),
        (squad(answers=[{"text": "Ann"}]), "a whole answer_start"),
        (squad(answers=[{"text": "", "answer_start": 1}]), "an answer is a text"),
        (squad(answers=3), "'answers' should be a list"),
        (squad(is_impossible=True), "marked impossible"),
        (squad(id=None), r"qas\[0\]: no 'id'"),
        (squad(question=None), "'question' should be text"),
    ]:
        with pytest.raises(DataError, match=message):
            list(data.read_squad(put(tmp_path, "a.json", content), repair=True))
        reader = data.read_squad(put(tmp_path, "a.json", content), skip_bad=True)
        assert list(reader) == []
        assert reader.bad.count == 1
    for content, message in [
        ("{}", "a SQuAD file has a list called 'data'"),
        ('{"data": [{}]}', r"data\[0\]: an article has a list called 'paragraphs'"),
        ('{"data": [{"paragraphs": [3]}]}', "this has: int"),
        ("{", "not JSON"),
    ]:
        with pytest.raises(DataError, match=message):
            list(data.read_squad(put(tmp_path, "a.json", content)))


def test_flat_question_rows(tmp_path: Path) -> None:
    row = {"id": "a", "question": "Who?", "context": "Ann.", "answers": {"text": ["Ann"], "answer_start": [0]}}
    for name, content in [("a.jsonl", json.dumps(row)), ("a.json", json.dumps([row]))]:
        questions = list(data.read_squad(put(tmp_path, name, content)))
        assert questions[0].answers == (Answer("Ann", 0),)
    with pytest.raises(DataError, match="a second question with the id 'a'"):
        list(data.question_rows([row, row]))
    with pytest.raises(DataError, match="lists of one length"):
        list(data.question_rows([{**row, "answers": {"text": ["Ann"], "answer_start": []}}]))


def test_commonsense(shared_data: Path) -> None:
    for name, count in [("train", 9741), ("valid", 1221)]:
        questions = list(data.read_choices(shared_data / "commonsenseqa" / f"{name}.jsonl"))
        assert len(questions) == count
        assert all(len(q.choices) == 5 and q.answer is not None for q in questions)


def test_choice_layouts_and_mistakes() -> None:
    swag = {"sent1": "He sat.", "sent2": "Then he", "ending0": "ate.", "ending1": "ran.", "label": "1"}
    (question,) = data.choice_rows([swag])
    assert (question.question, question.choices, question.answer) == ("He sat.", ("Then he ate.", "Then he ran."), 1)
    columnar = {"question": "?", "choices": {"label": ["A", "B"], "text": ["x", "y"]}, "answerKey": "B"}
    assert [q.answer for q in data.choice_rows([columnar, {**columnar, "answerKey": ""}])] == [1, None]
    for rows, message in [
        ([{**columnar, "answerKey": "C"}], "answerKey 'C' is not one of the choices: A, B"),
        ([{"question": "?", "choices": ["x"]}], "two texts or more"),
        ([{"choices": ["x", "y"]}], "no question; there are: choices"),
        ([columnar, {"question": "?", "choices": ["x", "y", "z"]}], "3 choices; the rows before have 2"),
    ]:
        with pytest.raises(DataError, match=message):
            list(data.choice_rows(rows))


def test_documents(tmp_path: Path) -> None:
    one = put(tmp_path, "one.txt", "\n\nA first. \nA second.\n\n \nB.")
    two = put(tmp_path, "two.txt.xz", lzma.compress(b"C.\n"))
    reader = data.read_documents([one, two])
    assert [(d.lines, d.line) for d in reader] == [(("A first.", "A second."), 3), (("B.",), 7), (("C.",), 1)]
    assert [d.lines for d in data.read_documents(one, max_lines=1)] == [("A first.",), ("A second.",), ("B.",)]
    with pytest.raises(DataError, match="No files were given"):
        data.read_documents([])
    with pytest.raises(DataError, match="no such file"):
        data.read_documents([one, tmp_path / "three.txt"])


def test_real_documents(shared_data: Path) -> None:
    documents = list(data.read_documents(shared_data / "text/google_sample_text.txt"))
    assert [len(d.lines) for d in documents] == [3, 13, 15]
    first = next(iter(data.read_documents(shared_data / "text/books/books-00.txt.xz")))
    assert len(first.lines) > 100


def test_answer_retrieval(shared_data: Path, tmp_path: Path) -> None:
    train = data.read_answer_retrieval(shared_data / "retrieval/reqa_squad/train.json")
    assert (len(train.questions), train.relevant[7]) == (10_000, (7,))
    test = data.read_answer_retrieval(shared_data / "retrieval/reqa_squad/test.json")
    assert (len(test.questions), len(test.candidates)) == (10_539, 10_246)


def test_answer_retrieval_mistakes(tmp_path: Path) -> None:
    for content, message in [
        ("{}", "expected lists of texts"),
        ('{"questions": ["a"], "candidates": ["b"], "ground_truths": [[1]]}', r"ground_truths\[0\]: \[1\]"),
        ('{"questions": ["a"], "answers": []}', "1 questions, and the answers of 0"),
    ]:
        with pytest.raises(DataError, match=message):
            data.read_answer_retrieval(put(tmp_path, "a.json", content))
