"""Forty common mistakes at the command line and in Python: one line of cause, one of remedy, exit 2, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.cli.main import main
from bertie.errors import BertieError

# (arguments, what the cause says, what the remedy says)
COMMAND_LINE: list[tuple[str, str, str]] = [
    ("embd hello", "No such command 'embd'", "Did you mean embed"),
    ("embed hello --pool cls", "No such option", "bertie embed --help"),
    ("embed hello --format xml", "'xml' is not one of", "bertie embed --help"),
    ("embed hello -m ./my-bret", "There is no file or folder my-bret.", "Did you mean my-bert?"),
    ("embed hello -m texts.txt", "texts.txt is not", "safetensors"),
    ("embed hello -m empty-folder", "empty folder", "was saved in"),
    ("embed hello -m half", "", "again"),
    ("embed hello -m other-words", "tokenizer knows", "different models"),
    ("embed hello --device cuda:7", "cuda:7", "--device cpu"),
    ("embed hello --device gpu", "no device 'gpu'", "cuda"),
    ("embed hello --device mps", "no device 'mps': this torch was not built for it", "cuda"),
    ("embed hello --dtype float8", "'float8' is not one of", "--help"),
    ("embed hello --truncate-dim 5000", "5000", "1 to 384"),
    ("embed hello --pooling middle", "middle", "mean"),
    ("embed hello --prompt-name poem", "'poem'", "query"),
    ("embed", "No text was given", "-f FILE"),
    ("embed hello -f texts.txt", "both as arguments and in a file", "one or the other"),
    ("embed -f text.txt", "text.txt", "texts.txt"),
    ("embed -f empty.txt", "nothing in it", "at least one text"),
    ("embed -f latin.txt", "latin.txt, line 1", "--encoding latin-1, or leave such lines out: --skip-bad"),
    ("embed -f wide.txt", "looks like UTF-16", "--encoding utf-16"),
    ("embed -f texts.txt --encoding utf-9", "'utf-9' is none of utf-8", "bertie embed --help"),
    ("embed -f semicolons.csv", "one column, with ';' in it", "--delimiter ';'"),
    ("embed -f tabs.csv", "one column, with '\\t' in it", "--delimiter '\\t'"),
    ("embed -f tabs.csv --delimiter tab", "'tab' is not one character", "bertie embed --help"),
    ("embed -f latin.txt --input-format arrow", "cannot be read as arrow", "of another format: --input-format."),
    ("embed hello --precision int8", "int8 of one vector", "Give many texts at once, or use another --precision."),
    ("embed -f bad.jsonl", "bad.jsonl, line 2", "--skip-bad"),
    ("embed -f data.xyz", "format cannot be recognized", "--input-format"),
    ("embed -f texts.csv --column reviews", "no column 'reviews'", "'review'"),
    ("embed -f two.csv", "which column is the text?", "--column"),
    ("embed hello -o nowhere/v.jsonl", "no folder", "mkdir"),
    ("embed hello -o v.docx", "format cannot be recognized", "--format"),
    ("embed hello -o v.parquet", "pyarrow", "pip install"),
    ("similarity alone", "1 text was given", "two"),
    ("classify hello", "No model was named", "-m ./my-model"),
    ("classify hello -m my-squad", "text classifier", "fine-tune"),
    ("classify hello -m my-sentiment --labels a,b", "negative, positive", "entailment"),
    ("classify hello -m my-ner", "is a BertForTokenClassification", "tag takes this one"),
    ("tag hello -m my-sentiment", "is a BertForSequenceClassification", "classify and rerank take this one"),
    ("tag hello -m my-ner --aggregation mean", "'mean' is not one of", "--help"),
    ("tag hello -m my-ner --ignore PERSON", "'PERSON'", "PER"),
    ("answer -m my-squad Who?", "No context", "--context-file"),
    ("answer -m my-squad -f unmarked.jsonl --score", "nothing to score against", "is_impossible"),
    ("answer -m my-squad Who? --context-file latin.txt", "latin.txt, line 1", "is, e.g. --encoding latin-1."),
    ("answer -m my-squad -f data.xyz", "format cannot be recognized", "--input-format: one of txt"),
    ("answer -m my-squad -f latin.txt --input-format arrow", "cannot be read as arrow", "--input-format."),
    ("answer -m my-squad Who? --context-file empty.txt", "nothing in it", "with a text in it"),
    ("answer -m my-squad Who? -c Ada --skip-bad", "--skip-bad is for a file of questions", "leave --skip-bad out"),
    ("client answer Who? --context-file latin.txt", "latin.txt, line 1", "is, e.g. --encoding latin-1."),
    ("fill -m my-bert Hello.", "has no [MASK]", "Write [MASK]"),
    ("fill Hello.", "Text 1 has no [MASK]: 'Hello.'", "Write [MASK]"),
    ("fill -f texts.txt", "texts.txt, line 1: has no [MASK]", "--skip-bad"),
    ("next alone", "1 was given", "two columns"),
    ("features hello --layers -9", "Layer -9 does not exist", "0 is the first"),
    ("search index hello -k -3", "-3", "--help"),
    ("search my-bert hello", "my-bert", "bertie index"),
    ("search index hello -m my-bert", "another model", "the model it was built with"),
    ("index empty.txt -o new-index", "nothing in it", "at least one text"),
    ("embed -f dev.json", "SQuAD", "bertie answer"),
    ("generate Once -m my-bert", "needs a decoder", "--force"),
    (
        "generate Once -m my-decoder --count 3",
        "3 texts of each prompt",
        "(--num-beams), fewer texts (--count), or draw",
    ),
    ("generate Once -m my-decoder --num-beams 3 --sample", "--sample and --num-beams were both", "Draw one text"),
    (
        f"generate Once -m my-decoder --sample --seed {10**23}",
        f"--seed {10**23}: it must be a whole number",
        "bertie generate --help",
    ),
]


def python_mistakes() -> list[tuple[str, Callable[[], Any], str, str]]:
    """(what, the call, what the cause says, what the remedy says)."""
    from bertie.search.index import build_index
    from bertie.tasks.answer import answer
    from bertie.tasks.classify import classify
    from bertie.tasks.embed import embed
    from bertie.tasks.fill import fill
    from bertie.tasks.next_sentence import next_sentence
    from bertie.tasks.tag import tag

    return [
        ("a missing text", lambda: embed(["one", None]), "Text 1 is None", "remove"),
        ("wrong long", lambda: embed("x", long="cut"), "'cut'", "'truncate', 'windows'"),
        ("a model without a tokenizer", lambda: classify("x", model=bertie.BertModel(TINY)), "tokenizer", "tokenizer="),
        ("the wrong head", lambda: tag("x", model="my-squad"), "token classifier", "fine-tune"),
        ("a question alone", lambda: answer("Who?", model="my-squad"), "without a context", "Pass the context as well"),
        (
            "one text, not two",
            lambda: next_sentence("One.", model="my-bert"),
            "without a second text",
            "(first text, second text)",
        ),
        ("unknown aggregation", lambda: tag("x", model="my-ner", aggregation="mean"), "'mean'", "average"),
        ("an index in a full folder", lambda: build_index(["x"], "full"), "not empty", "empty folder"),
        ("a string of file name", lambda: build_index("corpus.jsonl", "new"), "corpus.jsonl", "read_rows"),
        ("no mask in Python", lambda: fill("Hello.", model="my-bert"), "[MASK]", "Write [MASK]"),
        (
            "heads that do not divide",
            lambda: bertie.BertModel(bertie.BertConfig(hidden_size=100)),
            "100",
            "equal share",
        ),
        ("a device that is not there", lambda: embed("x", device="cuda:9"), "cuda", "cpu"),
        ("an unknown dtype", lambda: embed("x", dtype="float7"), "float7", "float32"),
    ]


TINY = bertie.BertConfig.preset("tiny", vocab_size=30)


@pytest.fixture
def mistakes_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with everything in it that can go wrong."""
    import shutil

    (desk / "empty-folder").mkdir()
    (desk / "full").mkdir()
    (desk / "full" / "notes").write_text("mine")
    (desk / "empty.txt").write_text("")
    (desk / "latin.txt").write_bytes("Grüße\n".encode("latin-1"))
    (desk / "wide.txt").write_bytes("Grüße\n".encode("utf-16"))
    (desk / "semicolons.csv").write_text("text;label\na;b\n")
    (desk / "tabs.csv").write_text("text\tlabel\na\tb\n")
    (desk / "bad.jsonl").write_text('{"text": "one"}\n{"text": \n')
    (desk / "unmarked.jsonl").write_text('{"question": "Who?", "context": "Ada."}\n' * 2)
    (desk / "two.csv").write_text("left,right\na,b\n")
    (desk / "data.xyz").write_text("x\n")
    for name in ("half", "other-words"):
        shutil.copytree((desk / "my-bert").resolve(), desk / name)
    weights = desk / "half" / "model.safetensors"  # a download that stopped
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    for file in (desk / "other-words").glob("*tok*"):
        file.unlink()
    (desk / "other-words" / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(900))]) + "\n"
    )
    monkeypatch.setattr(sys, "stdin", None)
    return desk


