"""`pretrain(…)`: raw text in, a BERT out.

    from bertie.training import pretrain

    pretrain(corpus=["books.txt"], output="my-bert", size="mini")                    # a new model
    pretrain(corpus=["notes.txt"], output="my-bert-2", model="bert-base-uncased")    # more for an old one

The vocabulary is learned from the corpus unless one is given (or `model` has one). Two ways to train:

- masked words alone (the default): documents cut into sequences, masked again in every epoch;
- with `nsp=True` as Google did it: pairs of segments, half of them random, masked once.

What is made on the way (vocabulary, ids, pairs) is kept in `output/data` and found there again.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bertie.arguments import is_path, number, one_of
from bertie.checkpoint.report import NewlyInitialized
from bertie.config import PRESETS, BertConfig
from bertie.errors import ConfigError, DataError, InputError
from bertie.files import sha256
from bertie.loading import class_for
from bertie.model import BertForMaskedLM, BertForPreTraining
from bertie.text import BertTokenizer, train_vocabulary
from bertie.text.corpus.documents import text_size
from bertie.text.corpus.processes import num_processes
from bertie.text.corpus.sentence_pairs import PairRules
from bertie.training.contract import Examples, Json, Result, hold_out
from bertie.training.distillation import TEMPERATURE, Teaching, Weights, make_student
from bertie.training.fine_tuning import deciding, run, set_dropout
from bertie.training.pretraining.array_folder import locked, read_object
from bertie.training.pretraining.corpus import LARGE, Lines, TokenizedCorpus, tokenize_corpus
from bertie.training.pretraining.masking import MaskRules
from bertie.training.pretraining.objective import Pretraining, average_predictions
from bertie.training.pretraining.pairs import Masking, PairExamples, PretrainingExample, SequenceExamples, make_pairs
from bertie.training.run.checkpoint import check_output, seed_everything
from bertie.training.run.distributed import world
from bertie.training.run.journal import Phase, check_tensorboard, phase
from bertie.training.run.stopping import explained
from bertie.training.settings import Settings, refuse_changes

PathLike = str | os.PathLike[str]

# Google's learning rate and batch, for runs shorter than Google's.
PRETRAINING = Settings(
    epochs=10.0, batch_size=256, micro_batch_tokens=32768, learning_rate=1e-4, warmup=0.05, save_every=1000,
    evaluate_every=1000,
)  # fmt: skip
_MOST_HELD_OUT = 2000
_MADE_OF = "made_of.json"  # beside a learned vocabulary
# What decides the numbers and does not show in the data's fingerprint.
_DECIDING = ("mask_probability", "max_predictions", "whole_words", "dropout", "attention_dropout")


@dataclass(frozen=True)
class PretrainOptions:
    """What a person may say about the model, its vocabulary and the data."""

    size: str = "mini"  # tiny, mini, small, medium, base, large
    vocab: PathLike | None = None  # a vocab.txt, or a folder with a tokenizer; None learns one
    vocab_size: int = 30522
    lowercase: bool = True
    nsp: bool = False
    max_length: int = 128
    lines: Lines = "auto"  # is a line of the corpus a sentence or a paragraph?
    encoding: str = "utf-8"
    skip_bad: bool = False
    processes: int | None = None  # that read the text; by default one for a core, eight at most, for large corpora
    mask_probability: float = 0.15
    max_predictions: int | None = None
    whole_words: bool = False
    masking: Masking | None = None  # static for pairs, dynamic for sequences
    dupe_factor: int = 10
    short_seq_prob: float = 0.1
    dev_share: float = 0.01  # of the examples, at most 2000, where there is no dev corpus
    dropout: float = 0.1
    distillation: Weights | None = None  # with a teacher: what counts how much
    temperature: float = TEMPERATURE
    attention_dropout: float = 0.0  # as recent recipes have it; packed attention on GPUs has none

    def __post_init__(self) -> None:
        one_of("size", self.size, PRESETS, ConfigError)
        one_of("lines", self.lines, get_args(Lines), ConfigError)
        one_of("masking", self.masking, (*get_args(Masking), None), ConfigError)
        number("max_length", self.max_length, least=8, error=ConfigError)
        for name in ("vocab_size", "dupe_factor", "processes", "max_predictions"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), least=1, error=ConfigError)
        for name in ("dev_share", "dropout", "attention_dropout"):
            number(name, getattr(self, name), least=0, below=1, error=ConfigError)
        number("mask_probability", self.mask_probability, above=0, below=1, error=ConfigError)
        number("short_seq_prob", self.short_seq_prob, least=0, most=1, error=ConfigError)


def pretrain(
    *,
    corpus: Sequence[PathLike] | PathLike,
    output: PathLike,
    model: PathLike | None = None,
    teacher: PathLike | None = None,
    student_layers: int | None = None,
    dev: Sequence[PathLike] | PathLike | None = None,
    size: str | None = None,
    settings: Settings | None = None,
    options: PretrainOptions | None = None,
    resume: bool = False,
    device: str | None = None,
    show: bool | None = None,
    command: str | None = None,
) -> Result:
    """Pretrain a model on text files: a blank line between documents, one sentence or paragraph per line.

    - `corpus`, `dev`: one file or several; `.gz` and `.xz` too.
    - `output`: the folder for the model and its report.
    - `model`: a checkpoint to continue from, with its vocabulary.
    - `teacher`: a larger model with the same vocabulary, from whose predictions the new model learns too;
      `student_layers` starts from this many of its layers.
    - `size`: of a new model: "tiny", "mini" (default), "small", "medium", "base" or "large".
    - `settings`, `options`: `Settings` of the training, `PretrainOptions` of the data and the model.
    - `resume`: continue the run in `output`.
    - `device`: by default a GPU if PyTorch finds one.
    - `show`: whether to print progress; by default on a terminal.
    - `command`: what the report shows as the command that was run.
    """
    made, chosen = settings or PRETRAINING, options or PretrainOptions()
    if size is not None or chosen.size != PretrainOptions.size:
        _check_size(model, student_layers)
    size = size or chosen.size
    one_of("size", size, PRESETS, ConfigError)
    teaching = Teaching(teacher, chosen.distillation, chosen.temperature, student_layers)
    teaching.check_student(model)
    teaching.check()
    files, folder = _files(corpus), Path(output)
    held_files = None if dev is None else _files(dev)
    if made.tensorboard:
        check_tensorboard()
    check_output(folder, resume=resume)
    with explained(folder), world(device=device, shard=made.shard) as here:
        seed_everything(made.seed)
        data = _Data(folder / "data", chosen, made.seed, show, here.is_main)
        tokenizer = data.tokenizer(files, model or teacher, resume=resume)
        teaching.check_vocabulary(tokenizer)
        if student_layers is None:
            network, new = _network(tokenizer, model, size, chosen)
        else:
            whole, new = _network(tokenizer, teacher, size, chosen)
            network = make_student(whole, num_layers=student_layers)
        rules = MaskRules.of(
            tokenizer,
            probability=chosen.mask_probability,
            max_predictions=chosen.max_predictions,
            whole_words=chosen.whole_words,
        )
        text, notes = data.corpus(files, tokenizer, "train")
        notes = (*new, *notes)
        held: Examples[PretrainingExample] | None = None
        if chosen.nsp and dev is None and chosen.dev_share > 0 and text.num_documents >= 4:
            # Pairs of one text overlap (it is gone through dupe_factor times), so whole documents are held out.
            text, rest = text.split(chosen.dev_share)
            held = data.examples(rest, tokenizer, "dev")
            notes += (f"{rest.num_documents:,} documents are held out for evaluation",)
        examples = data.examples(text, tokenizer, "train")
        notes += (f"{len(examples):,} sequences to train on",)
        words_per_pair = average_predictions(examples.lengths(), rules) if chosen.nsp else None
        train: Examples[PretrainingExample] = examples
        if held_files is not None:
            other, more = data.corpus(held_files, tokenizer, "dev")
            held = data.examples(other, tokenizer, "dev")
            notes += more
        elif chosen.nsp and held is None and chosen.dev_share > 0:
            notes += ("fewer than four documents: none is held out, and the last model is kept",)
        elif not chosen.nsp and chosen.dev_share > 0 and len(examples) > 1:
            share = min(chosen.dev_share, _MOST_HELD_OUT / len(examples))
            train, held = hold_out(examples, share, seed=made.seed)
            notes += (f"{len(held)} of {len(examples)} sequences are held out for evaluation",)
        set_dropout(network, hidden=chosen.dropout, attention=chosen.attention_dropout)
        plain = Pretraining(network, tokenizer, rules=rules, words_per_pair=words_per_pair)
        return run(
            teaching.around(plain, here), train, held, made, folder,
            here=here, resume=resume, show=show, notes=notes,
            model_name=_model_name(size, model, teacher, student_layers),
            command=command or "bertie.training.pretrain(…) from Python",
            options=deciding(chosen, _DECIDING),
            reported={"max_length": chosen.max_length, **deciding(chosen, _DECIDING)} | teaching.reported(),
        )  # fmt: skip


def _check_size(model: PathLike | None, student_layers: int | None) -> None:
    """Refuse a size where there is a model that has one."""
    if model is None and student_layers is None:
        return
    given = "model" if model is not None else "student_layers"
    raise InputError(
        f"Both {{{given}}} and {{size}} were given.",
        "A size is for a new model; one that is trained further, or cut out of its teacher, has its own.",
        **{given: ..., "size": ...},
    )


def _model_name(size: str, model: PathLike | None, teacher: PathLike | None, student_layers: int | None) -> str:
    if student_layers is not None and teacher is not None:
        return f"{student_layers} layers of {os.fspath(teacher)}"
    return f"{size}, new" if model is None else os.fspath(model)


def _files(given: Sequence[PathLike] | PathLike) -> list[Path]:
    files = [given] if is_path(given) else list(given)
    if not files:
        raise InputError("No corpus was given.", "Name one text file or more: {corpus=}.")
    paths = [Path(file) for file in files]
    for path in paths:
        if not path.is_file():
            what = "this is a folder" if path.is_dir() else "there is no such file"
            raise DataError(f"{path}: {what}.", "Check the path; a corpus is one text file or more.")
    return paths


@dataclass(frozen=True)
class _Data:
    """Makes vocabulary, ids and examples in a folder, or finds there what an earlier run has made."""

    folder: Path
    options: PretrainOptions
    seed: int
    show: bool | None
    is_main: bool

    def phase(self, what: str, done: str, made: str, *, size: int = 0) -> AbstractContextManager[Phase]:
        return phase(what, done, made, size=size, show=self.show, is_main=self.is_main)

    def tokenizer(self, files: list[Path], model: PathLike | None, *, resume: bool) -> BertTokenizer:
        """The model's own, the one that was named, or one learned from the corpus (once, whoever comes first)."""
        options = self.options
        if model is not None and options.vocab is not None:
            keeps = "A model that is trained further keeps its vocabulary."
            raise InputError("Both {model} and {vocab} were given.", keeps, model=..., vocab=...)
        own = model or options.vocab
        if own is not None:
            return BertTokenizer.from_pretrained(os.fspath(own))
        place = self.folder / "vocabulary"
        names = ("vocab_size", "lowercase", "encoding", "max_length", "skip_bad")
        with locked(place):
            key = {"files": [sha256(path) for path in files]} | {name: getattr(options, name) for name in names}
            before = read_object(place / _MADE_OF)
            if before is None or not (place / "vocab.txt").exists():
                before = {}
            if resume and (place / "vocab.txt").exists():
                checked = ("vocab_size", "lowercase", "max_length", "skip_bad")
                refuse_changes("options", before, {name: key[name] for name in checked})
                if before.get("files", key["files"]) != key["files"]:
                    raise ConfigError(
                        "The run was started with another corpus; its vocabulary is of that.",
                        "Resume with the same files, or start a new run in another folder.",
                    )
            elif before != key:
                self._learn(files, place, key)
        return BertTokenizer.from_pretrained(os.fspath(place))

    def _learn(self, files: list[Path], place: Path, key: Json) -> None:
        """A vocabulary into `place`, with what it is made of beside it, instead of one that was there."""
        options, size = self.options, sum(map(text_size, files))
        with self.phase("vocabulary", "", "", size=size) as shown:
            learned = train_vocabulary(
                files,
                encoding=options.encoding,
                vocab_size=options.vocab_size,
                lowercase=options.lowercase,
                model_max_length=options.max_length,
                skip_bad=options.skip_bad,
                progress=shown.read,
                processes=num_processes(options.processes, worth_it=size >= LARGE),
            )
            shown.end(f"{len(learned):,} tokens")
        beside = place.with_name(f".{place.name}.saving")
        shutil.rmtree(beside, ignore_errors=True)  # left by a kill
        learned.save_pretrained(beside)
        (beside / _MADE_OF).write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(place, ignore_errors=True)
        os.replace(beside, place)

    def corpus(self, files: list[Path], tokenizer: BertTokenizer, name: str) -> tuple[TokenizedCorpus, tuple[str, ...]]:
        options = self.options
        with self.phase(f"tokenizing ({name})", "documents", "tokens") as shown:
            corpus = tokenize_corpus(
                files,
                tokenizer,
                self.folder / f"{name}-ids",
                lines=options.lines,
                encoding=options.encoding,
                skip_bad=options.skip_bad,
                progress=shown.at,
                processes=options.processes,
            )
        note = f"{name}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens"
        return corpus, (note, *([corpus.skipped] if corpus.skipped else []))

    def examples(self, corpus: TokenizedCorpus, tokenizer: BertTokenizer, name: str) -> PairExamples | SequenceExamples:
        options = self.options
        if not options.nsp:
            masking = options.masking or "dynamic"
            return SequenceExamples.of(
                corpus, tokenizer, max_length=options.max_length, seed=self.seed, masking=masking
            )
        times = options.dupe_factor if name == "train" else 1
        rules = PairRules(
            max_length=options.max_length,
            short_seq_prob=options.short_seq_prob,
            dupe_factor=times,
            seed=self.seed,
        )
        with self.phase(f"making pairs ({name})", "documents", "pairs") as shown:
            return make_pairs(
                corpus,
                tokenizer,
                self.folder / f"{name}-pairs",
                rules=rules,
                masking=options.masking or "static",
                progress=shown.at,
                processes=options.processes,
            )


