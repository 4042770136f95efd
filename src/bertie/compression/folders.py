"""What a compressed model's folder holds: model, tokenizer, sentence-transformers' files, the fit of int8."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.compression import vocabulary
from bertie.compression.layers import dense
from bertie.compression.targets import Target, read_texts
from bertie.engine.calibration import calibration_rows, unusual_rows
from bertie.engine.cpu.calibrate import save_fit
from bertie.errors import CheckpointError, InputError
from bertie.loading import load
from bertie.model import BertModel
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.sentence_folder import find_sentence_folder, read_sentence_settings
from bertie.text import BertTokenizer
from bertie.training.sentence_folder import write_sentence_folder
from bertie.training.task import TaskOptions


def stored_dtype(source: str) -> torch.dtype:
    """How the checkpoint stores its weights. What is made of it is stored alike: a smaller model is a smaller file."""
    found = {one.dtype for one in open_checkpoint(source).tensors.info.values() if one.dtype.is_floating_point}
    return found.pop() if len(found) == 1 and found <= {torch.float16, torch.bfloat16} else torch.float32


def save(target: Target, model: BertPreTrainedModel, folder: Path, *, on: str, whole: bool, dtype: torch.dtype) -> None:
    written = dense(model) if whole else model
    written.save_pretrained(folder, dtype=dtype)
    target.save_extras(folder)
    if on == "cpu-int8":
        base = copy.deepcopy(written.base_model).eval()
        save_fit(base, calibration_rows(base, target.tokenizer, None), unusual_rows(base, target.tokenizer), folder)


def load_whole(source: str) -> BertPreTrainedModel:
    """The model with nothing in it that the checkpoint does not have: many were saved without a pooler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they would say is in the report
        model, found = load(source, output_loading_info=True)
        if found.newly_initialised and isinstance(model, BertModel):
            model, found = load(source, output_loading_info=True, add_pooling_layer=False)
    if found.newly_initialised:
        raise CheckpointError(
            f"{source} lacks weights of a {type(model).__name__}: {sorted(found.newly_initialised)[0]}.",
            "Correct config.architectures, or train the missing part first.",
        )
    whole: BertPreTrainedModel = model.eval()
    return whole


def trim_tables(
    source: str,
    folder: Path,
    vocab_from: object | None,
    positions: int | None,
    options: TaskOptions | None,
    say: Callable[[str], None],
) -> int:
    """The model with fewer tokens and positions, as a folder. Gives the number of parameters that are gone."""
    model, tokenizer = load_whole(source), BertTokenizer.from_pretrained(source)
    before, parameters = model.config.vocab_size, model.num_parameters()
    if vocab_from is not None:
        found = vocabulary.trim(tokenizer, read_texts(vocab_from, options))
        model, tokenizer = vocabulary.with_tokens(model, found.kept), found.tokenizer
        say(f"{model.config.vocab_size:,} of {before:,} tokens are kept")
    if positions is not None:
        config = model.config
        if positions > config.max_input_length:
            raise InputError(f"{{positions:is}} the model has {config.max_input_length}.", positions=positions)
        # RoBERTa's table has rows before the first position.
        model.resize_position_embeddings(positions + config.max_position_embeddings - config.max_input_length)
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
        say(f"{positions:,} positions are kept")
    save_plain(model, tokenizer, folder, source)
    return parameters - model.num_parameters()


def save_plain(model: BertPreTrainedModel, tokenizer: BertTokenizer, folder: Path, source: str) -> None:
    model.save_pretrained(folder, dtype=stored_dtype(source))
    tokenizer.save_pretrained(folder)
    origin = open_checkpoint(source, with_companions=True).folder
    if find_sentence_folder(origin) is not None:
        width = model.config.hidden_size
        settings = read_sentence_settings(origin, width)
        length = min(settings.max_length or model.config.max_input_length, model.config.max_input_length)
        write_sentence_folder(folder, hidden_size=width, pooling=settings.pooling, max_length=length, source=origin)


def copy_folder(tables: str, place: Path, *, whole: bool) -> None:
    model, tokenizer = load_whole(tables), BertTokenizer.from_pretrained(tables)
    save_plain(dense(model) if whole else model, tokenizer, place, tables)
