"""Loading and saving: every layout round-trips bit for bit, names find their places, reports say what happened."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import bertie
from bertie import BertConfig
from bertie.checkpoint.report import NewlyInitialized, UnusedWeights
from bertie.checkpoint.safetensors import SafeFile, write_safetensors
from bertie.errors import CheckpointError, ConfigError, WeightsMismatch
from bertie.loading import load

TINY: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
HEADS = [
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
]


def tiny(name: str = "BertForMaskedLM", **config: Any) -> Any:
    model = getattr(bertie, name)(BertConfig.from_dict(TINY | config)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def check_equal(first: Any, second: Any) -> None:
    theirs = second.state_dict()
    assert list(first.state_dict()) == list(theirs)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name
        assert tensor.dtype == theirs[name].dtype


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


# -- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HEADS, "BertLMHeadModel"])
def test_every_class_round_trips_and_is_loaded_as_itself(name: str, tmp_path: Path) -> None:
    decoder = {"is_decoder": True, "add_cross_attention": True} if name == "BertLMHeadModel" else {}
    model = tiny(name, id2label={0: "a", 1: "b", 2: "c"} if "Classification" in name else {0: "x", 1: "y"}, **decoder)
    model.save_pretrained(tmp_path)
    again, report = load(tmp_path, output_loading_info=True)
    assert type(again) is type(model)
    assert not again.training
    check_equal(model, again)
    assert again.config.to_dict() | {"architectures": 0, "dtype": 0, "torch_dtype": 0} == model.config.to_dict() | {
        "architectures": 0,
        "dtype": 0,
        "torch_dtype": 0,
    }
    assert report.complete
    assert "every weight found its place" in str(report)
    ids = torch.tensor([[1, 2, 3]])
    if name != "BertForMultipleChoice":
        assert torch.equal(model(ids).to_tuple()[0], again(ids).to_tuple()[0])


@pytest.mark.parametrize("name", HEADS)
def test_the_class_is_told_by_the_tensors_when_nothing_names_it(name: str, tmp_path: Path) -> None:
    labels = {0: "a", 1: "b", 2: "c"}
    tiny(name, **({"id2label": labels} if name != "BertForQuestionAnswering" else {})).save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=None)
    assert type(load(tmp_path)).__name__ == name


def test_sharded_safetensors_round_trip(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    shards = sorted(tmp_path.glob("model-*-of-*.safetensors"))
    assert len(shards) > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(p.numel() * 4 for p in model.parameters())
    assert set(index["weight_map"].values()) == {shard.name for shard in shards}
    check_equal(model, bertie.BertForMaskedLM.from_pretrained(tmp_path))
    model.save_pretrained(tmp_path)  # and back to one file, with the pieces gone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    check_equal(model, bertie.BertForMaskedLM.from_pretrained(tmp_path))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_bin_files_load(tmp_path: Path, legacy: bool, sharded: bool) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    weights = dict(model.state_dict())
    files = {"pytorch_model.bin": list(weights)}
    if sharded:
        names = list(weights)
        files = {"pytorch_model-1.bin": names[:9], "pytorch_model-2.bin": names[9:]}
        weight_map = {name: file for file, names in files.items() for name in names}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, names in files.items():
        part = {name: weights[name] for name in names}
        torch.save(part, tmp_path / file, _use_new_zipfile_serialization=not legacy)
    loaded, report = bertie.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    check_equal(model, loaded)
    assert report.format == "torch"
    assert report.complete


def test_one_file_with_its_configuration_beside_it(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "best.safetensors")
    check_equal(model, bertie.BertForMaskedLM.from_pretrained(tmp_path / "best.safetensors"))
    torch.save(model.state_dict(), tmp_path / "best.pt")
    check_equal(model, bertie.BertForMaskedLM.from_pretrained(str(tmp_path / "best.pt")))


def test_subfolder_and_sentence_transformers_folders(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path / "0_Transformer")
    check_equal(model, bertie.BertModel.from_pretrained(tmp_path, subfolder="0_Transformer"))
    modules = [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    check_equal(model, bertie.BertModel.from_pretrained(tmp_path))


def test_variants_live_beside_each_other(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path, variant="half", dtype="float16", max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.half.json").is_file()
    assert (tmp_path / "model.safetensors").is_file()
    check_equal(model, bertie.BertForMaskedLM.from_pretrained(tmp_path))
    half = bertie.BertForMaskedLM.from_pretrained(tmp_path, variant="half", dtype=torch.float16)
    check_equal(model.half(), half)


def test_google_folder_and_prefix() -> None:
    folder = Path(__file__).parents[2] / "assets" / "tf" / "google_tiny"
    first, report = load(folder, output_loading_info=True)
    assert type(first) is bertie.BertForPreTraining
    assert report.format == "tensorflow"
    check_equal(first, bertie.BertForPreTraining.from_pretrained(folder / "bert_model.ckpt"))
    check_equal(first, bertie.BertForPreTraining.from_pretrained(folder / "bert_model.ckpt.index"))


def test_encoder_decoder_round_trip(tmp_path: Path) -> None:
    decoder = tiny("BertLMHeadModel", hidden_size=20, is_decoder=True, add_cross_attention=True)
    model = bertie.BertEncoderDecoder.from_encoder_decoder(
        tiny("BertModel"), decoder, decoder_start_token_id=3, eos_token_id=4
    )
    model.save_pretrained(tmp_path)
    again = bertie.BertEncoderDecoder.from_pretrained(tmp_path)
    check_equal(model, again)
    assert (again.config.decoder_start_token_id, again.config.eos_token_id) == (3, 4)
    assert bertie.BertEncoderDecoder.from_pretrained(tmp_path, torch_dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match=r"encoder-decoder.*\n.*BertEncoderDecoder\.from_pretrained"):
        bertie.BertModel.from_pretrained(tmp_path)


def test_pruned_heads_survive(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.prune_heads({0: [1, 3], 2: [0]})
    model.save_pretrained(tmp_path)
    again = bertie.BertModel.from_pretrained(tmp_path)
    check_equal(model, again)
    assert again.config.pruned_heads == {0: [1, 3], 2: [0]}
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(ids).last_hidden_state, again(ids).last_hidden_state)


# -- names -----------------------------------------------------------------------------------------------------------


def with_weights(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    safetensors.torch.save_file({name: t.clone() for name, t in weights.items()}, folder / "model.safetensors")
    return folder


def test_base_and_head_checkpoints_load_into_each_other(tmp_path: Path) -> None:
    head = tiny("BertForPreTraining")
    head.save_pretrained(tmp_path / "head")
    base, report = bertie.BertModel.from_pretrained(tmp_path / "head", output_loading_info=True)
    check_equal(head.bert, base)
    assert report.unexpected == [name for name in report["unexpected_keys"] if name.startswith("cls.")]
    assert report.renamed["bert.pooler.dense.bias"] == "pooler.dense.bias"
    base.save_pretrained(tmp_path / "base")
    with pytest.warns(NewlyInitialized, match=r"7 weights.*cls\.predictions\.bias"):
        again = bertie.BertForPreTraining.from_pretrained(tmp_path / "base")
    check_equal(head.bert, again.bert)
    assert again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight
    assert again.cls.predictions.bias is again.cls.predictions.decoder.bias


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
    ],
    ids=["DataParallel", "compiled DataParallel", "gamma and beta"],
)
def test_old_names_find_their_places(tmp_path: Path, rename: Any) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    with_weights(tmp_path, {rename(name): tensor for name, tensor in model.state_dict().items()})
    loaded, report = bertie.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    check_equal(model, loaded)
    assert report.renamed


def test_buffers_are_passed_over_and_extras_reported(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path)
    extra = {"embeddings.position_ids": torch.arange(12)[None], "step": torch.tensor(3), "head.weight": torch.ones(2)}
    with_weights(tmp_path, model.state_dict() | extra)
    loaded, report = bertie.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    check_equal(model, loaded)
    assert report.ignored == ["embeddings.position_ids"]
    assert sorted(report.unexpected) == ["head.weight", "step"]


def test_a_tied_decoder_that_differs_is_reported_and_can_be_kept(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    weights = dict(model.state_dict()) | {"cls.predictions.decoder.weight": torch.ones(41, 16)}
    with_weights(tmp_path, weights)
    with pytest.warns(UnusedWeights, match=r"decoder\.weight differs from the weight it is tied to"):
        loaded = bertie.BertForMaskedLM.from_pretrained(tmp_path)
    check_equal(model, loaded)
    untied = bertie.BertForMaskedLM.from_pretrained(tmp_path, tie_word_embeddings=False)
    assert torch.equal(untied.cls.predictions.decoder.weight, torch.ones(41, 16))


def test_one_weight_under_two_names_is_refused(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path)
    with_weights(tmp_path, dict(model.state_dict()) | {"bert.pooler.dense.bias": torch.ones(16)})
    with pytest.raises(WeightsMismatch, match=r"pooler\.dense\.bias twice"):
        bertie.BertModel.from_pretrained(tmp_path)


def test_missing_encoder_weights_are_an_error_and_a_missing_pooler_a_warning(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path)
    weights = dict(model.state_dict())
    without_pooler = {name: t for name, t in weights.items() if "pooler" not in name}
    with_weights(tmp_path, without_pooler)
    with pytest.warns(NewlyInitialized, match=r"2 weights .*pooler\.dense\.weight, pooler\.dense\.bias"):
        loaded, report = bertie.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == ["pooler.dense.weight", "pooler.dense.bias"]
    assert float(loaded.pooler.dense.bias.detach().abs().max()) == 0
    assert 0 < float(loaded.pooler.dense.weight.detach().std()) < 0.1
    assert bertie.BertModel.from_pretrained(tmp_path, add_pooling_layer=False).pooler is None
    broken = {name: t for name, t in weights.items() if "layer.1." not in name}
    with_weights(tmp_path, broken)
    with pytest.raises(WeightsMismatch, match=r"lacks 16 of the encoder's weights: encoder\.layer\.1\..* and 6 more"):
        bertie.BertModel.from_pretrained(tmp_path)


def test_a_weight_without_its_bias_keeps_the_weight(tmp_path: Path) -> None:
    model = tiny("BertForSequenceClassification")
    model.save_pretrained(tmp_path)
    with_weights(tmp_path, {n: t for n, t in model.state_dict().items() if n != "classifier.bias"})
    with pytest.warns(NewlyInitialized, match=r"1 weights .*classifier\.bias"):
        loaded = bertie.BertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded.classifier.weight, model.classifier.weight)
    assert not loaded.classifier.bias.detach().any()


def test_cross_attention_may_be_new(tmp_path: Path) -> None:
    tiny("BertForMaskedLM").save_pretrained(tmp_path)
    with pytest.warns(NewlyInitialized, match="crossattention"):
        model = bertie.BertLMHeadModel.from_pretrained(tmp_path, is_decoder=True, add_cross_attention=True)
    assert all(not parameter.is_meta for parameter in model.parameters())


def test_misshaped_weights_are_named_with_both_shapes(tmp_path: Path) -> None:
    tiny("BertForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    wanted = r"classifier\.weight is \[3, 16\] in the checkpoint, \[5, 16\] in the model"
    with pytest.raises(WeightsMismatch, match=wanted + r"(?s:.*)ignore_mismatched_sizes=True"):
        bertie.BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    with pytest.warns(NewlyInitialized, match=wanted):
        model, report = bertie.BertForSequenceClassification.from_pretrained(
            tmp_path, num_labels=5, ignore_mismatched_sizes=True, output_loading_info=True
        )
    assert model.classifier.weight.shape == (5, 16)
    assert report["mismatched_keys"][0] == "classifier.weight"


def test_fewer_layers_warn_and_more_layers_fail(tmp_path: Path) -> None:
    tiny("BertModel").save_pretrained(tmp_path)
    with pytest.warns(UnusedWeights, match=r"16 of the checkpoint's encoder weights"):
        model = bertie.BertModel.from_pretrained(tmp_path, num_hidden_layers=2)
    assert len(model.encoder.layer) == 2
    for layers in (4, 10**7):  # ten million would never be built
        with pytest.raises(WeightsMismatch, match=rf"num_hidden_layers is {layers}; the weights have 3"):
            bertie.BertModel.from_pretrained(tmp_path, num_hidden_layers=layers)


# -- dtype, device, configuration ------------------------------------------------------------------------------------


def test_dtypes(tmp_path: Path) -> None:
    model = tiny("BertModel").bfloat16()
    model.save_pretrained(tmp_path)
    assert bertie.BertModel.from_pretrained(tmp_path).dtype == torch.float32
    check_equal(model, bertie.BertModel.from_pretrained(tmp_path, dtype="auto"))
    check_equal(model, bertie.BertModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16))
    assert bertie.BertModel.from_pretrained(tmp_path, dtype="float16").dtype == torch.float16
    edit_config(tmp_path, dtype=None, torch_dtype="float64")
    assert bertie.BertModel.from_pretrained(tmp_path, dtype="auto").dtype == torch.float64
    edit_config(tmp_path, torch_dtype=None)
    assert bertie.BertModel.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16
    for wrong in ("float33", "int8", 3):
        with pytest.raises(ConfigError, match="dtype is"):
            bertie.BertModel.from_pretrained(tmp_path, dtype=wrong)


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path)
    with_weights(tmp_path, {n: t.to(torch.int8) for n, t in model.state_dict().items()})
    with pytest.raises(WeightsMismatch, match="stored as int8: a quantised model"):
        bertie.BertModel.from_pretrained(tmp_path)


def test_configuration_by_argument_and_override(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path)
    loaded = bertie.BertModel.from_pretrained(tmp_path, hidden_dropout_prob=0.5, attn_implementation="eager")
    assert loaded.config.hidden_dropout_prob == 0.5
    (tmp_path / "config.json").rename(tmp_path / "elsewhere.json")
    for config in (model.config, model.config.to_dict(), tmp_path / "elsewhere.json"):
        check_equal(model, bertie.BertModel.from_pretrained(tmp_path, config=config))
    with pytest.raises(ConfigError, match="hiden_size: neither an argument nor a configuration key"):
        bertie.BertModel.from_pretrained(tmp_path, config=model.config, hiden_size=3)


def test_defaults_are_made_after_loading(tmp_path: Path) -> None:
    tiny("BertModel").save_pretrained(tmp_path)
    embeddings = bertie.BertModel.from_pretrained(tmp_path).embeddings
    assert embeddings.position_ids.tolist() == [list(range(12))]
    assert embeddings.token_type_ids.tolist() == [[0] * 12]


def test_all_parameters_train(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    model = bertie.BertForMaskedLM.from_pretrained(tmp_path).train()
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[4, 5, 6]])).loss.backward()
    assert all(p.requires_grad and p.is_leaf and p.grad is not None for p in model.parameters())


# -- the file and the memory -----------------------------------------------------------------------------------------


def test_parameters_are_the_file_and_training_never_writes_to_it(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    loaded = bertie.BertForMaskedLM.from_pretrained(tmp_path)
    weight = loaded.bert.embeddings.word_embeddings.weight
    entry = SafeFile(tmp_path / "model.safetensors").entries["bert.embeddings.word_embeddings.weight"]
    assert weight.untyped_storage().nbytes() == entry.end - entry.start  # its own piece: torch.save stays small
    optimizer = torch.optim.SGD(loaded.parameters(), lr=1.0)
    loaded(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[4, 5, 6]])).loss.backward()
    optimizer.step()
    assert not torch.equal(weight, model.bert.embeddings.word_embeddings.weight)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    loaded.save_pretrained(tmp_path)  # over the file it is mapped to
    check_equal(loaded, bertie.BertForMaskedLM.from_pretrained(tmp_path))
    shutil.rmtree(tmp_path)
    assert torch.isfinite(loaded(torch.tensor([[1, 2, 3]])).logits).all()


def test_unaligned_files_are_copied(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = raw[8 : 8 + length].rstrip() + b" " * 3
    while (8 + len(header)) % 4 == 0:
        header += b" "
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + length :])
    check_equal(model, bertie.BertModel.from_pretrained(tmp_path))


def test_what_we_write_the_safetensors_library_reads_and_the_reverse(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "c": torch.tensor(4.0),
        "d": torch.zeros(0, 3),
        "é…": torch.arange(5),
        "t": torch.randn(4, 6).T,
        "bool": torch.tensor([True, False]),
    }
    write_safetensors(tmp_path / "ours.safetensors", tensors)
    read = safetensors.torch.load_file(tmp_path / "ours.safetensors")
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "theirs.safetensors")
    theirs = SafeFile(tmp_path / "theirs.safetensors")
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor)
        assert torch.equal(theirs.tensor(name), tensor)
        assert theirs.tensor(name).dtype == tensor.dtype


def test_loading_needs_no_second_copy(tmp_path: Path) -> None:
    """Peak memory of a fresh process that loads a model and reads every weight: the weights and a little."""
    config = BertConfig(vocab_size=30522, hidden_size=512, num_hidden_layers=4, num_attention_heads=8)
    bertie.BertModel(config).save_pretrained(tmp_path)
    script = """
