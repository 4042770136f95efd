"""Scores of whole texts: text-embeddings-inference's /rerank and /predict, Cohere's /v1/rerank, and our /v1/classify
and /v1/next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bertie.answers import Classification, Prediction
from bertie.model import BertForNextSentencePrediction, BertForSequenceClassification
from bertie.running.open import open_model
from bertie.running.rows import Cuts, Row, Sliding, TextOrPair, split_text_or_pair
from bertie.serve import schemas
from bertie.serve.bodies import LABEL_BYTES
from bertie.serve.embedding import EmbedRows, EmbedRunner, Floats
from bertie.serve.failures import empty, invalid
from bertie.serve.models import Place, ServedModel, Source
from bertie.serve.queues import Lane
from bertie.serve.routes.embed import cut_rows
from bertie.serve.routes.rows import run_rows
from bertie.serve.schemas import as_item, as_list
from bertie.serve.service import AnyRoute, Call, Route, text_size
from bertie.serve.settings import Truncation
from bertie.tasks.classify import Function, averaged, best_first, label_names, score_function, scores
from bertie.tasks.rerank import Reranker, is_colbert
from bertie.tasks.similarity import unit

Judged = tuple[Tensor, list[int]]  # [windows, labels] logits of a text, and the windows' weights

_CHARACTER_BYTES = 6  # of JSON, at most
_colbert = lru_cache(maxsize=64)(is_colbert)  # a look into a file


class LogitsRunner:
    """A head that judges whole rows: a classifier, a cross-encoder, next sentence. Answers are rows of logits."""

    def __init__(self, task: str, source: Source, place: Place) -> None:
        kind = BertForNextSentencePrediction if task == "next" else BertForSequenceClassification
        self.loaded = open_model(source, kind, task=task, device=place.device, dtype=place.dtype)
        self.lane = Lane(task, self._run)
        self.config = self.loaded.model.config
        self.names = label_names(self.config)

    def warm_up(self) -> None:
        pass

    def items(
        self,
        first: int,
        texts: Sequence[TextOrPair],
        *,
        truncation: Truncation,
        cuts: Cuts,
        long: str = "truncate",
        sliding: Sliding = "longer",
    ) -> list[tuple[list[Row], list[int]]]:
        """For each text its rows and their weights. `first` is the number of the first text in its request."""
        tokenizer, limit = self.loaded.tokenizer, self.loaded.max_length
        if long == "windows":
            found = [split_text_or_pair(tokenizer, text, max_length=limit, sliding=sliding) for text in texts]
            cuts.count(sum(one.is_cut for one in found), len(found))
            return [(one.rows, one.weights) for one in found]
        rows = cut_rows(self.loaded, first, texts, cuts, refuse=truncation == "error")
        return [([row], [1]) for row in rows]

    @torch.inference_mode()
    def _run(self, rows: list[Row]) -> list[Floats]:
        logits: Floats = self.loaded.run(rows).logits.float().cpu().numpy()
        return list(logits)

    @cached_property
    def rank_rule(self) -> tuple[int, Function]:
        """The label that means relevance, and how its logit becomes a score."""
        return self.rank_by(None)

    def rank_by(self, label: str | None) -> tuple[int, Function]:
        """The same by the name of a label."""
        ranker = Reranker(self.loaded, relevant=label)
        return ranker.label, ranker.function

    def function(self, multi_label: bool | None) -> Function:
        return score_function(self.config, multi_label)


async def item_logits(
    call: Call,
    model: ServedModel,
    runner: LogitsRunner,
    items: Sequence[TextOrPair],
    *,
    truncation: Truncation,
    long: str = "truncate",
    sliding: Sliding = "longer",
) -> list[Judged]:
    """For every item `[windows, labels]` logits and the windows' weights."""
    how = partial(runner.items, truncation=truncation, long=long, sliding=sliding, cuts=call.cuts)
    sizes = list(map(text_size, items))
    prepared = await call.each(items, how, sizes=sizes)
    rows = [row for own, _ in prepared for row in own]
    answers = iter(await call.compute(model, runner.lane, rows, [len(row) for row in rows]))

    def stacked(_: int, some: Sequence[tuple[list[Row], list[int]]]) -> list[Judged]:
        return [(torch.from_numpy(np.stack(list(islice(answers, len(own))))), weights) for own, weights in some]

    return await call.each(prepared, stacked, sizes=sizes)


