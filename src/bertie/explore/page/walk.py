"""The walk: one token from its id to the prediction, a step to each thing that model/bert.py does with it.

Each step has a formula, a shape, the numbers of this very token, and the lines of the source that compute them. The
numbers are computed here with the model's own modules, from the states between the layers that a session keeps, so
nothing is hooked and nothing is run twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from bertie.explore.attention import probabilities
from bertie.explore.page.steps import STEPS, StepText
from bertie.explore.session import Session
from bertie.model import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertie.model.bert import BertLayer

_TOP = 8
_FIRST_NUMBERS = 6
# Letters from # to [, none of which JSON has to mark; web/src/explore/walk.ts reads them.
_MOST_CODE, _LETTER_OF_ZERO = 28, ord("?")


@dataclass(frozen=True)
class Seen:
    """What a step gives for the token: a vector, or names with their weights."""

    key: str
    layer: int
    vector: Tensor | None = None
    shape: str = ""
    module: str = ""
    weights: int = 0
    words: list[tuple[str, float]] | None = None
    by_head: dict[int, list[tuple[str, float]]] | None = None


@torch.no_grad()
def walk(session: Session, *, row: int = 0, place: int) -> dict[str, object]:
    """All steps, in the order in which they are computed."""
    session.check_place(place, row)
    with session.running():
        seen = [*_embeddings(session, row, place), *_layers(session, row, place), *_head(session, row, place)]
        steps = [_shown(session, row, place, one) for one in seen]
    sources: list[object] = []
    for step in steps:  # many steps share a function, and a function need not travel twice
        if step["source"] not in sources:
            sources.append(step["source"])
        step["source"] = sources.index(step["source"])
    return {"steps": steps, "sources": sources}


# -- the steps ---------------------------------------------------------------------------------------------------------


def _embeddings(session: Session, row: int, place: int) -> Iterator[Seen]:
    part, text = session.bert.embeddings, session.rows[row]
    token = text.tokens[place]
    device, width = session.device, session.config.embedding_width
    yield Seen("id", -1, shape="[]", words=None)
    word = part.word_embeddings(torch.tensor(token.id, device=device))
    yield Seen("word", -1, word, f"[{width}]", "embeddings.word_embeddings", _size(part.word_embeddings))
    total, table = word, part.token_type_embeddings
    if table is not None:  # some relatives of BERT have no segments
        total = word + table(torch.tensor(text.segments[place], device=device))
        yield Seen("segment", -1, total, f"[{width}]", "embeddings.token_type_embeddings", _size(table))
    if part.position_embedding_type == "absolute":
        table, padding = part.position_embeddings, session.config.position_padding
        first = 0 if padding is None else padding + 1
        total = total + table(torch.tensor(first + place, device=device))
        yield Seen("position", -1, total, f"[{width}]", "embeddings.position_embeddings", _size(table))
    total = part.LayerNorm(total)
    yield Seen("embedding_norm", -1, total, f"[{width}]", "embeddings.LayerNorm", _size(part.LayerNorm))
    if part.project is not None:
        total = part.project(total)
        yield Seen("project", -1, total, f"[{len(total)}]", "embeddings.project", _size(part.project))


def _layers(session: Session, row: int, place: int) -> Iterator[Seen]:
    states = session.states(row)
    for number, layer in enumerate(session.bert.encoder.layer):
        attended = layer.attention.output.LayerNorm(layer.attention.output.dense.bias + states[number][place])
        if layer.attention.self.heads:  # otherwise all are pruned, and only the bias is added
            for seen in _attention(session, row, place, number, layer, states[number]):
                attended = seen.vector
                yield seen
        yield from _feed_forward(number, layer, attended)


def _attention(session: Session, row: int, place: int, number: int, layer: BertLayer, state: Tensor) -> Iterator[Seen]:
    part, output = layer.attention.self, layer.attention.output
    name, x = f"encoder.layer.{number}.attention", state[place]
    heads, width = len(part.heads), part.attention_head_size
    by_head = f"[{heads} heads × {width}]"
    for key in ("query", "key", "value"):
        project: nn.Linear = getattr(part, key)
        yield Seen(key, number, project(x), by_head, f"{name}.self.{key}", _size(project))
    maps = probabilities(session, number, row)[:, place]  # [N, S]
    tokens = session.rows[row].names
    best = {}
    for slot, head in enumerate(part.heads):
        weights, places = maps[slot].topk(min(_TOP, len(tokens)))
        found = zip(places.tolist(), weights.tolist(), strict=True)
        best[head] = [(tokens[at], round(weight, 4)) for at, weight in found]
    yield Seen("weights", number, shape=f"[{heads} heads × {len(tokens)} tokens]", module=f"{name}.self", by_head=best)
    values = part.value(state).view(len(tokens), heads, width)
    context = torch.einsum("ns,snh->nh", maps.to(values.dtype), values).flatten()
    yield Seen("context", number, context, by_head, f"{name}.self")
    mixed = output.dense(context)
    yield Seen("mix", number, mixed, f"[{len(mixed)}]", f"{name}.output.dense", _size(output.dense))
    added = output.LayerNorm(mixed + x)
    yield Seen("attention_norm", number, added, f"[{len(added)}]", f"{name}.output.LayerNorm", _size(output.LayerNorm))


def _feed_forward(number: int, layer: BertLayer, x: Tensor | None) -> Iterator[Seen]:
    name, output = f"encoder.layer.{number}", layer.output
    wide = layer.intermediate(x)
    yield Seen("wide", number, wide, f"[{len(wide)}]", f"{name}.intermediate", _size(layer.intermediate))
    narrow = output.dense(wide)
    yield Seen("narrow", number, narrow, f"[{len(narrow)}]", f"{name}.output.dense", _size(output.dense))
    last = output.LayerNorm(narrow + x)
    yield Seen("feed_norm", number, last, f"[{len(last)}]", f"{name}.output.LayerNorm", _size(output.LayerNorm))


def _head(session: Session, row: int, place: int) -> Iterator[Seen]:
    """What the task's head makes of the last state: of this token's, or of [CLS]'s where it judges the whole text."""
    model, last, after = session.model, session.states(row)[-1], session.num_layers
    match model:
        case BertForMaskedLM():
            head = model._predictions
            name = next(name for name, part in model.named_modules() if part is head)
            vector = head.transform(last[place])
            size = _size(head) - _size(head.decoder)
            yield Seen("transform", after, vector, f"[{len(vector)}]", f"{name}.transform", size)
            logits = head.decoder(vector)
            size = _size(head.decoder)
            words = _best(logits, lambda index: session.tokenizer.convert_ids_to_tokens(index))
            yield Seen("vocabulary", after, None, f"[{len(logits)}]", f"{name}.decoder", size, words)
        case BertForTokenClassification():
            yield _judged("tag", after, model.classifier, last[place], session, "classifier")
        case BertForQuestionAnswering():
            start, end = model.qa_outputs(last[place]).tolist()
            words = [("start", round(start, 4)), ("end", round(end, 4))]
            yield Seen("span", after, None, "[2]", "qa_outputs", _size(model.qa_outputs), words)
        case BertForSequenceClassification() | BertForMultipleChoice() | BertForNextSentencePrediction() if (
            pooler := session.bert.pooler
        ) is not None:
            pooled = pooler(last[None])[0]
            yield Seen("pooler", after, pooled, f"[{len(pooled)}]", "pooler", _size(pooler))
            if isinstance(model, BertForNextSentencePrediction):
                yield _judged("next", after, model.cls.seq_relationship, pooled, session, "cls.seq_relationship")
            else:
                yield _judged("classify", after, model.classifier, pooled, session, "classifier")
        case _:
            yield Seen("state", after, last[place], f"[{last.shape[-1]}]", "")


