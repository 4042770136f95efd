"""Keywords of `from_pretrained` that choose files, ways and settings: each changes what it names, or is refused."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from two_libraries import SIZES, library, transformers  # noqa: F401

import bertie
from bertie.errors import BertieError, CheckpointError, CheckpointNotFound, ConfigError
from bertie.model.hub.options import HARMLESS_IN_LOADING, REFUSED

TENSORFLOW = Path(__file__).parents[1] / "assets" / "tf" / "google_tiny"


def _first_weight(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model.state_dict()["embeddings.LayerNorm.bias"]
    return weight


@pytest.fixture
def both_formats(tmp_path: Path) -> Path:
    """A folder with safetensors of zeros and a .bin of ones."""
    folder, other = tmp_path / "both", tmp_path / "other"
    for number, place in enumerate((folder, other)):
        model = bertie.BertModel(bertie.BertConfig(**SIZES))
        torch.nn.init.constant_(model.embeddings.LayerNorm.bias, number)
        model.save_pretrained(place, safe_serialization=number == 0)
    (other / "pytorch_model.bin").rename(folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize(("given", "number"), [(None, 0), (True, 0), (False, 1)])
def test_use_safetensors_chooses_the_file(given: bool | None, number: int, both_formats: Path, library: Any) -> None:
    model = library.BertModel.from_pretrained(both_formats, use_safetensors=given)
    assert _first_weight(model).eq(number).all()


@pytest.mark.parametrize(("given", "missing"), [(True, "model.safetensors"), (False, "pytorch_model.bin")])
def test_a_format_that_is_not_there(given: bool, missing: str, both_formats: Path, library: Any) -> None:
    (both_formats / missing).unlink()
    with pytest.raises(OSError, match=f"use_safetensors={given}" if library is bertie else missing):
        library.BertModel.from_pretrained(both_formats, use_safetensors=given)


def test_a_file_of_the_other_format_is_named_too(both_formats: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="use_safetensors=True"):
        bertie.BertModel.from_pretrained(both_formats / "pytorch_model.bin", use_safetensors=True)
    with pytest.raises(CheckpointNotFound, match="from_tf=True"):
        bertie.load(both_formats, from_tf=True)
    with pytest.raises(ConfigError, match="Both use_safetensors=True and from_tf=True"):
        bertie.BertModel.from_pretrained(both_formats, use_safetensors=True, from_tf=True)


def test_from_tf_reads_the_tensorflow_checkpoint_beside_other_weights(tmp_path: Path) -> None:
    for file in TENSORFLOW.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    wanted = bertie.BertModel.from_pretrained(TENSORFLOW)
    other = bertie.BertModel(wanted.config)
    other.save_pretrained(tmp_path)
    read, default = (bertie.BertModel.from_pretrained(tmp_path, from_tf=tf) for tf in (True, False))
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor)
        assert torch.equal(default.state_dict()[name], other.state_dict()[name])
    index = next(tmp_path.glob("*.index"))
    named = bertie.BertModel.from_pretrained(index, from_tf=True, config=wanted.config)
    assert torch.equal(named.pooler.dense.weight, wanted.pooler.dense.weight)


def test_settings_for_writing_come_from_the_file_or_the_call(tmp_path: Path, library: Any) -> None:
    config = library.BertConfig(**SIZES, is_decoder=True, bos_token_id=1, eos_token_id=2)
    model = library.BertLMHeadModel(config).eval()
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(tmp_path)
    prompt = torch.tensor([[1, 9, 8]])
    for one in (library, bertie):  # each reads the other's
        again = one.BertLMHeadModel.from_pretrained(tmp_path)
        assert again.generation_config.max_new_tokens == 5
        assert again.generate(prompt, min_new_tokens=5).shape == (1, 8)
    given = library.GenerationConfig(max_new_tokens=3, pad_token_id=0)
    again = library.BertLMHeadModel.from_pretrained(tmp_path, generation_config=given)
    assert again.generate(prompt, min_new_tokens=3).shape == (1, 6)
    plain = library.BertModel.from_pretrained(tmp_path, add_pooling_layer=False, generation_config=given)
    assert plain.config.is_decoder


def test_a_pair_keeps_its_settings_for_writing(tmp_path: Path) -> None:
    encoder = bertie.BertModel(bertie.BertConfig(**SIZES))
    model = bertie.BertEncoderDecoder.from_encoder_decoder(encoder, encoder, decoder_start_token_id=1, pad_token_id=0)
    model.generation_config.num_beams = 3
    model.save_pretrained(tmp_path)
    assert bertie.BertEncoderDecoder.from_pretrained(tmp_path).generation_config.num_beams == 3
    given = bertie.GenerationConfig(num_beams=2)
    again = bertie.BertEncoderDecoder.from_pretrained(tmp_path, generation_config=given, use_safetensors=True)
    assert again.generation_config.num_beams == 2
    with pytest.raises(CheckpointNotFound, match="use_safetensors=False"):
        bertie.BertEncoderDecoder.from_pretrained(tmp_path, use_safetensors=False)


class _Downloads:
    """Stands in for `hf_hub_download`: notes what it was asked for, and has nothing."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, repo_id: str, filename: str, *, proxies: Any = None, **options: Any) -> str:
        from huggingface_hub.errors import LocalEntryNotFoundError

        self.calls.append({"filename": filename, "proxies": proxies, **options})
        raise LocalEntryNotFoundError(filename)


