"""`bertie inspect`, `verify` and `convert` as a user meets them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertie
from bertie.cli.main import main

TF = Path(__file__).parents[1] / "assets" / "tf" / "google_tiny"
SMALL = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small masked-LM checkpoint with a vocabulary."""
    bertie.BertForMaskedLM(bertie.BertConfig(**SMALL)).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(f"w{i}" for i in range(40)) + "\n")
    return tmp_path / "model"


def test_help_is_quick_and_names_every_command() -> None:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        result = subprocess.run([sys.executable, "-m", "bertie", "--help"], capture_output=True, text=True)
        seconds.append(time.perf_counter() - started)
    assert result.returncode == 0
    for name in ("inspect", "verify", "convert"):
        assert name in result.stdout
    assert min(seconds) <= 0.3


def test_inspect_says_what_is_inside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    for fact in ("BertForMaskedLM", "safetensors", "float32", "masked words", "40"):
        assert fact in shown
    assert main(["inspect", str(folder), "--json", "--tensors"]) == 0
    summary = json.loads(capsys.readouterr().out)
    model = bertie.BertForMaskedLM.from_pretrained(folder)
    assert summary["parameters"]["total"] == model.num_parameters()
    assert summary["heads"] == ["masked words"]
    names = {t["name"] for t in summary["tensors"]}
    assert "bert.encoder.layer.1.output.dense.weight" in names
    assert main(["inspect", str(folder), "--tensors"]) == 0
    assert "24 × 16" in capsys.readouterr().out


def test_inspect_reads_google_and_torch_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(TF), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["format"] == "tensorflow"
    assert summary["heads"] == ["masked words", "next sentence"]
    assert summary["layers"] == 2
    old = tmp_path / "old"
    old.mkdir()
    (old / "config.json").write_bytes((folder / "config.json").read_bytes())
    torch.save(load_file(folder / "model.safetensors"), old / "pytorch_model.bin")
    assert main(["inspect", str(old), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == summarised(folder, capsys)["parameters"]


def summarised(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict:  # type: ignore[type-arg]
    main(["inspect", str(folder), "--json"])
    return json.loads(capsys.readouterr().out)


def test_inspect_notes_a_vocabulary_of_another_size(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "vocab.txt").open("a") as file:
        file.write("extra\n")
    assert any("41" in note and "40" in note for note in summarised(folder, capsys)["notes"])


def test_inspect_needs_no_torch_whatever_the_format(folder: Path, tmp_path: Path) -> None:
    bins = tmp_path / "bins"
    bins.mkdir()
    (bins / "config.json").write_bytes((folder / "config.json").read_bytes())
    model = bertie.BertForMaskedLM.from_pretrained(folder)
    torch.save(model.state_dict(), bins / "pytorch_model.bin")
    old = tmp_path / "old"
    shutil.copytree(bins, old)
    torch.save(model.state_dict(), old / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    for source in (folder, TF, bins, old):
        code = f"import sys; from bertie.checkpoint.inspect import summarise; s = summarise({str(source)!r}); "
        code += "print('torch' in sys.modules, len(s.tensors))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert done[0] == "False", source
        assert int(done[1]) > 30


def test_verify_certifies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--json"]) == 0
    certificate = json.loads(capsys.readouterr().out)
    assert certificate["passed"]
    assert certificate["model"] == "BertForMaskedLM"
    assert any("exact" in line for line in certificate["numerics"])
    assert main(["verify", str(folder)]) == 0
    assert "every check passed" in capsys.readouterr().out


def test_verify_fails_on_a_sick_tensor_and_a_missing_head(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.bias"][3] = float("nan")
    save_file(weights, folder / "model.safetensors")
    assert main(["verify", str(folder), "--json"]) == 1
    failed = [c for c in json.loads(capsys.readouterr().out)["checks"] if not c["passed"]]
    assert "layer.0.output.dense.bias" in failed[0]["detail"]
    save_file({k: v.nan_to_num() for k, v in weights.items() if "transform" not in k}, folder / "model.safetensors")
    assert main(["verify", str(folder)]) == 1
    assert "failed" in capsys.readouterr().out


def test_round_trip_through_tensorflow_is_bit_equal(folder: Path, tmp_path: Path) -> None:
    assert main(["convert", str(folder), str(tmp_path / "tf"), "--to", "tf"]) == 0
    assert sorted(f.name for f in (tmp_path / "tf").iterdir()) == [
        "bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt",
    ]  # fmt: skip
    assert main(["convert", str(tmp_path / "tf"), str(tmp_path / "hub")]) == 0
    first, last = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "hub"))
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert (tmp_path / "hub" / "vocab.txt").is_file()


def test_google_to_hub_to_google_is_bit_equal(tmp_path: Path) -> None:
    from bertie.checkpoint.tensorflow import BundleReader

    assert main(["convert", str(TF), str(tmp_path / "hub")]) == 0
    assert main(["convert", str(tmp_path / "hub"), str(tmp_path / "tf"), "--to", "tf"]) == 0
    with BundleReader(TF) as first, BundleReader(tmp_path / "tf") as last:
        weights = [name for name in first.names() if not name.endswith(("adam_m", "adam_v", "global_step"))]
        assert sorted(weights) == sorted(last.names())
        assert all(torch.equal(first.read(name), last.read(name)) for name in weights)


def test_an_encoder_without_pooler_is_converted_without_one(tmp_path: Path) -> None:
    bertie.BertModel(bertie.BertConfig(**SMALL), add_pooling_layer=False).save_pretrained(tmp_path / "model")
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--dtype", "float16"]) == 0
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert not any("pooler" in name for name in weights)
    assert all(w.dtype == torch.float16 for w in weights.values())


def mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 2, captured.err
    return captured.err


def test_mistakes_get_a_cause_and_a_remedy(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty folder" in mistake(["inspect", str(empty)], capsys)
    assert "There is no file or folder" in mistake(["verify", str(tmp_path / "nowhere")], capsys)
    assert "is where" in mistake(["convert", str(folder), str(folder)], capsys)
    assert "not an empty folder" in mistake(["convert", str(folder), str(tmp_path)], capsys)
    assert "No such command 'inspct'" in mistake(["inspct"], capsys)
    assert "Missing argument" in mistake(["verify"], capsys)
    assert "'--to'" in mistake(["convert", "a", "b", "--to", "onnx"], capsys)
    (folder / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    assert "gpt2" in mistake(["verify", str(folder)], capsys)


def test_a_relative_model_cannot_become_googles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = bertie.BertConfig(**SMALL, position_embedding_type="relative_key")
    bertie.BertModel(config).save_pretrained(tmp_path / "model")
    assert "no place" in mistake(["convert", str(tmp_path / "model"), str(tmp_path / "tf"), "--to", "tf"], capsys)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["model"]
