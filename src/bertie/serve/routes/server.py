"""The server itself: alive, ready, what it serves; tokens; metrics; loading and unloading with an admin key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertie import __version__
from bertie.errors import BertieError
from bertie.serve import schemas as wire
from bertie.serve.abilities import checked_ids
from bertie.serve.bodies import encode, encode_parts
from bertie.serve.failures import empty, invalid, too_large, unhealthy
from bertie.serve.models import ServedModel
from bertie.serve.routes.embed import as_list, model_card
from bertie.serve.routes.route import Route
from bertie.serve.service import Call, Service
from bertie.serve.settings import ModelChoice
from bertie.text import BertTokenizer

# Of {"id":30521,"text":"","special":false,"start":524287,"stop":524288}, and of each character in it.
_TOKEN_BYTES, _CHARACTER_BYTES = 80, 6


def state_of(service: Service, status: str) -> wire.State:
    return wire.State(status, {model.name: model.state for model in service.models.all})


async def live(service: Service, call: Call, body: None) -> wire.State:
    return state_of(service, "live")


async def ready(service: Service, call: Call, body: None) -> wire.State:
    """Warmed up, healthy and not shutting down: may be sent requests."""
    if not service.ready:
        states = ", ".join(f"{model.name} is {model.state}" for model in service.models.all)
        raise unhealthy("Shutting down." if service.draining else f"Not ready: {states or 'no model'}.")
    return state_of(service, "ready")


async def metrics(service: Service, call: Call, body: None) -> bytes:
    return service.metrics.text(service.set_gauges)


async def info(service: Service, call: Call, body: None) -> wire.Info:
    model = _any_model(service, None)
    engine, source = model.running(), model.choice.source
    loaded, settings, embedding = model.loaded, service.settings, model.abilities.get("embed")
    kind: dict[str, Any]
    if embedding is not None:
        kind = {"embedding": {"pooling": "+".join(embedding.embedder.pooling.modes)}}
    elif "classify" in model.abilities:
        config = loaded.model.config
        names = model.abilities["classify"].names
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
        kind = {"reranker" if config.num_labels == 1 else "classifier": labels}
    else:
        kind = {sorted(model.abilities)[0]: {}}
    return wire.Info(
        model_id=source if source.count("/") == 1 and source[0] not in "./~" else model.name,
        model_sha=None,
        model_dtype=model.dtype,
        model_type=kind,
        max_concurrent_requests=settings.limits.queue_requests,
        max_input_length=loaded.max_length if embedding is None else embedding.max_length,
        max_batch_tokens=engine.budget,
        max_batch_requests=None,
        max_client_batch_size=settings.limits.batch,
        auto_truncate=settings.truncation in ("left", "right"),
        tokenization_workers=service.helpers,
        version=__version__,
        sha=None,
        docker_label=None,
        models=[model_card(one) for one in service.models.all],
    )  # fmt: skip


async def tokenize(service: Service, call: Call, body: wire.TokenizeRequest) -> bytes:
    texts = as_list(body.inputs)
    service.check_texts(call, texts)
    model = _any_model(service, body.model)
    model.running()
    prompt = ""
    if body.prompt_name is not None:
        embedding = model.abilities.get("embed")
        prompts = {} if embedding is None else embedding.embedder.prompts
        if body.prompt_name not in prompts:
            raise invalid(f"There is no prompt called {body.prompt_name[:80]!r}.")
        prompt = prompts[body.prompt_name]
    tokenizer, longest = model.loaded.tokenizer, service.settings.limits.text_tokens

    def counted(first: int, some: Sequence[str]) -> list[int]:
        """Bytes that the tokens of each text will take."""
        sizes = tokenizer.encode_flat([prompt + text for text in some])[1].tolist()
        for number, size in enumerate(sizes, first):
            if size > longest:
                raise too_large(f"Input {number} has {size} tokens; {longest} are allowed.", "Send shorter texts.")
        return [size * _TOKEN_BYTES + _CHARACTER_BYTES * len(text) for size, text in zip(sizes, some, strict=True)]

    service.reserve(call, sum(await service.each(call, texts, counted)))

    def shown(_: int, some: Sequence[str]) -> list[bytes]:
        return [encode(one) for one in _tokens(tokenizer, [prompt + text for text in some], body.add_special_tokens)]

    return encode_parts(await service.each(call, texts, shown))


def _tokens(tokenizer: BertTokenizer, texts: list[str], special: bool) -> list[list[wire.TokenOut]]:
    encoded = tokenizer(texts, add_special_tokens=special, return_offsets_mapping=True, return_special_tokens_mask=True)
    answers = []
    for number, text in enumerate(texts):
        row = encoded[number]
        answers.append(
            [
                wire.TokenOut(token, name, True, None, None)
                if masked
                else wire.TokenOut(token, text[start:end], False, start, end)
                for token, name, masked, (start, end) in zip(
                    row.ids, row.tokens, row.special_tokens_mask, row.offsets, strict=True
                )
            ]
        )
    return answers


async def decode(service: Service, call: Call, body: wire.DecodeRequest) -> bytes:
    if not body.ids:
        raise empty("ids")
    kinds = set(map(type, body.ids))
    if len(kinds) > 1:
        raise invalid("`ids` is a list of ids or a list of such lists.")
    rows: list[Any] = [body.ids] if kinds == {int} else list(body.ids)
    limits = service.settings.limits
    if len(rows) > limits.batch or max(map(len, rows)) > limits.text_tokens:
        raise too_large(f"At most {limits.batch} lists of {limits.text_tokens} ids are decoded at once.")
    call.size = sum(map(len, rows))
    if call.size > limits.request_tokens:
        raise too_large(f"There are {call.size} ids; {limits.request_tokens} are allowed.", "Send fewer at once.")
    model = _any_model(service, body.model)
    model.running()
    tokenizer = model.loaded.tokenizer
    vocabulary = len(tokenizer)

    def shown(first: int, some: Sequence[list[int]]) -> list[bytes]:
        found = []
        for number, row in enumerate(some, first):
            ids = checked_ids(row, vocabulary, number)
            found.append(encode(tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens)))
            service.reserve(call, len(found[-1]))
        return found

    return encode_parts(await service.each(call, rows, shown))


def _any_model(service: Service, name: str | None) -> ServedModel:
    """The one that is named, or the first."""
    models = service.models.all
    found = [model for model in models if model.name == name] or models
    if not found:
        raise unhealthy("There is no model.")
    return found[0]


# -- with an admin key ----------------------------------------------------------------------------------------------


async def load_model(service: Service, call: Call, body: wire.LoadRequest) -> wire.ModelCard:
    try:
        model = await service.models.load(ModelChoice(body.name, body.source, tuple(body.tasks)))
    except BertieError:
        service.models.forget_failed(body.name)
        raise
    return model_card(model)


async def unload_model(service: Service, call: Call, body: None) -> wire.State:
    await service.models.unload(call.path.removeprefix("/admin/models/"))
    return state_of(service, "unloaded")


_SERVER = "Server"
ROUTES = [
    Route("/health", ready, "Ready for requests? (text-embeddings-inference)", _SERVER, None, wire.State, "GET",
          errors=(503,)),
    Route("/ready", ready, "Ready for requests?", _SERVER, None, wire.State, "GET", errors=(503,)),
    Route("/live", live, "Is the process there?", _SERVER, None, wire.State, "GET", errors=()),
    Route("/metrics", metrics, "Counters for Prometheus.", _SERVER, None, None, "GET",
          media_type="text/plain; version=0.0.4; charset=utf-8", errors=()),
    Route("/info", info, "What is served, and its limits.", "text-embeddings-inference", None, wire.Info, "GET",
          errors=(503,)),
    Route("/tokenize", tokenize, "The word pieces of texts.", "text-embeddings-inference", wire.TokenizeRequest,
          list[list[wire.TokenOut]], examples={"one": {"inputs": "What is Deep Learning?"}}),
    Route("/decode", decode, "Texts of token ids.", "text-embeddings-inference", wire.DecodeRequest, list[str],
          examples={"one": {"ids": [101, 7592, 102]}}),
    Route("/admin/models", load_model, "Load a model.", "Admin", wire.LoadRequest, wire.ModelCard,
          examples={"one": {"name": "mine", "source": "./my-bert", "tasks": ["embed"]}},
          errors=(400, 401, 403, 409, 415, 422)),
    Route("/admin/models/{name}", unload_model, "Unload a model; what it has queued is finished first.", "Admin", None,
          wire.State, "DELETE", errors=(401, 403, 404), parameters=("name",)),
]  # fmt: skip
