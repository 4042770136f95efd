"""Programs that take a model apart: other modules in its places, hooks, exchanged tables, layers left out."""

from __future__ import annotations

import copy
import math
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.bert import modeling_bert

import bertie
from compat.hub_cases import FIVE
from compat.same import LABELS, Case, assert_same, batch, checkpoint, model

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.skipif(FIVE, reason="parts are called otherwise in 5")]


def parts(lib: Any) -> Any:
    """Where the classes of the parts are."""
    return bertie if lib.__name__ == "bertie" else modeling_bert


def states(lib: Any, source: str, made: Any) -> torch.Tensor:
    return made(**batch(lib, source)).last_hidden_state


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoint(tmp_path_factory.mktemp("source"))


# -- modules of one's own in the place of parts ------------------------------------------------------------------------


def a_layer_that_only_scales(lib: Any, source: str, folder: Path) -> Any:
    class Skip(nn.Module):
        def forward(self, hidden_states: Any, *arguments: Any, **named: Any) -> Any:
            return (hidden_states * 2,)

    made = model(lib, source)
    made.encoder.layer[1] = Skip()
    return states(lib, source, made), len(made(**batch(lib, source), output_hidden_states=True).hidden_states)


def an_adapter_around_every_layer(lib: Any, source: str, folder: Path) -> Any:
    class Adapter(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer, self.dense = layer, nn.Linear(24, 24)

        def forward(self, *arguments: Any, **named: Any) -> Any:
            found = self.layer(*arguments, **named)
            return (found[0] + self.dense(found[0]), *found[1:])

    made = model(lib, source, "BertForSequenceClassification")
    torch.manual_seed(0)
    for number, layer in enumerate(made.bert.encoder.layer):
        made.bert.encoder.layer[number] = Adapter(layer)
    found = made(**batch(lib, source), labels=LABELS, output_attentions=True, head_mask=torch.tensor([1.0, 0.0, 0.5]))
    found.loss.backward()
    return found.loss, found.attentions, made.bert.encoder.layer[0].dense.weight.grad


def an_adapter_around_decoder_layers_with_a_cache(lib: Any, source: str, folder: Path) -> Any:
    class Wrapper(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, *arguments: Any, **named: Any) -> Any:
            return self.layer(*arguments, **named)

    made = model(lib, source, "BertLMHeadModel", is_decoder=True)
    for number, layer in enumerate(made.bert.encoder.layer):
        made.bert.encoder.layer[number] = Wrapper(layer)
    ids = batch(lib, source)["input_ids"][:2, :4]
    return made(ids).logits, made.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)


def a_subclass_of_the_layer(lib: Any, source: str, folder: Path) -> Any:
    class Gated(parts(lib).BertLayer):  # type: ignore[misc]
        def forward(self, hidden_states: Any, attention_mask: Any = None, *arguments: Any, **named: Any) -> Any:
            found = super().forward(hidden_states, attention_mask, *arguments, **named)
            return (hidden_states + 0.5 * (found[0] - hidden_states), *found[1:])

    made = model(lib, source)
    for number, layer in enumerate(made.encoder.layer):
        made.encoder.layer[number] = Gated(made.config).eval()
        made.encoder.layer[number].load_state_dict(layer.state_dict())
    found = made(**batch(lib, source), output_attentions=True, output_hidden_states=True)
    return found.last_hidden_state, found.attentions, found.hidden_states


def a_subclass_of_attention(lib: Any, source: str, folder: Path) -> Any:
    class Scaled(parts(lib).BertAttention):  # type: ignore[misc]
        def forward(self, hidden_states: Any, attention_mask: Any = None, *arguments: Any, **named: Any) -> Any:
            found = super().forward(hidden_states, attention_mask, *arguments, **named)
            return (found[0] * 0.9, *found[1:])

    made = model(lib, source)
    for layer in made.encoder.layer:
        old, layer.attention = layer.attention, Scaled(made.config).eval()
        layer.attention.load_state_dict(old.state_dict())
    return states(lib, source, made)


