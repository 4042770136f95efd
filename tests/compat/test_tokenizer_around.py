"""Libraries around transformers take a Bertie tokenizer for one of its own, and give the same batches and answers."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.data import data_collator as collators

from bertie.text import BertTokenizer

# fmt: off
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "dog", "un", "##want", "##ed",
    "##s", ",", ".", "a", "b", "##a", "who", "?", "is", "this",
]
# fmt: on
TEXTS = ["The cats sat on a mat.", "dogs", "Unwanted cats, the dogs sat on."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (path / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 32}')
    return path


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[Any, BertTokenizer]:
    hub = transformers.BertTokenizerFast.from_pretrained(folder)
    hub.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True
    return hub, BertTokenizer.from_pretrained(folder)


def rows(tokenizer: Any, **call: Any) -> list[dict[str, Any]]:
    encoded = tokenizer(TEXTS, **call)
    return [{name: encoded[name][i] for name in encoded} for i in range(len(TEXTS))]


def choices(tokenizer: Any) -> list[dict[str, Any]]:
    encoded = tokenizer(TEXTS)
    return [{**{n: [encoded[n][i], encoded[n][2 - i]] for n in encoded}, "label": i % 2} for i in range(3)]


Make = Callable[[Any, str], Any]
CASES: dict[str, tuple[Make, Callable[[Any], Any]]] = {
    "padding": (
        lambda t, kind: collators.DataCollatorWithPadding(t, return_tensors=kind),
        lambda t: [{**row, "labels": i} for i, row in enumerate(rows(t))],
    ),
    "padding with fractions": (
        lambda t, kind: collators.DataCollatorWithPadding(t, pad_to_multiple_of=8, return_tensors=kind),
        lambda t: [{**row, "labels": i / 4} for i, row in enumerate(rows(t))],
    ),
    "tokens": (
        lambda t, kind: collators.DataCollatorForTokenClassification(t, return_tensors=kind),
        lambda t: [{**row, "labels": list(range(len(row["input_ids"])))} for row in rows(t)],
    ),
    "masking": (lambda t, kind: collators.DataCollatorForLanguageModeling(t, return_tensors=kind), rows),
    "masking with a seed": (
        lambda t, kind: collators.DataCollatorForLanguageModeling(t, seed=3, return_tensors=kind),
        lambda t: rows(t, return_special_tokens_mask=True),
    ),
    "masking of lists": (
        lambda t, kind: collators.DataCollatorForLanguageModeling(t, return_tensors=kind),
        lambda t: [row["input_ids"] for row in rows(t)],
    ),
    "masking of words": (
        lambda t, kind: collators.DataCollatorForLanguageModeling(
            t, whole_word_mask=True, mask_replace_prob=1, random_replace_prob=0, return_tensors=kind
        ),
        lambda t: rows(t, return_offsets_mapping=True, padding=True),
    ),
    "masking of words, old": (lambda t, kind: collators.DataCollatorForWholeWordMask(t, return_tensors=kind), rows),
    "next words": (lambda t, kind: collators.DataCollatorForLanguageModeling(t, mlm=False, return_tensors=kind), rows),
    "sequence to sequence": (
        lambda t, kind: collators.DataCollatorForSeq2Seq(t, return_tensors=kind),
        lambda t: [{**row, "labels": row["input_ids"]} for row in rows(t)],
    ),
    "choices": (lambda t, kind: collators.DataCollatorForMultipleChoice(t), choices),
    "permutations": (
        lambda t, kind: collators.DataCollatorForPermutationLanguageModeling(t, return_tensors=kind),
        lambda t: [{"input_ids": row["input_ids"]} for row in rows(t, padding="max_length", max_length=20)],
    ),
    "default": (
        lambda t, kind: lambda features: collators.default_data_collator(features, return_tensors=kind),
        lambda t: rows(t, padding=True),
    ),
}


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("name", CASES)
def test_collators_give_the_same_batches_from_the_same_seed(name: str, kind: str, pair: Any) -> None:
    make, features = CASES[name]
    batches = []
    for tokenizer in pair:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="DataCollatorForWholeWordMask is deprecated")
            batches.append(dict(make(tokenizer, kind)(features(tokenizer))))
    hub, ours = batches
    assert ours.keys() == hub.keys()
    for column in ours:
        assert type(ours[column]) is type(hub[column])
        assert ours[column].dtype == hub[column].dtype
        assert ours[column].tolist() == hub[column].tolist()


def test_it_is_one_of_transformers_tokenizers_where_that_is_imported(pair: Any) -> None:
    ours = pair[1]
    assert isinstance(ours, transformers.PreTrainedTokenizerBase)
    assert isinstance(ours, transformers.BertTokenizerFast)
    assert isinstance(ours, BertTokenizer)
    assert type(ours) is BertTokenizer
    assert (ours.__class__.__name__, ours.__class__.__module__) == ("BertTokenizer", "bertie.text.tokenizer")
    assert type(ours.__class__(WORDS)) is type(ours.__class__.from_pretrained(ours.name_or_path)) is BertTokenizer


def test_it_imports_neither_transformers_nor_torch() -> None:
    code = (
        "import sys, bertie; t = bertie.BertTokenizerFast(['[UNK]', '[CLS]', '[SEP]', '[PAD]', 'a']); t('a');"
        "assert t.__class__ is bertie.BertTokenizerFast;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_datasets_finds_its_cache_again_and_maps(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from datasets.fingerprint import Hasher

    ours, hub = BertTokenizer.from_pretrained(folder), transformers.BertTokenizerFast.from_pretrained(folder)
    before = Hasher.hash(ours)
    ours("the cat " * 6000)  # says that it is too long, and makes the C++ form
    assert Hasher.hash(ours) == before == Hasher.hash(BertTokenizer.from_pretrained(folder))
    table = datasets.Dataset.from_dict({"text": TEXTS})
    settings = {"batched": True, "input_columns": "text", "keep_in_memory": True}
    assert table.map(ours, **settings).to_dict() == table.map(hub, **settings).to_dict()
    assert ours(table["text"])["input_ids"] == hub(TEXTS)["input_ids"]


def tiny(cls: Any, **settings: Any) -> Any:
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, **settings,
    )  # fmt: skip
    return cls(config).eval()


PIPELINES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "text-classification": (transformers.BertForSequenceClassification, lambda p: p(TEXTS, batch_size=2, top_k=None)),
    "token-classification": (
        transformers.BertForTokenClassification,
        lambda p: [p(TEXTS, aggregation_strategy=how) for how in ("none", "simple", "first", "average")],
    ),
    "question-answering": (
        transformers.BertForQuestionAnswering,
        lambda p: p(
            question="who sat on the mat?", context="the cats sat on a mat. " * 8, max_seq_len=24, doc_stride=8
        ),
    ),
    "fill-mask": (transformers.BertForMaskedLM, lambda p: p("the [MASK] sat", targets=["cat", "dog"])),
    "feature-extraction": (transformers.BertModel, lambda p: p(TEXTS)),
    "zero-shot-classification": (
        transformers.BertForSequenceClassification,
        lambda p: p("the cat sat", candidate_labels=["cat", "dog"], hypothesis_template="this is {}."),
    ),
}


@pytest.mark.parametrize("task", PIPELINES)
def test_pipelines_answer_the_same(task: str, pair: Any) -> None:
    cls, ask = PIPELINES[task]
    labels = {"id2label": {0: "entailment", 1: "b", 2: "c"}, "label2id": {"entailment": 0, "b": 1, "c": 2}}
    model = tiny(cls, **({} if task == "question-answering" else labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hub, ours = (
            ask(transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu")) for tokenizer in pair
        )
    assert ours == hub


def test_the_trainer_pads_with_it_unasked(pair: Any, tmp_path: Path) -> None:
    losses = []
    for tokenizer in pair:
        data = [{**row, "labels": i % 2} for i, row in enumerate(rows(tokenizer))]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=3, report_to=[], use_cpu=True, seed=4,
            save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = transformers.Trainer(
                tiny(transformers.BertForSequenceClassification),
                arguments,
                train_dataset=data,
                processing_class=tokenizer,
            )
            losses.append(trainer.train().training_loss)
            trainer.save_model(str(tmp_path / "saved"))
        assert (tmp_path / "saved" / "tokenizer.json").is_file()
    assert losses[0] == losses[1]