def _judged(key: str, layer: int, linear: nn.Module, vector: Tensor, session: Session, module: str) -> Seen:
    names = ["follows", "is from elsewhere"] if key == "next" else list(session.config.id2label.values())
    logits: Tensor = linear(vector)
    if len(logits) == 1:
        words = [("score", round(float(logits[0]), 4))]
    else:
        words = _best(logits, lambda index: names[index])
    return Seen(key, layer, None, f"[{len(logits)}]", module, _size(linear), words)


def _best(logits: Tensor, name: Callable[[int], object]) -> list[tuple[str, float]]:
    shares, places = logits.float().softmax(-1).topk(min(_TOP, len(logits)))
    return [(str(name(place)), round(share, 4)) for place, share in zip(places.tolist(), shares.tolist(), strict=True)]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# -- as the page takes them -------------------------------------------------------------------------------------------


def _shown(session: Session, row: int, place: int, seen: Seen) -> dict[str, object]:
    told: StepText = STEPS[seen.key]
    source, marked = source_of(told)
    token = session.rows[row].tokens[place]
    values = {"token": token.text or " ", "id": token.id, "place": place, "segment": session.rows[row].segments[place]}
    shown: dict[str, object] = {
        "key": seen.key,
        "layer": seen.layer,
        "name": seen.module,
        "title": told.title,
        "title_zh": told.title_zh,
        "says": told.says.format_map(values),
        "says_zh": told.says_zh.format_map(values),
        "formula": told.formula.format_map(values),
        "shape": seen.shape,
        "weights": seen.weights,
        "words": seen.words,
        "by_head": seen.by_head,
        "vector": None if seen.vector is None else _packed(seen.vector),
        "source": source,
        "marked": marked,
    }
    return shown


def _packed(vector: Tensor) -> dict[str, object]:
    """The numbers as a letter each for the strip, with the first few and what can be said of all of them as they are.

    A number is ±(code / 28)² times the largest: one outlier must not make all others the same. Letters, because JSON
    holds no bytes, and base64 of bytes hardly compresses in a saved page.
    """
    values = vector.detach().float().cpu().numpy()
    scale = float(np.abs(values).max(initial=0.0)) or 1.0
    codes = np.round(np.sign(values) * np.sqrt(np.abs(values) / scale) * _MOST_CODE)
    return {
        "scale": float(f"{scale:.5g}"),
        "codes": (codes + _LETTER_OF_ZERO).astype(np.uint8).tobytes().decode("ascii"),
        "first": [round(float(value), 4) for value in values[:_FIRST_NUMBERS]],
        "mean": round(float(values.mean()), 5),
        "std": round(float(values.std()), 5),
        "norm": round(float(np.linalg.norm(values)), 4),
    }


@cache
def source_of(told: StepText) -> tuple[dict[str, object], list[int]]:
    """The function's lines, and which of them are the step."""
    function = inspect.unwrap(told.function)
    lines, first = inspect.getsourcelines(function)
    marked = [first + at for at, line in enumerate(lines) if any(mark in line for mark in told.marks)]
    file = (inspect.getsourcefile(function) or "").replace("\\", "/")
    shown = {"file": file[file.rfind("/bertie/") + 1 :], "first": first}
    return shown | {"lines": _dedented([line.rstrip("\n") for line in lines])}, marked


def _dedented(lines: list[str]) -> list[str]:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[margin:] for line in lines]
