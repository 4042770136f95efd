"""Files to tokenized examples: every format, bad rows by file and line, labels, windows, word pieces."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data import BadRows, Sentence, read_squad
from bertie.errors import DataError
from bertie.text import BertTokenizer, split_document
from bertie.training.contract import Examples, hold_out
from bertie.training.registry import TaskOptions, load_task
from bertie.training.sources import Columns, label_numbers
from bertie.training.tasks.answer import answer_examples, answer_tokens, position_in
from bertie.training.tasks.choice import choice_examples
from bertie.training.tasks.classify import TextExamples, read_texts
from bertie.training.tasks.embed import embed_examples
from bertie.training.tasks.tag import TaggedSentences, _cuts, read_tagged
from bertie.training.token_rows import TokenRows, pack
from tiny_models import SENTENCES, saved, tokenizer

ROWS = [("the dog", "good"), ("a quick fox", "bad"), ("stocks fell", "good"), ("", "bad")]


def write(path: Path, *, rows: list[tuple[str, ...]] | None = None, names: tuple[str, ...] = ("text", "label")) -> Path:
    rows = ROWS if rows is None else rows  # type: ignore[assignment]
    assert rows is not None
    objects = [dict(zip(names, row, strict=True)) for row in rows]
    suffix = path.name.split(".", 1)[1]
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    elif suffix == "jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in objects).encode()))
    elif suffix == "json":
        path.write_text(json.dumps(objects))
    elif suffix == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    elif suffix == "tsv":
        path.write_text("\n".join("\t".join(row) for row in [names, *rows]) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.Table.from_pylist(objects)
        if suffix == "parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(table, path)
        else:
            with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as out:
                out.write_table(table)
    return path


FORMATS = ["jsonl", "jsonl.gz", "json", "csv", "tsv", "parquet", "arrow"]


def encoded(given: Any, **options: Any) -> TextExamples:
    texts = read_texts(given, kind="class", **options)
    return texts.encode(tokenizer(), max_length=20, labels=texts.label_numbers())


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_row_format_gives_the_same_examples(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"train.{suffix}")
    from_file, from_rows = encoded(str(path)), encoded([{"text": a, "label": b} for a, b in ROWS])
    assert from_file.fingerprint() == from_rows.fingerprint()
    assert from_file.labels.tolist() == [1, 0, 1, 0]
    assert tokenizer().decode(from_file.get(1, 0).row.ids) == "[CLS] a quick fox [SEP]"
    assert isinstance(from_file, Examples)


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.csv"), write(tmp_path / "b.jsonl")]
    assert len(encoded([str(path) for path in paths])) == 8


def test_pairs_have_two_segments(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows=[("the dog", "a fox", "1")], names=("premise", "hypothesis", "label"))
    texts = read_texts(path, kind="class", paired=True)
    row = texts.encode(tokenizer(), max_length=20, labels=texts.label_numbers()).get(0, 0).row
    expected = tokenizer()("the dog", "a fox")
    assert row.ids.tolist() == expected["input_ids"]
    tensors = pack([row, row])
    assert tensors["token_type_ids"].tolist() == expected["token_type_ids"] * 2
    assert tensors["cu_seqlens"].tolist() == [0, len(row.ids), 2 * len(row.ids)]


@pytest.mark.parametrize("given", ["dev.csv", "dev.jsonl", "dev.parquet"])
def test_unseen_labels_are_told_by_file_and_line(tmp_path: Path, given: str) -> None:
    base = saved(tmp_path / "base", "BertModel")
    train = write(tmp_path / "train.csv")
    dev = write(tmp_path / given, rows=[("a", "good"), ("b", "worse"), ("c", "bad")])
    place = {"dev.csv": "line 3", "dev.jsonl": "line 2", "dev.parquet": "row 2"}[given]
    with pytest.raises(
        DataError, match=rf"{given}, {place}: the label 'worse' is not one of .*train.csv's: 'bad', 'good'"
    ):
        load_task("classify", model=base, train=str(train), dev=str(dev))
    prepared = load_task("classify", model=base, train=str(train), dev=str(dev), options=TaskOptions(skip_bad=True))
    assert len(prepared.dev or ()) == 2
    assert any("1 bad row skipped" in note for note in prepared.notes)


def test_one_bad_row_in_a_hundred_is_named_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    lines = [json.dumps({"text": f"text {k}", "label": k % 3}) for k in range(1000)]
    broken = ['{"text": "cut', '{"text": 5, "label": 1}', '{"text": "no label"}', '{"label": 1}', "[1, 2]"]
    for number in range(10):
        lines[99 * number + 50] = broken[number % len(broken)]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"train\.jsonl, line 51: not JSON"):
        encoded(path)
    examples = encoded(path, skip_bad=True)
    assert (len(examples), examples.bad.count) == (990, 10)
    assert "line 51" in examples.bad.first[0].cause


def test_numbers_names_and_tags_are_put_in_their_order() -> None:
    assert label_numbers(["10", "9", "-1"]).names == ("-1", "9", "10")
    assert label_numbers(["neutral", "entailment"]).names == ("entailment", "neutral")
    assert label_numbers(["01", "2"]).names == ("01", "2")
    tags = ["I-PER", "O", "B-PER", "E-LOC", "B-LOC", "S-LOC", "I-LOC"]
    assert label_numbers(tags, tags=True).names == ("O", "B-LOC", "I-LOC", "E-LOC", "S-LOC", "B-PER", "I-PER")
    with pytest.raises(DataError, match="no rows in it with labels"):
        label_numbers([])


def test_several_labels_come_as_lists_or_in_one_cell(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows=[("a", "x|y"), ("b", ""), ("c", "y")])
    texts = read_texts(path, kind="several", columns=Columns(separator="|"))
    examples = texts.encode(tokenizer(), max_length=20, labels=texts.label_numbers())
    assert examples.labels.tolist() == [[1, 1], [0, 0], [0, 1]]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("row", [{"text": "b"}, {"text": "b", "labels": None}], ids=["no field", "null"])
def test_several_labels_that_are_missing_are_not_none_of_them(tmp_path: Path, row: Any) -> None:
    path = lines(tmp_path / "t.jsonl", [{"text": "a", "labels": ["x", "y"]}, row, {"text": "c", "labels": []}])
    with pytest.raises(DataError, match=r"t\.jsonl, line 2: the column 'labels'.* holds nothing[\s\S]*empty: \[\]"):
        read_texts(path, kind="several")
    texts = read_texts(path, kind="several", skip_bad=True)
    assert (texts.bad.count, [item.names for item in texts.items]) == (1, [("x", "y"), ()])


ODD_ROWS = [{"text": "odd"}, {"text": "odd", "labels": None}, {"labels": ["x"]}, {"labels": ["x"], "note": "odd"}]


@pytest.mark.parametrize("odd", ODD_ROWS, ids=["no label", "null", "no text", "another column"])
def test_a_first_row_that_is_bad_does_not_decide_for_the_others(tmp_path: Path, odd: Any) -> None:
    rows = [odd, *({"text": text, "labels": [label, "both"]} for text, label in ROWS)]
    path = lines(tmp_path / "t.jsonl", rows)
    base = saved(tmp_path / "base", "BertModel")
    for source in (str(path), rows, iter(rows)):
        prepared = load_task("classify", model=base, train=source, options=TaskOptions(skip_bad=True))
        assert len(prepared.train) == len(ROWS)
        assert prepared.train.get(0, 0).label.shape == (3,)
        assert any("1 bad row skipped" in note for note in prepared.notes)
    with pytest.raises(DataError, match=r"t\.jsonl, line 1: "):
        load_task("classify", model=base, train=str(path))


def test_an_iterator_of_rows_may_hold_several_labels(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "BertModel")
    rows = ({"text": text, "labels": [label]} for text, label in ROWS)
    prepared = load_task("classify", model=base, train=rows)
    assert prepared.train.get(0, 0).label.tolist() == [0, 1]


def test_scores_must_be_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", rows=[("a", "1.5"), ("b", "high")], names=("text", "score"))
    with pytest.raises(DataError, match=r"t\.csv, line 3: the column 'score' should be a number, and holds 'high'"):
        read_texts(path, kind="score")
    assert read_texts(path, kind="score", skip_bad=True).items[0].score == 1.5


def test_a_glue_file_is_known_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "CoLA").mkdir()
    path = tmp_path / "CoLA" / "dev.tsv"
    path.write_text("gj04\t1\t\tThe dog sleeps.\ngj04\t0\t*\tThe sleeps dog.\n")
    texts = read_texts(path, kind="class")
    assert [(item.text_a, *item.names) for item in texts.items] == [("The dog sleeps.", "1"), ("The sleeps dog.", "0")]
    with pytest.raises(DataError, match="CoLA has one label to a text"):
        read_texts(path, kind="score")


def test_held_out_examples_are_not_trained_on() -> None:
    examples = encoded([{"text": text, "label": str(k % 2)} for k, text in enumerate(SENTENCES * 3)])
    rest, held = hold_out(examples, 0.2, seed=3)
    assert sorted([*rest.indices, *held.indices]) == list(range(21))
    assert len(held) == 4
    assert held.fingerprint() != hold_out(examples, 0.2, seed=4)[1].fingerprint()


def test_fingerprints_see_data_and_settings() -> None:
    rows = [{"text": a, "label": b} for a, b in ROWS]
    texts = read_texts(rows, kind="class")
    whole, short = (texts.encode(tokenizer(), max_length=n, labels=texts.label_numbers()) for n in (20, 4))
    changed = encoded([*rows[:-1], {"text": "x", "label": "bad"}])
    assert len({whole.fingerprint(), short.fingerprint(), changed.fingerprint()}) == 3


# -- tags -------------------------------------------------------------------------------------------------------------


def test_first_pieces_are_labelled_and_others_not(tmp_path: Path) -> None:
    path = tmp_path / "t.conll"
    path.write_text("unbelievably\tB-X\nlazy\tO\ndog\tI-X\n\nParis\tO\n")
    sentences = read_tagged(path)
    examples = sentences.encode(tokenizer(), max_length=40, labels=sentences.label_numbers())
    row, labels = examples.get(0, 0)
    tokens = tokenizer().convert_ids_to_tokens(row.ids)
    names = {0: "O", 1: "B-X", 2: "I-X", -100: None}
    marked = [(token, names[int(label)]) for token, label in zip(tokens, labels, strict=True)]
    assert marked[0] == ("[CLS]", None)
    assert marked[-1] == ("[SEP]", None)
    assert [tag for token, tag in marked if not token.startswith(("##", "["))] == ["B-X", "O", "I-X"]
    assert {tag for token, tag in marked if token.startswith("##")} <= {None}


@settings(max_examples=60)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=30), st.integers(3, 12))
def test_long_sentences_are_cut_between_words(sizes: list[int], room: int) -> None:
    words = [word for word, size in enumerate(sizes) for _ in range(size)]
    cuts = list(_cuts(words, room))
    assert all(0 < end - start <= room for start, end in cuts)
    firsts = [token for token in range(len(words)) if token == 0 or words[token] != words[token - 1]]
    found = [token for start, end in cuts for token in range(start, end) if token in {*firsts}]
    assert found == firsts  # every word once, in order
    for start, end in cuts:
        whole = end == len(words) or words[end] != words[end - 1] or sizes[words[start]] > room
        assert whole


def test_every_word_of_a_long_sentence_is_judged_once() -> None:
    tokens = tuple(["the", "lazy", "dog", "sleeps", "and", "nobody", "worried"] * 8)
    tags = tuple(f"T{number % 3}" for number in range(len(tokens)))
    sentences = TaggedSentences([Sentence(tokens, tags)], BadRows(skip=False), "test")
    examples = sentences.encode(tokenizer(), max_length=12, labels=sentences.label_numbers())
    assert len(examples) > 5
    judged = [word for _, words in examples.places for word in words]
    assert judged == list(range(len(tokens)))
    assert max(examples.length(i) for i in range(len(examples))) <= 12
    numbers = [int(label) for label in examples.labels if label >= 0]
    assert numbers == [number % 3 for number in range(len(tokens))]


def test_unseen_tags_are_told_by_file_and_line(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.conll", tmp_path / "dev.conll"
    train.write_text("Paris B-LOC\nis O\n")
    dev.write_text("Paris B-LOC\n\nis O\nBonn B-CITY\n\nBerlin B-LOC\n")
    labels = read_tagged(train).label_numbers()
    with pytest.raises(DataError, match=r"dev\.conll, line 4: the label 'B-CITY'"):
        read_tagged(dev).encode(tokenizer(), max_length=20, labels=labels)
    kept = read_tagged(dev, skip_bad=True).encode(tokenizer(), max_length=20, labels=labels)
    assert (len(kept.sentences), kept.bad.count) == (2, 1)


def test_tags_from_rows_equal_those_from_columns(tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("the O\ndog B-X\n")
    (tmp_path / "t.jsonl").write_text('{"tokens": ["the", "dog"], "ner_tags": ["O", "B-X"]}\n')
    made = []
    for name in ("t.conll", "t.jsonl"):
        sentences = read_tagged(str(tmp_path / name))
        made.append(sentences.encode(tokenizer(), max_length=20, labels=sentences.label_numbers()).fingerprint())
    assert made[0] == made[1]


# -- answers ----------------------------------------------------------------------------------------------------------

CONTEXT = " ".join(SENTENCES[:6])


@settings(max_examples=40)
@given(st.data())
def test_windows_point_at_the_answer_or_at_cls(data: st.DataObject) -> None:
    words = [(i, i + len(word)) for i, word in _words(CONTEXT)]
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(first + 5, len(words) - 1)))
    start, end = words[first][0], words[last][1]
    text = CONTEXT[start:end]
    rows = [{"id": "q", "question": "what?", "context": CONTEXT, "answers": [{"text": text, "answer_start": start}]}]
    examples = answer_examples(rows, tokenizer(), max_length=40, stride=12)
    document = split_document(tokenizer(), CONTEXT, question="what?", max_length=40, stride=12)
    assert len(examples) == len(document.windows) > 2
    tokens = answer_tokens(document, examples.questions[0])
    assert tokens is not None
    assert document.quote(*tokens) == text
    holding = 0
    for index, window in enumerate(document.windows):
        row, begin, finish = examples.get(index, 0)
        assert row.ids.tolist() == list(window.input_ids)
        if (begin, finish) == (0, 0):
            assert tokens[0] < window.start or tokens[1] >= window.end
        else:
            holding += 1
            assert row.ids[begin : finish + 1].tolist() == list(document.token_ids[tokens[0] : tokens[1] + 1])
            assert position_in(window, tokens) == (begin, finish)
    assert holding >= 1 or tokens[1] - tokens[0] >= 12


def _words(text: str) -> list[tuple[int, str]]:
    found, place = [], 0
    for word in text.split(" "):
        found.append((place, word))
        place += len(word) + 1
    return found


def test_impossible_questions_point_at_cls_and_unlabelled_ones_are_refused(tmp_path: Path) -> None:
    asked = {"question": "who?", "context": "the dog sleeps"}
    short = {**asked, "id": "a", "is_impossible": True}
    examples = answer_examples([short], tokenizer(), max_length=40)
    assert examples.get(0, 0)[1:] == (0, 0)
    with pytest.raises(DataError, match="question b: has no answer, and is not marked impossible"):
        answer_examples([{**asked, "id": "b"}], tokenizer(), max_length=40)
    long = {**asked, "id": "c", "question": "who " * 60, "is_impossible": True}
    with pytest.raises(DataError, match="question c: max_length=40 leaves no room"):
        answer_examples([long], tokenizer(), max_length=40)
    kept = answer_examples(
        [{**asked, "id": "a", "is_impossible": True}, long], tokenizer(), max_length=40, skip_bad=True
    )
    assert (len(kept.questions), kept.bad.count) == (1, 1)


# -- choices and embeddings -------------------------------------------------------------------------------------------


def test_the_format_of_questions_can_be_told(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "BertModel")
    answer = {"text": ["dog"], "answer_start": [4]}
    row = {"id": "1", "question": "who sleeps", "context": "the dog sleeps", "answers": answer}
    path = lines(tmp_path / "questions.data", [row, row | {"id": "2"}])
    options = TaskOptions(columns=Columns(format="jsonl"))
    assert len(load_task("answer", model=base, train=str(path), options=options).train) == 2
    path = path.rename(tmp_path / "questions.txt")
    assert len(load_task("answer", model=base, train=str(path), options=options).train) == 2
    with pytest.raises(DataError, match="format='conll' is not known"):
        load_task("answer", model=base, train=str(path), options=TaskOptions(columns=Columns(format="conll")))


def test_choices_are_pairs_with_the_question() -> None:
    rows = [{"question": "the dog", "choices": ["sleeps", "fell"], "answer": 0}]
    examples = choice_examples(rows, tokenizer(), max_length=20)
    found, answer = examples.get(0, 0)
    assert [tokenizer().decode(row.ids) for row in found] == [
        "[CLS] the dog [SEP] sleeps [SEP]",
        "[CLS] the dog [SEP] fell [SEP]",
    ]
    assert answer == 0
    assert examples.length(0) == sum(len(row.ids) for row in found)
    with pytest.raises(DataError, match="question 7: has no answer"):
        choice_examples([{"id": 7, "question": "q", "choices": ["a", "b"]}], tokenizer(), max_length=20)


def test_every_distinct_text_is_kept_once() -> None:
    rows = [{"query": "the dog", "positive": "a fox", "negative_2": "z", "negative_1": "y"} for _ in range(3)]
    examples = embed_examples(rows, tokenizer(), max_length=20)
    assert examples.table.tolist() == [[0, 1, 2, 3]] * 3
    assert [tokenizer().decode(row.ids, skip_special_tokens=True) for row in examples.get(0, 0).rows] == [
        "the dog",
        "a fox",
        "y",
        "z",
    ]
    assert examples.scores is None


def test_scored_pairs_and_answer_retrieval(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv", rows=[("a", "b", "2.5"), ("a", "c", "5")], names=("sentence1", "sentence2", "score")
    )
    examples = embed_examples(path, tokenizer(), max_length=20)
    assert examples.scores is not None
    assert examples.scores.tolist() == [2.5, 5.0]
    assert examples.scaled(5.0).scores.tolist() == [0.5, 1.0]  # type: ignore[union-attr]
    reqa = tmp_path / "reqa.json"
    reqa.write_text(json.dumps({"questions": ["q", "r"], "answers": ["x", "y"]}))
    assert embed_examples(str(reqa), tokenizer(), max_length=20).table.tolist() == [[0, 1], [2, 3]]
    bad = [{"query": "q", "positive": "x"}, {"query": "q", "positive": 5}]
    with pytest.raises(DataError, match="item 2: the column 'positive' should be text"):
        embed_examples(bad, tokenizer(), max_length=20)


def test_rows_are_kept_flat() -> None:
    rows = TokenRows.of([([1, 2, 3], None), ([4, 5], [0, 1])])
    assert [(row.ids.tolist(), row.split) for row in (rows[0], rows[1])] == [([1, 2, 3], 3), ([4, 5], 1)]
    assert rows.ids.dtype == np.int32


# -- the real files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uncased(shared_data: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(shared_data / "vocabs" / "bert-base-uncased" / "vocab.txt")


@pytest.mark.parametrize(
    ("task", "name", "kind", "labels"),
    [
        ("MRPC", "dev.tsv", "class", ("0", "1")),
        ("CoLA", "dev.tsv", "class", ("0", "1")),
        ("SST-2", "dev.tsv", "class", ("0", "1")),
        ("RTE", "dev.tsv", "class", ("entailment", "not_entailment")),
        ("STS-B", "dev.tsv", "score", None),
    ],
    ids=["MRPC", "CoLA", "SST-2", "RTE", "STS-B"],
)
def test_glue_files(shared_data: Path, uncased: BertTokenizer, task: str, name: str, kind: Any, labels: Any) -> None:
    texts = read_texts(shared_data / "glue" / task / name, kind=kind, paired=None)
    numbers = None if labels is None else texts.label_numbers()
    assert (None if numbers is None else numbers.names) == labels
    examples = texts.encode(uncased, max_length=128, labels=numbers)
    assert len(examples) == len(texts.items) > 200


def test_wnut_tags(shared_data: Path, uncased: BertTokenizer) -> None:
    sentences = read_tagged(shared_data / "wnut17" / "emerging.dev.conll")
    assert sentences.scheme() == "BIO"
    examples = sentences.encode(uncased, max_length=64, labels=sentences.label_numbers())
    assert len(examples.sentences) == len(sentences.items) == 1009


def test_wrong_answer_places_are_told_skipped_or_repaired(shared_data: Path) -> None:
    chinese = BertTokenizer.from_pretrained(shared_data / "vocabs" / "bert-base-chinese" / "vocab.txt")
    path = shared_data / "qa" / "cmrc2018" / "dev.json"
    questions = list(read_squad(path, skip_bad=True))
    assert len(questions) > 2500
    with pytest.raises(DataError, match=r"dev\.json, data\[\d+\].*expected the answer"):
        answer_examples(path, chinese, max_length=512)


def test_commonsense_questions_and_answer_sentences(shared_data: Path, uncased: BertTokenizer) -> None:
    choices = choice_examples(shared_data / "commonsenseqa" / "valid.jsonl", uncased, max_length=128)
    assert (len(choices), choices.num_choices) == (1221, 5)
    pairs = embed_examples(str(shared_data / "retrieval" / "reqa_squad" / "test.json"), uncased, max_length=64)
    assert len(pairs) > 1000
