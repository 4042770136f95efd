"""BertModel and its parts against transformers 4.57.6: outputs and every parameter's gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.bert import modeling_bert

import bertie
from bertie.ops import AttentionPlan
from parity.oracle import TINY, check_same, check_same_gradients, difference, ids, pair, scalar

POSITIONS = ["absolute", "relative_key", "relative_key_query"]
MASKS = ["none", "2-D", "3-D"]


def make_mask(kind: str, batch: int, length: int, seed: int = 0) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    if kind == "none":
        return None
    if kind == "2-D":
        lengths = torch.randint(1, length + 1, (batch,), generator=generator)
        return (torch.arange(length) < lengths[:, None]).long()
    mask = torch.randint(0, 2, (batch, length, length), generator=generator)
    mask[:, :, 0] = 1  # no row hidden whole: there 4.57 averages over everything, ours too, but see test_ours.py
    return mask


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from([1, 2, 3]))
    layers = draw(st.integers(1, 3))
    pruned = {}
    if heads > 1 and draw(st.booleans()):
        pruned = {draw(st.integers(0, layers - 1)): [draw(st.integers(0, heads - 1))]}
    return {
        "config": {
            "position_embedding_type": draw(st.sampled_from(POSITIONS)),
            "num_attention_heads": heads,
            "hidden_size": heads * draw(st.sampled_from([4, 8])),
            "num_hidden_layers": layers,
            "intermediate_size": draw(st.integers(1, 40)),
            "chunk_size_feed_forward": draw(st.sampled_from([0, 0, 1, "length", "half"])),
            "hidden_act": draw(st.sampled_from(["gelu", "gelu_new", "relu"])),
        },
        "batch": draw(st.integers(1, 4)),
        "length": draw(st.sampled_from([1, 2, 7, 12, 20])),
        "mask": draw(st.sampled_from(MASKS)),
        "head_mask": draw(st.sampled_from(["none", "heads", "layers"])),
        "pruned": pruned,
        "embeds": draw(st.booleans()),
        "types": draw(st.booleans()),
        "positions": draw(st.booleans()),
        "attentions": draw(st.booleans()),
        "states": draw(st.booleans()),
        "return_dict": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
    }


@settings(max_examples=150)
@given(cases())
def test_model_equals_reference_in_outputs_and_gradients(case: dict[str, Any]) -> None:
    torch.manual_seed(case["seed"])
    config, batch, length = dict(case["config"]), case["batch"], case["length"]
    chunk = config["chunk_size_feed_forward"]
    half = length // 2 if length % 2 == 0 else 0  # 4.57 takes divisors of the length only
    config["chunk_size_feed_forward"] = {"length": length, "half": half}.get(chunk, chunk)
    theirs, ours = pair("BertModel", **config)
    theirs.prune_heads(case["pruned"])
    ours.prune_heads(case["pruned"])
    inputs: dict[str, Any] = {"attention_mask": make_mask(case["mask"], batch, length, case["seed"])}
    if case["embeds"]:
        inputs["inputs_embeds"] = torch.randn(batch, length, config["hidden_size"])
    else:
        inputs["input_ids"] = ids(batch, length, seed=case["seed"])
    if case["types"]:
        inputs["token_type_ids"] = torch.randint(0, 3, (batch, length))
    if case["positions"]:
        inputs["position_ids"] = torch.randint(0, 20, (batch, length))
    inputs["output_attentions"] = case["attentions"]
    inputs["output_hidden_states"] = case["states"]
    their_mask, our_mask = head_masks(case["head_mask"], config, case["pruned"])
    wanted = run_theirs(theirs, inputs, their_mask)
    got = ours(**inputs, head_mask=our_mask)
    check_same(wanted, got)
    if not case["return_dict"]:
        check_same(wanted.to_tuple(), ours(**inputs, head_mask=our_mask, return_dict=False))
    check_same_gradients(theirs, ours, scalar(wanted), scalar(got))


def head_masks(kind: str, config: dict[str, Any], pruned: dict[int, list[int]]) -> tuple[Any, Tensor | None]:
    """4.57 wants a pruned layer's mask without the pruned heads, so it can only be given layer by layer."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    if kind == "none":
        return None, None
    mask = torch.rand(heads) if kind == "heads" else torch.rand(layers, heads)
    full = mask.expand(layers, heads)
    kept = [[h for h in range(heads) if h not in pruned.get(layer, [])] for layer in range(layers)]
    return [full[layer, kept[layer]][None, :, None, None] for layer in range(layers)], mask


def run_theirs(model: Any, inputs: dict[str, Any], head_mask: Any) -> Any:
    if head_mask is None:
        return model(**inputs)
    model.get_head_mask = lambda mask, *_: mask
    return model(**inputs, head_mask=head_mask)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_every_backend_equals_reference(positions: str, mask: str, backend: str) -> None:
    theirs, ours = pair("BertModel", position_embedding_type=positions)
    ours.set_attention_backend(backend)
    inputs = {"input_ids": ids(3, 11), "attention_mask": make_mask(mask, 3, 11)}
    wanted, got = theirs(**inputs), ours(**inputs)
    check_same(wanted, got)
    check_same_gradients(theirs, ours, scalar(wanted), scalar(got))