# -- how well texts answer a query ------------------------------------------------------------------------------------


async def relevance(
    call: Call,
    name: str | None,
    query: str,
    texts: Sequence[str],
    *,
    truncation: Truncation,
    long: str,
    raw: bool = False,
    relevant: str | None = None,
) -> tuple[ServedModel, list[float]]:
    """A score for every text: by a cross-encoder where there is one, otherwise by cosine of embeddings.

    `relevant` names the label of a classifier to rank by, where its labels do not say it themselves.
    """
    pairs = [(query, text) for text in texts]
    call.check_texts(pairs, what="texts")
    models = call.service.models
    task = "rerank" if relevant is None else "classify"
    names = [model.name for model in models.all if task in model.runners]
    if relevant is None and name is not None and name not in names:
        _refuse_classifier(call, name)
    if not names or (name is not None and name not in names and models.knows(name)):
        model = models.find("embed", name)
        return model, await _cosines(call, model, query, texts, truncation, long)
    model, runner = call.find(task, name, LogitsRunner)
    label, function = runner.rank_rule if relevant is None else runner.rank_by(relevant)
    judged = await item_logits(call, model, runner, pairs, truncation=truncation, long=long, sliding="second")
    how: Function = "none" if raw else function

    def best(_: int, some: Sequence[Judged]) -> list[float]:
        # A document is as good as its best window.
        return [float(scores(logits, how)[:, label].max()) for logits, _ in some]

    return model, await call.each(judged, best, sizes=list(map(len, texts)))


def _refuse_classifier(call: Call, name: str) -> None:
    """A classifier whose labels do not mean relevance would rank by whatever it was trained for."""
    models = call.service.models
    judges = models.get(name).get("classify", LogitsRunner) if models.knows(name) else None
    if judges is not None:
        labels = ", ".join(repr(label) for label in judges.names[:6])
        raise invalid(
            f"{name} is a classifier with the labels {labels}, none of which means that a document is relevant. "
            "Use a reranker, or name the label to rank by: `relevant`."
        )


async def _cosines(
    call: Call, model: ServedModel, query: str, texts: Sequence[str], truncation: Truncation, long: str
) -> list[float]:
    """Query and documents each with the prompt that the checkpoint has for them."""
    runner = call.runner(model, "embed", EmbedRunner)
    if _colbert(runner.embedder.loaded.folder):
        raise invalid(
            f"{model.name} is a ColBERT, which ranks by the vectors of all tokens; the server has one for each text. "
            "Use bertie.rerank, or serve another reranker."
        )
    how = partial(runner.rows, truncation=truncation, long=long, cuts=call.cuts)
    asked = await call.prepare([query], how, [query], prompt_name="query")
    rows = await call.prepare(texts, how, texts, prompt_name=runner.embedder.document_prompt_name)
    both = EmbedRows.of_pieces(EmbedRows.joined([asked, rows]), raw=False)
    answers = await call.compute(model, runner.vectors, both, both.lengths.tolist())

    def compared() -> list[float]:
        about, vectors = runner.join(asked, answers[: len(asked)]), runner.join(rows, answers[len(asked) :])
        found: list[float] = (unit(vectors) @ unit(about)[0]).tolist()
        return found

    return await call.prepare(texts, compared)


