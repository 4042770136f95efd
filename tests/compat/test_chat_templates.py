"""Chat templates beside transformers': the same texts, ids and masks, saved and read by both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from two_libraries import library, transformers  # noqa: F401

import bertie
from bertie.errors import TokenizerError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "user", "assistant", "hello", "world", "##s", ":", "good", "day"]
TEMPLATE = (
    "{{ cls_token }}{% for message in messages %}{{ message['role'] }}: "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %} {{ sep_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}{{ extra }}{{ tools | tojson if tools }}"
)
CHAT = [
    {"role": "user", "content": "hello world"},
    {"role": "assistant", "content": "good day"},
    {"role": "user", "content": "hello worlds"},
    {"role": "assistant", "content": "good worlds "},
]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return tmp_path


def _pair(folder: Path, transformers: Any, template: Any = TEMPLATE) -> list[Any]:
    found = [one.BertTokenizerFast.from_pretrained(folder) for one in (bertie, transformers)]
    for tokenizer in found:
        tokenizer.chat_template = template
    return found


GIVEN: list[dict[str, Any]] = [
    {"tokenize": False},
    {"tokenize": False, "add_generation_prompt": True, "extra": "day"},
    {"tokenize": False, "continue_final_message": True},
    {"tokenize": False, "tools": [{"name": "<clock>", "é": 1}]},
    {},
    {"max_length": 7, "truncation": True},
    {"return_dict": True, "padding": "max_length", "max_length": 60},
    {"return_dict": True, "return_assistant_tokens_mask": True},
    {"return_dict": True, "return_assistant_tokens_mask": True, "truncation": True, "max_length": 9},
    {"return_dict": True, "tokenizer_kwargs": {"return_special_tokens_mask": True}},
    {"chat_template": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"},
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: " ".join(given) or "nothing")
@pytest.mark.parametrize("several", [False, True])
def test_the_same_texts_ids_and_masks(several: bool, given: dict[str, Any], folder: Path, transformers: Any) -> None:
    ours, theirs = _pair(folder, transformers)
    conversation = [CHAT, CHAT[:2]] if several else CHAT
    mine, wanted = (one.apply_chat_template(conversation, **given) for one in (ours, theirs))
    assert (dict(mine) == dict(wanted)) if given.get("return_dict") else mine == wanted
    message = ours.encode_message_with_chat_template(CHAT[1], CHAT[:1])
    assert message == theirs.encode_message_with_chat_template(CHAT[1], CHAT[:1])


@pytest.mark.parametrize("as_files", [True, False])
@pytest.mark.parametrize("template", [TEMPLATE, {"default": TEMPLATE, "tool_use": "{{ tools }}", "short": "x"}])
def test_templates_are_saved_where_the_other_reads_them(
    template: Any, as_files: bool, folder: Path, transformers: Any
) -> None:
    ours, theirs = _pair(folder, transformers, template)
    names = []
    for number, tokenizer in enumerate((ours, theirs)):
        place = folder / str(number)
        tokenizer.save_pretrained(place, save_jinja_files=as_files)
        names.append(sorted(str(file.relative_to(place)) for file in place.rglob("*.jinja")))
        for one in (bertie, transformers):
            assert one.BertTokenizerFast.from_pretrained(place).chat_template == template
    assert names[0] == names[1]
    assert bool(names[0]) == as_files
    if isinstance(template, dict):
        assert ours.get_chat_template(tools=[{}]) == theirs.get_chat_template(tools=[{}]) == "{{ tools }}"
        assert ours.get_chat_template("short") == "x"


def test_no_template_and_a_wrong_one_are_errors(folder: Path, library: Any) -> None:
    tokenizer = library.BertTokenizerFast.from_pretrained(folder)
    with pytest.raises(ValueError, match=r"tokenizer.chat_template is not set"):
        tokenizer.apply_chat_template(CHAT)
    given = library.BertTokenizerFast.from_pretrained(folder, chat_template="{{ messages[0].content }}")
    assert given.apply_chat_template(CHAT, tokenize=False) == "hello world"
    with pytest.raises(ValueError, match="add_generation_prompt"):
        given.apply_chat_template(CHAT, add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(ValueError, match="final message does not appear"):
        given.apply_chat_template(CHAT, continue_final_message=True)


def test_a_template_from_a_file_stays_in_its_sandbox(folder: Path) -> None:
    tokenizer = bertie.BertTokenizerFast.from_pretrained(folder)
    for attack in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}"):
        tokenizer.chat_template = attack
        with pytest.raises(Exception, match="unsafe"):
            tokenizer.apply_chat_template(CHAT, tokenize=False)
    tokenizer.chat_template = "{% for"
    with pytest.raises(TokenizerError, match="chat template cannot be read"):
        tokenizer.apply_chat_template(CHAT)
    with pytest.raises(TokenizerError, match=r"'\.\./x'"):
        bertie.BertTokenizerFast.from_pretrained(folder, chat_template={"../x": ""}).save_pretrained(folder / "out")


def test_jinja_is_imported_when_it_is_needed_and_named_when_it_is_missing(folder: Path) -> None:
    code = (
        "import sys, bertie; sys.modules['jinja2'] = None\n"
        f"tokenizer = bertie.BertTokenizer.from_pretrained({str(folder)!r}, chat_template='x')\n"
        "try: tokenizer.apply_chat_template([{}])\n"
        "except bertie.BertieError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "jinja2" in done.stdout
