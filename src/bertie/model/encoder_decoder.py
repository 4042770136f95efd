"""Two BERTs joined into the classic Transformer: one reads, the other writes (Vaswani et al. 2017; Rothe et al. 2020).

The decoder is a BERT with causal attention and, in every layer, attention to the encoder's states. When the two are not
equally wide, the states pass through one Linear between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from bertie.config import BertConfig, EncoderDecoderConfig, Values
from bertie.errors import ConfigError, InputError
from bertie.model import inputs
from bertie.model.bert import BertModel
from bertie.model.cache import KeyValueCache
from bertie.model.from_pretrained import EncoderDecoderIO, Source
from bertie.model.generation.generate import CausalStepper, Generation, Stepper
from bertie.model.generation.options import GenerationOptions
from bertie.model.heads import BertLMHeadModel
from bertie.model.hub.cache import Past
from bertie.model.hub.methods import Kin
from bertie.model.losses import IGNORED, class_labels, cross_entropy
from bertie.model.outputs import Answers, BertModelOutput, Seq2SeqOutput, as_wanted
from bertie.model.pretrained import BertPreTrainedModel, num_parameters

Model = TypeVar("Model", bound=BertPreTrainedModel)
_HAS_ENCODERS = "Load one with BertModel.from_pretrained(…); a model with a head holds one as model.bert."
_MAKES_DECODERS = "BertEncoderDecoder.from_encoder_decoder() turns any BERT into such a decoder."


class BertEncoderDecoder(Answers[Seq2SeqOutput], EncoderDecoderIO, Kin, Generation):
    """An encoder `BertModel` and a decoder `BertLMHeadModel` with cross-attention.

    >>> enc = BertModel(BertConfig.preset("tiny", vocab_size=50))
    >>> dec = BertLMHeadModel(BertConfig.preset("tiny", vocab_size=60, is_decoder=True, add_cross_attention=True))
    >>> model = BertEncoderDecoder.from_encoder_decoder(enc, dec, decoder_start_token_id=1, pad_token_id=0)
    >>> model(torch.tensor([[4, 5, 6]]), labels=torch.tensor([[7, 8]])).logits.shape
    torch.Size([1, 2, 60])
    """

    def __init__(
        self,
        encoder: BertModel | EncoderDecoderConfig | None = None,
        decoder: BertLMHeadModel | None = None,
        config: EncoderDecoderConfig | None = None,
    ) -> None:
        super().__init__()
        if isinstance(encoder, EncoderDecoderConfig):  # the hub has the configuration in the first place
            encoder, config = None, encoder
        if config is not None:
            encoder = BertModel(config.encoder) if encoder is None else encoder
            decoder = BertLMHeadModel(config.decoder) if decoder is None else decoder
        encoder = _checked("encoder", encoder, BertModel, _HAS_ENCODERS)
        decoder = _checked("decoder", decoder, BertLMHeadModel, _MAKES_DECODERS)
        if not (decoder.config.is_decoder and decoder.config.add_cross_attention):
            raise ConfigError(
                f"The decoder has is_decoder={decoder.config.is_decoder} and "
                f"add_cross_attention={decoder.config.add_cross_attention}; both must be true.",
                _MAKES_DECODERS,
            )
        self.encoder = encoder
        self.decoder = decoder
        if encoder.config.hidden_size != decoder.config.hidden_size:
            self.enc_to_dec_proj = nn.Linear(encoder.config.hidden_size, decoder.config.hidden_size)
            nn.init.normal_(self.enc_to_dec_proj.weight, std=decoder.config.initializer_range)
            nn.init.zeros_(self.enc_to_dec_proj.bias)
        self.tie_weights()

    @classmethod
    def _joined(cls, configs: Mapping[str, BertConfig]) -> Self:
        return cls(BertModel(configs["encoder"]), BertLMHeadModel(configs["decoder"]))

    @classmethod
    def from_encoder_decoder(
        cls,
        encoder: BertModel,
        decoder: BertModel | BertLMHeadModel,
        *,
        decoder_start_token_id: int | None = None,
        pad_token_id: int | None = None,
        eos_token_id: int | None = None,
    ) -> BertEncoderDecoder:
        """Join two models. A decoder that is an ordinary BERT is made one; its cross-attention is new."""
        model = cls(encoder, _as_decoder(decoder))
        for name, value in (
            ("decoder_start_token_id", decoder_start_token_id),
            ("pad_token_id", pad_token_id),
            ("eos_token_id", eos_token_id),
        ):
            if value is not None:
                setattr(model.config, name, value)
        return model

    @classmethod
    def from_encoder_decoder_pretrained(
        cls,
        encoder_pretrained_model_name_or_path: Source | None = None,
        decoder_pretrained_model_name_or_path: Source | None = None,
        *model_args: Any,
        encoder_model: BertModel | None = None,
        decoder_model: BertLMHeadModel | None = None,
        **values: Any,
    ) -> BertEncoderDecoder:
        """Load two checkpoints and join them; the decoder's cross-attention is new.

        Keywords that begin with `encoder_` or `decoder_` are those of `from_pretrained` of that side; others are set in
        the configuration.
        """
        for_encoder = _of_side("encoder_", values)
        for_decoder = _of_side("decoder_", values)
        if encoder_model is None:
            encoder_model = BertModel.from_pretrained(encoder_pretrained_model_name_or_path, *model_args, **for_encoder)
        if decoder_model is None:
            config = for_decoder.pop("config", None)
            options = for_decoder | {"is_decoder": True, "add_cross_attention": True}
            source = decoder_pretrained_model_name_or_path
            decoder_model = BertLMHeadModel.from_pretrained(source, config=config, **options)
        model = cls(encoder_model, decoder_model)
        model.config.update(values)
        model.tie_weights()
        return model

    @property
    def config(self) -> EncoderDecoderConfig:  # type: ignore[override]  # has every attribute of a BertConfig
        """Both configurations as one; what is not `encoder` or `decoder` is the decoder's."""
        return EncoderDecoderConfig(encoder=self.encoder.config, decoder=self.decoder.config)

    @property
    def device(self) -> torch.device:
        """Where the encoder's parameters are."""
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the encoder's parameters."""
        return self.decoder.dtype

    def encode(self, input_ids: Tensor | None, attention_mask: Tensor | None = None, **more: Any) -> BertModelOutput:
        """Run the encoder; its last states come as wide as the decoder takes them."""
        return self.encoder(input_ids, attention_mask, return_dict=True, **more)

    def _projected(self, states: Tensor) -> Tensor:
        return self.enc_to_dec_proj(states) if hasattr(self, "enc_to_dec_proj") else states

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BertModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Past | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqOutput | tuple[Any, ...]:
        """With `labels` and nothing for the decoder to read, it reads the labels shifted right.

        `encoder_outputs` is what `encode()` gave, or a tuple that begins with its last states. Further arguments are
        the encoder's, or with `decoder_` before their names the decoder's. `num_items_in_batch` divides the summed
        loss, for a batch that comes in several parts.
        """
        for_decoder = {name.removeprefix("decoder_"): x for name, x in kwargs.items() if name.startswith("decoder_")}
        for_encoder = {name: x for name, x in kwargs.items() if not name.startswith("decoder_")}
        if encoder_outputs is None:
            encoded = self.encode(
                input_ids,
                attention_mask,
                inputs_embeds=inputs_embeds,
                output_attentions=output_attentions,
                output_hidden_states=output_hidden_states,
                **for_encoder,
            )
        else:
            encoded = _as_encoded(encoder_outputs)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise InputError("Neither decoder_input_ids nor labels was given.", "Give one: the decoder reads it.")
            decoder_input_ids = self.shift_right(labels)
            if decoder_attention_mask is None:
                decoder_attention_mask = torch.ne(decoder_input_ids, self.config.pad_token_id or 0).long()
        output = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=self._projected(encoded.last_hidden_state),
            encoder_attention_mask=attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            past_key_values=past_key_values,
            use_cache=False if labels is not None else use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            **for_decoder,
        )
        loss = None
        if labels is not None:
            flat = class_labels(
                "labels",
                labels,
                output.logits.shape[:-1],
                output.logits.shape[-1],
                check_values=self.decoder.check_inputs,
            )
            loss = cross_entropy(output.logits.flatten(0, -2), flat, num_items=num_items_in_batch)
        result = Seq2SeqOutput(
            loss,
            output.logits,
            output.past_key_values,
            output.hidden_states,
            output.attentions,
            output.cross_attentions,
            encoded.last_hidden_state,
            encoded.hidden_states,
            encoded.attentions,
        )
        return as_wanted(self.decoder, result, return_dict)

    def shift_right(self, labels: Tensor) -> Tensor:
        """What the decoder reads while it learns to write `labels`: a start token, then all but the last."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            missing = "decoder_start_token_id" if start is None else "pad_token_id"
            raise ConfigError(
                f"config.{missing} of the decoder is not set, so labels cannot be shifted.",
                f"Set model.config.{missing} (with a BERT vocabulary: [CLS] to start, [PAD] to pad).",
            )
        if labels.dim() != 2:
            raise InputError(f"labels has shape {list(labels.shape)}; it must be [batch, length].")
        shifted = labels.roll(1, dims=-1)
        shifted[:, 0] = start
        return shifted.masked_fill(shifted == IGNORED, pad)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The hub's name of `shift_right`, which its collators call."""
        return self.shift_right(labels)

    def get_input_embeddings(self) -> nn.Embedding:
        """The encoder's word embeddings."""
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder of the decoder's language-model head."""
        return self.decoder.get_output_embeddings()

    def tie_weights(self) -> None:
        """Let the decoder's head share its own word embeddings' matrix.

        With `config.tie_encoder_decoder`, all weights that both models have are shared, the encoder's.
        """
        if getattr(self.decoder.config, "tie_encoder_decoder", False):
            of_encoder = dict(self.encoder.named_modules())
            for name, module in self.decoder.bert.named_modules():
                for key in dict(module.named_parameters(recurse=False)) if name in of_encoder else ():
                    setattr(module, key, getattr(of_encoder[name], key))
        self.decoder.tie_weights()

    def num_parameters(self, *, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """How many numbers the two models hold, with what joins them; tied ones count once."""
        return num_parameters(self, only_trainable, exclude_embeddings)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Mapping[str, object] | None = None) -> None:
        """In both models; see `BertModel.gradient_checkpointing_enable`."""
        self.encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs)
        self.decoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs)

    def gradient_checkpointing_disable(self) -> None:
        """Keep all states for the backward pass again, on both sides."""
        self.encoder.gradient_checkpointing_disable()
        self.decoder.gradient_checkpointing_disable()

    def resize_token_embeddings(self, num_tokens: int | None = None, pad_to_multiple_of: int | None = None) -> None:
        """Resize the vocabulary of the decoder."""
        raise InputError(
            "A BertEncoderDecoder has two vocabularies.",
            "Resize one of them: model.encoder.resize_token_embeddings(…) or model.decoder.…",
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: KeyValueCache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **other: Any,
    ) -> Values:
        """The arguments for the next step: `input_ids` is what the decoder has written."""
        mask = other.pop("decoder_attention_mask", None)
        found = self.decoder.prepare_inputs_for_generation(input_ids, past_key_values, mask)
        return {
            "attention_mask": attention_mask,
            "decoder_input_ids": found["input_ids"],
            "decoder_attention_mask": found["attention_mask"],
            "past_key_values": past_key_values,
            **{name: other[name] for name in ("encoder_outputs", "use_cache") if name in other},
        }

    def _stepper(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, options: GenerationOptions, extra: Values
    ) -> Stepper:
        decoder_input_ids = extra.pop("decoder_input_ids", None)
        encoded = extra.pop("encoder_outputs", None)
        extra.pop("labels", None)  # the hub's Seq2SeqTrainer leaves them among the inputs
        if encoded is None:
            if options.return_dict_in_generate:
                extra["output_attentions"] = options.output_attentions
                extra["output_hidden_states"] = options.output_hidden_states
            encoded = self.encode(input_ids, attention_mask, **extra)
        else:
            encoded = _as_encoded(encoded)
        states = self._projected(encoded.last_hidden_state)
        start = options.decoder_start_token_id
        if start is None:
            start = self.config.decoder_start_token_id
        if decoder_input_ids is None:
            if start is None:
                raise ConfigError(
                    "config.decoder_start_token_id of the decoder is not set.",
                    "Set model.config.decoder_start_token_id, or give decoder_input_ids.",
                )
            decoder_input_ids = torch.full((len(states), 1), start, device=states.device)
        inputs.is_tensor("decoder_input_ids", decoder_input_ids)
        extra = {"encoder_hidden_states": states, "encoder_attention_mask": attention_mask}
        return CausalStepper(self.decoder, decoder_input_ids, None, options, extra, source=input_ids, encoded=encoded)


