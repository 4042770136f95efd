"""answer beside transformers 4.57.6: Google's rules as it carries them (`compute_predictions_logits`), its SQuAD scores
and its question-answering pipeline; equal where that is right, and where not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.data.metrics import squad_metrics
from transformers.data.processors.squad import SquadExample, SquadFeatures, SquadResult

from bertie.data.squad import Answer, Question, read_squad
from bertie.data.squad_scoring import best_threshold, score_squad
from bertie.tasks.answer import Answerer, Decoded, SpanRules, answer, find_spans
from bertie.text import BertTokenizer, WindowedDocument, split_document
from token_models import PROSE, saved, small_model, small_tokenizer

Logits = list[tuple[np.ndarray, np.ndarray]]


def synthetic_questions(number: int) -> list[Question]:
    """Questions whose answers are some words of a text, or that have none."""
    rng = random.Random(1)
    words = PROSE.split()
    questions = []
    for index in range(number):
        context = " ".join(rng.choice(words) for _ in range(rng.randint(3, 120)))
        places = [i for i in range(len(context)) if i == 0 or context[i - 1] == " "]
        start = rng.choice(places)
        text = " ".join(context[start:].split(" ")[: rng.randint(1, 5)])
        answers = (Answer(text, start),) if rng.random() < 0.7 else ()
        questions.append(Question(str(index), "", "who wrote it", context, answers, not answers))
    return questions


def logits_of_a_reader(document: WindowedDocument, question: Question, seed: int) -> Logits:
    """Like a trained model's: noise, with peaks near where an answer starts and ends, or on [CLS]."""
    rng = np.random.default_rng(seed)
    logits = []
    for window in document.windows:
        start, end = rng.normal(-2, 1.5, (2, len(window)))
        start[0] = end[0] = rng.normal(1, 2)
        for found in question.answers:
            for token in range(window.start, window.end):
                at = document.offsets[token]
                start[token + window.shift] += rng.normal(6, 2) * (abs(at[0] - found.start) < 3)
                end[token + window.shift] += rng.normal(6, 2) * (abs(at[1] - found.start - len(found.text)) < 3)
        if not question.answers:
            start[0], end[0] = start[0] + rng.normal(3, 2), end[0] + rng.normal(3, 2)
        logits.append((start.astype(np.float32), end.astype(np.float32)))
    return logits


class GooglesJoiner:
    """Joins word pieces as run_squad.py does, where a leading ## goes too.

    With transformers' own tokenizer it stays, so that an answer which begins inside a word cannot be found again in its
    text, and is widened to whole words.
    """

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens).replace(" ##", "").replace("##", "")


class Compared:
    """The same questions, windows and logits for Google's rules and for ours."""

    def __init__(
        self, tokenizer: BertTokenizer, questions: Sequence[Question], *, max_length: int, stride: int
    ) -> None:
        self.questions = questions
        self.tokenizer = tokenizer
        self.joiner: Any = GooglesJoiner()
        self.documents = [
            split_document(tokenizer, q.context, question=q.question, max_length=max_length, stride=stride)
            for q in questions
        ]
        self.logits = [
            logits_of_a_reader(document, question, seed)
            for seed, (document, question) in enumerate(zip(self.documents, questions, strict=True))
        ]

    def google(self, folder: Path, *, with_null: bool, threshold: float) -> tuple[dict[str, str], dict[str, Any]]:
        """Predictions by id, and the n-best."""
        examples = [SquadExample(q.id, q.question, q.context, None, None, "") for q in self.questions]
        features, results = [], []
        for index, (example, document, logits) in enumerate(zip(examples, self.documents, self.logits, strict=True)):
            for window, (start, end) in zip(document.windows, logits, strict=True):
                tokens = range(window.start, window.end)
                results.append(SquadResult(len(features), start.tolist(), end.tolist()))
                features.append(
                    SquadFeatures(
                        input_ids=list(window.input_ids),
                        attention_mask=None,
                        token_type_ids=None,
                        cls_index=0,
                        p_mask=None,
                        example_index=index,
                        unique_id=len(features),
                        paragraph_len=len(tokens),
                        token_is_max_context={
                            t + window.shift: document.is_max_context(window.index, t) for t in tokens
                        },
                        tokens=self.tokenizer.convert_ids_to_tokens(list(window.input_ids)),
                        token_to_orig_map={
                            t + window.shift: example.char_to_word_offset[document.offsets[t][0]] for t in tokens
                        },
                        start_position=0,
                        end_position=0,
                        is_impossible=False,
                    )
                )
        n_best = folder / "n_best.json"
        predictions = squad_metrics.compute_predictions_logits(
            examples,
            features,
            results,
            n_best_size=20,
            max_answer_length=30,
            do_lower_case=True,
            output_prediction_file=None,
            output_nbest_file=str(n_best),
            output_null_log_odds_file=None,
            verbose_logging=False,
            version_2_with_negative=with_null,
            null_score_diff_threshold=threshold,
            tokenizer=self.joiner,
        )
        return dict(predictions), json.loads(n_best.read_text(encoding="utf-8"))

    def ours(self, *, with_null: bool, beam: int | None) -> dict[str, Decoded]:
        rules = SpanRules(n_best=20, max_tokens=30, beam=beam)
        return {
            question.id: find_spans(document, logits, rules, null=with_null)
            for question, document, logits in zip(self.questions, self.documents, self.logits, strict=True)
        }

    def texts(self, decoded: dict[str, Decoded], *, with_null: bool, threshold: float) -> dict[str, str]:
        texts = {}
        for document, (identity, found) in zip(self.documents, decoded.items(), strict=True):
            best = found.spans[0]
            refused = with_null and found.null_logit - best.logit > threshold
            texts[identity] = "" if refused else document.quote(best.first, best.last)
        return texts