def test_mistakes_are_explained(
    mistakes_desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["index", "corpus.jsonl", "-o", "index"]) == 0
    capsys.readouterr()
    wrong = []
    for line, cause, remedy in COMMAND_LINE:
        with monkeypatch.context() as patch:
            if "parquet" in line:
                patch.setitem(sys.modules, "pyarrow", None)
                patch.setitem(sys.modules, "pyarrow.parquet", None)
            try:
                code = main(line.split())
            except Exception as error:  # a traceback, for a user
                wrong.append(f"{line}: {type(error).__name__}: {error}")
                continue
        captured = capsys.readouterr()
        lines = captured.err.splitlines()
        told = len(lines) == 2 and lines[0].startswith("error: ") and cause in lines[0] and remedy in lines[1]
        if code != 2 or captured.out or not told:
            wrong.append(f"bertie {line}: exit {code}\n{captured.err}{captured.out[:200]}")
    calls = python_mistakes()
    for what, call, cause, remedy in calls:
        try:
            call()
        except BertieError as error:
            if not (error.remedy and cause in error.cause and remedy in error.remedy and str(error).count("\n") == 1):
                wrong.append(f"{what}: {error}")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{what}: nothing was raised")
    total = len(COMMAND_LINE) + len(calls)
    assert not wrong, "\n".join(wrong)
    assert total >= 40
    with capsys.disabled():
        print(f"\n{total} mistakes, {total - len(wrong)} explained")