def _as_decoder(model: BertModel | BertLMHeadModel) -> BertLMHeadModel:
    """The same weights in a BertLMHeadModel with cross-attention, whose new parts start fresh."""
    _checked("decoder", model, BertPreTrainedModel, "Load it first: BertModel.from_pretrained(…).")
    config = model.config
    if isinstance(model, BertLMHeadModel) and config.is_decoder and config.add_cross_attention:
        return model
    decoder = BertLMHeadModel(config.replace(is_decoder=True, add_cross_attention=True))
    weights = model.state_dict()
    if isinstance(model, BertModel):
        weights = {f"bert.{name}": tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    decoder.load_state_dict(weights, strict=False)
    decoder.tie_weights()
    return decoder.to(model.dtype).to(model.device)


def _of_side(prefix: str, values: Values) -> Values:
    """The keywords of one side, taken out; `decoder_start_token_id` and the like are whole names."""
    names = [name for name in values if name.startswith(prefix) and name not in BertConfig()]
    return {name.removeprefix(prefix): values.pop(name) for name in names}


def _as_encoded(given: Any) -> BertModelOutput:
    """What `encode()` gives, or the same with nothing but the last states, which a tuple begins with."""
    encoded: Any = BertModelOutput(given[0]) if isinstance(given, tuple) and given else given
    if not isinstance(getattr(encoded, "last_hidden_state", None), Tensor):
        raise InputError(
            f"encoder_outputs is of type {type(given).__name__} and holds no last hidden states.",
            "Give what model.encode(…) returns, or a tuple that begins with the states, [batch, length, hidden].",
        )
    found: BertModelOutput = encoded
    return found


def _checked(name: str, model: object, kind: type[Model], remedy: str) -> Model:
    if not isinstance(model, kind):
        raise InputError(f"The {name} is of type {type(model).__name__}; it must be a {kind.__name__}.", remedy)
    return model
