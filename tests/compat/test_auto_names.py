"""`bertie.Auto…`: the hub's names, so that a script changes one line. Each gives what transformers' own gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertie
import tiny_models
from bertie.compat.auto import MODELS

IDS = torch.arange(5, 23).reshape(2, 9)


@pytest.mark.parametrize("auto", MODELS)
def test_an_auto_class_loads_what_transformers_loads(auto: str, tmp_path: Path) -> None:
    name = MODELS[auto]
    folder = tiny_models.saved(tmp_path, name, is_decoder=name == "BertLMHeadModel")
    options: dict[str, Any] = {"trust_remote_code": False, "revision": "main", "token": None, "cache_dir": None}
    theirs = getattr(transformers, auto).from_pretrained(folder, **options).eval()
    ours = getattr(bertie, auto).from_pretrained(folder, **options)
    assert type(ours).__name__ == type(theirs).__name__ == name
    assert isinstance(ours, getattr(bertie, name))
    given = IDS[None] if name == "BertForMultipleChoice" else IDS
    assert torch.allclose(ours(given)[0], theirs(given)[0], atol=1e-5)


@pytest.mark.parametrize("auto", MODELS)
def test_an_auto_class_makes_a_new_model_of_either_librarys_configuration(auto: str) -> None:
    values = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "num_labels": 5, "vocab_size": 40}
    if auto == "AutoModelForQuestionAnswering":
        values["num_labels"] = 2  # a start and an end; with more, transformers' own forward fails
    theirs = getattr(transformers, auto).from_config(transformers.BertConfig(**values, is_decoder=True))
    for config in (bertie.BertConfig(**values), transformers.CONFIG_MAPPING["bert"](**values)):
        config.is_decoder = True
        ours = getattr(bertie, auto).from_config(config, trust_remote_code=False, dtype=torch.float64)
        assert ours.dtype == torch.float64
        shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
        assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == shapes


def test_configurations_and_tokenizers_are_what_transformers_gives(tmp_path: Path) -> None:
    folder = tiny_models.saved(tmp_path, "BertModel")
    changes = {"num_labels": 4, "finetuning_task": "mnli", "trust_remote_code": True, "output_attentions": True}
    ours, theirs = (library.AutoConfig.from_pretrained(folder, **changes) for library in (bertie, transformers))
    assert isinstance(ours, bertie.BertConfig)
    for name in ("num_labels", "id2label", "output_attentions", "_name_or_path", "hidden_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.finetuning_task == "mnli"  # transformers 5 drops it
    assert not hasattr(ours, "trust_remote_code")
    made = bertie.AutoConfig.for_model("bert", hidden_size=24)
    assert made.hidden_size == transformers.AutoConfig.for_model("bert", hidden_size=24).hidden_size
    unused = [
        library.AutoConfig.from_pretrained(folder, return_unused_kwargs=True, nothing=3)[1]
        for library in (bertie, transformers)
    ]
    assert unused == [{"nothing": 3}] * 2
    for options in ({}, {"use_fast": False}, {"config": ours}, {"tokenizer_type": "bert"}, {"trust_remote_code": True}):
        tokenizer = bertie.AutoTokenizer.from_pretrained(folder, **options)
        plain = transformers.AutoTokenizer.from_pretrained(folder)
        assert [tokenizer(text).input_ids for text in tiny_models.SENTENCES] == [
            plain(text).input_ids for text in tiny_models.SENTENCES
        ]


def test_other_models_are_refused_by_name(tmp_path: Path) -> None:
    other = transformers.AlbertConfig(vocab_size=300, hidden_size=8, embedding_size=8, num_attention_heads=2,
                                      num_hidden_layers=1, intermediate_size=8)  # fmt: skip
    transformers.AlbertModel(other).save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    for call in (bertie.AutoConfig.from_pretrained, bertie.AutoModel.from_pretrained):
        with pytest.raises(bertie.BertieError, match="'albert' model"):
            call(tmp_path)
    with pytest.raises(bertie.BertieError, match="from_config was given a 'albert'"):
        bertie.AutoModelForMaskedLM.from_config(other)
    with pytest.raises(bertie.BertieError, match=r"AutoTokenizer\.from_pretrained was given a 'albert'"):
        bertie.AutoTokenizer.from_pretrained(tmp_path, config=other)
    with pytest.raises(bertie.BertieError, match="for_model was given a 'gpt2'"):
        bertie.AutoConfig.for_model("gpt2")
    with pytest.raises(bertie.BertieError, match=r"Call AutoModel\.from_pretrained\('…'\)"):
        bertie.AutoModel()


def test_the_names_are_those_of_transformers_and_cost_no_torch() -> None:
    names = {name for name in dir(bertie) if name.startswith("Auto")}
    assert names == {*MODELS, "AutoConfig", "AutoTokenizer"}
    assert all(hasattr(transformers, name) for name in names)
    script = "import sys, bertie; bertie.AutoModel, bertie.AutoTokenizer, bertie.AutoConfig;"
    script += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