def test_their_fast_kernel_agrees_too() -> None:
    theirs, ours = pair("BertModel", attention="sdpa")
    inputs = {"input_ids": ids(3, 11), "attention_mask": make_mask("2-D", 3, 11)}
    check_same(theirs(**inputs), ours(**inputs))


@pytest.mark.parametrize("positions", POSITIONS)
def test_base_size(positions: str) -> None:
    base = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    sizes = base | {"max_position_embeddings": 512, "vocab_size": 500, "initializer_range": 0.02, "type_vocab_size": 2}
    theirs, ours = pair("BertModel", **sizes, position_embedding_type=positions)
    inputs = {"input_ids": ids(2, 70, vocab=500), "attention_mask": make_mask("2-D", 2, 70)}
    wanted, got = theirs(**inputs), ours(**inputs)
    check_same(wanted, got)
    check_same_gradients(theirs, ours, scalar(wanted), scalar(got))


def test_long_relative_positions_cross_block_boundaries() -> None:
    for positions in POSITIONS[1:]:
        theirs, ours = pair("BertModel", position_embedding_type=positions, max_position_embeddings=200)
        inputs = {"input_ids": ids(2, 150), "attention_mask": make_mask("2-D", 2, 150)}
        wanted, got = theirs(**inputs), ours(**inputs)
        check_same(wanted, got)
        check_same_gradients(theirs, ours, scalar(wanted), scalar(got))


def part(name: str, *arguments: Any, **keywords: Any) -> tuple[Any, Any]:
    """(theirs, ours) of one module, with the same weights."""
    values = TINY | {"is_decoder": True, "add_cross_attention": True}
    their_config = transformers.BertConfig(**values)
    their_config._attn_implementation = "eager"
    theirs = getattr(modeling_bert, name)(their_config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ours = getattr(bertie, name)(bertie.BertConfig.from_dict(values)).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def test_every_part_equals_its_namesake() -> None:
    x, residual = torch.randn(2, 7, TINY["hidden_size"]), torch.randn(2, 7, TINY["hidden_size"])
    wide = torch.randn(2, 7, TINY["intermediate_size"])
    bias = torch.zeros(2, 1, 1, 7).index_fill(3, torch.tensor([5, 6]), -1e9)
    plan = AttentionPlan(bias=bias)
    checked = {}
    for name, inputs in {
        "BertSelfOutput": (x, residual),
        "BertIntermediate": (x,),
        "BertOutput": (wide, residual),
        "BertPooler": (x,),
        "BertPredictionHeadTransform": (x,),
        "BertLMPredictionHead": (x,),
        "BertOnlyMLMHead": (x,),
        "BertOnlyNSPHead": (x[:, 0],),
        "BertPreTrainingHeads": (x, x[:, 0]),
    }.items():
        theirs, ours = part(name)
        checked[name] = difference(theirs(*inputs), ours(*inputs))
    theirs, ours = part("BertEmbeddings")
    tokens = ids(2, 7)
    checked["BertEmbeddings"] = difference(theirs(tokens), ours(tokens))
    for name in ("BertSelfAttention", "BertAttention", "BertLayer"):
        theirs, ours = part(name)
        checked[name] = difference(theirs(x, attention_mask=bias)[0], ours(x, plan)[0])
        arguments = {"attention_mask": bias, "encoder_hidden_states": residual}
        if name == "BertLayer":
            checked[name + " cross"] = difference(
                theirs(x, **arguments)[0], ours(x, plan, encoder_hidden_states=residual)[0]
            )
        else:
            checked[name + " cross"] = difference(
                theirs(x, **arguments)[0], ours(x, plan, encoder_hidden_states=residual)[0]
            )
    theirs, ours = part("BertEncoder")
    checked["BertEncoder"] = difference(theirs(x, attention_mask=bias)[0], ours(x, plan).last_hidden_state)
    assert max(checked.values()) <= 1e-5, checked


def test_hub_mask_methods_agree() -> None:
    for decoder in (False, True):
        theirs, ours = pair("BertModel", is_decoder=decoder)
        mask = make_mask("2-D", 3, 9)
        assert mask is not None
        check_same(theirs.get_extended_attention_mask(mask, (3, 9)), ours.get_extended_attention_mask(mask, (3, 9)))
        check_same(theirs.get_extended_attention_mask(mask, (3, 4)), ours.get_extended_attention_mask(mask, (3, 4)))
        cube = make_mask("3-D", 3, 9)
        assert cube is not None
        check_same(theirs.get_extended_attention_mask(cube, (3, 9)), ours.get_extended_attention_mask(cube, (3, 9)))
        check_same(theirs.invert_attention_mask(mask), ours.invert_attention_mask(mask))
        check_same(theirs.invert_attention_mask(cube), ours.invert_attention_mask(cube))
        for head_mask in (torch.rand(3), torch.rand(2, 3)):
            check_same(theirs.get_head_mask(head_mask, 2), ours.get_head_mask(head_mask, 2))
        assert theirs.get_head_mask(None, 2) == ours.get_head_mask(None, 2)
