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
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from bertie.errors import MissingExtra, TokenizerError, TokenizerTypeError
from bertie.text.encoding import BatchEncoding
from bertie.text.text_to_ids import CallSettings, PaddingArgument, TextToIds, TruncationArgument

if TYPE_CHECKING:
    from jinja2.nodes import Node
    from jinja2.parser import Parser

Message: TypeAlias = Mapping[str, Any]  # "role", "content" (a text, or a list of blocks), and what a template knows


class Chat(Protocol):
    """A conversation as pipelines of transformers hold it."""

    @property
    def messages(self) -> Sequence[Message]: ...


Conversation: TypeAlias = "Sequence[Message] | Chat"
_OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' word, which a template may look for


class ChatTemplates(TextToIds):
    """What a tokenizer does with conversations. `BertTokenizer` inherits it."""

    def apply_chat_template(
        self,
        conversation: Conversation | Sequence[Conversation],
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: PaddingArgument = False,
        truncation: TruncationArgument | None = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = False,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: CallSettings | None = None,
        **values: object,
    ) -> Any:
        """A conversation `[{"role": …, "content": …}, …]`, or a list of them, as ids (or text: `tokenize=False`).

        `values` are further names the template may use. `return_assistant_tokens_mask` marks what stands between
        `{% generation %}` and `{% endgeneration %}`.
        """
        if return_dict and not tokenize:
            raise TokenizerError(
                "{return_dict} needs {tokenize}: a text has no columns.", return_dict=True, tokenize=True
            )
        if return_assistant_tokens_mask and not return_dict:
            raise TokenizerError(
                "{return_assistant_tokens_mask} needs {return_dict}: it is one of the columns.",
                return_assistant_tokens_mask=True,
                return_dict=True,
            )
        if continue_final_message and (add_generation_prompt or return_assistant_tokens_mask):
            other = "add_generation_prompt" if add_generation_prompt else "return_assistant_tokens_mask"
            raise TokenizerError(f"continue_final_message and {other} exclude each other.", "Give one of them.")
        render = _compiled(self.get_chat_template(chat_template, tools))
        match conversation:
            case [[*_], *_]:
                several = True
            case [first, *_]:
                several = hasattr(first, "messages")
            case _:
                several = False
        conversations = cast("Sequence[Conversation]", conversation if several else [conversation])
        values = {**self.special_tokens_map, **values, "tools": _schemas(tools), "documents": documents}
        values["add_generation_prompt"] = add_generation_prompt
        texts, marked, no_spans = [], [], list[tuple[int, int]]()
        for one in conversations:
            messages = cast("Sequence[Message]", getattr(one, "messages", one))
            if continue_final_message:
                text, spans = _cut_open(render, messages, values), no_spans
            else:
                text, spans = render(messages, values)
            texts.append(text)
            marked.append(spans)
        if not tokenize:
            return texts if several else texts[0]
        settings: CallSettings = {"padding": padding, "truncation": truncation, "max_length": max_length}
        settings |= {"add_special_tokens": False, "return_tensors": return_tensors, **(tokenizer_kwargs or {})}
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
        message: Message,
        conversation_history: Sequence[Message] | None = None,
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

    def get_chat_template(self, chat_template: str | None = None, tools: object = None) -> str:
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
        if chat_template is not None:
            return chat_template
        if own is None:
            raise TokenizerError(
                "Cannot use chat template functions because tokenizer.chat_template is not set and no template "
                "argument was passed! BERT has none of its own.",
                "Set tokenizer.chat_template, or pass chat_template='…'.",
            )
        return own


Render = Callable[[Sequence[Message], Mapping[str, object]], tuple[str, list[tuple[int, int]]]]


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

        def parse(self, parser: Parser) -> Node:
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

    def render(messages: Sequence[Message], values: Mapping[str, object]) -> tuple[str, list[tuple[int, int]]]:
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
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _schemas(tools: Sequence[object] | None) -> list[object] | None:
    for tool in tools or ():
        if not isinstance(tool, Mapping):
            raise TokenizerTypeError(
                f"A tool is of type {type(tool).__name__}; it must be a JSON schema as a dict.",
                "transformers.utils.get_json_schema(function) makes one of a function.",
            )
    return None if tools is None else list(tools)


def _cut_open(render: Render, messages: Sequence[Message], values: Mapping[str, object]) -> str:
    """The conversation up to the end of its last message, without what the template puts after it."""
    messages = copy.deepcopy(messages)
    last, key = cast("dict[str, Any] | None", messages[-1]), "content"
    match messages[-1]["content"]:
        case [*blocks]:
            last, key = next((block for block in reversed(blocks) if "text" in block), None), "text"
    if last is None:
        raise TokenizerError(
            "{continue_final_message}, and the final message has no text to continue.", continue_final_message=True
        )
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


def _tokens_between(encoding: BatchEncoding, row: int, length: int, spans: list[tuple[int, int]]) -> list[int]:
    mask = [0] * length
    for start, end in spans:
        first, last = encoding.char_to_token(row, start), encoding.char_to_token(row, end - 1)
        if first is None:  # cut off
            break
        for token in range(first, last + 1 if last else length):
            mask[token] = 1
    return mask
