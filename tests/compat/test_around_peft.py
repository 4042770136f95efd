"""peft adapts a Bertie model as it adapts transformers': the same parameters are made, trained, saved and merged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertie
from compat.hub_cases import inputs, labels, settings
from parity.oracle import difference, pair

peft = pytest.importorskip("peft", reason="peft is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
TASKS = {
    "BertForSequenceClassification": "SEQ_CLS",
    "BertForTokenClassification": "TOKEN_CLS",
    "BertForQuestionAnswering": "QUESTION_ANS",
    "BertLMHeadModel": "CAUSAL_LM",
    "BertModel": "FEATURE_EXTRACTION",
}
METHODS: dict[str, Callable[[str], Any]] = {
    "LoRA": lambda task: peft.LoraConfig(task_type=task, r=4, init_lora_weights=False),
    "LoRA everywhere": lambda task: peft.LoraConfig(task_type=task, r=2, target_modules="all-linear", use_dora=True),
    "IA3": lambda task: peft.IA3Config(task_type=task),
    "prompt tuning": lambda task: peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3),
    "P-tuning": lambda task: peft.PromptEncoderConfig(task_type=task, num_virtual_tokens=3, encoder_hidden_size=8),
    "prefix tuning": lambda task: peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=3),
    "VeRA": lambda task: peft.VeraConfig(task_type=task, r=4, target_modules=["query", "value"]),
    "OFT": lambda task: peft.OFTConfig(task_type=task, oft_block_size=4, target_modules=["query", "value"]),
    "LayerNorm tuning": lambda task: peft.LNTuningConfig(task_type=task, target_modules=["LayerNorm"]),
}
BATCH, LENGTH = 3, 7


def adapted(model: Any, method: str, task: str) -> Any:
    torch.manual_seed(5)
    return peft.get_peft_model(model, METHODS[method](task))


def trained(model: Any, name: str) -> list[float]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    batch = inputs(name, BATCH, LENGTH)
    if "token_type_ids" in batch:
        del batch["token_type_ids"]  # peft refuses them beside virtual tokens
    losses = []
    for _ in range(3):
        output = model(**batch, **labels(name, BATCH, LENGTH))
        loss = output[0].square().mean() if name == "BertModel" else output.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("method", METHODS)
def test_adapters_train_alike_and_are_exchanged(method: str, tmp_path: Path) -> None:
    check(method, "BertForSequenceClassification", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TASKS if name != "BertForSequenceClassification"])
@pytest.mark.parametrize("method", METHODS)
def test_adapters_train_alike_for_every_head(method: str, name: str, tmp_path: Path) -> None:
    check(method, name, tmp_path)


def check(method: str, name: str, folder: Path) -> None:
    plain = pair(name, attention="sdpa", **settings(name))
    for model in plain:
        model.name_or_path = "tiny"
    try:
        theirs = adapted(copy.deepcopy(plain[0]), method, TASKS[name])
        their_losses = trained(theirs, name)
    except Exception as error:  # what transformers' own BERT cannot do need not be possible here
        pytest.skip(f"{method} with transformers' {name}: {type(error).__name__}: {error}")
    ours = adapted(copy.deepcopy(plain[1]), method, TASKS[name])
    models = [theirs, ours]
    wanted = {key: tensor.requires_grad for key, tensor in theirs.named_parameters()}
    assert {key: tensor.requires_grad for key, tensor in ours.named_parameters()} == wanted
    assert trained(ours, name) == pytest.approx(their_losses, abs=1e-5)
    states = [peft.get_peft_model_state_dict(model) for model in models]
    assert states[0].keys() == states[1].keys()
    assert max(difference(states[0][key], states[1][key]) for key in states[0]) <= 1e-5
    batch = {key: value for key, value in inputs(name, BATCH, LENGTH).items() if key != "token_type_ids"}
    answers = [model.eval()(**batch)[0].detach() for model in models]
    assert difference(*answers) <= 1e-5
    # What one saved, the other loads.
    for saver, model, answer in zip(("theirs", "ours"), models, answers, strict=True):
        model.save_pretrained(folder / saver)
        for base in plain:
            assert peft.PeftConfig.from_pretrained(folder / saver).base_model_name_or_path == "tiny"
            again = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder / saver).eval()
            assert difference(again(**batch)[0], answer) <= 1e-5


@pytest.mark.parametrize("method", ["LoRA", "LoRA everywhere", "IA3", "OFT"])
def test_adapters_are_switched_off_merged_and_unloaded(method: str) -> None:
    name = "BertForSequenceClassification"
    batch = inputs(name, BATCH, LENGTH)
    answers = []
    for model in pair(name, attention="sdpa"):
        states = model.bert(**batch)[0].detach()
        tuned = adapted(model, method, "SEQ_CLS")
        trained(tuned, name)
        tuned.eval()
        after = tuned(**batch).logits.detach()
        with tuned.disable_adapter():
            assert difference(tuned.get_base_model().bert(**batch)[0], states) <= 1e-5
        merged = tuned.merge_and_unload()
        assert type(merged) is type(model)
        assert difference(merged(**batch).logits, after) <= 1e-4
        assert merged.state_dict().keys() == dict(model.state_dict()).keys()
        answers.append(after)
    assert difference(*answers) <= 1e-5


def test_the_models_own_adapter_methods_do_what_transformers_do() -> None:
    name = "BertForSequenceClassification"
    batch = inputs(name, BATCH, LENGTH)
    found = []
    for model in pair(name, attention="sdpa"):
        torch.manual_seed(5)
        answers = [model(**batch).logits.detach()]
        lora = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
        for adapter in ("first", "second"):
            model.add_adapter(lora, adapter_name=adapter)
        assert model.active_adapters() == ["second"]
        answers.append(model(**batch).logits.detach())
        model.set_adapter("first")
        answers.append(model(**batch).logits.detach())
        model.disable_adapters()
        answers.append(model(**batch).logits.detach())
        model.enable_adapters()
        answers.append(model(**batch).logits.detach())
        found.append(answers)
        assert difference(answers[0], answers[3]) == 0
        assert difference(answers[2], answers[4]) == 0
        assert difference(answers[0], answers[1]) > 1e-3
    assert difference(*found) <= 1e-5


@pytest.mark.parametrize("peft_format", [True, False])
def test_a_model_with_an_adapter_saves_the_adapter_and_loads_it_over_its_base(
    peft_format: bool, tmp_path: Path
) -> None:
    name = "BertForSequenceClassification"
    batch = inputs(name, BATCH, LENGTH)
    pair(name)[1].save_pretrained(tmp_path / "base")
    libraries = {"theirs": transformers, "ours": bertie}
    for which, library in libraries.items():
        model = getattr(library, name).from_pretrained(tmp_path / "base").eval()
        torch.manual_seed(5)
        model.add_adapter(peft.LoraConfig(r=4, target_modules=["query"], init_lora_weights=False))
        wanted = model(**batch).logits.detach()
        model.save_pretrained(tmp_path / which, save_peft_format=peft_format)
        files = {file.name for file in (tmp_path / which).iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= files <= {*files, "README.md"}
        assert not {"config.json", "model.safetensors"} & files
        if not peft_format:
            continue  # transformers cannot load that form by from_pretrained
        for other in libraries.values():
            for auto in (name, "AutoModelForSequenceClassification"):
                again = getattr(other, auto).from_pretrained(tmp_path / which).eval()
                assert again.active_adapters() == ["default"]
                assert difference(again(**batch).logits, wanted) <= 1e-5
    two = bertie.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    two.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    two.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]), adapter_name="other")
    two.set_adapter(["default", "other"])
    with pytest.raises(bertie.BertieError, match="2 adapters are active"):
        two.save_pretrained(tmp_path / "two")


def test_an_adapter_that_names_no_base_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": null}')
    with pytest.raises(bertie.BertieError, match="does not name the model that the adapter is for"):
        bertie.BertModel.from_pretrained(tmp_path)
