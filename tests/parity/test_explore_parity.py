"""What bertie.explore shows is what transformers 4.57.6 computes, with eager attention, on real and random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertie.defaults import default_embedding_model, default_language_model
from bertie.explore import Session, Switches, open_session
from explore_sessions import KINDS, TEXTS
from explore_sessions import VARIANTS as ALL
from tiny_models import saved

# transformers cannot run a layer of which every head is pruned.
VARIANTS = ALL | {"pruned": {"pruned_heads": {0: [1], 1: [0, 2, 3]}}}
PROSE = "The old king sat on his throne and spoke to the people of the town."


def theirs(kind: str, folder: str) -> Any:
    return getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()


def run(model: Any, session: Session, row: int = 0, **options: Any) -> Any:
    found = session.rows[row]
    given = {"input_ids": torch.tensor([found.ids]), "token_type_ids": torch.tensor([found.segments])}
    with torch.no_grad():
        return model(**given, **options)


def close_maps(session: Session, model: Any) -> None:
    for row in range(len(session.rows)):
        maps = run(model, session, row, output_attentions=True).attentions
        for layer, heads in session.heads.items():
            for slot, head in enumerate(heads):
                np.testing.assert_allclose(session.attention(layer, head, row).weights, maps[layer][0, slot], atol=1e-5)


def test_maps_of_the_default_models_are_those_of_transformers() -> None:
    words = open_session("The king sat on his [MASK] and [MASK].")
    close_maps(words, theirs("BertForMaskedLM", default_language_model()))
    pair = open_session(PROSE, "A king speaks.", task="embed")
    close_maps(pair, theirs("BertModel", default_embedding_model()))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", ["fill", "next", "classify", "tag", "answer"])
def test_maps_and_answers_with_heads_off_are_those_of_transformers(task: str, variant: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", KINDS[task], **VARIANTS[variant])
    session = open_session(*TEXTS[task], model=folder, task=task)
    model = theirs(KINDS[task], folder)
    close_maps(session, model)
    heads = session.heads[2]
    mask = torch.ones(3, len(heads))
    mask[2, [heads.index(1), heads.index(3)]] = 0
    if variant == "pruned":
        # Their head mask is in the numbering of what is left, one width for all layers; a pruned layer cannot have one.
        model.prune_heads({2: [1, 3]})
        expected = run(model, session)
    else:
        expected = run(model, session, head_mask=mask)
    off = session.switch(Switches(heads={(2, 1), (2, 3)}))
    target = session.targets()[0]
    logits = expected.logits if "logits" in expected else None
    if task == "answer":
        value = expected.start_logits[0, target.place] + expected.end_logits[0, target.end]
    elif task in ("fill", "tag"):
        value = logits[0, target.place, target.index]
    else:
        value = logits[0, target.index]
    assert off.score(target, "logit") == pytest.approx(float(value), abs=1e-5)
    assert off.score(target, "logit") != pytest.approx(session.score(target, "logit"), abs=1e-4)


def test_the_lens_of_the_shipped_model_is_their_head_on_their_states() -> None:
    session = open_session("The king sat on his [MASK].")
    model = theirs("BertForMaskedLM", default_language_model())
    states = run(model, session, output_hidden_states=True).hidden_states
    found = session.lens(top_k=4)
    for layer, state in enumerate(states):
        with torch.no_grad():
            best, ids = model.cls(state)[0].softmax(-1).topk(4)
        np.testing.assert_allclose(found.probabilities[layer], best, atol=1e-5)
        assert list(found.words[layer][3]) == session.tokenizer.convert_ids_to_tokens(ids[3].tolist())
