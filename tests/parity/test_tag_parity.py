"""tag beside transformers' TokenClassificationPipeline on the same weights: equal where it is right, and where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bertie.tasks.tag import AGGREGATIONS, tag, tag_words
from token_models import LABELS, PROSE, saved, small_model, small_tokenizer

# Texts whose tokens are as long as what they stand for, as the pipeline's guess at words requires.
PLAIN_TEXTS = [
    PROSE,
    "Ada Lovelace wrote the first program",
    "Ada\tLovelace\n\nLondon",
    "New  York   is  it",
    "漢字東京 Ada漢字London",
    "adalondonwho and charlesbabbages, in the-café of O'Brien's",
    "€5 (five) -- and ☃ unknown",
    "Ännchen gefällt naïve cafés",
    "[MASK] in the text",
    "",
    " ",
    "Ada",
]


class Both:
    """One folder, read by their pipeline and by our task."""

    def __init__(self, folder: Path, labels: tuple[str, ...] = LABELS, *, positions: int = 256, seed: int = 0) -> None:
        model = small_model(
            "BertForTokenClassification", id2label=dict(enumerate(labels)), positions=positions, seed=seed
        )
        tokenizer = small_tokenizer()
        tokenizer.model_max_length = positions
        try:
            self.folder = saved(folder, model, tokenizer)
        finally:
            tokenizer.model_max_length = 512
        self.pipeline = transformers.TokenClassificationPipeline(
            model=transformers.BertForTokenClassification.from_pretrained(self.folder).eval(),
            tokenizer=transformers.BertTokenizerFast.from_pretrained(self.folder),
            device=torch.device("cpu"),
        )

    def theirs(self, text: Any, how: str, **options: Any) -> list[dict[str, Any]]:
        found = self.pipeline(text, aggregation_strategy=how, **options)
        assert isinstance(found, list)
        return found

    def force(self, logits: Any) -> None:
        """Both models' classifiers give every token the logits that `logits(token id)` says."""

        def hook(_: Any, inputs: Any, output: Any) -> Any:
            ids = self.latest.flatten().tolist()
            return torch.stack([torch.tensor(logits(i), dtype=torch.float32) for i in ids]).view(output.shape)

        from bertie.tasks.tag import Tagger

        for model in (self.pipeline.model, Tagger(self.folder).loaded.model):
            model.bert.register_forward_pre_hook(self._remember)
            model.classifier.register_forward_hook(hook)

    def _remember(self, _: Any, inputs: Any) -> None:
        self.latest = inputs[0]


@pytest.fixture(scope="module", params=[2, 6, 11])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("tagger"), seed=request.param)


def brief(found: list[Any]) -> list[tuple[str, int, int]]:
    """(label, start, end) of theirs or ours."""
    theirs = [(e.get("entity_group", e.get("entity")), e["start"], e["end"]) for e in found if isinstance(e, dict)]
    return theirs or [(e.label, e.start, e.end) for e in found]


def check_equal(theirs: list[dict[str, Any]], ours: list[Any]) -> None:
    assert brief(ours) == brief(theirs)
    for entity, other in zip(ours, theirs, strict=True):
        assert abs(entity.score - float(other["score"])) <= 1e-5
        if "index" in other:
            assert entity.index == other["index"] - 1  # theirs counts [CLS]


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("ignored", [("O",), (), ("O", "PER", "B-LOC")], ids=["O", "nothing", "more"])
def test_the_five_aggregations_are_equal(both: Both, how: Any, ignored: tuple[str, ...]) -> None:
    compared = 0
    for text in PLAIN_TEXTS:
        theirs = both.theirs(text, how, ignore_labels=list(ignored))
        check_equal(theirs, tag(text, model=both.folder, aggregation=how, ignore_labels=ignored))
        compared += len(theirs)
    assert compared > 15


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_plain_and_inside_only_labels_are_equal(tmp_path: Path, how: Any) -> None:
    for name, labels in (("plain", ("NOUN", "VERB", "DET", "PUNCT")), ("io", ("O", "I-PER", "I-LOC", "MISC"))):
        both = Both(tmp_path / name, labels, seed=3)
        for text in PLAIN_TEXTS:
            check_equal(both.theirs(text, how), tag(text, model=both.folder, aggregation=how))


