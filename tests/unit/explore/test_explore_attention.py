"""Maps are the model's own, statistics are what they say, and scores add up."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
import torch

import bertie
from bertie.errors import InputError
from bertie.explore import Switches, open_session
from explore_sessions import TASKS, VARIANTS, ids_of, model_of, session_of
from tiny_models import tokenizer


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", TASKS)
def test_maps_are_those_of_the_model(task: str, variant: str) -> None:
    session = session_of(task, **VARIANTS[variant])
    for row in range(len(session.rows)):
        maps = session.bert(**ids_of(session, row), output_attentions=True).attentions
        for layer, heads in session.heads.items():
            for slot, head in enumerate(heads):
                found = session.attention(layer, head, row)
                assert found.tokens == session.rows[row].names
                np.testing.assert_allclose(found.weights, maps[layer][0, slot].detach(), atol=1e-5)


def test_maps_of_a_relative_have_the_positions_that_its_layers_share() -> None:
    """MPNet adds one bias of distances to the scores of all layers, pruned heads left out."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = bertie.MPNetModel(bertie.MPNetConfig(vocab_size=len(tokenizer()), **sizes)).eval()
    torch.nn.init.normal_(model.encoder.relative_attention_bias.weight)
    model.prune_heads({1: [0]})
    session = open_session("The fox jumps over the dog.", model=model, tokenizer=tokenizer(), task="embed")
    maps = model(torch.tensor([session.rows[0].ids]), output_attentions=True).attentions
    for layer, heads in session.heads.items():
        for slot, head in enumerate(heads):
            np.testing.assert_allclose(session.attention(layer, head).weights, maps[layer][0, slot].detach(), atol=1e-5)
    found = session.neuron_view(1, 2, 1, 3)
    assert abs(found.relative_query) > 1e-2
    scores = [session.neuron_view(1, 2, 1, key).score for key in range(len(session.rows[0]))]
    assert found.weight == pytest.approx(math.exp(found.score) / sum(map(math.exp, scores)), rel=1e-4)


def test_maps_of_a_decoder_do_not_look_ahead() -> None:
    session = session_of("embed", text="The fox jumps.", is_decoder=True)
    weights = session.attention(1, 2).weights
    assert np.triu(weights, 1).max() == 0
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_a_session_with_switches_shows_the_maps_behind_them() -> None:
    model = model_of("classify")
    session = session_of("classify", model)
    mask = torch.ones(3, 4)
    mask[0] = 0
    found = session.switch(Switches(heads={(0, head) for head in range(4)}))
    expected = model.bert(**ids_of(session), head_mask=mask, output_attentions=True).attentions[2][0, 1].detach()
    np.testing.assert_allclose(found.attention(2, 1).weights, expected, atol=1e-5)
    assert np.abs(found.attention(2, 1).weights - session.attention(2, 1).weights).max() > 1e-3


def test_bytes_of_a_map_are_its_weights() -> None:
    session = session_of("fill")
    size = len(session.rows[0])
    found = np.frombuffer(session.map_bytes(1, 3), np.uint8).reshape(size, size)
    np.testing.assert_allclose((found / 255) ** 2, session.attention(1, 3).weights, atol=0.5 / 255 * 2)
    small = session.thumbnails(size=4)
    assert small.shape == (3, 4, 4, 4)
    assert small.dtype == np.uint8
    assert small[1, 3].max() == found.max()
    np.testing.assert_array_equal(session.thumbnails()[1, 3], found)  # short texts are not made small


def test_thumbnails_of_pruned_heads_are_empty() -> None:
    session = session_of("fill", **VARIANTS["pruned"])
    thumbnails = session.thumbnails()
    assert not thumbnails[0, 1].any()
    assert not thumbnails[1].any()
    assert thumbnails[0, 2].any()
    assert list(zip(session.head_statistics().layer, session.head_statistics().head, strict=True)) == [
        (0, 0), (0, 2), (0, 3), (2, 0), (2, 1), (2, 2), (2, 3)
    ]  # fmt: skip


def test_thumbnails_of_one_size_are_kept() -> None:
    session = session_of("fill")
    kept = [weakref.ref(session.thumbnails(size)) for size in range(1, 6)]
    assert session.thumbnails(5) is kept[-1]()
    assert not any(one() for one in kept[:-1])