def check_same_as_google(compared: Compared, folder: Path) -> int:
    """Equal with `beam=20`; without a beam, on all questions but those whose best span the beam loses: how many."""
    lost: set[str] = set()
    examples = [
        SquadExample(q.id, q.question, q.context, None, None, "", [{"text": a.text} for a in q.answers])
        for q in compared.questions
    ]
    for with_null, threshold in ((False, 0.0), (True, 0.0), (True, -3.5)):
        theirs, n_best = compared.google(folder, with_null=with_null, threshold=threshold)
        scored = squad_metrics.squad_evaluate(examples, theirs)
        assert 5 < scored["exact"] < 95  # neither hopeless nor trivial
        for beam in (20, None):
            decoded = compared.ours(with_null=with_null, beam=beam)
            texts = compared.texts(decoded, with_null=with_null, threshold=threshold)
            for identity, found in decoded.items():
                best = next(entry for entry in n_best[identity] if entry["text"])
                theirs_logit = best["start_logit"] + best["end_logit"]
                if found.spans[0].logit > theirs_logit + 1e-6:  # their beam did not hold the best span
                    assert beam is None
                    texts[identity] = theirs[identity]
                    lost.add(identity)
                else:
                    assert found.spans[0].logit == pytest.approx(theirs_logit)
            # Verdicts and scores are the same. `get_final_text` projects onto whitespace words; ours are characters.
            assert [not text for text in texts.values()] == [not text for text in theirs.values()]
            score = score_squad(compared.questions, texts)
            assert score.exact == pytest.approx(scored["exact"])
            assert score.f1 == pytest.approx(scored["f1"])
    return len(lost)


def test_em_and_f1_are_googles_on_the_same_logits(tmp_path: Path) -> None:
    compared = Compared(small_tokenizer(), synthetic_questions(300), max_length=48, stride=16)
    assert max(len(document.windows) for document in compared.documents) > 3
    assert check_same_as_google(compared, tmp_path) <= 2


def test_em_and_f1_are_googles_on_real_questions(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = BertTokenizer.from_pretrained(shared_data / "vocabs" / "bert-base-uncased")
    questions = [q for n, q in enumerate(read_squad(shared_data / "qa" / "squad2_half_dev.json")) if n % 24 == 0]
    assert len(questions) > 250
    assert check_same_as_google(Compared(tokenizer, questions, max_length=160, stride=64), tmp_path) == 0


def test_their_joining_of_word_pieces_widens_answers_that_begin_inside_a_word(tmp_path: Path) -> None:
    compared = Compared(
        small_tokenizer(), [Question("q", "", "who", "it is wroteada", (), False)], max_length=48, stride=16
    )
    (document,), (window,) = compared.documents, compared.documents[0].windows
    places = np.arange(len(window)) - window.shift
    first = document.offsets.index((11, 13))  # "ad" of "wroteada"
    compared.logits = [[(np.where(places == first, 9.0, 0.0), np.where(places == first + 1, 9.0, 0.0))]]
    found = compared.texts(compared.ours(with_null=False, beam=20), with_null=False, threshold=0.0)
    assert found == {"q": "ada"}
    assert compared.google(tmp_path, with_null=False, threshold=0.0)[0] == found
    compared.joiner = transformers.BertTokenizer(_vocabulary(tmp_path))
    assert compared.google(tmp_path, with_null=False, threshold=0.0)[0] == {"q": "wroteada"}


def _vocabulary(folder: Path) -> str:
    vocabulary = small_tokenizer().get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)), encoding="utf-8")
    return str(folder / "vocab.txt")


