"""`from_pretrained` and `save_pretrained` with the hub's keywords: the same call on both, and the same model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from two_libraries import IDS, MASK, SIZES, base, library, transformers  # noqa: F401

import bertie
from bertie.errors import BertieError, ConfigError

CLASSES = [
    "BertModel", "BertForPreTraining", "BertLMHeadModel", "BertForMaskedLM", "BertForNextSentencePrediction",
    "BertForSequenceClassification", "BertForMultipleChoice", "BertForTokenClassification", "BertForQuestionAnswering",
]  # fmt: skip
HARMLESS: list[dict[str, Any]] = [
    {"cache_dir": "somewhere", "revision": "main", "token": None, "local_files_only": True, "force_download": False},
    {"use_auth_token": None, "proxies": None, "resume_download": None},
    {"trust_remote_code": False, "low_cpu_mem_usage": True, "use_safetensors": True, "weights_only": True},
    {"device_map": "cpu"},
    {"device_map": {"": "cpu"}},
    {"device_map": torch.device("cpu")},
    {"device_map": "auto"},
    {"attn_implementation": "eager"},
    {"attn_implementation": "sdpa"},
    {"torch_dtype": torch.float32},
    {"dtype": "float32"},
    {"torch_dtype": "auto"},
    {"quantization_config": None, "from_tf": False, "from_flax": False, "variant": None, "subfolder": ""},
    {"output_attentions": False, "output_hidden_states": False, "ignore_mismatched_sizes": True},
]


def equal(first: Any, second: Any) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.filterwarnings("ignore:`resume_download` is deprecated")
@pytest.mark.parametrize("given", HARMLESS, ids=[", ".join(one) for one in HARMLESS])
def test_keywords_that_ask_for_nothing_special(given: dict[str, Any], base: Path, library: Any) -> None:
    model = library.BertModel.from_pretrained(base, **given)
    assert equal(model, bertie.BertModel.from_pretrained(base))
    assert model.device.type == "cpu"
    assert not model.training
    assert model.config._attn_implementation == given.get("attn_implementation", "sdpa")
    assert model.config.dtype == torch.float32
    assert model.name_or_path == str(base)
    assert not any(hasattr(model.config, name) for name in ("cache_dir", "proxies", "device_map"))


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_dict_from_memory(name: str, library: Any) -> None:
    config = library.BertConfig(**SIZES, is_decoder=name == "BertLMHeadModel")
    model = getattr(library, name)(config)
    again = getattr(library, name).from_pretrained(
        pretrained_model_name_or_path=None, config=config, state_dict=model.state_dict()
    )
    assert equal(again, model)
    if library is bertie:  # transformers lets the two share memory
        with torch.no_grad():
            next(again.parameters()).zero_()
        assert not equal(again, model)


def test_a_state_dict_in_the_place_of_the_files(base: Path) -> None:
    """As older transformers; 4.57 refuses a name and a state dict together."""
    weights = {name: tensor * 2 for name, tensor in bertie.BertModel.from_pretrained(base).state_dict().items()}
    model = bertie.BertModel.from_pretrained(base, state_dict=dict(weights))
    assert torch.equal(model.pooler.dense.weight, weights["pooler.dense.weight"])


def test_keys_are_renamed_first(base: Path, tmp_path: Path, library: Any) -> None:
    from safetensors.torch import save_file

    model = bertie.BertModel.from_pretrained(base)
    model.save_pretrained(tmp_path)
    renamed = {f"old_{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert equal(library.BertModel.from_pretrained(tmp_path, key_mapping={"^old_": ""}), model)


def test_variants_and_subfolders(base: Path, tmp_path: Path, library: Any) -> None:
    model = library.BertModel.from_pretrained(base)
    model.save_pretrained(tmp_path / "below", variant="fp16", max_shard_size="20KB")
    assert equal(library.BertModel.from_pretrained(tmp_path, subfolder="below", variant="fp16"), model)
    assert equal(bertie.BertModel.from_pretrained(tmp_path, subfolder="below", variant="fp16"), model)


def test_mismatched_sizes(base: Path, tmp_path: Path, library: Any) -> None:
    library.BertForSequenceClassification.from_pretrained(_headed(base, tmp_path))
    with pytest.raises(RuntimeError, match="size"):
        library.BertForSequenceClassification.from_pretrained(tmp_path, num_labels=9)
    with _expected_warning(library):
        model, info = library.BertForSequenceClassification.from_pretrained(
            tmp_path, num_labels=9, ignore_mismatched_sizes=True, output_loading_info=True
        )
    assert model.classifier.weight.shape == (9, 24)
    assert sorted(info["mismatched_keys"]) == ["classifier.bias", "classifier.weight"]
    assert model.config.id2label[8] == "LABEL_8"


def _headed(base: Path, folder: Path) -> Path:
    model = bertie.BertForSequenceClassification(bertie.BertConfig(**SIZES))
    model.bert.load_state_dict(bertie.BertModel.from_pretrained(base).state_dict())
    model.save_pretrained(folder)
    return folder


def _expected_warning(library: Any) -> Any:
    from contextlib import nullcontext

    return pytest.warns(UserWarning, match="classifier") if library is bertie else nullcontext()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"from_flax": True}, "from_flax"),
    ({"load_in_8bit": True}, "load_in_8bit"),
    ({"quantization_config": {"load_in_4bit": True}}, "quantization_config"),
    ({"gguf_file": "x.gguf"}, "gguf_file"),
    ({"tp_plan": "auto"}, "tp_plan"),
    ({"attn_implementation": "flash_attention_2"}, "'flash_attention_2'"),
    ({"device_map": "cpu", "device": "cpu"}, "Both device and device_map"),
    ({"nonsense": 1}, "nonsense"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[one[1] for one in REFUSED])
def test_what_cannot_be_done_is_refused_by_name(given: dict[str, Any], message: str, base: Path) -> None:
    with pytest.raises(BertieError, match=re.escape(message)):
        bertie.BertModel.from_pretrained(base, **given)


def test_the_meta_device_and_bin_files_where_safetensors_are_wanted(base: Path, tmp_path: Path) -> None:
    with torch.device("meta"), pytest.raises(BertieError, match="meta device"):
        bertie.BertModel.from_pretrained(base)
    bertie.BertModel.from_pretrained(base).save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(BertieError, match="use_safetensors=True"):
        bertie.BertModel.from_pretrained(tmp_path, use_safetensors=True)
    with pytest.raises(ConfigError, match="push_to_hub"):
        bertie.BertModel.from_pretrained(base).save_pretrained(tmp_path, push_to_hub=True)
    with pytest.raises(ConfigError, match="push_to_hub"):
        bertie.BertModel.from_pretrained(base).push_to_hub("somebody/model")
    with pytest.raises(ConfigError, match="unknown_word"):
        bertie.BertModel.from_pretrained(base).save_pretrained(tmp_path, unknown_word=True)


SAVED: list[dict[str, Any]] = [
    {},
    {"safe_serialization": True, "is_main_process": True, "save_function": torch.save, "token": None},
    {"safe_serialization": False},
    {"safe_serialization": False, "max_shard_size": "20KB"},
    {"safe_serialization": False, "save_function": torch.save, "variant": "x"},
    {"max_shard_size": "20KB"},
    {"max_shard_size": 20_000},
    {"max_shard_size": "20KB", "variant": "x"},
    {"push_to_hub": False, "save_peft_format": True},
]


@pytest.mark.parametrize("given", SAVED, ids=[" ".join(one) or "nothing" for one in SAVED])
def test_saved_files_have_the_same_names_and_load_in_both(
    given: dict[str, Any], tmp_path: Path, transformers: Any
) -> None:
    ours = bertie.BertForMaskedLM(bertie.BertConfig(**SIZES)).eval()
    theirs = transformers.BertForMaskedLM.from_pretrained(_saved(ours, tmp_path / "first"))
    ours.save_pretrained(tmp_path / "ours", **given)
    theirs.save_pretrained(tmp_path / "theirs", **given)
    names = [
        sorted(re.sub(r"-\d{5}-of-\d{5}", "-N", p.name) for p in (tmp_path / one).iterdir())
        for one in ("ours", "theirs")
    ]
    assert set(names[0]) == set(names[1]) - {"generation_config.json"}
    options = {"variant": given["variant"]} if "variant" in given else {}
    for folder in (tmp_path / "ours", tmp_path / "theirs"):
        assert equal(bertie.BertForMaskedLM.from_pretrained(folder, **options), ours)
        read = transformers.BertForMaskedLM.from_pretrained(folder, **options)
        assert torch.equal(read.bert.embeddings.word_embeddings.weight, ours.bert.embeddings.word_embeddings.weight)
        assert torch.allclose(read(IDS, attention_mask=MASK).logits, ours(IDS, attention_mask=MASK).logits, atol=1e-5)


def _saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def test_saving_replaces_what_a_reader_would_take_first(tmp_path: Path) -> None:
    old, new = (bertie.BertModel(bertie.BertConfig(**SIZES)) for _ in range(2))
    old.save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    new.save_pretrained(tmp_path, safe_serialization=False)
    assert equal(bertie.BertModel.from_pretrained(tmp_path), new)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_only_the_main_process_writes_and_other_weights_can_be_given(tmp_path: Path, library: Any) -> None:
    model = library.BertModel(library.BertConfig(**SIZES))
    weights = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "main", is_main_process=True, state_dict=weights)
    loaded = bertie.BertModel.from_pretrained(tmp_path / "main")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.state_dict().items())
    if library is bertie:
        model.save_pretrained(tmp_path / "other", is_main_process=False)
        assert not (tmp_path / "other").exists()


def test_keys_to_ignore_are_not_saved(tmp_path: Path, library: Any) -> None:
    class Partly(library.BertModel):  # type: ignore[misc,name-defined]
        _keys_to_ignore_on_save = ["pooler.dense.bias"]  # noqa: RUF012
        _keys_to_ignore_on_load_missing = [r"pooler\.dense\.bias"]  # noqa: RUF012

    Partly(library.BertConfig(**SIZES)).save_pretrained(tmp_path)
    _, info = Partly.from_pretrained(tmp_path, output_loading_info=True)
    assert list(info["missing_keys"]) == []
    with pytest.warns(UserWarning, match=r"pooler\.dense\.bias"):
        bertie.BertModel.from_pretrained(tmp_path)


def test_models_that_write_save_their_settings(tmp_path: Path, transformers: Any) -> None:
    config = bertie.BertConfig(**SIZES, is_decoder=True, bos_token_id=1, eos_token_id=2)
    bertie.BertLMHeadModel(config).save_pretrained(tmp_path)
    settings = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (1, 2, 0)
    bertie.BertModel(config).save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / "generation_config.json").exists()


def test_all_parts_of_the_report_read_like_a_dictionary(base: Path, library: Any) -> None:
    with _expected_warning(library):
        _, info = library.BertForTokenClassification.from_pretrained(base, output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert set(info["unexpected_keys"]) == {"pooler.dense.weight", "pooler.dense.bias"}
    assert list(info["mismatched_keys"]) == []
    assert {"missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"} <= set(info.keys())


def test_a_configuration_of_a_subclass_stays_one(base: Path, tmp_path: Path, library: Any) -> None:
    class WideConfig(library.BertConfig):  # type: ignore[misc,name-defined]
        model_type = "wide-bert"

        def __init__(self, width: int = 3, **values: Any) -> None:
            super().__init__(**values)
            self.width = width

    class Wide(library.BertModel):  # type: ignore[misc,name-defined]
        config_class = WideConfig

    model = Wide(WideConfig(width=7, **SIZES))
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "wide-bert"
    for again in (Wide.from_pretrained(tmp_path), Wide.from_pretrained(tmp_path, config=WideConfig(width=7, **SIZES))):
        assert type(again.config) is WideConfig
        assert again.config.width == 7
        assert equal(again, model)


def test_a_default_device_is_where_weights_go(base: Path) -> None:
    with torch.device("cpu"):
        assert bertie.BertModel.from_pretrained(base).device.type == "cpu"


def test_another_librarys_configuration(base: Path, transformers: Any) -> None:
    theirs = transformers.BertConfig.from_pretrained(base, output_hidden_states=True)
    model = bertie.BertModel.from_pretrained(base, config=theirs)
    assert model.config.output_hidden_states
    with pytest.raises(BertieError, match=re.escape("BertConfig.from_dict(config.to_dict())")):
        bertie.BertModel(theirs)
    assert bertie.BertModel(bertie.BertConfig.from_dict(theirs.to_dict())).config.hidden_size == 24