def test_statistics_say_where_a_head_looks() -> None:
    session = session_of("next")
    ids = session.rows[0].ids
    found = session.head_statistics().columns()
    place = list(zip(found["layer"], found["head"], strict=True)).index((1, 2))
    weights = session.attention(1, 2).weights.astype(np.float64)
    size = len(weights)
    distances = np.abs(np.arange(size)[:, None] - np.arange(size))
    expected = {
        "entropy": -(weights * np.log(weights)).sum(-1).mean(),
        "distance": (weights * distances).sum(-1).mean(),
        "cls": weights[:, 0].mean(),
        "sep": weights[:, [i for i, id_ in enumerate(ids) if id_ == tokenizer().sep_token_id]].sum(-1).mean(),
        "self": np.diagonal(weights).mean(),
        "next": np.diagonal(weights, 1).mean(),
        "previous": np.diagonal(weights, -1).mean(),
    }
    for name, value in expected.items():
        assert found[name][place] == pytest.approx(value, abs=1e-5), name
    assert max(found["entropy"]) <= math.log(size) + 1e-5


@pytest.mark.parametrize("positions", ["absolute", "relative_key", "relative_key_query"])
def test_neuron_view_adds_up_to_the_weight(positions: str) -> None:
    session = session_of("tag", position_embedding_type=positions)
    size = len(session.rows[0])
    views = [session.neuron_view(1, 2, 3, key) for key in range(size)]
    scores = np.array([(view.product.sum() + view.relative_query + view.relative_key) * view.scale for view in views])
    shares = np.exp(scores - scores.max())
    np.testing.assert_allclose(shares / shares.sum(), [view.weight for view in views], atol=1e-5)
    np.testing.assert_allclose([view.score for view in views], scores, atol=1e-5)
    assert any(view.relative_query for view in views) == (positions != "absolute")
    assert any(abs(view.relative_key) > 1e-4 for view in views) == (positions == "relative_key_query")
    assert views[0].query_token == session.rows[0].names[3]


def test_rollout_multiplies_half_maps_and_half_residuals() -> None:
    session = session_of("classify")
    size = len(session.rows[0])
    expected = np.eye(size)
    for layer in range(2):
        mean = np.mean([session.attention(layer, head).weights for head in range(4)], axis=0)
        expected = (0.5 * mean + 0.5 * np.eye(size)) @ expected
    found = session.rollout(layers=2)
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    np.testing.assert_allclose(session.rollout().weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(session.rollout(layers=0).weights, np.eye(size))


def test_rollout_passes_what_is_off() -> None:
    session = session_of("classify").switch(Switches(layers={0, 1, 2}))
    np.testing.assert_array_equal(session.rollout().weights, np.eye(len(session.rows[0])))


def test_flow_is_the_maximum_flow() -> None:
    """Against networkx, on the graph as the paper draws it."""
    networkx = pytest.importorskip("networkx")
    pytest.importorskip("scipy")
    session = session_of("classify", text="the dog")
    size = len(session.rows[0])
    graph = networkx.DiGraph()
    for layer in range(3):
        mean = np.mean([session.attention(layer, head).weights for head in range(4)], axis=0)
        for query in range(size):
            for key in range(size):
                capacity = float(0.5 * mean[query, key] + 0.5 * (query == key))
                graph.add_edge((layer + 1, query), (layer, key), capacity=capacity)
    found = session.flow(places=[0, 2])
    expected = [[networkx.maximum_flow_value(graph, (3, top), (0, key)) for key in range(size)] for top in (0, 2)]
    np.testing.assert_allclose(found.weights, expected, atol=1e-5)
    assert session.flow().places == (0,)  # a classifier reads [CLS]


def test_what_is_not_there_is_refused() -> None:
    session = session_of("fill", **VARIANTS["pruned"])
    for layer, head, cause in ((0, 1, "Layer 0 has no head 1: it is pruned."), (0, 9, "no head 9."), (7, 0, "Layer 7")):
        with pytest.raises(InputError, match=cause):
            session.attention(layer, head)
    with pytest.raises(InputError, match="row is 3; there are 1 rows"):
        session.attention(0, 0, row=3)
    with pytest.raises(InputError, match="query is 99; the row has"):
        session.neuron_view(0, 0, 99, 0)
    with pytest.raises(InputError, match="layers is 9; the model has 3"):
        session.rollout(layers=9)
    with pytest.raises(InputError, match="size is 0"):
        session.thumbnails(size=0)


def test_empty_and_odd_texts_have_maps() -> None:
    for text in ("", "   ", "漢字 😀", "שלום עולם"):
        session = open_session(text, model=model_of("classify"), tokenizer=tokenizer())
        assert session.attention(0, 0).weights.shape == (len(session.rows[0]),) * 2
        assert np.isfinite(session.head_statistics().entropy).all()
