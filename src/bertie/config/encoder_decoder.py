"""The configuration of a pair of BERTs, under the names the hub gives it.

It is a view of the two configurations, `encoder` and `decoder`. Every other name is the decoder's, which says how to
start, end and pad what is written: reading it reads there, setting it sets there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

from bertie.config.bert import BertConfig
from bertie.config.checks import Values
from bertie.errors import ConfigError

# What the hub says once for both models.
OF_BOTH = ("decoder_start_token_id", "pad_token_id", "eos_token_id", "bos_token_id", "tie_encoder_decoder")


class _Listed(Protocol):
    """A configuration of another library."""

    def to_dict(self) -> Mapping[str, object]: ...


Given = BertConfig | Mapping[str, object] | _Listed


class EncoderDecoderConfig:
    """`EncoderDecoderConfig.from_encoder_decoder_configs(reader, writer)`; a model made of it has fresh weights."""

    model_type: ClassVar[str] = "encoder-decoder"
    is_composition: ClassVar[bool] = True
    is_encoder_decoder: ClassVar[bool] = True
    encoder: BertConfig
    decoder: BertConfig

    def __init__(self, *, encoder: Given | None = None, decoder: Given | None = None, **values: object) -> None:
        if encoder is None or decoder is None:
            raise ConfigError("An EncoderDecoderConfig is made of two configurations.", "Give encoder= and decoder=.")
        self.__dict__.update(encoder=_as_config(encoder), decoder=_as_config(decoder))
        for name, value in values.items():
            if name not in ("model_type", "is_encoder_decoder"):
                setattr(self, name, value)

    @classmethod
    def from_encoder_decoder_configs(
        cls, encoder_config: BertConfig, decoder_config: BertConfig, **values: object
    ) -> Self:
        """Two configurations; the second is made a decoder's, with cross-attention."""
        decoder_config.is_decoder = decoder_config.add_cross_attention = True
        return cls(encoder=encoder_config, decoder=decoder_config, **values)

    def __getattr__(self, name: str) -> Any:
        if "decoder" not in self.__dict__:  # a copy that is being made
            raise AttributeError(name)
        return getattr(self.decoder, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.decoder, name, value)

    def update(self, values: Mapping[str, object]) -> None:
        """Set several attributes."""
        for name, value in values.items():
            setattr(self, name, value)

    def to_dict(self) -> Values:
        """Both configurations as plain values."""
        return self._values() | {"encoder": self.encoder.to_dict(), "decoder": self.decoder.to_dict()}

    def to_diff_dict(self) -> Values:
        """The same without what has its default: what a file holds."""
        return self._values() | {"encoder": self.encoder.to_diff_dict(), "decoder": self.decoder.to_diff_dict()}

    def to_json_string(self, use_diff: bool = True) -> str:
        """Both configurations as `config.json` holds them."""
        values = self.to_diff_dict() if use_diff else self.to_dict()
        return json.dumps(values, indent=2, sort_keys=True, default=str) + "\n"

    def __repr__(self) -> str:
        return f"EncoderDecoderConfig {self.to_json_string()}"

    def _values(self) -> Values:
        said = {name: getattr(self.decoder, name, None) for name in OF_BOTH}
        said = {name: value for name, value in said.items() if value is not None and value is not False}
        return said | {"model_type": self.model_type, "is_encoder_decoder": True}


def _as_config(given: Given) -> BertConfig:
    match given:
        case BertConfig():
            return given
        case Mapping():
            return BertConfig.from_dict(given)
        case _:
            return BertConfig.from_dict(given.to_dict())
