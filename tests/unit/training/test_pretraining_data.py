"""Raw text to pretraining examples: the cache, what examples hold, and the objective."""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import evaluated, fit
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import ConfigError, DataError, InputError
from bertie.text.corpus.documents import looks_like_sentences, split_sentences
from bertie.training.pretraining import corpus as corpus_module
from bertie.training.pretraining import pairs as pretraining_data
from bertie.training.pretraining.corpus import TokenizedCorpus, tokenize_corpus
from bertie.training.pretraining.masking import MaskRules
from bertie.training.pretraining.objective import Pretraining, average_predictions
from bertie.training.pretraining.pairs import PairRules, SequenceExamples, make_pairs
from tiny_models import SENTENCES, tiny, tokenizer

# -- files ------------------------------------------------------------------------------------------------------------


def write_text(path: Path, *, documents: int = 12, seed: int = 0) -> Path:
    chance = random.Random(seed)
    blocks = []
    for _ in range(documents):
        blocks.append("\n".join(chance.choice(SENTENCES[:6]) for _ in range(chance.randint(2, 12))))
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def bytes_in(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_same_seed_makes_the_same_bytes(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    made = []
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        corpus = tokenize_corpus([text], tokenizer(), tmp_path / name / "corpus")
        make_pairs(corpus, tokenizer(), tmp_path / name / "pairs", rules=PairRules(32, dupe_factor=3, seed=seed))
        made.append((bytes_in(tmp_path / name / "corpus"), bytes_in(tmp_path / name / "pairs")))
    assert made[0] == made[1]
    assert made[0][0] == made[2][0]
    assert made[0][1] != made[2][1]


def test_tokens_sentences_and_documents_are_kept_exactly(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The dog sleeps.\n\u200b\nParis is good.\n\n\n  \n\u00ad\n\nStocks fell.\n", encoding="utf-8")
    corpus = tokenize_corpus([text], tokenizer(), tmp_path / "corpus", lines="sentences")
    expected = [
        tokenizer().encode(s, add_special_tokens=False) for s in ("The dog sleeps.", "Paris is good.", "Stocks fell.")
    ]
    assert corpus.ids.tolist() == [token for sentence in expected for token in sentence]
    assert np.diff(corpus.sentences).tolist() == [len(sentence) for sentence in expected]
    assert corpus.documents.tolist() == [0, 2, 3]
    assert corpus.ids.dtype == np.uint16


def test_a_cache_is_used_again_and_made_anew_when_it_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_text(tmp_path / "text.txt")
    calls = []
    original = corpus_module._build
    monkeypatch.setattr(corpus_module, "_build", lambda *given: (calls.append(1), original(*given))[1])

    def make() -> TokenizedCorpus:
        return tokenize_corpus([text], tokenizer(), tmp_path / "corpus")

    first = make()
    tokens = first.ids.tolist()  # a copy: the array itself is the file
    assert make().fingerprint == first.fingerprint
    assert len(calls) == 1
    damaged = tmp_path / "corpus" / "ids.bin"
    content = bytearray(damaged.read_bytes())
    content[10] ^= 1
    damaged.write_bytes(content)
    assert make().ids.tolist() == tokens
    assert len(calls) == 2
    write_text(text, seed=1)
    assert make().fingerprint != first.fingerprint
    assert len(calls) == 3


def test_a_build_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_text(tmp_path / "text.txt", documents=30)
    monkeypatch.setattr(corpus_module, "_CHARACTERS_AT_ONCE", 1500)
    monkeypatch.setattr(pretraining_data, "_DOCUMENTS_AT_ONCE", 7)

    def make(name: str, progress: Any = None) -> None:
        corpus = tokenize_corpus([text], tokenizer(), tmp_path / name / "corpus", progress=progress)
        make_pairs(
            corpus, tokenizer(), tmp_path / name / "pairs", rules=PairRules(32, dupe_factor=2), progress=progress
        )

    make("whole")
    seen: list[int] = []

    def stop(done: int, count: int, share: float) -> None:
        seen.append(done)
        if len(seen) in (2, 4, 7, 9):
            raise KeyboardInterrupt

    for _ in range(5):
        try:
            make("stopped", stop)
        except KeyboardInterrupt:
            # A half-written piece after the last commit is thrown away.
            for place in (tmp_path / "stopped").glob(".*.building"):
                with open(sorted(place.glob("*.bin"))[0], "ab") as file:
                    file.write(b"half a piece")
    for part in ("corpus", "pairs"):
        assert bytes_in(tmp_path / "stopped" / part) == bytes_in(tmp_path / "whole" / part)
    corpus_steps = seen[: seen.index(30) + 1]
    assert corpus_steps == sorted(set(corpus_steps))  # every piece was made once


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_text(tmp_path / "text.txt", documents=30)
    monkeypatch.setattr(corpus_module, "_CHARACTERS_AT_ONCE", 1500)
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 20:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"corpus: cannot be written: No space left on device"):
            tokenize_corpus([text], tokenizer(), tmp_path / "corpus")
    seen: list[int] = []
    found = tokenize_corpus([text], tokenizer(), tmp_path / "corpus", progress=lambda done, *_: seen.append(done))
    whole = tokenize_corpus([text], tokenizer(), tmp_path / "whole")
    assert found.ids.tolist() == whole.ids.tolist()
    assert seen[0] > 5  # it did not begin anew
    with pytest.raises(DataError, match="cannot be written"):
        tokenize_corpus([text], tokenizer(), text / "corpus")


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_is_believed(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", documents=4000)
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from tiny_models import tokenizer
        from bertie.training.pretraining import corpus
        corpus._CHARACTERS_AT_ONCE = 20000
        corpus.tokenize_corpus([Path(sys.argv[1]) / "text.txt"], tokenizer(), Path(sys.argv[1]) / "corpus")
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parents[2])]
    chance = random.Random(0)
    for _ in range(6):
        process = subprocess.Popen(command)
        try:
            process.wait(timeout=2.5 + 2 * chance.random())
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    assert subprocess.run(command, check=False).returncode == 0
    whole = tokenize_corpus([text], tokenizer(), tmp_path / "whole")
    found = tokenize_corpus([text], tokenizer(), tmp_path / "corpus")
    assert found.ids.tolist() == whole.ids.tolist()
    assert found.documents.tolist() == whole.documents.tolist()


def test_half_of_the_pairs_are_random_and_labelled_so(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", documents=60)
    corpus = tokenize_corpus([text], tokenizer(), tmp_path / "corpus")
    examples = make_pairs(corpus, tokenizer(), tmp_path / "pairs", rules=PairRules(48, dupe_factor=20))
    bounds = corpus.document_bounds()
    pairs = examples.pairs
    same = np.searchsorted(bounds, pairs["a_start"], "right") == np.searchsorted(bounds, pairs["b_start"], "right")
    assert (same == (pairs["is_random"] == 0)).all()
    # A single sentence is always followed by a random one, so it is a little more than half.
    assert 0.5 < pairs["is_random"].mean() < 0.75
    row, _, label = examples.get(5, 0)
    tokens = tokenizer().convert_ids_to_tokens(row.ids)
    assert (tokens[0], tokens[row.split - 1], tokens[-1]) == ("[CLS]", "[SEP]", "[SEP]")
    assert tokens.count("[SEP]") == 2
    assert label == pairs["is_random"][5]
    assert len(row.ids) == examples.length(5) <= 48


def test_every_pass_over_the_corpus_makes_other_pairs(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    corpus = tokenize_corpus([text], tokenizer(), tmp_path / "corpus")
    once, twice = (
        make_pairs(corpus, tokenizer(), tmp_path / f"pairs{n}", rules=PairRules(32, dupe_factor=n)) for n in (1, 2)
    )
    number = len(once)
    assert twice.pairs["a_start"][:number].tolist() == once.pairs["a_start"].tolist()
    assert twice.pairs["b_start"][number:].tolist() != once.pairs["b_start"].tolist()


def test_static_masks_stay_and_dynamic_ones_change(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    corpus = tokenize_corpus([text], tokenizer(), tmp_path / "corpus")
    rules = PairRules(32, dupe_factor=1)
    static = make_pairs(corpus, tokenizer(), tmp_path / "pairs", rules=rules)
    dynamic = make_pairs(corpus, tokenizer(), tmp_path / "pairs", rules=rules, masking="dynamic")
    assert static.get(3, 0).key == static.get(3, 1).key == dynamic.get(3, 0).key != dynamic.get(3, 1).key
    assert static.fingerprint() != dynamic.fingerprint()


def test_sequences_cover_every_document_once(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    corpus = tokenize_corpus([text], tokenizer(), tmp_path / "corpus")
    examples = SequenceExamples.of(corpus, tokenizer(), max_length=20)
    covered = np.concatenate([np.arange(s, s + n) for s, n in zip(examples.starts, examples.sizes, strict=True)])
    assert len(set(covered.tolist())) == len(covered)
    bounds = corpus.document_bounds()
    missing = np.setdiff1d(np.arange(corpus.num_tokens), covered)
    # Only ends of documents that are too short for a sequence of their own.
    assert all(bounds[np.searchsorted(bounds, place, "right")] - place < 5 for place in missing)
    assert max(examples.length(i) for i in range(len(examples))) == 20
    row, _, label = examples.get(0, 0)
    assert label is None
    assert row.ids[1:-1].tolist() == corpus.ids[: len(row.ids) - 2].tolist()


def test_compressed_books_are_split_into_sentences(tmp_path: Path) -> None:
    paragraphs = [
        "The dog sleeps. The fox jumps! Is Mr. Fox lazy?",
        "Paris is good. Berlin too.",
        "",
        "Stocks fell. So what?",
    ]
    with lzma.open(tmp_path / "books.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(paragraphs))
    corpus = tokenize_corpus([tmp_path / "books.txt.xz"], tokenizer(), tmp_path / "corpus")
    assert (corpus.lines, len(corpus.sentences) - 1, corpus.num_documents) == ("paragraphs", 7, 2)


def test_googles_sample_is_read_a_sentence_to_a_line(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "text" / "google_sample_text.txt"
    corpus = tokenize_corpus([path], tokenizer(), tmp_path / "corpus")
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    assert (corpus.lines, len(corpus.sentences) - 1) == ("sentences", len(lines))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Hall met J. R. Smith. He left.", ["Dr. Hall met J. R. Smith.", "He left."]),
        ("It cost 3.50 then. It costs 4 now.", ["It cost 3.50 then.", "It costs 4 now."]),
        ('"Come here." She came.', ['"Come here."', "She came."]),
        ("He said no... and went on. Then?", ["He said no... and went on.", "Then?"]),
        ("It was I. You knew.", ["It was I.", "You knew."]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("   ", []),
        ("no end", ["no end"]),
    ],
    ids=range(9),
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


@given(st.text(alphabet="aB .!?\"'\n。1", max_size=60))
def test_no_letter_is_lost_between_sentences(text: str) -> None:
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_lines_of_one_sentence_are_recognised() -> None:
    assert looks_like_sentences(SENTENCES)
    assert not looks_like_sentences([f"{sentence} {sentence}" for sentence in SENTENCES])


def test_what_cannot_be_pretrained_on(tmp_path: Path) -> None:
    alone = tmp_path / "alone.txt"
    alone.write_text("One document. Of two sentences.\n")
    corpus = tokenize_corpus([alone], tokenizer(), tmp_path / "corpus")
    with pytest.raises(DataError, match="The corpus has one document"):
        make_pairs(corpus, tokenizer(), tmp_path / "pairs")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match="there is no text in it"):
        tokenize_corpus([tmp_path / "empty.txt"], tokenizer(), tmp_path / "nothing")
    with pytest.raises(DataError, match="there is no such file"):
        tokenize_corpus([tmp_path / "missing.txt"], tokenizer(), tmp_path / "nothing")
    with pytest.raises(ConfigError, match="dupe_factor is 0"):
        PairRules(dupe_factor=0)
    (tmp_path / "latin.txt").write_bytes(b"Gr\xfc\xdfe.\n\nGut.\n")
    with pytest.raises(DataError, match=r"latin\.txt, line 1: byte 0xfc"):
        tokenize_corpus([tmp_path / "latin.txt"], tokenizer(), tmp_path / "latin")
    skipped = tokenize_corpus([tmp_path / "latin.txt"], tokenizer(), tmp_path / "latin", skip_bad=True)
    assert "1 bad row skipped" in skipped.skipped


# -- the objective ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("data")
    corpus = tokenize_corpus([write_text(folder / "text.txt", documents=4)], tokenizer(), folder / "corpus")
    pairs = make_pairs(corpus, tokenizer(), folder / "pairs", rules=PairRules(32, dupe_factor=1))
    return SequenceExamples.of(corpus, tokenizer(), max_length=32, masking="static"), pairs


def objective_for(name: str, examples: Any) -> Pretraining:
    model = tiny(name, initializer_range=0.05, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    rules = MaskRules.of(tokenizer())
    weight = average_predictions(examples.lengths(), rules) if name == "BertForPreTraining" else None
    return Pretraining(model, tokenizer(), rules=rules, words_per_pair=weight)


def test_masked_words_are_learned(data: Any) -> None:
    objective = objective_for("BertForMaskedLM", data[0])
    losses = fit(objective, data[0], steps=120, batch_size=20)
    figures = evaluated(objective, data[0])
    assert losses[-1] < 0.1 * losses[0]
    assert figures["mlm_accuracy"] > 0.95
    assert figures["perplexity"] == pytest.approx(np.exp(figures["mlm_loss"]))


def test_next_sentences_are_learned_too(data: Any) -> None:
    objective = objective_for("BertForPreTraining", data[1])
    fit(objective, data[1], steps=120, batch_size=20)
    figures = evaluated(objective, data[1])
    assert figures["nsp_accuracy"] > 0.95
    assert figures["mlm_accuracy"] > 0.9
    assert figures["loss"] == pytest.approx(figures["mlm_loss"] + figures["nsp_loss"])


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining"])
def test_the_loss_is_the_models_own(data: Any, name: str) -> None:
    examples = data[0] if name == "BertForMaskedLM" else data[1]
    objective = objective_for(name, examples)
    batch = objective.collate([examples.get(index, 0) for index in range(8)])
    tensors = batch.tensors
    labels = torch.full_like(tensors["input_ids"], -100)
    labels[tensors["masked_positions"]] = tensors["labels"]
    shared = {"token_type_ids": tensors["token_type_ids"], "cu_seqlens": tensors["cu_seqlens"]}
    words = objective.model(tensors["input_ids"], labels=labels, **shared).loss * batch.units
    total, _ = objective.loss(objective.model, batch)
    if name == "BertForPreTraining":
        pairs = objective.model(tensors["input_ids"], next_sentence_label=tensors["next_labels"], **shared).loss
        words = words + objective.words_per_pair * pairs * len(tensors["next_labels"])
    torch.testing.assert_close(total, words)


@pytest.mark.parametrize("paired", [False, True], ids=["sequences", "pairs"])
def test_held_out_documents_are_in_no_training_example(tmp_path: Path, paired: bool) -> None:
    corpus = tokenize_corpus([write_text(tmp_path / "text.txt", documents=40)], tokenizer(), tmp_path / "corpus")
    made: list[Any] = []
    for number, part in enumerate(corpus.split(0.2)):
        if paired:
            rules = PairRules(32, dupe_factor=3)
            made.append(make_pairs(part, tokenizer(), tmp_path / f"pairs{number}", rules=rules))
        else:
            made.append(SequenceExamples.of(part, tokenizer(), max_length=32))
    pieces = [ids_of(examples) for examples in made]
    assert not pieces[0] & pieces[1]
    assert 0.1 < len(pieces[1]) / corpus.num_tokens < 0.3
    assert made[0].fingerprint() != made[1].fingerprint()
    assert sum(part.num_tokens for part in corpus.split(0.2)) == corpus.num_tokens
    with pytest.raises(DataError, match=r"dev_share is 1\.0"):
        corpus.split(1.0)


def ids_of(examples: Any) -> set[int]:
    """The places in the corpus that examples are made of."""
    spans = (
        [(examples.starts, examples.sizes)]
        if isinstance(examples, SequenceExamples)
        else [(examples.pairs[f"{part}_start"], examples.pairs[f"{part}_size"]) for part in "ab"]
    )
    return {
        place
        for starts, sizes in spans
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        for place in range(start, start + size)
    }


def test_pairs_and_models_must_fit(data: Any) -> None:
    objective = objective_for("BertForPreTraining", data[1])
    with pytest.raises(InputError, match="learns from pairs"):
        objective.collate([data[0].get(0, 0)])
    with pytest.raises(InputError, match="without words_per_pair"):
        Pretraining(tiny("BertForPreTraining"), tokenizer())
    with pytest.raises(InputError, match="the model's vocabulary has 100"):
        Pretraining(tiny("BertForMaskedLM", vocab_size=100), tokenizer())
