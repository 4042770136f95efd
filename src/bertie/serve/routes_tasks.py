"""Every other task: /rerank and /predict as text-embeddings-inference has them, /v1/rerank as Cohere has it, and our
own /v1/classify, /v1/tag, /v1/answer, /v1/fill, /v1/next and /v1/features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from bertie.serve import wire
from bertie.serve.abilities import Embedding, Logits, Rowed, Streamed
from bertie.serve.failures import empty, invalid, too_large
from bertie.serve.models import ServedModel
from bertie.serve.routes_embed import as_list, usage_of
from bertie.serve.routing import Route
from bertie.serve.service import Call, Service
from bertie.serve.settings import Truncation
from bertie.tasks.answer import FoundAnswer
from bertie.tasks.classify import best_first, scores
from bertie.tasks.fill import MaskFiller
from bertie.tasks.inputs import TextOrPair
from bertie.tasks.similarity import unit

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
    ability: Logits = model.ability(task)
    rows, weights = await service.prepare(
        call, items, ability.items, items, truncation=truncation, long=long, sliding=sliding
    )
    answers = await service.compute(call, model, ability.lane, rows, [len(row) for row in rows])
    found, start = [], 0
    for own in weights:
        found.append((torch.from_numpy(np.stack(answers[start : start + len(own)])), own))
        start += len(own)
    return found


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
) -> tuple[ServedModel, list[float]]:
    """A score for every text: by a cross-encoder where there is one, otherwise by cosine of embeddings."""
    pairs: list[Any] = [(query, text) for text in texts]
    service.check_texts(call, pairs, what="texts")
    names = [model.name for model in service.models.all if "rerank" in model.abilities]
    if not names or (name is not None and name not in names and service.models.knows(name)):
        model = service.models.find("embed", name)
        found = await _cosines(service, call, model, query, texts, truncation, long)
        return model, found
    model = service.models.find("rerank", name)
    label, function = model.ability("rerank").rank_rule
    judged = await item_logits(
        service, call, model, "rerank", pairs, truncation=truncation, long=long, sliding="second"
    )
    how: Any = "none" if raw else function
    # A document is as good as its best window.
    return model, [float(scores(logits, how)[:, label].max()) for logits, _ in judged]


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
    ability: Embedding = model.ability("embed")
    prompt = ability.embedder.document_prompt_name
    asked, own = await service.prepare(
        call, [query], ability.items, [query], prompt_name="query", truncation=truncation, long=long
    )
    rows, lengths = await service.prepare(
        call, texts, ability.items, texts, prompt_name=prompt, truncation=truncation, long=long
    )
    answers = await service.compute(call, model, ability.vectors, [*asked, *rows], [*own, *lengths])
    about, vectors = ability.join(asked, answers[: len(asked)]), ability.join(rows, answers[len(asked) :])
    found: list[float] = (unit(vectors) @ unit(about)[0]).tolist()
    return found


async def tei_rerank(service: Service, call: Call, body: wire.TeiRerankRequest) -> list[wire.Rank]:
    if not body.texts:
        raise empty("texts")
    truncation = service.truncation(asked=body.truncate, direction=body.truncation_direction, default=False)
    _, found = await relevance(
        service, call, body.model, body.query, body.texts, truncation=truncation, long="truncate", raw=body.raw_scores
    )
    ranks = [wire.Rank(index, score) for index, score in enumerate(found)]
    if body.return_text:
        for rank in ranks:
            rank.text = body.texts[rank.index]
    return sorted(ranks, key=lambda rank: -rank.score)


async def cohere_rerank(service: Service, call: Call, body: wire.CohereRerankRequest) -> wire.CohereRerankAnswer:
    if not body.documents:
        raise empty("documents")
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    model, found = await relevance(
        service, call, body.model, body.query, texts, truncation=service.truncation(asked=None), long="windows"
    )
    ranks = [wire.CohereRank(index, score) for index, score in enumerate(found)]
    if body.return_documents:
        for rank in ranks:
            rank.document = {"text": texts[rank.index]}
    best = sorted(ranks, key=lambda rank: -rank.relevance_score)[: body.top_n]
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return wire.CohereRerankAnswer(call.id, best, model.name, usage_of(call), meta)


def _predictions(ability: Logits, logits: torch.Tensor, function: Any, top_k: int | None) -> list[wire.Prediction]:
    best = best_first(ability.names, scores(logits, function).tolist(), top_k)
    return [wire.Prediction(label, score) for label, score in best.labels]


async def predict(service: Service, call: Call, body: wire.PredictRequest) -> Any:
    single, items = _predict_inputs(body.inputs)
    service.check_texts(call, items)
    model = service.models.find("classify", body.model)
    ability: Logits = model.ability("classify")
    truncation = service.truncation(asked=body.truncate, direction=body.truncation_direction, default=False)
    judged = await item_logits(service, call, model, "classify", items, truncation=truncation)
    function = "none" if body.raw_scores else ability.function(None)
    found = [_predictions(ability, logits[0], function, None) for logits, _ in judged]
    return found[0] if single else found


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
    ability: Logits = model.ability("classify")
    judged = await item_logits(
        service, call, model, "classify", items, truncation=service.truncation(asked=None), long=body.long
    )
    function = ability.function(body.multi_label)
    results = []
    for logits, weights in judged:
        shares = torch.tensor(weights, dtype=torch.float32)
        mean = logits[0] if len(weights) == 1 else (logits * (shares / shares.sum())[:, None]).sum(0)
        results.append(_predictions(ability, mean, function, body.top_k or 1))
    return wire.ClassifyAnswer(model.name, results, usage_of(call))


async def _zero_shot(
    service: Service, call: Call, body: wire.ClassifyRequest, items: Sequence[TextOrPair]
) -> wire.ClassifyAnswer:
    if not all(isinstance(item, str) for item in items):
        raise invalid("With `labels`, inputs are single texts.")
    options: dict[str, Any] = {
        "labels": tuple(body.labels or ()),
        "multi_label": bool(body.multi_label),
        "long": body.long,
    }
    options |= {"top_k": body.top_k} if body.top_k else {}
    options |= {"hypothesis": body.hypothesis} if body.hypothesis else {}
    model, answers = await streamed(
        service, call, "zero_shot", body.model, items, factor=len(body.labels or ()), **options
    )
    results = [[wire.Prediction(label, score) for label, score in one.labels] for one in answers]
    return wire.ClassifyAnswer(model.name, results, usage_of(call))


async def next_sentence(service: Service, call: Call, body: wire.NextRequest) -> wire.NextAnswer:
    service.check_texts(call, body.inputs)
    model = service.models.find("next", body.model)
    judged = await item_logits(service, call, model, "next", body.inputs, truncation=service.truncation(asked=None))
    found = [float(logits[0].softmax(-1)[0]) for logits, _ in judged]
    return wire.NextAnswer(model.name, [wire.NextOut(one, one > 0.5) for one in found], usage_of(call))


# -- tasks with options of their own ----------------------------------------------------------------------------------


async def from_rows(
    service: Service, call: Call, task: str, name: str | None, items: Sequence[Any], **options: Any
) -> tuple[ServedModel, list[Any]]:
    """The task's answers, its rows in batches with everyone's."""
    model = service.models.find(task, name)
    ability: Rowed = model.ability(task)
    runner, lane = ability.lane(**options)
    checked = [runner.checked(item, f"Input {number}") for number, item in enumerate(items)]
    prepared = await service.prepare(call, items, ability.prepared, runner, checked)
    lengths = [len(row) for _, rows in prepared for row in rows]
    longest = service.settings.limits.text_tokens
    for number, (_, rows) in enumerate(prepared):
        if sum(map(len, rows)) > longest:
            raise too_large(f"Input {number} takes {sum(map(len, rows))} tokens; {longest} are allowed.")
    if task == "features":
        service.check_answer_size(sum(lengths), len(runner.layers) * ability.loaded.model.config.hidden_size)
    outputs = iter(await service.compute(call, model, lane, [row for _, rows in prepared for row in rows], lengths))

    def decoded() -> list[Any]:
        return [runner.decode(context, list(islice(outputs, len(rows)))) for context, rows in prepared]

    return model, await service.prepare(call, items, decoded)


async def streamed(
    service: Service, call: Call, task: str, name: str | None, items: Sequence[Any], *, factor: int = 1, **options: Any
) -> tuple[ServedModel, list[Any]]:
    """The answers of the task's own stream. `factor`: how often each text goes through the model."""
    model = service.models.find(task, name)
    ability: Streamed = model.ability(task)
    runner, lane = ability.lane(**options)
    checked = [runner.checked(item, f"Input {number}") for number, item in enumerate(items)]
    lengths = await service.prepare(call, items, ability.lengths, items)
    if task == "fill":
        lengths = [fill_work(runner, text, length) for text, length in zip(items, lengths, strict=True)]
    return model, await service.compute(call, model, lane, checked, [length * factor for length in lengths])


