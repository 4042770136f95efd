"""The index: exact answers, whole after any kill, and damage that is noticed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data import read_rows
from bertie.errors import BertieError, DataError, InputError
from bertie.running.open import OpenModel
from bertie.search import files as index_files
from bertie.search.index import Hit, Index, build_index
from bertie.search.nearest import top_k
from bertie.tasks.embed import Embedder
from bertie.tasks.similarity import unit
from sentence_models import tiny_sentence_model
from tiny_models import SENTENCES, saved, tiny, tokenizer

WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
CORPUS = [" ".join(WORDS[(7 * n + step * (n % 5 + 1)) % len(WORDS)] for step in range(3 + n % 9)) for n in range(300)]
MANY = [f"{text} {n}" for n in range(3) for text in CORPUS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("search") / "model", "BertModel")


@pytest.fixture
def index(model: str, tmp_path: Path) -> Index:
    return build_index(CORPUS, tmp_path / "index", model=model, chunk_rows=64)


def brute_force(model: str, query: str, k: int) -> list[tuple[int, float]]:
    embedder = Embedder(model)
    scores = (unit(embedder.embed(CORPUS)).astype(np.float64) @ unit(embedder.embed([query])).astype(np.float64).T)[
        :, 0
    ]
    order = sorted(range(len(CORPUS)), key=lambda number: (-scores[number], number))[:k]
    return [(number, scores[number]) for number in order]


# -- nearest ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    count=st.integers(0, 40),
    kinds=st.integers(1, 6),
    k=st.integers(1, 45),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    seed=st.integers(0, 99),
)
def test_top_k_is_exact_with_ties_in_order(count: int, kinds: int, k: int, cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((kinds, 5)).astype(np.float32)[rng.integers(0, kinds, count)]  # many equal ones
    queries = rng.standard_normal((3, 5)).astype(np.float32)
    borders = sorted({0, count, *(min(cut, count) for cut in cuts)})
    parts = [(a, torch.from_numpy(vectors[a:b])) for a, b in pairwise(borders)]
    found = top_k(lambda: parts, queries, k)
    for query, answer in zip(queries, found, strict=True):
        exact = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
        assert [position for position, _ in answer] == sorted(range(count), key=lambda n: (-exact[n], n))[:k]


def test_blocks_and_companions_do_not_change_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((500, 24)).astype(np.float32)
    vectors[100:] = vectors[np.arange(400) % 50]  # each of fifty vectors nine times
    queries = rng.standard_normal((40, 24)).astype(np.float32)
    tensor = torch.from_numpy(vectors)
    wanted = top_k(lambda: [(0, tensor)], queries, 7)
    for rows, at_once, pairs in ((17, 3, 5), (64, 40, 1000), (500, 1, 11)):
        monkeypatch.setattr("bertie.search.nearest._BLOCK_ROWS", rows)
        monkeypatch.setattr("bertie.search.nearest._QUERIES", at_once)
        monkeypatch.setattr("bertie.search.nearest._RESCORED", pairs)
        assert top_k(lambda: [(0, tensor[:123]), (123, tensor[123:])], queries, 7) == wanted


# -- searching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["float32", "float16"])
def test_search_equals_brute_force(model: str, tmp_path: Path, store: str) -> None:
    index = build_index(CORPUS, tmp_path / "index", model=model, chunk_rows=64, store=store)
    tolerance = 1e-6 if store == "float32" else 2e-3
    assert len(index) == 300
    for query in ("the lazy dog", "Paris", ""):
        hits = index.search(query, k=10)
        assert all(isinstance(hit, Hit) for hit in hits)
        wanted = brute_force(model, query, 10)
        assert np.abs(np.array([hit.score for hit in hits]) - [score for _, score in wanted]).max() <= tolerance
        if store == "float32":
            scores = dict(brute_force(model, query, 300))
            assert all(abs(scores[hit.position] - hit.score) <= tolerance for hit in hits)
        assert all(hit.text == CORPUS[hit.position] and hit.id == str(hit.position) for hit in hits)


def test_several_queries_vectors_and_large_k(index: Index) -> None:
    one, two = index.search(["dog", "fox"], k=3)
    assert [hit.position for hit in one] == [hit.position for hit in index.search("dog", k=3)]
    vector = index.embedder.embed("fox")
    assert [hit.position for hit in index.search(vector, k=3)] == [hit.position for hit in two]
    assert len(index.search(np.stack([vector, vector]), k=2)) == 2
    everything = index.search("dog", k=1000)
    assert sorted(hit.position for hit in everything) == list(range(300))
    assert [hit.score for hit in everything] == sorted((hit.score for hit in everything), reverse=True)


def test_opening_needs_the_model_only_for_texts(index: Index, tmp_path: Path) -> None:
    opened = Index.open(index.folder)
    assert len(opened) == 300
    assert "300 texts" in repr(opened)
    vector = index.embedder.embed("fox")
    assert opened.search(vector, k=1) == index.search("fox", k=1)
    assert "embedder" not in vars(opened)
    assert opened.search("fox", k=1) == index.search("fox", k=1)


def test_rows_with_ids_and_columns(model: str, tmp_path: Path) -> None:
    lines = [{"doc": f"d{n}", "body": text, "n": n} for n, text in enumerate(CORPUS[:20])]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    index = build_index(read_rows(path), tmp_path / "i", model=model, text_column="body", id_column="doc")
    assert {hit.id for hit in index.search("dog", k=20)} == {f"d{n}" for n in range(20)}
    assert index.add([{"doc": "new", "body": "the quick fox", "other": None}]) == 1
    assert index.search("the quick fox", k=1)[0].id == "new"
    with pytest.raises(DataError, match="no column 'name' for the ids"):
        build_index(path, tmp_path / "j", model=model, text_column="body", id_column="name")
    with pytest.raises(DataError, match="there is no column 'txt'"):
        build_index(path, tmp_path / "k", model=model, text_column="txt")
    assert len(build_index(tmp_path / "corpus.jsonl", tmp_path / "l", model=model, text_column="body")) == 20


def test_prompts_for_documents_and_queries(tmp_path: Path) -> None:
    folder = tiny_sentence_model(tmp_path / "m", shared={"prompts": {"query": "dog : ", "passage": "fox : "}})
    index = build_index(CORPUS[:9], tmp_path / "i", model=folder)
    embedder = Embedder(folder)
    documents, query = embedder.embed(CORPUS[:9], prompt_name="passage"), embedder.embed("a", prompt_name="query")
    assert index.search("a", k=1)[0].score == pytest.approx(float((documents @ query).max()), abs=1e-5)


def test_texts_that_are_hard_to_store(model: str, tmp_path: Path) -> None:
    texts = ["", "line\nbreak", "漢字 😀", "lone \ud800 surrogate", '"quoted" \\ and \x00']
    index = build_index(texts, tmp_path / "i", model=model)
    assert {hit.text for hit in Index.open(tmp_path / "i").search("x", k=5)} == set(texts)
    assert build_index([], tmp_path / "none", model=model).search("x") == []
    assert index.add([]) == 0


# -- growing ---------------------------------------------------------------------------------------------------------


def test_many_small_additions_stay_few_files(model: str, tmp_path: Path) -> None:
    index = build_index(CORPUS[:1], tmp_path / "i", model=model)
    for text in CORPUS[1:100]:
        index.add([text])
    assert len(index.manifest.parts) <= 8
    assert len(list((tmp_path / "i").iterdir())) == 2 * len(index.manifest.parts) + 1
    assert [part.count for part in index.manifest.parts] == sorted(
        (p.count for p in index.manifest.parts), reverse=True
    )
    whole = build_index(CORPUS[:100], tmp_path / "j", model=model)
    for query in ("dog", "fox"):
        pairs = zip(index.search(query, k=20), whole.search(query, k=20), strict=True)
        assert all(abs(a.score - b.score) <= 1e-6 for a, b in pairs)
    assert sorted(hit.text for hit in index.search("dog", k=100)) == sorted(CORPUS[:100])


def test_parts_have_a_limit(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "MAX_PART_ROWS", 50)
    index = build_index(CORPUS[:120], tmp_path / "i", model=model, chunk_rows=10)
    assert max(part.count for part in index.manifest.parts) <= 50
    assert sorted(hit.text for hit in index.search("dog", k=120)) == sorted(CORPUS[:120])


def test_building_again_completes_or_refuses(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "i"
    build_index(CORPUS[:50], folder, model=model)
    before = (folder / "manifest.json").read_bytes()
    assert len(build_index(CORPUS[:50], folder, model=model)) == 50
    assert json.loads(before)["parts"] == json.loads((folder / "manifest.json").read_bytes())["parts"]
    assert len(build_index(CORPUS[:80], folder, model=model)) == 80
    with pytest.raises(DataError, match="holds 80 rows, and they are not the first 80"):
        build_index(CORPUS[1:90], folder, model=model)
    with pytest.raises(DataError, match="holds 80 rows already, and only 10 were given"):
        build_index(CORPUS[:10], folder, model=model)
    with pytest.raises(DataError, match="store was 'float32', is 'float16'"):
        build_index(CORPUS[:80], folder, model=model, store="float16")
    assert len(Index.open(folder)) == 80


def fail_after(count: int) -> Iterator[str]:
    yield from MANY[:count]
    raise RuntimeError("the source broke")


def test_what_broke_goes_on_where_it_was(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "i"
    # A small budget, so that little is read ahead of what is stored.
    embedder = Embedder(OpenModel(tiny("BertModel"), tokenizer(), budget=32))
    with pytest.raises(RuntimeError, match="the source broke"):
        build_index(fail_after(890), folder, model=embedder, chunk_rows=16)
    with pytest.raises(DataError, match="is not finished: it holds"):
        Index.open(folder)
    done = len(Index.open(folder, partial=True))
    assert 0 < done < 890
    assert done % 16 == 0
    index = build_index(MANY, folder, model=embedder, chunk_rows=16)
    assert len(Index.open(folder)) == 900
    with pytest.raises(RuntimeError):
        index.add(fail_after(890), chunk_rows=16)
    with pytest.raises(DataError, match="not the first"):
        Index.open(folder, model=model, partial=True).add(MANY[5:])
    assert Index.open(folder, model=model, partial=True).add(MANY) == 900
    vector = embedder.embed("dog")
    assert sorted(hit.text for hit in Index.open(folder).search(vector, k=1800)) == sorted(MANY * 2)
    with pytest.raises(RuntimeError):
        index.add(fail_after(3))  # nothing was stored: the index is as it was
    assert len(Index.open(folder)) == 1800
    assert index.add(["one more"]) == 1


@pytest.mark.parametrize("by", ["add", "build_index"])
@pytest.mark.parametrize("place", ["a part's texts", "a part's vectors", "the manifest"])
def test_an_addition_that_ran_out_of_disk_leaves_the_index_as_it_was(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, by: str
) -> None:
    """Some chunks were stored before, and old rows share a part with new ones by then."""
    folder = tmp_path / "i"
    index = build_index(CORPUS[:40], folder, model=model, chunk_rows=16)
    vector = index.embedder.embed("dog")
    before = index.search(vector, k=300)

    def more() -> None:
        if by == "add":
            assert Index.open(folder, model=model).add(CORPUS[40:], chunk_rows=16) == len(CORPUS) - 40
        else:
            build_index(CORPUS, folder, model=model, chunk_rows=16)

    calls = 0
    name = {"a part's texts": "fsync", "a part's vectors": "write_safetensors", "the manifest": "replace_file"}[place]
    owner = os if name == "fsync" else index_files
    real = getattr(owner, name)

    def full(*arguments: object, **keywords: object) -> object:
        nonlocal calls
        calls += 1
        if calls > (30 if name == "fsync" else 6):
            if name == "write_safetensors":
                Path(str(arguments[0])).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **keywords)

    monkeypatch.setattr(owner, name, full)
    with pytest.raises(DataError, match="cannot be written: No space left on device"):
        more()
    monkeypatch.undo()
    found = Index.open(folder)
    assert found.manifest.count > 40, "some of the new rows are stored"
    assert len(found) == 40
    assert found.search(vector, k=300) == before
    assert len(Index.open(folder, partial=True)) == found.manifest.count
    named = {f"{part.name}{end}" for part in found.manifest.parts for end in (".jsonl", ".safetensors")}
    if place != "the manifest":
        assert {path.name for path in folder.iterdir()} == {"manifest.json", *named}, "the disk is freed"
    more()
    assert sorted(hit.text for hit in Index.open(folder).search(vector, k=300)) == sorted(CORPUS)


KILLED = """
import sys
from bertie.search.index import build_index
corpus = [line.rstrip("\\n") for line in open(sys.argv[1], encoding="utf-8")]
print("ready", flush=True)
build_index(corpus, sys.argv[2], model=sys.argv[3], chunk_rows=20)
"""


def test_killed_and_started_again_it_is_whole(model: str, tmp_path: Path) -> None:
    """kill -9 at moments spread over the work, some inside a commit; each time it goes on, and nothing is lost."""
    texts = [f"{text} {n}" for n, text in enumerate(CORPUS * 8)]
    (tmp_path / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    folder = tmp_path / "i"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "corpus.txt"), str(folder), model]
    counts = [0]
    for moment in (0.05, 0.4, 0.25, 0.6, 0.33):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert process.stdout is not None
        process.stdout.readline()
        started, floor = time.monotonic(), counts[-1]
        while process.poll() is None and time.monotonic() - started < 20:  # until it has got on, and a moment longer
            if (folder / "manifest.json").is_file() and index_files.read_manifest(folder).count > floor:
                time.sleep(moment)
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        counts.append(index_files.read_manifest(folder).count)
        if counts[-1] == len(texts):
            break
    assert counts == sorted(counts)
    assert 0 < counts[1] < len(texts)
    index = build_index(texts, folder, model=model, chunk_rows=500)
    assert len(index) == len(texts)
    assert [hit.text for hit in sorted(index.search("dog", k=len(texts)), key=lambda hit: hit.position)] == texts
    assert len(list(folder.iterdir())) == 2 * len(index.manifest.parts) + 1
    vectors = torch.cat([part.clone() for _, part in index._vectors()]).numpy()
    assert np.abs(vectors[:100] - unit(index.embedder.embed(texts[:100]))).max() <= 1e-5


def test_a_reader_beside_a_writer_is_told_to_open_again(index: Index) -> None:
    reader = Index.open(index.folder)
    for text in CORPUS[:64]:
        index.add([text])  # joins parts, so that those the reader knows go away
    with pytest.raises(DataError, match="changed since it was opened") as caught:
        reader.search(index.embedder.embed("dog"))
    assert caught.value.remedy == "Open it again."
    assert len(Index.open(index.folder)) == 364


def test_two_writers_are_one_too_many(index: Index) -> None:
    with index_files.writing(index.folder), pytest.raises(DataError, match="written by another process"):
        index.add(["more"])


# -- damage and mistakes ---------------------------------------------------------------------------------------------


def flip(path: Path, where: int) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 0x10
    path.write_bytes(data)


def first(index: Index, suffix: str) -> Path:
    return next(index.folder.glob(f"part-*{suffix}"))


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_a_flipped_bit_is_noticed(index: Index, suffix: str) -> None:
    for where in (3, 200, -5):
        flip(first(index, suffix), where)
        with pytest.raises(DataError, match=f"{suffix} is damaged"):
            Index.open(index.folder).search("dog", k=300)
        flip(first(index, suffix), where)
    assert len(Index.open(index.folder).search("dog", k=300)) == 300


@pytest.mark.parametrize("suffix", [".safetensors", ".jsonl"])
def test_a_cut_or_missing_part_is_noticed(index: Index, suffix: str) -> None:
    path = first(index, suffix)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(DataError, match=rf"holds {len(whole) - 7} bytes; the index wrote {len(whole)}"):
        Index.open(index.folder)
    path.unlink()
    with pytest.raises(DataError, match="is missing"):
        Index.open(index.folder)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "holds a JSON list"),
        ("{}", "of format None"),
        ('{"format": "bertie-index", "version": 9}', "version 9"),
        ('{"format": "bertie-index", "version": 1}', "does not describe"),
        ('{"format": "bertie-index", "version": 1, "parts": [{"name": "../x"}]}', "does not describe"),
    ],
)
def test_a_bad_manifest_is_noticed(index: Index, content: str, told: str) -> None:
    (index.folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=told):
        Index.open(index.folder)


def test_a_manifest_that_leads_elsewhere(index: Index) -> None:
    path = index.folder / "manifest.json"
    values = json.loads(path.read_text())
    values["parts"][0]["name"] = "../outside"
    path.write_text(json.dumps(values))
    with pytest.raises(BertieError, match="only plain names"):
        Index.open(index.folder)


def test_another_model_is_refused(index: Index, model: str, tmp_path: Path) -> None:
    other = saved(tmp_path / "other", "BertModel", seed=7)
    with pytest.raises(DataError, match=r"built with another model .*other vectors") as caught:
        Index.open(index.folder, model=other)
    assert "the model it was built with" in str(caught.value.remedy)
    with pytest.raises(DataError, match="have 16 numbers, the index's 32"):
        Index.open(index.folder, model=Embedder(model, truncate_dim=16))
    with pytest.raises(DataError, match="built with another model"):
        Index.open(index.folder, model=Embedder(model, pooling="cls"))
    with pytest.raises(DataError, match="built with another model"):
        build_index(CORPUS, index.folder, model=other)
    copy = saved(tmp_path / "copy", "BertModel")
    assert Index.open(index.folder, model=copy).search("dog", k=1) == index.search("dog", k=1)
    assert Index.open(index.folder, model=model, dtype="bfloat16").search("dog", k=1)


def test_settings_travel_with_the_index(model: str, tmp_path: Path) -> None:
    index = build_index(CORPUS[:30], tmp_path / "i", model=Embedder(model, pooling=["cls", "max"], truncate_dim=40))
    assert index.manifest.dimension == 40
    assert Index.open(tmp_path / "i").search("dog", k=3) == index.search("dog", k=3)
    made = build_index(CORPUS[:5], tmp_path / "k", model=Embedder(tiny("BertModel"), tokenizer=tokenizer()))
    with pytest.raises(InputError, match="built with a model object"):
        Index.open(tmp_path / "k").search("dog")
    [found], [wanted] = Index.open(tmp_path / "k", model=model).search("dog", k=1), made.search("dog", k=1)
    assert found.id == wanted.id
    assert found.score == pytest.approx(wanted.score, abs=1e-5)  # one by the engine, one by the reference


def test_mistakes_are_told_with_their_remedy(index: Index, model: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("…")
    (tmp_path / "file").write_text("…")
    for call, told in (
        (lambda: index.search("dog", k=0), "k is 0; it must be a whole number of at least 1"),
        (lambda: index.search(np.ones(3, np.float32)), "32 finite numbers"),
        (lambda: index.search(np.full(32, np.nan, np.float32)), "32 finite numbers"),
        (lambda: index.search(["dog", 3]), "Text 1 is int 3"),
        (lambda: index.search(None), "The query is None"),
        (lambda: index.search(5), "The query is int 5"),
        (lambda: Index.open(tmp_path / "file"), "file is not a folder"),
        (lambda: Index.open(tmp_path / "nowhere"), "There is no folder"),
        (lambda: Index.open(tmp_path / "full"), "holds no index"),
        (lambda: build_index(CORPUS, tmp_path / "full", model=model), "is not empty and holds no index"),
        (lambda: build_index(CORPUS, tmp_path / "file", model=model), "cannot be made a folder"),
        (lambda: build_index(CORPUS, tmp_path / "x", model=model, store="int8"), "store='int8'"),
        (lambda: build_index(CORPUS, tmp_path / "x", model=model, function="manhattan"), "cannot rank by 'manhattan'"),
        (lambda: build_index("corpus.txt", tmp_path / "y", model=model), "is one string"),
        (lambda: build_index([{"text": "a"}, {"text": None}], tmp_path / "z", model=model), "item 2.*holds nothing"),
        (lambda: build_index(CORPUS, tmp_path / "w", model=model, chunk_rows=0), "chunk_rows is 0"),
    ):
        with pytest.raises((DataError, InputError), match=told) as caught:
            call()
        assert "\n" not in caught.value.cause
    skipping = build_index([{"text": "a"}, {"text": None}, {"text": "b"}], tmp_path / "v", model=model, skip_bad=True)
    assert [hit.id for hit in sorted(skipping.search("a", k=5), key=lambda hit: hit.position)] == ["0", "1"]
