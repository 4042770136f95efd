"""Chat templates: a conversation as one text, by a Jinja template, and then as ids.

A BERT has none of its own. A decoder fine-tuned on conversations may, in `chat_template.jinja` or in
tokenizer_config.json, and scripts written for `transformers` set `tokenizer.chat_template`. Templates come with files,
so they are rendered in Jinja's sandbox, which reaches nothing outside the values given to it, and only when asked for.
The names and the environment are those of transformers 4.57, so that a template means the same.
"""

from __future__ import annotations

import copy
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from bertie.errors import MissingExtra, TokenizerError, TokenizerTypeError
from bertie.text.wordpiece.vocabulary import read_text

TEMPLATE_FILE, OTHERS_FOLDER = "chat_template.jinja", "additional_chat_templates"
_OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' word, which a template may look for
_NAME = re.compile(r"[\w\-][\w.\-]{0,80}")


class ChatTemplates:
    """What a tokenizer does with conversations. `BertTokenizer` inherits it."""

    chat_template: str | dict[str, str] | None = None
    special_tokens_map: Any
    __call__: Callable[..., Any]

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: Any = False,
        truncation: Any = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = False,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> Any:
        """A conversation `[{"role": …, "content": …}, …]`, or a list of them, as ids (or text: `tokenize=False`).

        `values` are further names the template may use. `return_assistant_tokens_mask` marks what stands between
        `{% generation %}` and `{% endgeneration %}`.
        """
        if return_dict and not tokenize:
            raise TokenizerError("return_dict=True needs tokenize=True: a text has no columns.")
        if return_assistant_tokens_mask and not return_dict:
            raise TokenizerError("return_assistant_tokens_mask=True needs return_dict=True: it is one of the columns.")
        if continue_final_message and (add_generation_prompt or return_assistant_tokens_mask):
            other = "add_generation_prompt" if add_generation_prompt else "return_assistant_tokens_mask"
            raise TokenizerError(f"continue_final_message and {other} exclude each other.", "Give one of them.")
        render = _compiled(self.get_chat_template(chat_template, tools))
        several = isinstance(conversation, (list, tuple)) and (
            isinstance(conversation[0], (list, tuple)) or hasattr(conversation[0], "messages")
        )
        values = {**self.special_tokens_map, **values, "tools": _schemas(tools), "documents": documents}
        values["add_generation_prompt"] = add_generation_prompt
        texts, marked, no_spans = [], [], list[tuple[int, int]]()
        for one in conversation if several else [conversation]:
            messages = getattr(one, "messages", one)
            if continue_final_message:
                text, spans = _cut_open(render, messages, values), no_spans
            else:
                text, spans = render(messages, values)
            texts.append(text)
            marked.append(spans)
        if not tokenize:
            return texts if several else texts[0]
        settings = {"padding": padding, "truncation": truncation, "max_length": max_length, **(tokenizer_kwargs or {})}
        settings = {"add_special_tokens": False, "return_tensors": return_tensors, **settings}
        encoding = self(texts if several else texts[0], **settings)
        if return_assistant_tokens_mask:
            ids = encoding["input_ids"] if several or return_tensors else [encoding["input_ids"]]
            masks = [_tokens_between(encoding, row, len(ids[row]), spans) for row, spans in enumerate(marked)]
            encoding["assistant_masks"] = masks if several or return_tensors else masks[0]
            if return_tensors:
                encoding.convert_to_tensors(return_tensors)
        return encoding if return_dict else encoding["input_ids"]

    def encode_message_with_chat_template(
        self,
        message: Mapping[str, str],
        conversation_history: Sequence[Mapping[str, str]] | None = None,
        **settings: Any,
    ) -> list[int]:
        """The ids that a message adds to a conversation: those after the beginning that both have."""
        if "add_generation_prompt" in settings:
            raise TokenizerError("encode_message_with_chat_template adds no generation prompt.", "Add it at the end.")
        before = list(conversation_history or ())
        whole: list[int] = self.apply_chat_template([*before, message], **settings)
        start: list[int] = self.apply_chat_template(before, **settings) if before else []
        alike = next((n for n, pair in enumerate(zip(start, whole, strict=False)) if pair[0] != pair[1]), None)
        return whole[min(len(start), len(whole)) if alike is None else alike :]

    def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str:
        """The template to use: the one given, or named, or the tokenizer's own."""
        own = self.chat_template
        if isinstance(own, dict):
            if chat_template is not None:
                return own.get(chat_template, chat_template)
            name = "tool_use" if tools is not None and "tool_use" in own else "default"
            if name not in own:
                raise TokenizerError(
                    f"This tokenizer has several chat templates ({', '.join(sorted(own))}) and no default.",
                    "Name one: chat_template='…'.",
                )
            return own[name]
        if chat_template is None and own is None:
            raise TokenizerError(
                "Cannot use chat template functions because tokenizer.chat_template is not set and no template "
                "argument was passed! BERT has none of its own.",
                "Set tokenizer.chat_template, or pass chat_template='…'.",
            )
        return own if chat_template is None else chat_template  # type: ignore[return-value]