import sys, torch
from bertie import BertModel
import bertie.checkpoint.load_weights
def status(key):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(key + ":"))
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
model = BertModel.from_pretrained(sys.argv[1], dtype=sys.argv[2])
sum(float(p.sum()) for p in model.parameters())
weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
print(status("VmHWM") - before - weights)
"""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    for dtype in ("float32", "bfloat16"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), dtype], capture_output=True, text=True, check=True
        )
        assert float(done.stdout) <= 64, dtype


def test_importing_a_model_class_does_not_import_the_checkpoint_room() -> None:
    script = "import sys; from bertie import BertModel; print([n for n in sys.modules if n.startswith('bertie.check')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    script = """
import sys, tempfile, bertie
with tempfile.TemporaryDirectory() as folder:
    bertie.BertModel(bertie.BertConfig.preset("tiny", vocab_size=9)).save_pretrained(folder)
    bertie.BertModel.from_pretrained(folder)
print([n for n in ("huggingface_hub", "bertie.checkpoint.tensorflow", "sympy", "safetensors") if n in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_is_said_when_everything_fits(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bertie.BertForMaskedLM.from_pretrained(tmp_path)
        bertie.BertModel.from_pretrained(tmp_path, add_pooling_layer=False)


def test_loading_leaves_layers_made_elsewhere_alone(tmp_path: Path) -> None:
    """While a model is built to be filled, another thread's new layers initialise themselves as always."""
    import threading

    bertie.BertModel(BertConfig.preset("tiny", vocab_size=50, num_hidden_layers=6)).save_pretrained(tmp_path)
    before = torch.nn.Linear.reset_parameters
    stop, spoiled = threading.Event(), []

    def build() -> None:
        while not stop.is_set():
            bias = torch.nn.LayerNorm(64).weight
            if not bool((bias == 1).all()):
                spoiled.append(bias)

    thread = threading.Thread(target=build)
    thread.start()
    try:
        for _ in range(20):
            bertie.BertModel.from_pretrained(tmp_path)
    finally:
        stop.set()
        thread.join()
    assert not spoiled
    assert torch.nn.Linear.reset_parameters is before
