"""/v1/fill: words for masks. A text goes through the model in rounds, each of which depends on the one before: what all
texts of a request ask for in a round is one job, and other requests take turns with it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any

import msgspec

from bertie.answers import Filled
from bertie.serve import schemas
from bertie.serve.bodies import encode, encode_answer
from bertie.serve.failures import too_large
from bertie.serve.models import Place, ServedModel, Source
from bertie.serve.queues import Lane
from bertie.serve.schemas import as_list
from bertie.serve.service import Call, Route, text_size
from bertie.tasks.fill import FillPlan, MaskFiller

# Bytes of JSON, at most: of a candidate beside its text, and of a token in a filling.
_CANDIDATE_BYTES, _TOKEN_BYTES = 128, 32

Rounds = Generator[Any, Any, Filled]  # queries out, replies in


class FillRunner:
    """Words for masks. A text goes through the model several times (`MaskFiller.rounds`), each time as a job."""

    def __init__(self, source: Source, place: Place) -> None:
        filler = MaskFiller(source, device=place.device, dtype=place.dtype)
        self.loaded = filler.loaded
        self.lane = Lane("fill", filler.run)

    def warm_up(self) -> None:
        pass


async def fill(call: Call, body: schemas.FillRequest) -> schemas.Answer[msgspec.Raw]:
    texts = as_list(body.inputs)
    call.check_texts(texts)
    targets = None if body.targets is None else tuple(body.targets)
    call.size += sum(map(len, targets or ()))
    model, runner = call.find("fill", body.model, FillRunner)
    filler = await call.prepare(texts, MaskFiller, runner.loaded, top_k=body.top_k, joint=body.joint, targets=targets)
    longest, tokenizer = call.limits.text_tokens, runner.loaded.tokenizer

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
            written = plan.text if plan.spans else tokenizer.decode(list(plan.tokens))
            size = len(encode(written)) + _CANDIDATE_BYTES
            fillings = plan.fillings * (size + _TOKEN_BYTES * len(plan.places))
            found.append((plan, plan.candidates * size + fillings))
        return found

    sizes = list(map(text_size, texts))
    plans = await call.each(texts, planned, sizes=sizes)
    call.reserve(sum(size for _, size in plans), "Send fewer or shorter texts, fewer masks, or lower top_k.")
    work, rounds = sum(plan.work for plan, _ in plans), [filler.rounds(plan) for plan, _ in plans]
    results = await filled(call, model, runner, rounds, work, sizes)
    return schemas.Answer(model.name, results, call.usage())


async def filled(
    call: Call, model: ServedModel, runner: FillRunner, rounds: list[Rounds], work: int, sizes: list[int]
) -> list[msgspec.Raw]:
    """The answers in JSON. What all texts ask for in a round goes through the model as one job."""
    answers: dict[int, msgspec.Raw] = {}

    def step(_: int, some: Sequence[tuple[int, object]]) -> list[tuple[int, list[Any]]]:
        """Give the texts their replies; those that have more to ask."""
        more = []
        for number, reply in some:
            try:
                more.append((number, rounds[number].send(reply)))
            except StopIteration as done:
                one: Filled = done.value
                shown = schemas.FilledOut(one.text, one.masks, one.fillings)
                answers[number] = msgspec.Raw(encode_answer(shown))
        return more

    replied: list[tuple[int, object]] = [(number, None) for number in range(len(rounds))]
    while asked := await call.each(replied, step, sizes=[sizes[number] for number, _ in replied]):
        queries = [query for _, own in asked for query in own]
        rows = sum(len(query.row) for query in queries)
        lengths = [len(query) for query in queries]
        replies = iter(await call.compute(model, runner.lane, queries, lengths, work=work, tokens=rows))
        replied = [(number, list(islice(replies, len(own)))) for number, own in asked]
    return [answers[number] for number in range(len(rounds))]


ROUTES = [
    Route("/v1/fill", fill, "Words for [MASK].", "Bertie", schemas.FillRequest,
          schemas.answer_of("fill", schemas.FilledOut), timed=True,
          examples={"one": {"inputs": "He drank a cup of [MASK]."}}),
]  # fmt: skip