def test_scores_and_thresholds_are_those_of_the_official_rules() -> None:
    rng = random.Random(2)
    words = ["the", "a", "an", "one", "Two", "THREE", "4.", "five's,", "“six”", "seven"]

    def some(longest: int) -> str:
        return " ".join(rng.choice(words) for _ in range(rng.randint(0, longest)))

    for _ in range(60):
        questions = []
        for number in range(rng.randint(2, 15)):
            golds = [text for text in (some(4) for _ in range(rng.randint(0, 3))) if text]
            answers = tuple(Answer(text, 0) for text in golds)
            questions.append(Question(str(number), "", "?", " ".join(golds), answers, not golds))
        predictions = {q.id: some(4) for q in questions}
        differences = {q.id: rng.gauss(1, 2) for q in questions}
        threshold = rng.gauss(1, 2)
        examples = [
            SquadExample(q.id, q.question, q.context, None, None, "", [{"text": a.text} for a in q.answers])
            for q in questions
        ]
        theirs = squad_metrics.squad_evaluate(examples, predictions, differences, threshold)
        ours = score_squad(questions, predictions, null_differences=differences, threshold=threshold)
        assert (ours.exact, ours.f1) == pytest.approx((theirs["exact"], theirs["f1"]))
        assert (ours.has_answer_f1, ours.no_answer_f1) == (
            pytest.approx(theirs.get("HasAns_f1")),
            pytest.approx(theirs.get("NoAns_f1")),
        )
        # Theirs counts any text for an unanswerable question as wrong, "the" too, though it scores it as right.
        if all(squad_metrics.normalize_answer(text) or not text for text in predictions.values()):
            for metric in ("exact", "f1"):
                best = best_threshold(questions, predictions, differences, metric=metric)
                assert best.score == pytest.approx(theirs[f"best_{metric}"])


# -- the pipeline ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = small_model("BertForQuestionAnswering", positions=512)
    with torch.no_grad():
        model.qa_outputs.weight.mul_(20)  # as sure of itself as a trained one
    return saved(tmp_path_factory.mktemp("reader"), model)


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Any:
    return transformers.QuestionAnsweringPipeline(
        model=transformers.BertForQuestionAnswering.from_pretrained(folder).eval(),
        tokenizer=transformers.BertTokenizerFast.from_pretrained(folder),
        device=torch.device("cpu"),
    )


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_the_best_answers_in_one_window_are_the_pipelines(folder: Path, pipeline: Any) -> None:
    for question in synthetic_questions(40):
        theirs = pipeline(
            question=question.question,
            context=question.context,
            align_to_words=False,
            max_answer_len=30,
            max_seq_len=384,
        )
        ours = answer(question.question, question.context, model=folder, no_answer=False).best
        assert (ours.text.lower(), ours.start, ours.end) == (theirs["answer"].lower(), theirs["start"], theirs["end"])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_their_scores_of_several_windows_are_no_probabilities(folder: Path, pipeline: Any) -> None:
    """Each window's scores sum to one by themselves, and those of equal texts in several windows are added up."""
    ada = small_tokenizer().convert_tokens_to_ids("ada")
    seen = []

    def remember(_: Any, inputs: Any) -> None:
        seen[:] = inputs[:1]

    def prefer(_: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return (seen[0] == ada)[..., None].float().expand_as(output) * 20

    context = ("ada " + "wrote it " * 8) * 5
    models = (pipeline.model, Answerer(folder).loaded.model)
    hooks = [model.bert.register_forward_pre_hook(remember) for model in models]
    hooks += [model.qa_outputs.register_forward_hook(prefer) for model in models]
    try:
        theirs = pipeline(question="who", context=context, max_seq_len=24, doc_stride=4)
        ours = answer("who", context, model=folder, max_length=24, stride=4, max_answer_tokens=15, n_best=20)
    finally:
        for hook in hooks:
            hook.remove()
    assert theirs["answer"] == ours.best.text == "ada"
    assert theirs["score"] > 2
    assert sum(found.score for found in ours.candidates) + ours.no_answer_score <= 1 + 1e-9
    # "ada" stands there five times, all as likely; what is given is one of them.
    assert ours.best.score == pytest.approx(1 / 5, abs=1e-3)
