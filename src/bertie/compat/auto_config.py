"""The configuration that transformers' Auto classes hand out after `bertie.register()`.

They pass a configuration on only if it is a `PretrainedConfig`; one of another class is read again from the file, and
what the caller changed in it is lost. So this one is both. Every method is `bertie.BertConfig`'s where both have it.
"""

from __future__ import annotations

import transformers

import bertie.config


class BertConfig(bertie.config.BertConfig, transformers.PretrainedConfig):  # type: ignore[misc]
    """A `bertie.BertConfig` that transformers takes for one of its own.

    The defaults are those of [google-bert/bert-base-uncased](https://huggingface.co/google-bert/bert-base-uncased);
    transformers looks for such a line when it is imported, and complains where there is none.
    """

    # transformers 5 makes every subclass a dataclass, which would write these two again where a class has none.
    def __init__(self, *arguments: object, **values: object) -> None:
        bertie.config.BertConfig.__init__(self, *arguments, **values)

    __eq__ = bertie.config.BertConfig.__eq__