def test_words_are_equal_to_their_first_token_with_split_input(both: Both) -> None:
    words = [word for word in PROSE.split() if word.isalpha()]
    theirs = both.pipeline([words], is_split_into_words=True, aggregation_strategy="none", ignore_labels=[])[0]
    first: dict[int, dict[str, Any]] = {}
    starts = [len(" ".join(words[:n])) + (n > 0) for n in range(len(words))]
    for entity in theirs:
        if entity["start"] in starts:
            first.setdefault(starts.index(entity["start"]), entity)
    for number, found in enumerate(tag_words(words, model=both.folder)):
        assert found.label == first[number]["entity"]
        assert abs(found.score - float(first[number]["score"])) <= 1e-5


# -- where theirs is not right ---------------------------------------------------------------------------------------


def test_their_words_are_guessed_by_length(tmp_path: Path) -> None:
    """A token that is shorter than its text (here: an accent was stripped) is taken for the rest of the word before."""
    both = Both(tmp_path, ("O", "B-PER", "B-LOC"))
    vocab = small_tokenizer().get_vocab()
    given = {vocab["naive"]: 1, vocab["london"]: 2}
    both.force(lambda token: [9.0 * (given.get(token, 0) == n) for n in range(3)])
    text = "wrote nai\u0308ve London"
    for how in ("first", "average", "max"):
        ours = tag(text, model=both.folder, aggregation=how)
        assert [(e.label, e.text) for e in ours] == [("PER", "nai\u0308ve"), ("LOC", "London")]
    assert [text[e["start"] : e["end"]] for e in both.theirs(text, "first")] == ["London"]
    composed = "wrote naïve London"  # the same letter as one character: both are right
    assert [composed[e["start"] : e["end"]] for e in both.theirs(composed, "first")] == ["naïve", "London"]


def test_their_end_and_single_labels_are_not_read(tmp_path: Path) -> None:
    labels = ("O", "B-PER", "I-PER", "E-PER", "S-PER")
    both = Both(tmp_path, labels)
    vocab = small_tokenizer().get_vocab()
    given = {vocab["ada"]: 1, vocab["lovelace"]: 3, vocab["london"]: 4}
    both.force(lambda token: [9.0 * (given.get(token, 0) == n) for n in range(len(labels))])
    text = "ada lovelace wrote london london"
    ours = tag(text, model=both.folder)
    assert [e.text for e in ours] == ["ada lovelace", "london", "london"]
    assert [text[e["start"] : e["end"]] for e in both.theirs(text, "simple")] == ["ada", "lovelace", "london london"]


def test_their_labels_with_a_hyphen_are_cut(tmp_path: Path) -> None:
    both = Both(tmp_path, ("O", "creative-work"))
    vocab = small_tokenizer().get_vocab()
    both.force(lambda token: [0.0, 9.0 if token == vocab["ada"] else -9.0])
    assert [e["entity_group"] for e in both.theirs("ada wrote", "simple")] == ["work"]
    assert [e.label for e in tag("ada wrote", model=both.folder)] == ["creative-work"]


def test_they_truncate_without_a_stride_and_cut_entities_with_one(tmp_path: Path) -> None:
    both = Both(tmp_path, positions=16)
    vocab = small_tokenizer().get_vocab()
    inside = {vocab["ada"], vocab["lovelace"]}
    both.force(lambda token: [0.0, 0.0, 9.0 if token in inside else -9.0, 0.0, 0.0])
    text = "wrote " * 10 + "ada lovelace " * 12 + "wrote " * 10 + "ada"
    (long, last) = tag(text, model=both.folder, stride=4)
    assert (long.text, last.text) == (("ada lovelace " * 12).strip(), "ada")
    assert max(e["end"] for e in both.theirs(text, "simple")) < long.end  # the rest of the text was not read
    cut = both.theirs(text, "simple", stride=4)
    assert len(cut) > 2
    assert max(e["end"] - e["start"] for e in cut) < len(long.text)
