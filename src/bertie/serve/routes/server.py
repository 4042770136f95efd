"""The server itself: alive, ready, what it serves; tokens; metrics; loading and unloading with an admin key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec import UNSET

import bertie
from bertie.answers import Token
from bertie.errors import BertieError
from bertie.serve import schemas
from bertie.serve.bodies import encode, encode_parts
from bertie.serve.embedding import EmbedRunner, checked_ids
from bertie.serve.failures import empty, invalid, too_large, unhealthy
from bertie.serve.models import ServedModel
from bertie.serve.routes.scores import LogitsRunner
from bertie.serve.schemas import as_list
from bertie.serve.service import AnyRoute, Call, Route
from bertie.serve.settings import ModelChoice
from bertie.tasks.classify import label_names
from bertie.text import BertTokenizer

# Of {"id":30521,"text":"","special":false,"start":524287,"stop":524288}, and of each character in it.
_TOKEN_BYTES, _CHARACTER_BYTES = 80, 6


def state_of(call: Call, status: str) -> schemas.State:
    engines = call.service.engines
    models = {model.name: model.state for model in call.service.models.all}
    return schemas.State(status, models, UNSET if engines is None else engines.states())


async def live(call: Call, body: None) -> schemas.State:
    return state_of(call, "live")


async def ready(call: Call, body: None) -> schemas.State:
    """Warmed up, healthy and not shutting down: may be sent requests."""
    service = call.service
    if not service.ready:
        states = ", ".join(f"{model.name} is {model.state}" for model in call.service.models.all)
        raise unhealthy("Shutting down." if service.draining else f"Not ready: {states or 'no model'}.")
    return state_of(call, "ready")


async def metrics(call: Call, body: None) -> bytes:
    return call.service.metrics.text(call.service.set_gauges)


async def info(call: Call, body: None) -> schemas.Info:
    model = _any_model(call, None)
    model.running()
    source, loaded, service = model.choice.source, model.loaded, call.service
    embeds, judges = model.get("embed", EmbedRunner), model.get("classify", LogitsRunner)
    kind: dict[str, object]
    if embeds is not None:
        kind = {"embedding": {"pooling": "+".join(embeds.embedder.pooling.modes)}}
    elif judges is not None:
        names = judges.names
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
        kind = {"reranker" if judges.config.num_labels == 1 else "classifier": labels}
    else:
        kind = {sorted(model.runners)[0]: {}}
    return schemas.Info(
        model_id=source if source.count("/") == 1 and source[0] not in "./~" else model.name,
        model_sha=None,
        model_dtype=model.dtype,
        model_type=kind,
        max_concurrent_requests=call.limits.queue_requests,
        max_input_length=loaded.max_length if embeds is None else embeds.max_length,
        max_batch_tokens=0 if model.engine is None else model.engine.budget,
        max_batch_requests=None,
        max_client_batch_size=call.limits.batch,
        auto_truncate=service.settings.truncation in ("left", "right"),
        tokenization_workers=service.helpers,
        version=bertie.__version__,
        sha=None,
        docker_label=None,
        models=[model_card(one) for one in call.service.models.all],
    )  # fmt: skip


async def tokenize(call: Call, body: schemas.TokenizeRequest) -> bytes:
    texts = as_list(body.inputs)
    call.check_texts(texts)
    model = _any_model(call, body.model)
    model.running()
    prompt = ""
    if body.prompt_name is not None:
        embeds = model.get("embed", EmbedRunner)
        prompts = {} if embeds is None else embeds.embedder.prompts
        if body.prompt_name not in prompts:
            raise invalid(f"There is no prompt called {body.prompt_name[:80]!r}.")
        prompt = prompts[body.prompt_name]
    tokenizer, longest = model.loaded.tokenizer, call.limits.text_tokens

    characters = list(map(len, texts))

    def counted(first: int, some: Sequence[str]) -> list[int]:
        """Bytes that the tokens of each text will take."""
        sizes = tokenizer.encode_flat([prompt + text for text in some])[1].tolist()
        for number, size in enumerate(sizes, first):
            if size > longest:
                raise too_large(f"Input {number} has {size} tokens; {longest} are allowed.", "Send shorter texts.")
        return [size * _TOKEN_BYTES + _CHARACTER_BYTES * len(text) for size, text in zip(sizes, some, strict=True)]

    call.reserve(sum(await call.each(texts, counted, sizes=characters)))

    def shown(_: int, some: Sequence[str]) -> list[bytes]:
        return [encode(one) for one in _tokens(tokenizer, [prompt + text for text in some], body.add_special_tokens)]

    return encode_parts(await call.each(texts, shown, sizes=characters))


def _tokens(tokenizer: BertTokenizer, texts: list[str], special: bool) -> list[list[Token]]:
    encoded = tokenizer(texts, add_special_tokens=special, return_offsets_mapping=True, return_special_tokens_mask=True)
    answers = []
    for number, text in enumerate(texts):
        row = encoded[number]
        answers.append(
            [
                Token(token, name, True, None, None) if masked else Token(token, text[start:end], False, start, end)
                for token, name, masked, (start, end) in zip(
                    row.ids, row.tokens, row.special_tokens_mask, row.offsets, strict=True
                )
            ]
        )
    return answers


async def decode(call: Call, body: schemas.DecodeRequest) -> bytes:
    if not body.ids:
        raise empty("ids")
    kinds = set(map(type, body.ids))
    if len(kinds) > 1:
        raise invalid("`ids` is a list of ids or a list of such lists.")
    rows = cast(list[list[int]], [body.ids] if kinds == {int} else body.ids)
    limits = call.limits
    if len(rows) > limits.batch or max(map(len, rows)) > limits.text_tokens:
        raise too_large(f"At most {limits.batch} lists of {limits.text_tokens} ids are decoded at once.")
    call.size = sum(map(len, rows))
    if call.size > limits.request_tokens:
        raise too_large(f"There are {call.size} ids; {limits.request_tokens} are allowed.", "Send fewer at once.")
    model = _any_model(call, body.model)
    model.running()
    tokenizer = model.loaded.tokenizer
    vocabulary = len(tokenizer)

    def shown(first: int, some: Sequence[list[int]]) -> list[bytes]:
        found = []
        for number, row in enumerate(some, first):
            ids = checked_ids(row, vocabulary, number)
            found.append(encode(tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens)))
            call.reserve(len(found[-1]))
        return found

    return encode_parts(await call.each(rows, shown, sizes=list(map(len, rows))))


async def list_models(call: Call, body: None) -> schemas.ModelList:
    return schemas.ModelList("list", [model_card(model) for model in call.service.models.all])


async def one_model(call: Call, body: None) -> schemas.ModelCard:
    return model_card(call.service.models.get(call.path.removeprefix("/v1/models/")))


def model_card(model: ServedModel) -> schemas.ModelCard:
    """What a model is and can do. Ranking and comparing need no more than embeddings."""
    tasks = set(model.runners) | ({"similarity", "rerank"} if "embed" in model.runners else set())
    card = schemas.ModelCard(model.name, "model", model.since, "bertie", sorted(tasks), model.state)
    if model.state != "ready":
        return card
    loaded, embeds = model.loaded, model.get("embed", EmbedRunner)
    card.max_input_length = loaded.max_length if embeds is None else embeds.max_length
    card.dimensions = None if embeds is None else embeds.dimension
    card.mask_token = loaded.tokenizer.mask_token if "fill" in tasks else None
    card.labels = label_names(loaded.model.config) if tasks & {"classify", "tag"} else None
    return card


def _any_model(call: Call, name: str | None) -> ServedModel:
    """The one that is named, or the first."""
    models = call.service.models.all
    found = [model for model in models if model.name == name] or models
    if not found:
        raise unhealthy("There is no model.")
    return found[0]


# -- with an admin key ----------------------------------------------------------------------------------------------


async def load_model(call: Call, body: schemas.LoadRequest) -> schemas.ModelCard:
    try:
        model = await call.service.models.load(ModelChoice(body.name, body.source, tuple(body.tasks)))
    except BertieError:
        call.service.models.forget_failed(body.name)
        raise
    return model_card(model)


async def unload_model(call: Call, body: None) -> schemas.State:
    await call.service.models.unload(call.path.removeprefix("/admin/models/"))
    return state_of(call, "unloaded")


_SERVER = "Server"
ROUTES: list[AnyRoute] = [
    Route("/v1/models", list_models, "The models of this server (OpenAI).", "OpenAI", None, schemas.ModelList,
          method="GET", errors=()),
    Route("/v1/models/{name}", one_model, "One of them (OpenAI).", "OpenAI", None, schemas.ModelCard, method="GET",
          errors=(404,), parameters=("name",)),
    Route("/health", ready, "Ready for requests? (text-embeddings-inference)", _SERVER, None, schemas.State, "GET",
          errors=(503,), at_front=True),
    Route("/ready", ready, "Ready for requests?", _SERVER, None, schemas.State, "GET", errors=(503,),
          at_front=True),
    Route("/live", live, "Is the process there?", _SERVER, None, schemas.State, "GET", errors=(),
          at_front=True),
    Route("/metrics", metrics, "Counters for Prometheus.", _SERVER, None, None, "GET",
          media_type="text/plain; version=0.0.4; charset=utf-8", errors=(), at_front=True),
    Route("/info", info, "What is served, and its limits.", "text-embeddings-inference", None, schemas.Info, "GET",
          errors=(503,)),
    Route("/tokenize", tokenize, "The word pieces of texts.", "text-embeddings-inference", schemas.TokenizeRequest,
          list[list[Token]], examples={"one": {"inputs": "What is Deep Learning?"}}),
    Route("/decode", decode, "Texts of token ids.", "text-embeddings-inference", schemas.DecodeRequest, list[str],
          examples={"one": {"ids": [101, 7592, 102]}}),
    Route("/admin/models", load_model, "Load a model.", "Admin", schemas.LoadRequest, schemas.ModelCard,
          examples={"one": {"name": "mine", "source": "./my-bert", "tasks": ["embed"]}},
          errors=(400, 401, 403, 409, 415, 422)),
    Route("/admin/models/{name}", unload_model, "Unload a model; what it has queued is finished first.", "Admin", None,
          schemas.State, "DELETE", errors=(401, 403, 404), parameters=("name",)),
]  # fmt: skip
