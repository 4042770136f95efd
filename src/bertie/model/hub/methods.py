"""What code written for the hub's library expects of a model besides its answers: its base class, names, small methods.

Thin on purpose, and apart from pretrained.py, which has the methods that do something to a model.

Its Trainer, its pipelines and the libraries around it ask `isinstance(model, PreTrainedModel)` before they save a
configuration beside the weights, handle tied weights or push a model, and `isinstance(output, ModelOutput)` before they
index one. Nothing but inheriting makes that true, and Bertie does not import transformers. So two bases, `Kin` of the
models and `ModelOutput` of the outputs, take transformers' for their own base as soon as a model is made in a program
that has imported it. Everything Bertie's classes define themselves comes first in the order of inheritance and stays as
it is; transformers' constructors are never run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from bertie.arguments import one_or_several
from bertie.config import BertConfig
from bertie.errors import ConfigError
from bertie.model.outputs import ModelOutput

logger = logging.getLogger("bertie.model")


class Kin(nn.Module):
    """An `nn.Module`; a `transformers.PreTrainedModel` too, once transformers is imported."""

    def __init__(self) -> None:
        _join(Kin, "transformers.modeling_utils", "PreTrainedModel")
        _join(ModelOutput, "transformers.utils.generic", "ModelOutput")
        nn.Module.__init__(self)


def _join(ours: type, module: str, name: str) -> None:
    theirs = getattr(sys.modules.get(module), name, None)
    if theirs is not None and theirs not in ours.__bases__:
        ours.__bases__ = (theirs,)


class HubModel(Kin):
    """Class attributes and methods of the hub's `PreTrainedModel`; `BertPreTrainedModel` inherits them.

    Methods that are only named here are in pretrained.py.
    """

    config: BertConfig
    num_parameters: Callable[..., int]
    set_attention_backend: Callable[[str], None]
    get_input_embeddings: Callable[[], nn.Module]
    name_or_path: str  # what it was loaded from; peft looks for it among the instance's own attributes
    config_class: ClassVar[type[BertConfig]] = BertConfig
    base_model_prefix = "bert"
    names_in_files: ClassVar[Sequence[tuple[str, str]]] = ()  # (a file's, the model's) where they differ; from a dot on
    main_input_name = "input_ids"
    model_tags: list[str] | None = None
    supports_gradient_checkpointing = True
    is_parallelizable = False
    framework = "pt"
    # accelerate does not put the two halves of one of these on two devices: what comes in is added to what goes out.
    _no_split_modules: ClassVar[list[str] | None] = ["BertEmbeddings", "BertLayer"]
    _skip_keys_device_placement: ClassVar[str | list[str] | None] = None
    _keep_in_fp32_modules: ClassVar[list[str] | None] = None
    _keys_to_ignore_on_load_missing: ClassVar[list[str] | None] = None
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str] | None] = None
    _keys_to_ignore_on_save: ClassVar[list[str] | None] = None
    _tied_weights_keys: ClassVar[list[str] | None] = None
    _supports_sdpa = True
    _supports_flash_attn = False
    _supports_flex_attn = False
    _supports_attention_backend = False
    _is_stateful = False
    _auto_class: str | None = None

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """A small batch to try a model with."""
        return {
            "input_ids": torch.tensor(
                [[7, 6, 0, 0, 1], [1, 2, 3, 0, 0], [0, 0, 0, 4, 5]], device=next(self.parameters()).device
            )
        }

    @classmethod
    def can_generate(cls) -> bool:
        """Whether this class can write texts."""
        return False

    # -- attention ---------------------------------------------------------------------------------------------------

    def set_attn_implementation(self, attn_implementation: str | Mapping[str, str]) -> None:
        """The hub's name of `set_attention_backend`."""
        if isinstance(attn_implementation, Mapping):
            attn_implementation = attn_implementation.get("", self.config._attn_implementation or "sdpa")
        try:
            self.set_attention_backend(attn_implementation)
        except ConfigError as error:
            cause = f'Specified `attn_implementation="{attn_implementation}"` is not supported. {error.cause}'
            raise ConfigError(cause, error.remedy) from None

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True

    # -- counting ----------------------------------------------------------------------------------------------------

    def get_memory_footprint(self, return_buffers: bool = True) -> int:
        """Bytes of all parameters and, by default, buffers."""
        tensors = [*self.parameters(), *(self.buffers() if return_buffers else ())]
        return sum(tensor.nelement() * tensor.element_size() for tensor in tensors)

    def estimate_tokens(self, input_dict: Mapping[str, Tensor]) -> int:
        """How many numbers the main input holds; 0 when it is not there."""
        given = input_dict.get(self.main_input_name)
        return 0 if given is None else int(given.numel())

    def floating_point_ops(self, input_dict: Mapping[str, Tensor], exclude_embeddings: bool = True) -> int:
        """Of one forward and backward pass, about: six for every parameter and token (Kaplan et al. 2020, 2.1)."""
        return 6 * self.estimate_tokens(input_dict) * self.num_parameters(exclude_embeddings=exclude_embeddings)

    def warn_if_padding_and_no_attention_mask(self, input_ids: Tensor, attention_mask: Tensor | None) -> None:
        """Say it, once, when padding ids are at an end of the rows and nothing hides them."""
        pad = self.config.pad_token_id
        if attention_mask is not None or pad is None or torch.compiler.is_compiling():
            return
        if bool((input_ids[:, [0, -1]] == pad).any()) and not self.__dict__.get("_warned_of_padding"):
            self._warned_of_padding = True
            logger.warning(
                "input_ids hold the padding id (%s) and no attention_mask was given: padding is read as words. "
                "Pass the attention_mask that the tokenizer gives.",
                pad,
            )

    # -- gradients of the input, which adapters over frozen embeddings need ------------------------------------------

    def enable_input_require_grads(self) -> None:
        """Let the embeddings' output ask for gradients although the embeddings are frozen."""
        self._require_grads_hook = self.get_input_embeddings().register_forward_hook(
            lambda module, inputs, output: output.requires_grad_(True)
        )

    def disable_input_require_grads(self) -> None:
        """Undo `enable_input_require_grads`."""
        self._require_grads_hook.remove()

    # -- the hub's site ----------------------------------------------------------------------------------------------

    def add_model_tags(self, tags: list[str] | str) -> None:
        """Remember words for a model card."""
        self.model_tags = list(dict.fromkeys([*(self.model_tags or []), *one_or_several(tags)]))

    @classmethod
    def register_for_auto_class(cls, auto_class: str | type = "AutoModel") -> None:
        """Remembered; no code is written beside the weights."""
        cls._auto_class = auto_class if isinstance(auto_class, str) else auto_class.__name__

    def push_to_hub(self, repo_id: str, **options: object) -> None:
        """Not supported: an error says how to upload a saved folder."""
        raise ConfigError(
            f"push_to_hub({repo_id!r}): models are not uploaded from here.",
            "Save into a folder, then upload it: huggingface_hub.upload_folder(repo_id=…, folder_path=…).",
        )
