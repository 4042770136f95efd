"""The page of the HTTP API, from the same types that the server reads requests and writes its OpenAPI document with."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from bertie.serve.app import ROUTES, describe

INTRODUCTION = """# The HTTP API

Every route of `bertie serve`. A running server has the same as an OpenAPI document at `/openapi.json`. How a server is
started, limited, watched and called is in [Serving](../serve.md).
"""
GROUPS = {"openai": "OpenAI", "tei": "text-embeddings-inference", "cohere": "Cohere"}


def http_page() -> tuple[str, str]:
    """(page name, Markdown): the routes by group, then the objects that their bodies and answers are made of."""
    components: dict[str, Any] = {}
    described = [(route, describe(route, components)) for route in ROUTES]
    written = [INTRODUCTION]
    for group, routes in groupby(sorted(described, key=lambda each: each[0].group), key=lambda each: each[0].group):
        written.append(f"## {GROUPS.get(group.lower(), group.capitalize())}")
        for route, document in routes:
            written.append(f"### {route.method} {route.path}\n\n{route.summary}")
            written += route_parts(document)
    written.append("## Objects")
    written += [f"### {name}\n\n{object_parts(schema)}" for name, schema in sorted(components.items())]
    return "http/index", "\n\n".join(written) + "\n"


def route_parts(document: dict[str, Any]) -> list[str]:
    parts = []
    names = [parameter["name"] for parameter in document.get("parameters", ())]
    if names:
        parts.append(f"In the path: {', '.join(f'`{name}`' for name in names)}.")
    if body := document.get("requestBody"):
        ((_, content),) = body["content"].items()
        parts.append(f"Body: {kind(content['schema'])}.")
        for example in list(content["examples"].values())[:1]:
            parts.append("```json\n" + json.dumps(example["value"], ensure_ascii=False, indent=2) + "\n```")
    rows = ["| status | | body |\n|---|---|---|"]
    for status, answer in document["responses"].items():
        ((media, content),) = answer["content"].items()
        said = kind(content["schema"]) if media == "application/json" else f"`{media}`"
        rows.append(f"| {status} | {cell(answer['description'])} | {said} |")
    return [*parts, "\n".join(rows)]


def object_parts(schema: dict[str, Any]) -> str:
    """A table of an object's fields; anything else by its kind."""
    said = schema.get("description", "").strip()
    if "properties" not in schema:
        return "\n\n".join(filter(None, [said, f"{kind(schema)}."]))
    needed = schema.get("required", ())
    rows = ["| field | type | default | |\n|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "required" if name in needed else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        limits = [f"{word} {field[key]}" for key, word in LIMITS.items() if key in field]
        notes = " ".join(filter(None, [field.get("description", ""), ", ".join(limits)]))
        rows.append(f"| `{name}` | {kind(field)} | {cell(default)} | {cell(notes)} |")
    return "\n\n".join(filter(None, [said, "\n".join(rows)]))


LIMITS = {
    "minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than", "exclusiveMaximum": "less than",
    "minLength": "characters: at least", "maxLength": "characters: at most", "minItems": "items: at least",
    "maxItems": "items: at most",
}  # fmt: skip


def kind(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to the objects it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(kind(each) for each in schema["anyOf"])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"array of ({', '.join(kind(each) for each in schema['prefixItems'])})"
        case "array":
            items = schema.get("items")
            return f"array of {kind(items)}" if isinstance(items, dict) and items else "array"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {kind(values)}" if isinstance(values, dict) and values else "object"
        case str(name):
            return name
        case _:
            return "anything"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
