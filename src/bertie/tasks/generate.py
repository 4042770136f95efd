"""Text that goes on from a prompt, by a decoder: a `BertLMHeadModel` trained to predict the next word.

    generate("Once upon a time", model="my-decoder", max_new_tokens=40, num_beams=4).text

A prompt is given to the model as [CLS] and its tokens, with no [SEP] after them: that is what ends a text. Prompts of
one batch are padded on the left, and each gets what it would get alone. Drawing (`do_sample`) with a `seed` starts
every prompt from that seed, so the answer does not depend on its neighbours either.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Unpack

import torch

from bertie.answers import Generated
from bertie.arguments import is_whole, whole_number
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.errors import InputError
from bertie.model import BertLMHeadModel
from bertie.running.open import ModelLike, is_named
from bertie.running.stream import run_in_order
from bertie.running.task import RunSettings, TextTask, function_of


@dataclass(frozen=True, slots=True)
class _Prompt:
    text: str
    ids: Sequence[int]
    work: int

    def __len__(self) -> int:
        """Its work in tokens."""
        return self.work


class TextGenerator(TextTask[Generated]):
    """A `Generated` for a prompt; a list for a list, an iterator for an iterator.

    By default, the likeliest next token is chosen at each step. Or `num_beams` texts are followed side by side, or
    tokens are sampled (`do_sample`, with
    `temperature`, `top_k`, `top_p` and a `seed`). A prompt that leaves no room for `max_new_tokens` loses its
    beginning. A checkpoint that is not a decoder (`config.is_decoder`) predicts masked words, not next ones, and is
    rejected; `force=True` runs it as a decoder anyway.

    - `min_new_tokens`: no end of text before this many new tokens.
    - `num_return_sequences`: how many texts to give for a prompt; the others are the answer's `alternatives`.
    - `repetition_penalty`: above 1, tokens that have occurred become less likely.
    - `length_penalty`, `early_stopping`: of beams; above 0, the penalty favours longer texts.
    """

    name: ClassVar[str] = "generate"

    def __init__(
        self,
        model: ModelLike,
        *,
        max_new_tokens: int = 20,
        min_new_tokens: int = 0,
        num_beams: int = 1,
        num_return_sequences: int = 1,
        do_sample: bool = False,
        seed: int | None = None,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        force: bool = False,
        **settings: Unpack[RunSettings],
    ) -> None:
        whole_number("max_new_tokens", max_new_tokens)
        whole_number("num_beams", num_beams)
        whole_number("num_return_sequences", num_return_sequences)
        if seed is not None and not is_whole(seed, -(2**63), 2**64 - 1):  # what torch takes
            raise InputError("{seed:is} it must be a whole number from -2^63 to 2^64 - 1.", seed=seed)
        self.max_new_tokens, self.count = max_new_tokens, num_return_sequences
        self.copies = max(num_beams, num_return_sequences)
        self.draws_alone = do_sample and seed is not None
        self.seed = seed
        self._open_decoder(model, force, settings)
        self.room = self.loaded.max_length - max_new_tokens
        if self.room < 1:
            raise InputError(
                f"{{max_new_tokens:is}} the model has room for {self.loaded.max_length} tokens, including the prompt.",
                f"Ask for at most {self.loaded.max_length - 1}.",
                max_new_tokens=max_new_tokens,
            )
        assert isinstance(self.loaded.model, BertLMHeadModel)
        self._generate = partial(
            self.loaded.model.generate, max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens,
            num_beams=num_beams, num_return_sequences=num_return_sequences, do_sample=do_sample,
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
            length_penalty=length_penalty, early_stopping=early_stopping,
        )  # fmt: skip
        config, tokens = self.loaded.config, self.loaded.tokenizer
        self.end = config.eos_token_id if config.eos_token_id is not None else tokens.sep_token_id
        self.pad = config.pad_token_id if config.pad_token_id is not None else (tokens.pad_token_id or 0)

    def _open_decoder(self, model: ModelLike, force: bool, settings: RunSettings) -> None:
        if is_named(model):
            if not force and open_checkpoint(model).config.get("is_decoder") is not True:
                name = os.fspath(model)
                raise InputError(
                    f"generate needs a decoder; {name} was not trained as one (config.is_decoder is not true).",
                    "Use a checkpoint trained to predict the next word, or {force=True} to see what this one writes.",
                )
            self.open(model, BertLMHeadModel, settings, is_decoder=True)
            return
        self.open(model, BertLMHeadModel, settings)
        if not self.loaded.config.is_decoder:
            raise InputError(
                "generate needs a decoder; the model it was given has config.is_decoder=False.",
                "Load it with BertLMHeadModel.from_pretrained(…, is_decoder=True).",
            )

    def stream(self, items: Iterable[str]) -> Iterator[Generated]:
        return run_in_order(map(self._prompt, items), self._run, budget=self.loaded.budget)

    def _prompt(self, text: str) -> _Prompt:
        tokens = self.loaded.tokenizer
        if tokens.cls_token_id is None:
            raise InputError("generate needs a tokenizer with a [CLS] token: every text begins with it.")
        ids: list[int] = tokens.encode(text, add_special_tokens=False)
        # The end of a prompt is what the text goes on from, so a long one loses its beginning.
        kept = ids[max(0, len(ids) - (self.room - 1)) :]
        work = (1 + len(kept) + self.max_new_tokens) * self.copies
        return _Prompt(text, [tokens.cls_token_id, *kept], work)

    def _run(self, prompts: list[_Prompt]) -> list[Generated]:
        if self.draws_alone:
            return [answer for prompt in prompts for answer in self._continue([prompt])]
        return self._continue(prompts)

    def _continue(self, prompts: list[_Prompt]) -> list[Generated]:
        device = self.loaded.device
        longest = max(len(prompt.ids) for prompt in prompts)
        missing = [longest - len(prompt.ids) for prompt in prompts]
        ids = [[self.pad] * gap + list(prompt.ids) for gap, prompt in zip(missing, prompts, strict=True)]
        mask = [[0] * gap + [1] * (longest - gap) for gap in missing]
        generator = None
        if self.seed is not None:
            generator = torch.Generator(device=device).manual_seed(self.seed)
        written = self._generate(
            torch.tensor(ids, device=device),
            torch.tensor(mask, device=device),
            eos_token_id=self.end,
            pad_token_id=self.pad,
            generator=generator,
        )
        assert isinstance(written, torch.Tensor)  # nothing else was asked for
        rows = written[:, longest:].tolist()
        answers = []
        for number, prompt in enumerate(prompts):
            best, *others = (self._answer(prompt, row) for row in rows[number * self.count :][: self.count])
            answers.append(replace(best, alternatives=tuple(others)))
        return answers

    def _answer(self, prompt: _Prompt, row: list[int]) -> Generated:
        ends = {self.end} if isinstance(self.end, int) else set(self.end or ())
        stop = next((place for place, token in enumerate(row) if token in ends), len(row))
        ids = tuple(row[:stop])
        return Generated(prompt.text, self.loaded.tokenizer.decode(list(ids), skip_special_tokens=True), ids)


generate = function_of(TextGenerator, "generate", first="prompts")