async def tei_rerank(call: Call, body: schemas.TeiRerankRequest) -> list[schemas.Rank]:
    if not body.texts:
        raise empty("texts")
    _reserve_ranks(call, body.texts if body.return_text else [""] * len(body.texts))
    _, found = await relevance(
        call, body.model, body.query, body.texts, truncation=call.tei_truncation(body), long="truncate",
        raw=body.raw_scores, relevant=body.relevant,
    )  # fmt: skip
    ranks = [schemas.Rank(index, score) for index, score in enumerate(found)]
    if body.return_text:
        for rank in ranks:
            rank.text = body.texts[rank.index]
    return sorted(ranks, key=lambda rank: -rank.score)


async def cohere_rerank(call: Call, body: schemas.CohereRerankRequest) -> schemas.CohereRerankAnswer:
    if not body.documents:
        raise empty("documents")
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    _reserve_ranks(call, texts if body.return_documents else [""] * len(texts))
    model, found = await relevance(
        call, body.model, body.query, texts, truncation=call.truncation(asked=None), long="windows",
        relevant=body.relevant,
    )  # fmt: skip
    ranks = [schemas.CohereRank(index, score) for index, score in enumerate(found)]
    if body.return_documents:
        for rank in ranks:
            rank.document = {"text": texts[rank.index]}
    best = sorted(ranks, key=lambda rank: -rank.relevance_score)[: body.top_n]
    meta: dict[str, dict[str, str | int]] = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return schemas.CohereRerankAnswer(call.id, best, model.name, call.usage(), meta)


def _reserve_ranks(call: Call, texts: Sequence[str]) -> None:
    call.reserve(sum(LABEL_BYTES + _CHARACTER_BYTES * len(text) for text in texts))


# -- labels -----------------------------------------------------------------------------------------------------------


async def labelled(
    call: Call, model: ServedModel, runner: LogitsRunner, items: Sequence[TextOrPair], function: Function,
    top_k: int | None, *, truncation: Truncation, long: str = "truncate",
) -> list[list[Prediction]]:  # fmt: skip
    judged = await item_logits(call, model, runner, items, truncation=truncation, long=long)

    def judge(logits: torch.Tensor, weights: list[int]) -> Classification:
        return best_first(runner.names, scores(averaged(logits, weights), function).tolist(), top_k)

    def shown(_: int, some: Sequence[Judged]) -> list[list[Prediction]]:
        return [show_labels(judge(*one)) for one in some]

    return await call.each(judged, shown, sizes=list(map(text_size, items)))


def show_labels(one: Classification) -> list[Prediction]:
    return [Prediction(label, score) for label, score in one.labels]


def _reserve_labels(call: Call, names: Sequence[str], count: int, top_k: int | None = None) -> None:
    longest = sorted((LABEL_BYTES + _CHARACTER_BYTES * len(name) for name in names), reverse=True)
    call.reserve(count * sum(longest[:top_k]), "Send fewer texts at once, or lower top_k.")


async def predict(call: Call, body: schemas.PredictRequest) -> list[Prediction] | list[list[Prediction]]:
    single, items = _predict_inputs(body.inputs)
    call.check_texts(items)
    model, runner = call.find("classify", body.model, LogitsRunner)
    _reserve_labels(call, runner.names, len(items))
    function: Function = "none" if body.raw_scores else runner.function(None)
    found = await labelled(call, model, runner, items, function, None, truncation=call.tei_truncation(body))
    return found[0] if single else found


def _predict_inputs(given: str | list[str | list[str]]) -> tuple[bool, list[TextOrPair]]:
    """A text or a pair of texts is one input; a list of lists of one or two is a batch."""
    if isinstance(given, str):
        return True, [given]
    if not given:
        raise empty()
    kinds = set(map(type, given))
    if kinds == {str}:
        if len(given) > 2:
            raise invalid("`inputs` takes a text, a pair of texts, or a batch [[text], [text, second text], …].")
        return True, [as_item(cast(list[str], given))]
    if kinds != {list} or not all(1 <= len(one) <= 2 for one in given):
        raise invalid("A batch is a list of [text] and [text, second text].")
    return False, [as_item(one) for one in given]