def fill_work(runner: MaskFiller, text: str, length: int) -> int:
    """Tokens that go through the model for a text: targets piece by piece, and masks together beam by beam."""
    length = min(length, runner.loaded.max_length)
    masks = text.count(runner.loaded.tokenizer.mask_token or "[MASK]")
    pieces = 1 if runner.targets is None else sum(map(len, runner.targets))
    beams = runner.num_beams if runner.joint and masks > 1 else 0
    return length * pieces * (masks if runner.targets else 1) + length * pieces * masks * beams


async def tag(service: Service, call: Call, body: wire.TagRequest) -> wire.TagAnswer:
    texts = as_list(body.inputs)
    service.check_texts(call, texts)
    options: dict[str, Any] = {"aggregation": body.aggregation}
    if body.ignore_labels is not None:
        options["ignore_labels"] = tuple(body.ignore_labels)
    model, answers = await from_rows(service, call, "tag", body.model, texts, **options)
    results = [[wire.EntityOut(e.label, e.text, e.start, e.end, e.score, e.index) for e in found] for found in answers]
    return wire.TagAnswer(model.name, results, usage_of(call))


async def answer(service: Service, call: Call, body: wire.AnswerRequest) -> wire.AnswerAnswer:
    if body.inputs is not None:
        pairs = [(one.question, one.context) for one in body.inputs]
    elif body.question is not None and body.context is not None:
        pairs = [(body.question, body.context)]
    else:
        raise invalid("Send `question` and `context`, or `inputs`: a list of objects with both.")
    service.check_texts(call, pairs)
    model, answers = await from_rows(
        service, call, "answer", body.model, pairs, n_best=body.n_best, max_answer_tokens=body.max_answer_tokens,
        no_answer=body.no_answer, threshold=body.threshold,
    )  # fmt: skip
    results = []
    for one in answers:
        candidates = [_found(candidate) for candidate in one.candidates]
        best = None if one.best is None else _found(one.best)
        results.append(wire.AnswerOut(one.question, best, candidates, one.no_answer_score, one.no_answer_logit))
    return wire.AnswerAnswer(model.name, results, usage_of(call))