@pytest.mark.parametrize("name", ["BertModel", "BertConfig", "BertTokenizer"])
def test_proxies_tokens_and_subfolders_reach_the_download(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="names are fetched by huggingface_hub")
    downloads, proxies = _Downloads(), {"https": "http://127.0.0.1:9"}
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", downloads)
    with pytest.raises(CheckpointError):
        getattr(bertie, name).from_pretrained(
            "somebody/model", proxies=proxies, use_auth_token="secret", subfolder="below", local_files_only=True
        )
    assert downloads.calls
    for call in downloads.calls:
        assert (call["proxies"], call["token"], call["subfolder"]) == (proxies, "secret", "below")


def test_proxies_are_refused_where_the_hub_package_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="names are fetched by huggingface_hub")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo_id, filename, subfolder=None: "")
    with pytest.raises(CheckpointError, match="proxies was given, and huggingface_hub"):
        bertie.BertModel.from_pretrained("somebody/model", proxies={"https": "http://127.0.0.1:9"})


def test_saving_words_are_not_loading_words(both_formats: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="commit_message"):
        bertie.BertModel.from_pretrained(both_formats, commit_message="x")
    model = bertie.BertModel.from_pretrained(both_formats)
    model.save_pretrained(tmp_path / "again", commit_message="x", private=True)
    with pytest.raises(ConfigError, match="use_fast"):
        model.save_pretrained(tmp_path / "again", use_fast=True)
    for name in ("gguf_file", "_configuration_file"):
        with pytest.raises(ConfigError, match=name):
            bertie.BertConfig.from_pretrained(both_formats, **{name: "x"})


def test_every_keyword_of_the_hub_is_known_here(transformers: Any, both_formats: Path) -> None:
    """Each is an argument, a way to fetch, a place, harmless, or refused: none falls through to the configuration."""
    source = inspect.getsource(transformers.PreTrainedModel.from_pretrained)
    taken = {line.split('kwargs.pop("')[1].split('"')[0] for line in source.splitlines() if 'kwargs.pop("' in line}
    taken -= {"_adapter_model_path"}  # of adapter_kwargs
    assert len(taken) > 25
    for name in sorted(taken):
        if name in REFUSED:
            with pytest.raises(BertieError, match=name):
                bertie.BertModel.from_pretrained(both_formats, **{name: "x"})
        elif name in HARMLESS_IN_LOADING:
            bertie.BertModel.from_pretrained(both_formats, **{name: True})
        else:
            bertie.BertModel.from_pretrained(both_formats, **{name: None})
