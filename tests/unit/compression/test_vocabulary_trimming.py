"""Vocabularies trimmed to a corpus: what is kept is read and answered as before, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import SENTENCES, tiny, tokenizer

import bertie
from bertie.compression.vocabulary import trim, with_tokens
from bertie.errors import InputError
from bertie.text import BertTokenizer

CORPUS = SENTENCES[:4]
WORDS = sorted({word for text in CORPUS for word in text.split()})


def test_texts_of_the_corpus_are_cut_as_before_and_the_rest_is_spelled_out() -> None:
    old = tokenizer()
    found = trim(old, CORPUS)
    assert len(found.tokenizer) == len(found.kept) < len(old)
    for text in CORPUS:
        assert found.tokenizer.tokenize(text) == old.tokenize(text)
        assert [found.kept[i] for i in found.tokenizer(text)["input_ids"]] == old(text)["input_ids"]
    assert "[UNK]" not in found.tokenizer.tokenize("zebra Wetter")
    assert found.tokenizer.tokenize("漢字") == ["[UNK]", "[UNK]"]
    assert found.tokenizer.special_tokens_map == old.special_tokens_map


@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_every_order_of_the_corpus_words_is_cut_as_before(words: list[str]) -> None:
    old, found = tokenizer(), trim(tokenizer(), CORPUS)
    text = " ".join(words)
    assert found.tokenizer.tokenize(text) == old.tokenize(text)


def test_tokenizer_files_agree_with_each_other_and_with_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    old = BertTokenizer.from_pretrained(_saved(tmp_path / "old"))
    old.add_tokens(["<new>"])
    found = trim(old, CORPUS).tokenizer
    found.save_pretrained(tmp_path / "new")
    text = f"{CORPUS[1]} <new>"
    wanted = found(text)["input_ids"]
    assert wanted == BertTokenizer.from_pretrained(tmp_path / "new")(text)["input_ids"]
    assert wanted == BertTokenizer(str(tmp_path / "new" / "vocab.txt"))(CORPUS[1])["input_ids"][:-1] + wanted[-2:]
    for kind in (transformers.BertTokenizer, transformers.BertTokenizerFast):
        theirs = kind.from_pretrained(tmp_path / "new")
        assert theirs(text)["input_ids"] == wanted
        assert len(theirs) == len(found)


def _saved(folder: Path) -> Path:
    tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["BertModel", "BertForSequenceClassification", "BertForMaskedLM"])
def test_answers_on_kept_tokens_keep_their_bits(name: str, tmp_path: Path) -> None:
    model, found = tiny(name), trim(tokenizer(), CORPUS)
    smaller = with_tokens(model, found.kept)
    assert smaller.config.vocab_size == len(found.kept)
    for text in CORPUS:
        before, after = (torch.tensor([t(text)["input_ids"]]) for t in (tokenizer(), found.tokenizer))
        with torch.no_grad():
            wanted, got = model(before)[0], smaller(after)[0]
            assert torch.equal(model.base_model(before).last_hidden_state, smaller.base_model(after).last_hidden_state)
        if name == "BertForMaskedLM":  # logits of the kept tokens; a matmul of another width may round differently
            torch.testing.assert_close(got, wanted[..., list(found.kept)], atol=1e-6, rtol=0)
        else:
            assert torch.equal(got, wanted)
    smaller.save_pretrained(tmp_path)
    found.tokenizer.save_pretrained(tmp_path)
    assert type(bertie.load(tmp_path)).__name__ == name


def test_untied_heads_are_trimmed_too() -> None:
    model, found = tiny("BertForMaskedLM", tie_word_embeddings=False), trim(tokenizer(), CORPUS)
    smaller = with_tokens(model, found.kept)
    decoder = smaller.get_output_embeddings()
    assert decoder.weight is not smaller.get_input_embeddings().weight
    assert torch.equal(decoder.weight, model.get_output_embeddings().weight[list(found.kept)])
    assert torch.equal(decoder.bias, model.get_output_embeddings().bias[list(found.kept)])


@pytest.mark.parametrize("corpus", [[], [""], ["   ", ""]])
def test_a_corpus_without_text_is_refused(corpus: list[str]) -> None:
    with pytest.raises(InputError, match="vocab_from holds no text"):
        trim(tokenizer(), corpus)


def test_padding_may_have_another_id_afterwards() -> None:
    tokens = ["unused", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "fox"]
    old = BertTokenizer(tokens)
    found = trim(old, ["the dog"])
    assert found.kept == (1, 2, 3, 4, 5, 6, 7)
    model = tiny("BertModel", vocab_size=9, pad_token_id=1)
    smaller = with_tokens(model, found.kept)
    assert smaller.config.pad_token_id == found.tokenizer.pad_token_id == 0


@pytest.mark.slow
def test_multilingual_bert_down_to_english_and_chinese(shared_data: Path) -> None:
    old = BertTokenizer.from_pretrained(shared_data / "vocabs" / "bert-base-multilingual-cased", do_lower_case=False)
    corpus: list[str] = []
    for language in ("en", "zh"):
        file = shared_data / "qa" / "xquad" / f"xquad.{language}.json"
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
            corpus += [paragraph["context"] for paragraph in article["paragraphs"]]
    found = trim(old, corpus)
    before, after = old.encode_ids(corpus), found.tokenizer.encode_ids(corpus)
    assert [[found.kept[i] for i in row] for row in after] == before
    others = 86_600_000  # parameters that are no word's: of 178 million
    assert 1 - (len(found.kept) * 768 + others) / (len(old) * 768 + others) >= 0.45
    model = tiny("BertModel", vocab_size=len(old))
    smaller = with_tokens(model, found.kept)
    for one, two in zip(before[:20], after[:20], strict=True):
        with torch.no_grad():
            wanted, got = (m(torch.tensor([ids[:48]])).last_hidden_state for m, ids in ((model, one), (smaller, two)))
        assert torch.equal(wanted, got)