def _found(one: FoundAnswer) -> wire.FoundOut:
    return wire.FoundOut(one.text, one.start, one.end, one.score, one.logit)


async def fill(service: Service, call: Call, body: wire.FillRequest) -> wire.FillAnswer:
    texts = as_list(body.inputs)
    service.check_texts(call, texts)
    options: dict[str, Any] = {"top_k": body.top_k, "joint": body.joint}
    if body.targets is not None:
        options["targets"] = tuple(body.targets)
    model, answers = await streamed(service, call, "fill", body.model, texts, **options)
    results = [
        wire.FilledOut(
            one.text,
            [[wire.CandidateOut(c.token, c.score, c.text, list(c.ids)) for c in mask] for mask in one.masks],
            [wire.FillingOut(list(f.tokens), f.score, f.text) for f in one.fillings],
        )
        for one in answers
    ]
    return wire.FillAnswer(model.name, results, usage_of(call))


async def features(service: Service, call: Call, body: wire.FeaturesRequest) -> wire.FeaturesAnswer:
    items = [as_item(one) for one in ([body.inputs] if isinstance(body.inputs, str) else body.inputs)]
    service.check_texts(call, items)
    options: dict[str, Any] = {"long": body.long}
    if body.layers is not None:
        options["layers"] = tuple(body.layers)
    model, answers = await from_rows(service, call, "features", body.model, items, **options)
    results = [
        wire.FeaturesOut(
            [
                wire.TokenFeaturesOut(
                    token.token, [wire.LayerOut(index, vector.tolist()) for index, vector in token.layers]
                )
                for token in one.tokens
            ]
        )
        for one in answers
    ]
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
    Route("/v1/fill", fill, "Words for [MASK].", "Bertie", wire.FillRequest, wire.FillAnswer, timed=True,
          examples={"one": {"inputs": "He drank a cup of [MASK]."}}),
    Route("/v1/next", next_sentence, "How likely one text is to follow another.", "Bertie", wire.NextRequest,
          wire.NextAnswer, timed=True, examples={"one": {"inputs": [["She opened the door.", "It was dark."]]}}),
    Route("/v1/features", features, "A vector for every token from chosen layers.", "Bertie", wire.FeaturesRequest,
          wire.FeaturesAnswer, timed=True, examples={"last layer": {"inputs": "A text.", "layers": [-1]}}),
]  # fmt: skip