async def classify(call: Call, body: schemas.ClassifyRequest) -> schemas.Answer[list[Prediction]]:
    items = [as_item(one) for one in as_list(body.inputs)]
    call.check_texts(items)
    if body.labels is not None:
        return await _zero_shot(call, body, body.labels, items)
    model, runner = call.find("classify", body.model, LogitsRunner)
    top_k, function = body.top_k or 1, runner.function(body.multi_label)
    _reserve_labels(call, runner.names, len(items), top_k)
    truncation = call.truncation(asked=None)
    results = await labelled(call, model, runner, items, function, top_k, truncation=truncation, long=body.long)
    return schemas.Answer(model.name, results, call.usage())


async def _zero_shot(
    call: Call, body: schemas.ClassifyRequest, labels: list[str], items: Sequence[TextOrPair]
) -> schemas.Answer[list[Prediction]]:
    if set(map(type, items)) != {str}:
        raise invalid("With `labels`, inputs are single texts.")
    options: dict[str, object] = {"labels": tuple(labels), "multi_label": bool(body.multi_label), "long": body.long}
    options |= {name: value for name in ("top_k", "hypothesis") if (value := getattr(body, name))}
    _reserve_labels(call, labels, len(items), body.top_k)
    return await run_rows(call, "zero_shot", body.model, items, options, show_labels)


async def next_sentence(call: Call, body: schemas.NextRequest) -> schemas.Answer[schemas.NextOut]:
    call.check_texts(body.inputs)
    call.reserve(len(body.inputs) * LABEL_BYTES)
    model, runner = call.find("next", body.model, LogitsRunner)
    judged = await item_logits(call, model, runner, body.inputs, truncation=call.truncation(asked=None))

    def shown(_: int, some: Sequence[Judged]) -> list[schemas.NextOut]:
        found = [float(logits[0].softmax(-1)[0]) for logits, _ in some]
        return [schemas.NextOut(one, one > 0.5) for one in found]

    results = await call.each(judged, shown, sizes=list(map(text_size, body.inputs)))
    return schemas.Answer(model.name, results, call.usage())


_TEI = "text-embeddings-inference"
_LABELS = list[Prediction]
ROUTES: list[AnyRoute] = [
    Route("/rerank", tei_rerank, "Texts by how well they answer a query.", _TEI, schemas.TeiRerankRequest,
          list[schemas.Rank], timed=True, examples={
              "two": {"query": "What is Deep Learning?", "texts": ["Deep Learning is ...", "Cheese is ..."]}}),
    Route("/predict", predict, "Labels with scores.", _TEI, schemas.PredictRequest,
          list[Prediction | _LABELS], timed=True, examples={
              "one": {"inputs": "I like you."}, "pair": {"inputs": ["It rains.", "It is wet."]},
              "batch": {"inputs": [["I like you."], ["It rains.", "It is wet."]]}}),
    Route("/v1/rerank", cohere_rerank, "Documents by how well they answer a query (Cohere).", "Cohere",
          schemas.CohereRerankRequest, schemas.CohereRerankAnswer, timed=True, examples={
              "top 1": {"query": "capital of France", "documents": ["Paris.", {"text": "Rome."}], "top_n": 1}}),
    Route("/v1/classify", classify, "Labels for texts and pairs; your own with `labels`.", "Bertie",
          schemas.ClassifyRequest, schemas.answer_of("classify", _LABELS), timed=True, examples={
              "texts": {"inputs": ["A fine film.", "Two hours I want back."], "top_k": 2},
              "your own labels": {"inputs": "Shares fell.", "labels": ["sports", "business"]}}),
    Route("/v1/next", next_sentence, "How likely one text is to follow another.", "Bertie", schemas.NextRequest,
          schemas.answer_of("next", schemas.NextOut), timed=True,
          examples={"one": {"inputs": [["She opened the door.", "It was dark."]]}}),
]  # fmt: skip