def _network(
    tokenizer: BertTokenizer, model: PathLike | None, size: str, options: PretrainOptions
) -> tuple[BertForMaskedLM | BertForPreTraining, tuple[str, ...]]:
    """The model, and what is new about it although it was loaded."""
    kind: type[BertForMaskedLM] | type[BertForPreTraining] = BertForPreTraining if options.nsp else BertForMaskedLM
    if model is not None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = class_for(kind, model)
            if not issubclass(made, kind):
                raise ConfigError(
                    f"{{nsp}}: {os.fspath(model)} is a {made.config_class.model_type!r}, which has no head for it.",
                    "Leave it out: relatives of BERT are pretrained on masked words alone.",
                    nsp=True,
                )
            loaded = made.from_pretrained(model)
        fresh = tuple(str(one.message) for one in caught if issubclass(one.category, NewlyInitialized))
        for one in caught:  # a new head is what training is for, and a note says so; the rest are warnings
            if not issubclass(one.category, NewlyInitialized):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        if options.max_length > loaded.config.max_input_length:
            most = f"{os.fspath(model)} takes at most {loaded.config.max_input_length}."
            raise ConfigError(f"{{max_length:is}} {most}", max_length=options.max_length)
        return loaded, fresh
    config = BertConfig.preset(size, vocab_size=len(tokenizer), max_position_embeddings=max(512, options.max_length))
    return kind(config), ()
