"""Every other task: /rerank and /predict as text-embeddings-inference has them, /v1/rerank as Cohere has it, and our
own /v1/classify, /v1/tag, /v1/answer, /v1/next and /v1/features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import torch

from bertie.running.batching import Row
from bertie.running.rows import TextOrPair
from bertie.running.scoring import averaged
from bertie.serve import schemas as wire
from bertie.serve.abilities import Embedding, Logits, Rowed
from bertie.serve.bodies import NUMBER_BYTES, encode_answer
from bertie.serve.failures import empty, invalid
from bertie.serve.models import ServedModel
from bertie.serve.routes.embed import as_list, usage_of
from bertie.serve.routes.route import Route
from bertie.serve.service import Call, Service, text_size
from bertie.serve.settings import Truncation
from bertie.tasks.answer import AnswerResult, FoundAnswer
from bertie.tasks.classify import Classification, best_first, scores
from bertie.tasks.features import Features
from bertie.tasks.similarity import unit
from bertie.tasks.tag import Entity

# Bytes of JSON, at most: of a number with its label, and of a character.
_RANK_BYTES, _CHARACTER_BYTES = 64, 6

# -- scores of whole texts ------------------------------------------------------------------------------------------


async def item_logits(
    service: Service,
    call: Call,
    model: ServedModel,
    task: str,
    items: Sequence[TextOrPair],
    *,
    truncation: Truncation,
    long: str = "truncate",
    sliding: str = "longer",
) -> list[tuple[torch.Tensor, list[int]]]:
    """For every item `[windows, labels]` logits and the windows' weights."""
    ability: Logits = model.ability(task, call.who, call.characters)
    how = partial(ability.items, truncation=truncation, long=long, sliding=sliding, cuts=call.cuts)
    prepared = await service.each(call, items, how)
    rows = [row for own, _ in prepared for row in own]
    answers = iter(await service.compute(call, model, ability.lane, rows, [len(row) for row in rows]))

    def stacked(_: int, some: Sequence[tuple[list[Row], list[int]]]) -> list[tuple[torch.Tensor, list[int]]]:
        return [(torch.from_numpy(np.stack(list(islice(answers, len(own))))), weights) for own, weights in some]

    return await service.each(call, prepared, stacked, sizes=list(map(text_size, items)))


