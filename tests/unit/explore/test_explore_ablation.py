"""Parts that are off are gone: as if pruned, in the task's own answer, padded or packed, in any thread."""

from __future__ import annotations

import copy
import json
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.errors import InputError
from bertie.explore import Answer, Embedded, Switches, open_session, switched
from explore_sessions import TASKS, TEXTS, VARIANTS, model_of, session_of
from tiny_models import SENTENCES, tokenizer

HEADS = {(0, 0), (0, 3), (2, 1)}


def numbers(answer: Answer) -> Any:
    """An answer's numbers, whatever its order."""
    if isinstance(answer.value, Embedded):
        return answer.value.vector
    return [score for _, score in sorted(answer.top)]


def pruned(model: Any, heads: set[tuple[int, int]]) -> Any:
    smaller = copy.deepcopy(model)
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(layer, []).append(head)
    smaller.prune_heads(by_layer)
    return smaller


@pytest.mark.parametrize("variant", ["absolute", "relative"])
@pytest.mark.parametrize("task", TASKS)
def test_a_head_off_is_a_head_pruned(task: str, variant: str) -> None:
    model = model_of(task, **VARIANTS[variant])
    found = session_of(task, model).ablate(Switches(heads=HEADS))
    expected = session_of(task, pruned(model, HEADS)).answer()
    assert [label for label, _ in found.after.top] == [label for label, _ in expected.top]
    np.testing.assert_allclose(numbers(found.after), numbers(expected), atol=1e-5)
    np.testing.assert_array_equal(numbers(found.before), numbers(session_of(task, model).answer()))
    assert not np.array_equal(numbers(found.before), numbers(expected))
    # What is left of a pruned model can be switched off too.
    rest = session_of(task, pruned(model, {(0, 0), (0, 3)})).ablate(Switches(heads={(2, 1)}))
    np.testing.assert_allclose(numbers(rest.after), numbers(expected), atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_switches_hold_in_batches_that_are_padded_or_packed(packed: bool) -> None:
    model = model_of("tag")
    rows = [tokenizer().encode(text) for text in SENTENCES[:3]]
    if packed:
        ends = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
        given = {"input_ids": torch.tensor([id_ for row in rows for id_ in row]), "cu_seqlens": ends}
    else:
        longest = max(map(len, rows))
        given = {
            "input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
        }
    mask = torch.ones(3, 4)
    mask[0, 3] = mask[2, 1] = 0
    with torch.no_grad():
        expected = model(**given, head_mask=mask).logits
        before = model(**given).logits
        with switched(model, Switches(heads={(0, 3), (2, 1)})):
            found = model(**given).logits
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(model(**given).logits, before, atol=0, rtol=0)  # and it is over


def test_a_layer_off_is_a_layer_less() -> None:
    model = model_of("classify")
    shorter = copy.deepcopy(model)
    shorter.bert.encoder.layer = torch.nn.ModuleList([model.bert.encoder.layer[0], model.bert.encoder.layer[2]])
    expected = session_of("classify", shorter).answer()
    found = session_of("classify", model).ablate(Switches(layers={1})).after
    np.testing.assert_allclose(numbers(found), numbers(expected), atol=1e-6)


def test_feed_forward_off_is_all_its_neurons_off_is_a_zero_weight() -> None:
    model = model_of("classify")
    session = session_of("classify", model)
    whole = session.ablate(Switches(feed_forward={1})).after
    each = session.ablate(Switches(neurons={(1, neuron) for neuron in range(48)})).after
    without = copy.deepcopy(model)
    with torch.no_grad():
        without.bert.encoder.layer[1].output.dense.weight.zero_()
    np.testing.assert_allclose(numbers(whole), numbers(each), atol=1e-6)
    np.testing.assert_allclose(numbers(whole), numbers(session_of("classify", without).answer()), atol=1e-6)
    one = session.ablate(Switches(neurons={(1, 7)})).after
    with torch.no_grad():
        without.bert.encoder.layer[1].output.dense.weight.copy_(model.bert.encoder.layer[1].output.dense.weight)
        without.bert.encoder.layer[1].output.dense.weight[:, 7] = 0
    np.testing.assert_allclose(numbers(one), numbers(session_of("classify", without).answer()), atol=1e-6)


@pytest.mark.parametrize("variant", ["absolute", "pruned"])
def test_means_are_those_of_the_sample(variant: str) -> None:
    model = model_of("classify", **VARIANTS[variant])
    session = session_of("classify", model)
    texts = SENTENCES[:3]
    means = session.means_of(texts)
    contexts, added, neurons = [], [], []
    layer = model.bert.encoder.layer[2]
    layer.attention.self.register_forward_hook(lambda m, given, output: contexts.append(output[0][0]))
    layer.intermediate.register_forward_hook(lambda m, given, output: neurons.append(output[0]))
    layer.register_forward_hook(lambda m, given, output: added.append((output[0] - given[0])[0]))
    with torch.no_grad():
        for text in texts:
            model(torch.tensor([tokenizer().encode(text)]))
    for found, expected in ((means.heads[2].ravel(), contexts), (means.neurons[2], neurons), (means.layers[2], added)):
        np.testing.assert_allclose(found, torch.cat(expected).mean(0), atol=1e-5)
    assert means.num_tokens == sum(len(tokenizer().encode(text)) for text in texts)


@pytest.mark.parametrize("task", TASKS)
def test_means_are_taken_whatever_the_head(task: str) -> None:
    found = session_of(task).means_of(SENTENCES[:2])
    assert found.num_tokens == sum(len(tokenizer().encode(text)) for text in SENTENCES[:2])
    assert np.abs(found.layers).min(axis=1).all()


def test_at_its_mean_a_part_gives_its_mean() -> None:
    model = model_of("classify")
    session = session_of("classify", model)
    means = session.means_of(SENTENCES)
    off = Switches(heads={(1, 2)}, feed_forward={0}, layers={2})
    seen: dict[str, torch.Tensor] = {}
    layers = model.bert.encoder.layer
    with switched(model, off, means), torch.no_grad():
        layers[1].attention.self.register_forward_hook(lambda m, given, out: seen.update(head=out[0][..., 16:24]))
        layers[0].intermediate.register_forward_hook(lambda m, given, out: seen.update(neurons=out))
        layers[2].register_forward_hook(lambda m, given, out: seen.update(layer=out[0] - given[0]))
        model(torch.tensor([tokenizer().encode(SENTENCES[0])]))
    for name, mean in (("head", means.heads[1, 2]), ("neurons", means.neurons[0]), ("layer", means.layers[2])):
        np.testing.assert_allclose(seen[name][0], np.tile(mean, (seen[name].shape[1], 1)), atol=1e-5)
    assert numbers(session.ablate(off, means).after) != numbers(session.ablate(off).after)


def test_the_effect_is_what_the_answer_lost() -> None:
    session = session_of("classify")
    off = Switches(heads={(2, head) for head in range(4)})
    found = session.ablate(off)
    before, after = dict(found.before.top), dict(found.after.top)
    assert found.target is not None
    assert found.target.label == found.before.text
    assert found.effect == pytest.approx(before[found.before.text] - after[found.before.text], abs=1e-6)
    alone = session_of("embed", text="The fox jumps.").ablate(off)
    a, b = (answer.value.vector for answer in (alone.before, alone.after))  # type: ignore[union-attr]
    assert alone.effect == pytest.approx(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_with_parts_off_begins_at_the_first_of_them(task: str) -> None:
    """Below it nothing differs; the numbers are those of the whole run, to the bit."""
    model = model_of(task)
    session = session_of(task, model)
    session.states()
    off = Switches(heads={(2, 1)}, feed_forward={1})
    ran: list[int] = []
    for number, layer in enumerate(model.base_model.encoder.layer):
        layer.attention.register_forward_hook(lambda m, given, output, number=number: ran.append(number))
    with switched(model, off):
        whole = session_of(task, model).answer()
    assert set(ran) == {0, 1, 2}
    session.answer()
    for row in range(len(session.rows)):
        session.states(row)
    ran.clear()
    found = session.switch(off)
    np.testing.assert_array_equal(numbers(found.answer()), numbers(whole))
    assert set(ran) == {1, 2}
    if session.targets():
        with switched(model, off):
            expected = session_of(task, model).score(session.targets()[0])
        assert found.score(session.targets()[0]) == expected
    ran.clear()
    again = session.switch(off | Switches(heads={(2, 2)}))  # a part more: only from its layer on
    with switched(model, again.off):
        expected_again = session_of(task, model).answer()
    ran.clear()
    np.testing.assert_array_equal(numbers(again.answer()), numbers(expected_again))
    assert set(ran) == {2}
    back = found.switch(Switches())
    np.testing.assert_array_equal(numbers(back.answer()), numbers(session.answer()))
    assert len(model.base_model.encoder.layer) == 3


def test_sessions_of_one_model_take_turns() -> None:
    """Hooks of one thread are never seen by another."""
    model = model_of("classify")
    session = session_of("classify", model)
    whole, part = numbers(session.answer()), numbers(session.ablate(Switches(layers={0})).after)
    wrong: list[object] = []

    def work(off: Switches, expected: object) -> None:
        for _ in range(15):
            found = numbers(session_of("classify", model).switch(off).answer())
            if found != expected:
                wrong.append(found)

    threads = [
        threading.Thread(target=work, args=given)
        for given in ((Switches(), whole), (Switches(layers={0}), part), (Switches(), whole))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert not wrong


def test_answers_are_the_tasks_own() -> None:
    labels = bertie.classify(TEXTS["classify"][0], model=model_of("classify"), tokenizer=tokenizer(), top_k=None)
    assert session_of("classify").answer().value == labels
    model = model_of("fill")
    filled = session_of("fill", model).answer()
    expected = bertie.fill(TEXTS["fill"][0], model=model, tokenizer=tokenizer(), joint=False)
    assert filled.value == expected
    assert filled.top == tuple((one.token, one.score) for one in expected.candidates)


def test_both_pretraining_heads_of_one_model_object() -> None:
    model = bertie.load(bertie.explore.open_session("a [MASK]").name)
    tokens = open_session("a [MASK]").tokenizer
    first = open_session("The capital of France is [MASK].", model=model, tokenizer=tokens)
    second = open_session("She went out.", "It rained.", model=model, tokenizer=tokens)
    assert (first.task, second.task, first.tasks) == ("fill", "next", ("fill", "next", "embed"))
    named = open_session("The capital of France is [MASK].")
    np.testing.assert_allclose(numbers(first.answer()), numbers(named.answer()), atol=1e-6)
    np.testing.assert_allclose(
        numbers(second.answer()), numbers(open_session("She went out.", "It rained.").answer()), atol=1e-6
    )


def test_a_compiled_model_can_be_looked_into() -> None:
    model = model_of("classify")
    fast = session_of("classify", bertie.compile(model))
    slow = session_of("classify", model)
    np.testing.assert_allclose(fast.attention(2, 1).weights, slow.attention(2, 1).weights, atol=1e-5)
    off = Switches(heads=HEADS)
    np.testing.assert_allclose(numbers(fast.ablate(off).after), numbers(slow.ablate(off).after), atol=1e-4)
    np.testing.assert_allclose(fast.attribute().scores[0], slow.attribute().scores[0], atol=1e-4)


def test_switches_are_values() -> None:
    off = Switches(heads=[(1, 2), (0, 1)], layers=[2])
    assert Switches.from_json(json.loads(json.dumps(off.to_json()))) == off
    assert hash(off) == hash(Switches(heads={(0, 1), (1, 2)}, layers={2}))
    assert off | Switches(layers={1}) == Switches(heads={(0, 1), (1, 2)}, layers={1, 2})
    assert not off - off
    assert repr(off) == "Switches(heads=[(0, 1), (1, 2)], layers=[2])"


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: Switches(heads=[3]), "heads is \\[3\\]; it must be \\(layer, number\\) pairs"),  # type: ignore[list-item]
        (lambda: Switches(layers=["x"]), "layers is \\['x'\\]; it must be layer numbers"),  # type: ignore[list-item]
        (lambda: Switches.from_json({"haeds": []}), "no part 'haeds' to switch off"),
        (lambda: session_of("fill").ablate(Switches(layers={9})), "no layer 9 to switch off"),
        (lambda: session_of("fill").ablate(Switches(heads={(0, 9)})), "Layer 0 has no head 9"),
        (lambda: session_of("fill").ablate(Switches(neurons={(0, 48)})), "Layer 0 has no neuron 48"),
        (lambda: session_of("fill").means_of([]), "no texts to take means over"),
        (lambda: session_of("fill").means_of([3]), "Text 0 is int 3"),
    ],
)
def test_bad_switches_are_refused(make: Any, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        make()


def test_a_view_that_is_not_there_names_those_that_are() -> None:
    session = session_of("classify")
    with pytest.raises(InputError, match=r"(?s)needs a masked-word head.*'classify'.*There are: attention, .*patch"):
        session.lens()
    with pytest.raises(InputError, match=r"(?s)no \[MASK\] in the text.*Write \[MASK\].*There are: attention"):
        session_of("fill", text="Nothing is hidden.").answer()
    with pytest.raises(InputError, match="Matching tokens needs the similarity of two texts"):
        session.match()
    with pytest.raises(InputError, match="One text by itself has a vector"):
        session_of("embed", text="One text.").attribute()
    assert "lens" in session_of("fill", text="Nothing is hidden.").views
    assert "attribute" not in session_of("fill", text="Nothing is hidden.").views


@pytest.mark.parametrize(
    ("task", "text", "second", "cause"),
    [
        ("choice", "a", None, "choice needs several choices"),
        ("choice", "a", ["one"], "choice needs several choices"),
        ("next", "a", None, "next needs a second text"),
        ("answer", "a", None, "answer needs a context"),
        ("tag", "a", "b", "tag takes one text, and was given two"),
        ("classify", "a", ["b", "c"], "classify takes one second text, and was given 2"),
        ("classify", 3, None, "The text is int 3"),
    ],
)
def test_texts_that_a_task_cannot_read_are_refused(task: str, text: Any, second: Any, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        open_session(text, second, model=model_of(task), task=task, tokenizer=tokenizer())


def test_a_task_without_its_head_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"(?s)task='tag' needs a BertForTokenClassification.*explored as: fill, next"):
        open_session("A text.", task="tag")
    with pytest.raises(InputError, match="task='nosuch' is not known"):
        open_session("A text.", task="nosuch")


LONG = "the dog and the unbelievably lazy fox " * 30


@pytest.mark.parametrize(
    ("task", "text", "second"),
    [
        ("classify", LONG, None), ("tag", LONG, None), ("next", LONG, LONG), ("answer", "What is it?", LONG),
        ("embed", LONG, "the dog"), ("choice", LONG, ["dog", "fox"]), ("fill", "[MASK] " + LONG, None),
        ("fill", LONG + "[MASK] " + LONG, None), ("fill", LONG + "[MASK]", None),
    ],
)  # fmt: skip
def test_a_long_text_is_cut_at_a_word_with_a_warning(task: str, text: str, second: Any) -> None:
    with pytest.warns(bertie.TruncationWarning, match="longer than the model's 48 tokens and cut"):
        session = open_session(text, second, model=model_of(task), task=task, tokenizer=tokenizer())
    assert session.truncated
    assert (24 if task == "fill" else 40) <= max(map(len, session.rows)) <= 48
    for given, kept in zip(
        [text] if second is None or task == "choice" else [text, second], session.texts, strict=False
    ):
        assert kept in given if "[MASK]" in text else given.startswith(kept)
        assert given[given.index(kept) + len(kept) :][:1] in ("", " ")  # at the end of a word
    assert session.answer().top
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_session(text, second, model=session.model, task=task, tokenizer=tokenizer(), warn=False).truncated
