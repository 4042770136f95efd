"""`bertie.register()`: transformers' `Auto…` classes and pipelines on Bertie's classes, with the same answers."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from two_libraries import IDS, MASK, transformers  # noqa: F401

import bertie
import tiny_models
from compat.hub_cases import FIVE

pytestmark = [
    pytest.mark.filterwarnings("ignore::bertie.checkpoint.report.NewlyInitialized"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
AUTO = {
    "AutoModel": "BertModel",
    "AutoModelForPreTraining": "BertForPreTraining",
    "AutoModelForCausalLM": "BertLMHeadModel",
    "AutoModelForMaskedLM": "BertForMaskedLM",
    "AutoModelForNextSentencePrediction": "BertForNextSentencePrediction",
    "AutoModelForSequenceClassification": "BertForSequenceClassification",
    "AutoModelForMultipleChoice": "BertForMultipleChoice",
    "AutoModelForTokenClassification": "BertForTokenClassification",
    "AutoModelForQuestionAnswering": "BertForQuestionAnswering",
}


@pytest.fixture
def registered(transformers: Any) -> Iterator[Any]:
    undo = bertie.register()
    yield transformers
    undo()


@pytest.mark.parametrize(("auto", "name"), AUTO.items())
def test_auto_classes_give_ours(auto: str, name: str, tmp_path: Path, registered: Any) -> None:
    folder = tiny_models.saved(tmp_path, name, is_decoder=name == "BertLMHeadModel")
    model = getattr(registered, auto).from_pretrained(folder)
    assert type(model) is getattr(bertie, name)
    theirs = getattr(registered, name).from_pretrained(folder)
    assert not isinstance(theirs, bertie.BertPreTrainedModel)
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    assert type(getattr(registered, auto).from_config(model.config)) is type(model)


def test_what_is_changed_in_a_configuration_arrives_in_the_model(tmp_path: Path, registered: Any) -> None:
    folder = tiny_models.saved(tmp_path, "BertModel")
    config = registered.AutoConfig.from_pretrained(folder, num_labels=5, my_key="mine", torch_dtype="float16")
    assert isinstance(config, bertie.BertConfig)
    assert isinstance(config, registered.PretrainedConfig)
    config.id2label = dict(enumerate("abcde"))
    config.output_attentions = True
    model = registered.AutoModelForSequenceClassification.from_pretrained(folder, config=config)
    assert (model.config.num_labels, model.config.my_key, model.config.id2label[4]) == (5, "mine", "e")
    assert model.classifier.out_features == 5
    assert len(model(IDS, attention_mask=MASK).attentions) == 3
    for same in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), type(config)(**config.to_dict())):
        assert same == config
    assert model.config._attn_implementation == "sdpa"
    model = registered.AutoModelForTokenClassification.from_pretrained(
        folder, num_labels=7, attn_implementation="eager"
    )
    assert (model.config.num_labels, model.config._attn_implementation) == (7, "eager")


def test_tokenizers_are_ours_for_a_bert_and_theirs_otherwise(tmp_path: Path, registered: Any) -> None:
    folder = tiny_models.saved(tmp_path / "bert", "BertModel")
    tokenizer = registered.AutoTokenizer.from_pretrained(folder, use_fast=True)
    assert isinstance(tokenizer, bertie.BertTokenizer)
    plain = registered.BertTokenizerFast.from_pretrained(folder)
    for text in tiny_models.TEXTS:
        assert tokenizer(text)["input_ids"] == plain(text)["input_ids"]
    config = registered.AlbertConfig(vocab_size=300, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    config.save_pretrained(tmp_path / "other")
    backend = tokenizer.backend_tokenizer
    registered.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path / "other")
    assert not isinstance(registered.AutoTokenizer.from_pretrained(tmp_path / "other"), bertie.BertTokenizer)
    assert type(registered.AutoConfig.from_pretrained(tmp_path / "other")) is registered.AlbertConfig


def test_undoing_gives_everything_back(tmp_path: Path, transformers: Any) -> None:
    folder = tiny_models.saved(tmp_path, "BertForMaskedLM")
    undo = bertie.register()
    undo()
    assert type(transformers.AutoConfig.from_pretrained(folder)) is transformers.BertConfig
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(folder)) is transformers.BertForMaskedLM
    assert type(transformers.AutoTokenizer.from_pretrained(folder)) is transformers.BertTokenizerFast


def test_transformers_is_imported_by_register_alone() -> None:
    script = """
import sys, bertie, bertie.model, bertie.compat.register
bertie.BertModel, bertie.BertTokenizerFast, bertie.EncoderDecoderModel, bertie.load
assert "transformers" not in sys.modules
bertie.register()
assert "transformers" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_names_people_import_are_there() -> None:
    from bertie import BertTokenizer, BertTokenizerFast, EncoderDecoderModel

    assert BertTokenizerFast is BertTokenizer or issubclass(BertTokenizerFast, BertTokenizer)
    assert EncoderDecoderModel is bertie.BertEncoderDecoder
    assert {"BertTokenizerFast", "EncoderDecoderModel", "register", "load", "BertConfig"} <= set(dir(bertie))


TASKS: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("fill-mask", "BertForMaskedLM", "The quick [MASK] fox.", {"top_k": 4}),
    ("fill-mask", "BertForMaskedLM", ["A [MASK] dog [MASK].", "the [MASK]"], {"targets": ["dog", "fox"]}),
    ("text-classification", "BertForSequenceClassification", tiny_models.SENTENCES, {"top_k": None}),
    ("text-classification", "BertForSequenceClassification", {"text": "the dog", "text_pair": "a fox"}, {}),
    ("token-classification", "BertForTokenClassification", tiny_models.SENTENCES[1], {}),
    ("token-classification", "BertForTokenClassification", "She looked into the room", {"aggregation_strategy": "max"}),
    ("feature-extraction", "BertModel", tiny_models.SENTENCES[:2], {}),
    ("zero-shot-classification", "BertForSequenceClassification", "The film was good.",
     {"candidate_labels": ["film", "weather"]}),
    ("question-answering", "BertForQuestionAnswering",
     {"question": "What is the capital?", "context": tiny_models.SENTENCES[1]}, {"top_k": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "given", "options"), TASKS)
def test_pipelines_answer_alike(
    task: str, name: str, given: Any, options: dict[str, Any], tmp_path: Path, transformers: Any
) -> None:
    if FIVE and task == "question-answering":
        pytest.skip("transformers 5 has no such pipeline")
    labels = {0: "entailment", 1: "neutral", 2: "contradiction"}
    folder = tiny_models.saved(tmp_path, name, **({"id2label": labels} if "Classif" in name else {}))
    theirs = transformers.pipeline(
        task,
        model=getattr(transformers, name).from_pretrained(folder),
        tokenizer=transformers.BertTokenizerFast.from_pretrained(folder),
        device="cpu",
    )
    ours = transformers.pipeline(
        task,
        model=getattr(bertie, name).from_pretrained(folder),
        tokenizer=bertie.BertTokenizer.from_pretrained(folder),
        device="cpu",
    )
    assert _rounded(ours(copy.deepcopy(given), **options)) == _rounded(theirs(copy.deepcopy(given), **options))


def _rounded(answer: Any) -> Any:
    """Numbers as they are printed: the two compute in another order."""
    if isinstance(answer, dict):
        return {key: _rounded(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_rounded(value) for value in answer]
    return f"{float(answer):.4f}" if isinstance(answer, float) or hasattr(answer, "dtype") else answer