def self_attention_written_out(lib: Any, source: str, folder: Path) -> Any:
    class Written(parts(lib).BertSelfAttention):  # type: ignore[misc]
        def forward(self, hidden_states: Any, attention_mask: Any = None, *arguments: Any, **named: Any) -> Any:
            def split(x: torch.Tensor) -> torch.Tensor:
                return x.view(*x.shape[:2], self.num_attention_heads, self.attention_head_size).transpose(1, 2)

            q, k, v = (split(part(hidden_states)) for part in (self.query, self.key, self.value))
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.attention_head_size)
            scores = scores if attention_mask is None else scores + attention_mask
            context = self.dropout(scores.softmax(-1)) @ v
            return (context.transpose(1, 2).reshape(*hidden_states.shape[:2], self.all_head_size),)

    made = model(lib, source, attn_implementation="eager")
    for layer in made.encoder.layer:
        old, layer.attention.self = layer.attention.self, Written(made.config).eval()
        layer.attention.self.load_state_dict(old.state_dict())
    return states(lib, source, made)


def a_forward_exchanged_on_one_attention(lib: Any, source: str, folder: Path) -> Any:
    seen = []

    def forward(self: Any, hidden_states: Any, attention_mask: Any = None, *arguments: Any, **named: Any) -> Any:
        seen.append(attention_mask < -1e30)
        return (self.value(hidden_states), None)

    made = model(lib, source, attn_implementation="eager")
    part = made.encoder.layer[1].attention.self
    part.forward = types.MethodType(forward, part)
    return states(lib, source, made), seen


def an_encoder_of_ones_own(lib: Any, source: str, folder: Path) -> Any:
    class Doubled(parts(lib).BertEncoder):  # type: ignore[misc]
        def forward(self, hidden_states: Any, attention_mask: Any = None, head_mask: Any = None, **named: Any) -> Any:
            for number, layer in enumerate(self.layer):
                hidden_states = layer(hidden_states, attention_mask, None if head_mask is None else head_mask[number])[
                    0
                ]
            return transformers.modeling_outputs.BaseModelOutputWithPastAndCrossAttentions(hidden_states * 2)

    class Bert(lib.BertModel):  # type: ignore[misc]
        def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
            super().__init__(config, add_pooling_layer)
            self.encoder = Doubled(config)
            self.post_init()

    found = Bert.from_pretrained(source).eval()(**batch(lib, source))
    return found.last_hidden_state, found.pooler_output, list(found)


def an_encoder_around_the_encoder(lib: Any, source: str, folder: Path) -> Any:
    class Around(nn.Module):
        def __init__(self, inside: nn.Module) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, hidden_states: Any, attention_mask: Any = None, **named: Any) -> Any:
            return self.inside(hidden_states, attention_mask=attention_mask, **named)

    made = model(lib, source)
    made.encoder = Around(made.encoder)
    found = made(**batch(lib, source), output_hidden_states=True)
    return found.last_hidden_state, found.hidden_states


def a_hook_that_returns_the_states_alone(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source)
    made.encoder.layer[1].register_forward_hook(lambda module, given, found: (found[0] * 0.5,))
    return states(lib, source, made)


# -- embeddings --------------------------------------------------------------------------------------------------------


def a_wrapper_around_the_word_embeddings(lib: Any, source: str, folder: Path) -> Any:
    class Noise(nn.Module):
        def __init__(self, table: nn.Module) -> None:
            super().__init__()
            self.table = table

        def forward(self, ids: Any) -> Any:
            return self.table(ids) + 0.1

    made = model(lib, source)
    made.embeddings.word_embeddings = Noise(made.embeddings.word_embeddings)
    return states(lib, source, made)


def soft_prompts(lib: Any, source: str, folder: Path) -> Any:
    class Soft(nn.Module):
        def __init__(self, table: Any) -> None:
            super().__init__()
            self.table, self.learned = table, nn.Parameter(table.weight[5:8].clone().detach())

        def forward(self, ids: Any) -> Any:
            return torch.cat([self.learned.repeat(len(ids), 1, 1), self.table(ids[:, 3:])], 1)

    made = model(lib, source, "BertForSequenceClassification")
    made.set_input_embeddings(Soft(made.get_input_embeddings()))
    given = batch(lib, source)
    ids, mask = (nn.functional.pad(given[name], (3, 0), value=1) for name in ("input_ids", "attention_mask"))
    found = made(ids, attention_mask=mask, labels=LABELS)
    found.loss.backward()
    return found.logits, made.get_input_embeddings().learned.grad


def embeddings_of_ones_own(lib: Any, source: str, folder: Path) -> Any:
    class Words(nn.Module):
        def __init__(self, old: Any) -> None:
            super().__init__()
            self.old = old

        def forward(self, input_ids: Any = None, **named: Any) -> Any:
            return self.old.LayerNorm(self.old.word_embeddings(input_ids))

    class Taking(Words):
        def forward(self, input_ids: Any = None, *arguments: Any, **named: Any) -> Any:
            return super().forward(input_ids)

    made = model(lib, source)
    made.embeddings = Taking(made.embeddings)
    return states(lib, source, made)


