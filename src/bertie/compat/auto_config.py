"""The configurations that transformers' Auto classes hand out after `bertie.register()`.

They pass a configuration on only if it is a `PretrainedConfig`; one of another class is read again from the file, and
what the caller changed in it is lost. So these are both. Every method is that of Bertie's class where both have it.
"""

from __future__ import annotations

from typing import Any

import transformers

from bertie import family
from bertie.config import BertConfig
from bertie.config.relatives import MODEL_TYPES


def _both(ours: type[BertConfig]) -> type[BertConfig]:
    """A class that is Bertie's and `PretrainedConfig`, under the name of the first."""

    def initialise(self: BertConfig, *arguments: Any, **values: Any) -> None:
        ours.__init__(self, *arguments, **values)

    members = {
        "__module__": __name__,  # where pickle looks for it
        # transformers looks for such a line when it is imported, and complains where there is none.
        "__doc__": f"""A `bertie.{ours.__name__}` that transformers takes for one of its own.

        See [google-bert/bert-base-uncased](https://huggingface.co/google-bert/bert-base-uncased).
        """,
        # transformers 5 makes every subclass a dataclass, which would write these two again where a class has none.
        "__init__": initialise,
        "__eq__": ours.__eq__,
    }
    return type(ours.__name__, (ours, transformers.PretrainedConfig), members)


CONFIGS = {model_type: _both(family.config_class(model_type)) for model_type in MODEL_TYPES}
globals().update({made.__name__: made for made in CONFIGS.values()})
