"""/v1/fill: words for masks. A text goes through the model in rounds, each of which depends on the one before: what all
texts of a request ask for in a round is one job, and other requests take turns with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from bertie.answers import Filled
from bertie.serve import schemas as wire
from bertie.serve.abilities import Filling
from bertie.serve.bodies import encode
from bertie.serve.failures import too_large
from bertie.serve.models import ServedModel
from bertie.serve.queues import Lane
from bertie.serve.routes.embed import as_list, usage_of
from bertie.serve.routes.route import Route
from bertie.serve.service import Call, Service, text_size
from bertie.tasks.fill import FillPlan

# Bytes of JSON, at most: of a candidate beside its text, and of a token in a filling.
_CANDIDATE_BYTES, _TOKEN_BYTES = 128, 32


async def fill(service: Service, call: Call, body: wire.FillRequest) -> wire.FillAnswer:
    texts = as_list(body.inputs)
    service.check_texts(call, texts)
    options: dict[str, Any] = {"top_k": body.top_k, "joint": body.joint}
    if body.targets is not None:
        options["targets"] = tuple(body.targets)
        call.size += sum(map(len, body.targets))
    model = service.models.find("fill", body.model)
    ability: Filling = model.ability("fill", call.who, call.characters)
    filler = await service.prepare(call, texts, ability.filler, **options)
    longest, tokenizer = service.settings.limits.text_tokens, ability.loaded.tokenizer

    def planned(first: int, some: Sequence[str]) -> list[tuple[FillPlan, int]]:
        """What each text takes, and the bytes of its answer."""
        found = []
        for number, text in enumerate(some, first):
            plan = filler.plan(filler.checked(text, f"Input {number}"))
            if plan.work > longest:
                raise too_large(
                    f"Input {number} asks for the work of {plan.work} tokens; {longest} are allowed.",
                    "Send a shorter text or fewer masks; lower top_k, send fewer targets, or set joint to false.",
                )
            size = len(encode(tokenizer.decode(list(plan.tokens)))) + _CANDIDATE_BYTES
            fillings = plan.fillings * (size + _TOKEN_BYTES * len(plan.places))
            found.append((plan, plan.candidates * size + fillings))
        return found

    plans = await service.each(call, texts, planned)
    service.reserve(call, sum(size for _, size in plans), "Send fewer or shorter texts, fewer masks, or lower top_k.")
    work, rounds = sum(plan.work for plan, _ in plans), [filler.rounds(plan) for plan, _ in plans]
    results: Any = await filled(service, call, model, ability.lane, rounds, work, list(map(text_size, texts)))
    return wire.FillAnswer(model.name, results, usage_of(call))


async def filled(
    service: Service, call: Call, model: ServedModel, lane: Lane, rounds: list[Any], work: int, sizes: list[int]
) -> list[msgspec.Raw]:
    """The answers in JSON. What all texts ask for in a round goes through the model as one job."""
    answers: dict[int, msgspec.Raw] = {}

    def step(_: int, some: Sequence[tuple[int, Any]]) -> list[tuple[int, list[Any]]]:
        """Give the texts their replies; those that have more to ask."""
        more = []
        for number, reply in some:
            try:
                more.append((number, rounds[number].send(reply)))
            except StopIteration as done:
                answers[number] = msgspec.Raw(encode(_shown_fill(done.value)))
        return more

    replied: list[tuple[int, Any]] = [(number, None) for number in range(len(rounds))]
    while asked := await service.each(call, replied, step, sizes=[sizes[number] for number, _ in replied]):
        queries = [query for _, own in asked for query in own]
        rows = sum(len(query.row) for query in queries)
        lengths = [len(query) for query in queries]
        replies = iter(await service.compute(call, model, lane, queries, lengths, work=work, tokens=rows))
        replied = [(number, list(islice(replies, len(own)))) for number, own in asked]
    return [answers[number] for number in range(len(rounds))]


def _shown_fill(one: Filled) -> wire.FilledOut:
    return wire.FilledOut(
        one.text,
        [[wire.CandidateOut(c.token, c.score, c.text, list(c.ids)) for c in mask] for mask in one.masks],
        [wire.FillingOut(list(f.tokens), f.score, f.text) for f in one.fillings],
    )


ROUTES = [
    Route("/v1/fill", fill, "Words for [MASK].", "Bertie", wire.FillRequest, wire.FillAnswer, timed=True,
          examples={"one": {"inputs": "He drank a cup of [MASK]."}}),
]  # fmt: skip