def read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """A folder's templates: from their own files, or else from its tokenizer_config.json."""
    found: dict[str, str] = {}
    if (folder / TEMPLATE_FILE).is_file():
        found["default"] = read_text(folder / TEMPLATE_FILE)
    for file in sorted((folder / OTHERS_FOLDER).glob("*.jinja")):
        found[file.stem] = read_text(file)
    stated = config.get("chat_template")
    if not found and stated is not None:
        if isinstance(stated, str):
            return stated
        try:
            found = {str(one["name"]): str(one["template"]) for one in stated}
        except (TypeError, KeyError):
            raise TokenizerError(
                f"{folder / 'tokenizer_config.json'}: 'chat_template' is {stated!r:.80}; wanted a template, or a list "
                "of objects with 'name' and 'template'.",
                "Correct the file or get it again.",
            ) from None
    return found["default"] if list(found) == ["default"] else found or None


def template_files(template: str | Mapping[str, str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """The files that hold a tokenizer's templates: beside the others, and in the folder OTHERS_FOLDER."""
    named = {"default": template} if isinstance(template, str) else dict(template or {})
    bad = [name for name in named if not _NAME.fullmatch(name)]
    if bad:
        raise TokenizerError(f"A chat template cannot be named {bad[0]!r}.", "Use letters, digits, '_', '-' and '.'.")
    first = {TEMPLATE_FILE: named.pop("default")} if "default" in named else {}
    return first, {f"{name}.jinja": text for name, text in named.items()}


def template_setting(template: str | Mapping[str, str] | None) -> Any:
    """The older way to save them, in tokenizer_config.json."""
    if isinstance(template, Mapping):
        return [{"name": name, "template": text} for name, text in template.items()]
    return template


Render = Callable[[Any, Mapping[str, Any]], tuple[str, list[tuple[int, int]]]]


@lru_cache(maxsize=8)
def _compiled(template: str) -> Render:
    """A function of messages and values that gives the text and where in it generated parts begin and end."""
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingExtra("jinja2", "compat", "apply_chat_template") from None

    class Generated(Extension):
        """`{% generation %}…{% endgeneration %}`: the text inside, between two marks that are taken out again."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_between_marks"), [], [], body).set_lineno(line)

        def _between_marks(self, caller: Callable[[], str]) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generated, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json  # Jinja's own escapes for HTML
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)  # noqa: A006
    try:
        compiled = environment.from_string(template)
    except TemplateError as error:
        raise TokenizerError(f"The chat template cannot be read: {error}.", "Correct the template.") from error

    def render(messages: Any, values: Mapping[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        return _without_marks(compiled.render({**values, "messages": messages}))

    return render


# Of the private use area: a text that holds these itself is not told from a generated part.
_BEGIN, _END = "\U0010fffa", "\U0010fffb"


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    spans, kept, length, start = [], [], 0, 0
    for piece in re.split(f"([{_BEGIN}{_END}])", text):
        if piece == _BEGIN:
            start = length
        elif piece == _END:
            spans.append((start, length))
        else:
            kept.append(piece)
            length += len(piece)
    return "".join(kept), spans


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _schemas(tools: Sequence[Any] | None) -> list[Any] | None:
    for tool in tools or ():
        if not isinstance(tool, Mapping):
            raise TokenizerTypeError(
                f"A tool is of type {type(tool).__name__}; it takes a JSON schema as a dict.",
                "transformers.utils.get_json_schema(function) makes one of a function.",
            )
    return None if tools is None else list(tools)


def _cut_open(render: Render, messages: Any, values: Mapping[str, Any]) -> str:
    """The conversation up to the end of its last message, without what the template puts after it."""
    messages = copy.deepcopy(messages)
    last = messages[-1]
    if isinstance(last["content"], (list, tuple)):
        last, key = next((block for block in reversed(last["content"]) if "text" in block), None), "text"
    else:
        key = "content"
    if last is None:
        raise TokenizerError("continue_final_message=True, and the final message has no text to continue.")
    said = last[key]
    last[key] = said + _OPEN_END
    text, _ = render(messages, values)
    if said.strip() not in text or _OPEN_END.strip() not in text:
        raise TokenizerError(
            "continue_final_message is set but the final message does not appear in the chat after applying the "
            "template.",
            "The template leaves it out or changes it: use another template.",
        )
    end = text.rindex(_OPEN_END.strip())
    # Where the template trims a message, the space at its end goes too.
    return text[:end] if text[end : end + len(_OPEN_END)] == _OPEN_END else text[:end].rstrip()


def _tokens_between(encoding: Any, row: int, length: int, spans: list[tuple[int, int]]) -> list[int]:
    mask = [0] * length
    for start, end in spans:
        first, last = encoding.char_to_token(row, start), encoding.char_to_token(row, end - 1)
        if first is None:  # cut off
            break
        for token in range(first, last + 1 if last else length):
            mask[token] = 1
    return mask