async def relevance(
    service: Service,
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
    pairs: list[Any] = [(query, text) for text in texts]
    service.check_texts(call, pairs, what="texts")
    task = "rerank" if relevant is None else "classify"
    names = [model.name for model in service.models.all if task in model.abilities]
    if relevant is None and name is not None and name not in names:
        _refuse_classifier(service, name)
    if not names or (name is not None and name not in names and service.models.knows(name)):
        model = service.models.find("embed", name)
        found = await _cosines(service, call, model, query, texts, truncation, long)
        return model, found
    model = service.models.find(task, name)
    ability: Logits = model.ability(task, call.who, call.characters)
    label, function = ability.rank_rule if relevant is None else ability.rank_by(relevant)
    judged = await item_logits(service, call, model, task, pairs, truncation=truncation, long=long, sliding="second")
    how: Any = "none" if raw else function

    def best(_: int, some: Sequence[tuple[torch.Tensor, list[int]]]) -> list[float]:
        # A document is as good as its best window.
        return [float(scores(logits, how)[:, label].max()) for logits, _ in some]

    return model, await service.each(call, judged, best, sizes=list(map(len, texts)))


def _refuse_classifier(service: Service, name: str) -> None:
    """A classifier whose labels do not mean relevance would rank by whatever it was trained for."""
    for model in service.models.all:
        if model.name == name and "classify" in model.abilities:
            labels = ", ".join(repr(label) for label in model.abilities["classify"].names[:6])
            raise invalid(
                f"{name} is a classifier with the labels {labels}, none of which means that a document is relevant. "
                "Use a reranker, or name the label to rank by: `relevant`."
            )


async def _cosines(
    service: Service,
    call: Call,
    model: ServedModel,
    query: str,
    texts: Sequence[str],
    truncation: Truncation,
    long: str,
) -> list[float]:
    """Query and documents each with the prompt that the checkpoint has for them."""
    ability: Embedding = model.ability("embed", call.who, call.characters)
    prompt = ability.embedder.document_prompt_name
    asked, own = await service.prepare(
        call, [query], ability.items, [query], prompt_name="query", truncation=truncation, long=long, cuts=call.cuts
    )
    rows, lengths = await service.prepare(
        call, texts, ability.items, texts, prompt_name=prompt, truncation=truncation, long=long, cuts=call.cuts
    )
    answers = await service.compute(call, model, ability.vectors, [*asked, *rows], [*own, *lengths])

    def compared() -> list[float]:
        about, vectors = ability.join(asked, answers[: len(asked)]), ability.join(rows, answers[len(asked) :])
        found: list[float] = (unit(vectors) @ unit(about)[0]).tolist()
        return found

    return await service.prepare(call, texts, compared)


async def tei_rerank(service: Service, call: Call, body: wire.TeiRerankRequest) -> list[wire.Rank]:
    if not body.texts:
        raise empty("texts")
    truncation = service.truncation(asked=body.truncate, direction=body.truncation_direction, default=False)
    _reserve_ranks(service, call, body.texts if body.return_text else [""] * len(body.texts))
    _, found = await relevance(
        service, call, body.model, body.query, body.texts, truncation=truncation, long="truncate", raw=body.raw_scores,
        relevant=body.relevant,
    )  # fmt: skip
    ranks = [wire.Rank(index, score) for index, score in enumerate(found)]
    if body.return_text:
        for rank in ranks:
            rank.text = body.texts[rank.index]
    return sorted(ranks, key=lambda rank: -rank.score)


async def cohere_rerank(service: Service, call: Call, body: wire.CohereRerankRequest) -> wire.CohereRerankAnswer:
    if not body.documents:
        raise empty("documents")
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    _reserve_ranks(service, call, texts if body.return_documents else [""] * len(texts))
    model, found = await relevance(
        service, call, body.model, body.query, texts, truncation=service.truncation(asked=None), long="windows",
        relevant=body.relevant,
    )  # fmt: skip
    ranks = [wire.CohereRank(index, score) for index, score in enumerate(found)]
    if body.return_documents:
        for rank in ranks:
            rank.document = {"text": texts[rank.index]}
    best = sorted(ranks, key=lambda rank: -rank.relevance_score)[: body.top_n]
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return wire.CohereRerankAnswer(call.id, best, model.name, usage_of(call), meta)


def _reserve_ranks(service: Service, call: Call, texts: Sequence[str]) -> None:
    service.reserve(call, sum(_RANK_BYTES + _CHARACTER_BYTES * len(text) for text in texts))


def _predictions(ability: Logits, logits: torch.Tensor, function: Any, top_k: int | None) -> list[wire.Prediction]:
    best = best_first(ability.names, scores(logits, function).tolist(), top_k)
    return [wire.Prediction(label, score) for label, score in best.labels]


async def predict(service: Service, call: Call, body: wire.PredictRequest) -> Any:
    single, items = _predict_inputs(body.inputs)
    service.check_texts(call, items)
    model = service.models.find("classify", body.model)
    ability: Logits = model.ability("classify", call.who, call.characters)
    _reserve_labels(service, call, ability.names, len(items))
    truncation = service.truncation(asked=body.truncate, direction=body.truncation_direction, default=False)
    judged = await item_logits(service, call, model, "classify", items, truncation=truncation)
    function = "none" if body.raw_scores else ability.function(None)

    def shown(_: int, some: Sequence[tuple[torch.Tensor, list[int]]]) -> list[list[wire.Prediction]]:
        return [_predictions(ability, logits[0], function, None) for logits, _ in some]

    found = await service.each(call, judged, shown, sizes=list(map(text_size, items)))
    return found[0] if single else found


def _reserve_labels(service: Service, call: Call, names: Sequence[str], count: int, top_k: int | None = None) -> None:
    longest = sorted((_RANK_BYTES + _CHARACTER_BYTES * len(name) for name in names), reverse=True)
    service.reserve(call, count * sum(longest[:top_k]), "Send fewer texts at once, or lower top_k.")


def _predict_inputs(given: Any) -> tuple[bool, list[TextOrPair]]:
    """A text or a pair of texts is one input; a list of lists of one or two is a batch."""
    if isinstance(given, str):
        return True, [given]
    if not given:
        raise empty()
    if all(isinstance(one, str) for one in given):
        if len(given) > 2:
            raise invalid("`inputs` takes a text, a pair of texts, or a batch [[text], [text, second text], …].")
        return True, [given[0] if len(given) == 1 else (given[0], given[1])]
    if not all(isinstance(one, list) and 1 <= len(one) <= 2 for one in given):
        raise invalid("A batch is a list of [text] and [text, second text].")
    return False, [as_item(one) for one in given]


def as_item(given: Any) -> TextOrPair:
    if isinstance(given, str):
        return given
    return given[0] if len(given) == 1 else (given[0], given[1])


async def classify(service: Service, call: Call, body: wire.ClassifyRequest) -> wire.ClassifyAnswer:
    items = [as_item(one) for one in ([body.inputs] if isinstance(body.inputs, str) else body.inputs)]
    service.check_texts(call, items)
    if body.labels is not None:
        return await _zero_shot(service, call, body, items)
    model = service.models.find("classify", body.model)
    ability: Logits = model.ability("classify", call.who, call.characters)
    _reserve_labels(service, call, ability.names, len(items), body.top_k or 1)
    judged = await item_logits(
        service, call, model, "classify", items, truncation=service.truncation(asked=None), long=body.long
    )
    function = ability.function(body.multi_label)

    def shown(_: int, some: Sequence[tuple[torch.Tensor, list[int]]]) -> list[list[wire.Prediction]]:
        return [_predictions(ability, averaged(*one), function, body.top_k or 1) for one in some]

    results = await service.each(call, judged, shown, sizes=list(map(text_size, items)))
    return wire.ClassifyAnswer(model.name, results, usage_of(call))


async def _zero_shot(
    service: Service, call: Call, body: wire.ClassifyRequest, items: Sequence[TextOrPair]
) -> wire.ClassifyAnswer:
    if not all(isinstance(item, str) for item in items):
        raise invalid("With `labels`, inputs are single texts.")
    labels = tuple(body.labels or ())
    options: dict[str, Any] = {
        "labels": labels,
        "multi_label": bool(body.multi_label),
        "long": body.long,
    }
    options |= {"top_k": body.top_k} if body.top_k else {}
    options |= {"hypothesis": body.hypothesis} if body.hypothesis else {}
    _reserve_labels(service, call, labels, len(items), body.top_k)

    def shown(one: Classification) -> list[wire.Prediction]:
        return [wire.Prediction(label, score) for label, score in one.labels]

    model, results = await from_rows(service, call, "zero_shot", body.model, items, shown, **options)
    return wire.ClassifyAnswer(model.name, results, usage_of(call))


async def next_sentence(service: Service, call: Call, body: wire.NextRequest) -> wire.NextAnswer:
    service.check_texts(call, body.inputs)
    service.reserve(call, len(body.inputs) * _RANK_BYTES)
    model = service.models.find("next", body.model)
    judged = await item_logits(service, call, model, "next", body.inputs, truncation=service.truncation(asked=None))

    def shown(_: int, some: Sequence[tuple[torch.Tensor, list[int]]]) -> list[wire.NextOut]:
        found = [float(logits[0].softmax(-1)[0]) for logits, _ in some]
        return [wire.NextOut(one, one > 0.5) for one in found]

    results = await service.each(call, judged, shown, sizes=list(map(text_size, body.inputs)))
    return wire.NextAnswer(model.name, results, usage_of(call))


# -- tasks with options of their own ----------------------------------------------------------------------------------


async def from_rows(
    service: Service,
    call: Call,
    task: str,
    name: str | None,
    items: Sequence[Any],
    shown: Callable[[Any], Any],
    *,
    remedy: str | None = None,
    **options: Any,
) -> tuple[ServedModel, list[Any]]:
    """The task's answers in JSON, its rows in batches with everyone's. `shown`: an answer as its type in wire.py.

    `remedy`: the answer's size is known only when it is there; it is counted then, and this is what to do about it.
    """
    model = service.models.find(task, name)
    ability: Rowed = model.ability(task, call.who, call.characters)
    runner, lane = ability.lane(**options)
    longest, sizes = service.settings.limits.text_tokens, list(map(text_size, items))

    def rows_of(first: int, some: Sequence[Any]) -> list[tuple[Any, list[Row]]]:
        return [ability.prepared(runner, item, number, longest) for number, item in enumerate(some, first)]

    prepared = await service.each(call, items, rows_of, sizes=sizes)
    call.cuts.count(sum(any(row.is_cut for row in own) for _, own in prepared), len(prepared))
    rows = [row for _, own in prepared for row in own]
    lengths = [len(row) for row in rows]
    if task == "features":
        numbers = len(runner.layers) * ability.loaded.model.config.hidden_size
        service.reserve(
            call, sum(lengths) * (numbers * NUMBER_BYTES + _RANK_BYTES), "Send less, or ask for fewer layers."
        )
    outputs = iter(await service.compute(call, model, lane, rows, lengths))

    def decoded(_: int, some: Sequence[tuple[Any, list[Row]]]) -> list[msgspec.Raw]:
        found = []
        for context, own in some:
            one = encode_answer(shown(runner.decode(context, list(islice(outputs, len(own))))))
            if remedy is not None:
                service.reserve(call, len(one), remedy)
            found.append(msgspec.Raw(one))
        return found

    return model, await service.each(call, prepared, decoded, sizes=sizes)


async def tag(service: Service, call: Call, body: wire.TagRequest) -> wire.TagAnswer:
    texts = as_list(body.inputs)
    service.check_texts(call, texts)
    options: dict[str, Any] = {"aggregation": body.aggregation}
    if body.ignore_labels is not None:
        options["ignore_labels"] = tuple(body.ignore_labels)

    def shown(found: list[Entity]) -> list[wire.EntityOut]:
        return [wire.EntityOut(e.label, e.text, e.start, e.end, e.score, e.index) for e in found]

    remedy = "Send fewer texts at once."
    model, results = await from_rows(service, call, "tag", body.model, texts, shown, remedy=remedy, **options)
    return wire.TagAnswer(model.name, results, usage_of(call))


async def answer(service: Service, call: Call, body: wire.AnswerRequest) -> wire.AnswerAnswer:
    if body.inputs is not None:
        pairs = [(one.question, one.context) for one in body.inputs]
    elif body.question is not None and body.context is not None:
        pairs = [(body.question, body.context)]
    else:
        raise invalid("Send `question` and `context`, or `inputs`: a list of objects with both.")
    service.check_texts(call, pairs)

    def shown(one: AnswerResult) -> wire.AnswerOut:
        candidates = [_found(candidate) for candidate in one.candidates]
        best = None if one.best is None else _found(one.best)
        return wire.AnswerOut(one.question, best, candidates, one.no_answer_score, one.no_answer_logit)

    model, results = await from_rows(
        service, call, "answer", body.model, pairs, shown, remedy="Send fewer questions at once, or lower n_best.",
        n_best=body.n_best, max_answer_tokens=body.max_answer_tokens, no_answer=body.no_answer,
        threshold=body.threshold,
    )  # fmt: skip
    return wire.AnswerAnswer(model.name, results, usage_of(call))


def _found(one: FoundAnswer) -> wire.FoundOut:
    return wire.FoundOut(one.text, one.start, one.end, one.score, one.logit)


async def features(service: Service, call: Call, body: wire.FeaturesRequest) -> wire.FeaturesAnswer:
    items = [as_item(one) for one in ([body.inputs] if isinstance(body.inputs, str) else body.inputs)]
    service.check_texts(call, items)
    options: dict[str, Any] = {"long": body.long}
    if body.layers is not None:
        options["layers"] = tuple(body.layers)

    def shown(one: Features) -> wire.FeaturesOut:
        return wire.FeaturesOut(
            [
                wire.TokenFeaturesOut(
                    token.token, [wire.LayerOut(index, vector.tolist()) for index, vector in token.layers]
                )
                for token in one.tokens
            ]
        )

    model, results = await from_rows(service, call, "features", body.model, items, shown, **options)
    return wire.FeaturesAnswer(model.name, results, usage_of(call))


_TEI = "text-embeddings-inference"
ROUTES = [
    Route("/rerank", tei_rerank, "Texts by how well they answer a query.", _TEI, wire.TeiRerankRequest,
          list[wire.Rank], timed=True, examples={
              "two": {"query": "What is Deep Learning?", "texts": ["Deep Learning is ...", "Cheese is ..."]}}),
    Route("/predict", predict, "Labels with scores.", _TEI, wire.PredictRequest,
          list[wire.Prediction | list[wire.Prediction]], timed=True, examples={
              "one": {"inputs": "I like you."}, "pair": {"inputs": ["It rains.", "It is wet."]},
              "batch": {"inputs": [["I like you."], ["It rains.", "It is wet."]]}}),
    Route("/v1/rerank", cohere_rerank, "Documents by how well they answer a query (Cohere).", "Cohere",
          wire.CohereRerankRequest, wire.CohereRerankAnswer, timed=True, examples={
              "top 1": {"query": "capital of France", "documents": ["Paris.", {"text": "Rome."}], "top_n": 1}}),
    Route("/v1/classify", classify, "Labels for texts and pairs; your own with `labels`.", "Bertie",
          wire.ClassifyRequest, wire.ClassifyAnswer, timed=True, examples={
              "texts": {"inputs": ["A fine film.", "Two hours I want back."], "top_k": 2},
              "your own labels": {"inputs": "Shares fell.", "labels": ["sports", "business"]}}),
    Route("/v1/tag", tag, "Entities and where they stand.", "Bertie", wire.TagRequest, wire.TagAnswer, timed=True,
          examples={"one": {"inputs": "Ada Lovelace lived in London."}}),
    Route("/v1/answer", answer, "Answers quoted from a text.", "Bertie", wire.AnswerRequest, wire.AnswerAnswer,
          timed=True, examples={"one": {"question": "Who wrote it?", "context": "It was written by Ada."}}),
    Route("/v1/next", next_sentence, "How likely one text is to follow another.", "Bertie", wire.NextRequest,
          wire.NextAnswer, timed=True, examples={"one": {"inputs": [["She opened the door.", "It was dark."]]}}),
    Route("/v1/features", features, "A vector for every token from chosen layers.", "Bertie", wire.FeaturesRequest,
          wire.FeaturesAnswer, timed=True, examples={"last layer": {"inputs": "A text.", "layers": [-1]}}),
]  # fmt: skip