def more_positions_without_the_configuration(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source)
    part = made.embeddings
    part.position_embeddings = nn.Embedding.from_pretrained(part.position_embeddings.weight.data.repeat(2, 1))
    part.register_buffer("position_ids", torch.arange(80).expand((1, -1)), persistent=False)
    part.register_buffer("token_type_ids", torch.zeros((1, 80), dtype=torch.long), persistent=False)
    return made(torch.randint(5, 40, (2, 60))).last_hidden_state


def a_third_segment(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source)
    old = made.embeddings.token_type_embeddings.weight.data
    made.embeddings.token_type_embeddings = nn.Embedding.from_pretrained(torch.cat([old, old.mean(0)[None]]))
    return made(torch.tensor([[2, 5, 6, 3]]), token_type_ids=torch.tensor([[0, 1, 2, 2]])).last_hidden_state


# -- layers, dropout, names --------------------------------------------------------------------------------------------


def layers_left_out(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source)
    made.encoder.layer = nn.ModuleList([made.encoder.layer[number] for number in (0, 2)])
    made.config.num_hidden_layers = 2
    made.save_pretrained(folder)
    return states(lib, source, made), states(lib, source, lib.BertModel.from_pretrained(folder).eval())


def a_layer_repeated(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source)
    made.encoder.layer.append(copy.deepcopy(made.encoder.layer[-1]))
    made.config.num_hidden_layers += 1
    return made(**batch(lib, source), output_hidden_states=True).hidden_states


def every_dropout_taken_out(lib: Any, source: str, folder: Path) -> Any:
    rates = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    made = model(lib, source, attn_implementation="eager", **rates).train()
    for module in list(made.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, nn.Identity())
    return states(lib, source, made)


def dropout_alone_in_training(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source, attn_implementation="eager", attention_probs_dropout_prob=0.5)
    for module in made.modules():
        if type(module).__name__.startswith("Dropout"):
            module.train()
    torch.manual_seed(0)
    return states(lib, source, made)


def names_of_parts(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source)
    made.prune_heads({0: [0], 2: [1, 2]})
    layer = made.encoder.layer[2]
    own = layer.attention.self
    return (
        [layer.is_decoder, layer.add_cross_attention, layer.seq_len_dim, sorted(layer.attention.pruned_heads)],
        [own.num_attention_heads, own.all_head_size, own.attention_head_size, own.is_decoder],
        [made.encoder.gradient_checkpointing, made.encoder.config is made.config],
        made.embeddings.position_embedding_type,
        states(lib, source, made),
    )


def checkpointing_seen_on_the_encoder(lib: Any, source: str, folder: Path) -> Any:
    made = model(lib, source, "BertForSequenceClassification").train()
    made.gradient_checkpointing_enable()
    on = made.bert.encoder.gradient_checkpointing
    made(**batch(lib, source), labels=LABELS).loss.backward()
    made.gradient_checkpointing_disable()
    return on, made.bert.encoder.gradient_checkpointing, made.bert.embeddings.LayerNorm.weight.grad


def an_id_past_the_vocabulary(lib: Any, source: str, folder: Path) -> Any:
    return model(lib, source)(torch.tensor([[5000]]))


def a_label_past_the_classes(lib: Any, source: str, folder: Path) -> Any:
    return model(lib, source, "BertForSequenceClassification")(**batch(lib, source), labels=LABELS + 1)


CASES: list[Case] = [
    a_layer_that_only_scales, an_adapter_around_every_layer, an_adapter_around_decoder_layers_with_a_cache,
    a_subclass_of_the_layer, a_subclass_of_attention, self_attention_written_out, a_forward_exchanged_on_one_attention,
    an_encoder_of_ones_own, an_encoder_around_the_encoder, a_hook_that_returns_the_states_alone,
    a_wrapper_around_the_word_embeddings, soft_prompts, embeddings_of_ones_own,
    more_positions_without_the_configuration, a_third_segment, layers_left_out, a_layer_repeated,
    every_dropout_taken_out, dropout_alone_in_training, names_of_parts, checkpointing_seen_on_the_encoder,
    an_id_past_the_vocabulary, a_label_past_the_classes,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_model_taken_apart_answers_alike(case: Case, source: str, tmp_path: Path) -> None:
    assert_same(case, source, tmp_path)
