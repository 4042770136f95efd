"""BERT's relatives beside transformers' own: random small configurations, every class, weights exchanged by files."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

import bertie
import family_models
import tiny_models
from bertie import family
from bertie.checkpoint.names import renamed
from bertie.config.relatives import MODEL_TYPES
from parity.oracle import TOLERANCE, check_same, difference

VOCAB, POSITIONS = 47, 24
# Of a configuration: what differs between two files of one model (theirs is written to by a forward pass with labels).
UNSAID = ("transformers_version", "_name_or_path", "dtype", "architectures", "torch_dtype", "problem_type")
ANY = ("others", "named", "kwargs", "cache_position")  # of a signature
CASES = [(kind, name) for kind in MODEL_TYPES[1:] for name in family.class_names(kind)]
DECODERS: list[dict[str, Any]] = [
    {"add_cross_attention": True},
    {"position_embedding_type": "relative_key"},
    {"position_embedding_type": "relative_key_query", "is_decoder": False},
]
SIZES = st.fixed_dictionaries(
    {
        "heads": st.integers(1, 4),
        "head": st.integers(1, 9),
        "layers": st.integers(1, 3),
        "inner": st.integers(1, 33),
        "act": st.sampled_from(["gelu", "gelu_new", "relu"]),
        "seed": st.integers(0, 2**31),
        "own": st.integers(1, 30),
        "attention": st.sampled_from(["eager", "sdpa"]),
    }
)


def configured(name: str, size: dict[str, Any], **more: Any) -> Any:
    """transformers' configuration of the class called `name`."""
    kind = getattr(transformers, name).config_class
    values = {
        "vocab_size": VOCAB, "hidden_size": size["heads"] * size["head"], "num_hidden_layers": size["layers"],
        "num_attention_heads": size["heads"], "intermediate_size": size["inner"], "hidden_act": size["act"],
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": POSITIONS,
        "initializer_range": 0.3, "classifier_dropout": 0.0,
    }  # fmt: skip
    if kind.model_type == "distilbert":
        names = {ours: theirs for theirs, ours in bertie.DistilBertConfig.attribute_map.items()}
        values = {names.get(key, key): value for key, value in values.items() if key != "classifier_dropout"}
        values |= {"qa_dropout": 0.0, "seq_classif_dropout": 0.0}
    if kind.model_type == "mpnet":
        del values["classifier_dropout"]
    if kind.model_type == "electra":
        values |= {"embedding_size": size["own"], "summary_last_dropout": 0.0, "type_vocab_size": 3}
    if name.endswith("CausalLM"):
        values["is_decoder"] = True
    if not name.endswith("QuestionAnswering"):
        values["num_labels"] = 2 + size["own"] % 3
    return kind(**values | more)


def pair(name: str, size: dict[str, Any], folder: Path, **more: Any) -> tuple[Any, Any]:
    """(theirs, ours), in eval mode; ours was loaded from what theirs saved."""
    torch.manual_seed(size["seed"])
    config = configured(name, size, **more)
    config._attn_implementation = "eager" if name.startswith(("MPNet", "Electra")) else size["attention"]
    theirs = getattr(transformers, name)(config).eval()
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.2)
    theirs.save_pretrained(folder / "theirs")
    ours, report = getattr(bertie, name).from_pretrained(folder / "theirs", output_loading_info=True)
    assert not report.missing
    assert not report.unexpected
    ours.set_attention_backend(size["attention"])
    return theirs, ours


def batch(name: str, model: Any, seed: int) -> dict[str, Tensor]:
    """Ids with padding at the ends and a padding id inside a text, a mask, and labels."""
    rows = torch.Generator().manual_seed(seed)
    shape = (2, 3, 9) if name.endswith("MultipleChoice") else (3, 9)
    pad = model.config.pad_token_id
    ids = torch.randint(3, VOCAB, shape, generator=rows)
    mask = torch.ones_like(ids)
    mask[..., 1, 6:] = 0
    ids[mask == 0] = pad
    ids[..., 0, 4] = pad  # a text may hold it as a word
    given = {"input_ids": ids, "attention_mask": mask}
    if name.startswith("Electra"):
        given["token_type_ids"] = torch.randint(0, 3, shape, generator=rows)
    if name.endswith("QuestionAnswering"):
        given |= {"start_positions": torch.tensor([1, 3, 20]), "end_positions": torch.tensor([2, 5, 7])}
    elif name.endswith("SequenceClassification") or name.endswith("MultipleChoice"):
        given["labels"] = torch.randint(0, 2, shape[:1], generator=rows)
    elif not name.endswith("Model"):
        limit = {"ForPreTraining": 2, "ForTokenClassification": 2}.get("For" + name.partition("For")[2], VOCAB)
        given["labels"] = torch.randint(0, limit, shape, generator=rows)
        if not name.endswith("ForPreTraining"):
            given["labels"][mask == 0] = -100
    return given


def kept(output: Any, mask: Tensor) -> list[Tensor]:
    """All tensors of an output without what stands at padding."""
    found: list[Tensor] = []
    for value in output.to_tuple():
        for tensor in value if isinstance(value, tuple) else (value,):
            if not isinstance(tensor, Tensor):
                continue
            rows = mask.flatten(0, -2) if mask.dim() == 3 else mask
            if tensor.dim() == 4:  # maps: by query
                found.append(tensor.transpose(1, 2)[rows.bool()])
            elif tensor.shape[:2] == rows.shape:
                found.append(tensor[rows.bool()])
            else:
                found.append(tensor)
    return found


def masked_sum(states: Tensor, mask: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, states.shape[-1], dtype=states.dtype)
    return (states * weights * mask[..., None]).sum()


def named_gradients(model: Any, *, ours: bool) -> Iterator[tuple[str, Tensor | None]]:
    in_files = [(mine, theirs) for theirs, mine in model.names_in_files] if ours else []
    for name, parameter in model.named_parameters():
        yield renamed(name, in_files), parameter.grad


@pytest.mark.parametrize("name", [name for _, name in CASES])
@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(size=SIZES)
def test_outputs_losses_gradients_and_files_are_theirs(name: str, size: dict[str, Any]) -> None:
    check_everything(name, size)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for _, name in CASES])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(size=SIZES)
def test_many_sizes_have_their_outputs_losses_gradients_and_files(name: str, size: dict[str, Any]) -> None:
    """In double precision: a LayerNorm over one or two numbers makes float32's last digits into whole ones."""
    if name.endswith("CausalLM"):
        size = {**size, "attention": "eager"}  # transformers' causal mask for sdpa is made in float32 alone
    check_everything(name, size, torch.float64)


def check_everything(name: str, size: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Outputs, losses, gradients, tuples, and the files of both sides."""
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = pair(name, size, Path(folder))
        check_files(name, theirs, ours, Path(folder))
        theirs, ours = theirs.to(dtype), ours.to(dtype)
        given = batch(name, theirs, size["seed"])
        wanted = {"output_hidden_states": True, "output_attentions": size["attention"] == "eager"}
        their, our = theirs(**given, **wanted), ours(**given, **wanted)
        assert list(their.keys()) == list(our.keys())
        check_same(kept(their, given["attention_mask"]), kept(our, given["attention_mask"]))
        tuples = theirs(**given, return_dict=False), ours(**given, return_dict=False)
        assert len(tuples[0]) == len(tuples[1])

        for output in (their, our):
            loss = output.get("loss")
            (masked_sum(output[0], given["attention_mask"]) if loss is None else loss).backward()
        found = dict(named_gradients(ours, ours=True))
        for parameter, gradient in named_gradients(theirs, ours=False):
            assert parameter in found, parameter
            if gradient is not None:
                got = found[parameter]
                assert got is not None, parameter
                assert difference(gradient, got) <= TOLERANCE * max(1.0, float(gradient.abs().max())), parameter


def check_files(name: str, theirs: Any, ours: Any, folder: Path) -> None:
    """What ours saves has the tensors and the configuration of what `pair` had theirs save."""
    ours.save_pretrained(folder / "ours")
    before, after = (load_file(folder / side / "model.safetensors") for side in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    back, info = getattr(transformers, name).from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(info.values())
    written = back.config.to_dict()
    for key, value in theirs.config.to_dict().items():
        if key not in UNSAID:
            assert written[key] == value, key
    assert type(bertie.load(folder / "ours")) is getattr(bertie, name)


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[name for _, name in CASES])
def test_packed_equals_padded_and_resized_equals_theirs(kind: str, name: str, tmp_path: Path) -> None:
    size = {"heads": 3, "head": 6, "layers": 2, "inner": 20, "act": "gelu", "seed": 3, "own": 8, "attention": "sdpa"}
    theirs, ours = pair(name, size, tmp_path)
    given = batch(name, theirs, 5)
    ids, mask = given["input_ids"].flatten(0, -2), given["attention_mask"].flatten(0, -2).bool()
    ends = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    more: dict[str, Any] = {"num_choices": 3} if name.endswith("MultipleChoice") else {}
    types = given["token_type_ids"].flatten(0, -2) if "token_type_ids" in given else None
    packed = ours(ids[mask], token_type_ids=None if types is None else types[mask], cu_seqlens=ends, **more)
    padded = ours(**{key: value for key, value in given.items() if "labels" not in key and "positions" not in key})
    assert difference(kept(padded, given["attention_mask"]), [x for x in packed.to_tuple() if x is not None]) <= 1e-5

    for model in (theirs, ours):
        torch.manual_seed(0)
        model.resize_token_embeddings(VOCAB - 5)
    smaller = {
        key: value.clamp(max=VOCAB - 6) if key in ("input_ids", "labels") else value for key, value in given.items()
    }
    check_same(kept(theirs(**smaller), given["attention_mask"]), kept(ours(**smaller), given["attention_mask"]))
    ours.resize_token_embeddings(VOCAB + 9)
    ours.save_pretrained(tmp_path / "larger")
    back = getattr(transformers, name).from_pretrained(tmp_path / "larger").eval()
    check_same(kept(back(**smaller), given["attention_mask"]), kept(ours(**smaller), given["attention_mask"]))


@pytest.mark.parametrize("name", [name for _, name in CASES if name.endswith("CausalLM")])
@pytest.mark.parametrize("own", DECODERS, ids=lambda own: str(next(iter(own.values()))))
def test_cross_attention_and_relative_positions_are_theirs(name: str, own: dict[str, Any], tmp_path: Path) -> None:
    size = {"heads": 2, "head": 8, "layers": 2, "inner": 20, "act": "gelu", "seed": 1, "own": 8, "attention": "eager"}
    theirs, ours = pair(name, size, tmp_path, **own)
    given = batch(name, theirs, 2)
    if "add_cross_attention" in own:
        given["encoder_hidden_states"] = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
        given["encoder_attention_mask"] = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    wanted = {"output_hidden_states": True, "output_attentions": True, "use_cache": False}
    their, our = theirs(**given, **wanted), ours(**given, **wanted)
    assert list(their.keys()) == list(our.keys())
    check_same(kept(their, given["attention_mask"]), kept(our, given["attention_mask"]))


@pytest.mark.parametrize("name", [name for _, name in CASES if name.endswith("CausalLM")])
def test_generated_tokens_are_theirs(name: str, tmp_path: Path) -> None:
    """By their forward, one by one: their `generate` counts RoBERTa's positions from 0, where nothing was trained."""
    size = {"heads": 2, "head": 8, "layers": 2, "inner": 20, "act": "gelu", "seed": 1, "own": 8, "attention": "eager"}
    theirs, ours = pair(name, size, tmp_path)
    ids = torch.randint(3, VOCAB, (2, 5), generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    wanted = ids
    for _ in range(8):
        with torch.no_grad():
            wanted = torch.cat([wanted, theirs(wanted).logits[:, -1].argmax(-1)[:, None]], dim=1)
    assert ours.generate(ids, **options).tolist() == wanted.tolist()
    assert ours.generate(ids, **options, use_cache=False).tolist() == wanted.tolist()
    left = torch.nn.functional.pad(ids, (3, 0), value=ours.config.pad_token_id)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (3, 0))
    assert ours.generate(left, attention_mask=mask, **options)[:, 3:].tolist() == wanted.tolist()
    if name.startswith("Electra"):
        found, best = (
            model.generate(ids, attention_mask=torch.ones_like(ids), num_beams=3, **options) for model in (ours, theirs)
        )
        assert found.tolist() == best.tolist()


@pytest.mark.parametrize("kind", MODEL_TYPES[1:])
def test_every_class_that_the_hub_has_is_here(kind: str) -> None:
    name = kind.replace("-", "_")
    theirs = importlib.import_module(f"transformers.models.{name}.modeling_{name}").__all__
    models = {one for one in theirs if one.endswith("Model") or "For" in one}
    assert {one for one in models if not one.endswith("PreTrainedModel")} == {*family.class_names(kind)}
    for one in models:
        assert issubclass(getattr(bertie, one), bertie.BertPreTrainedModel)
    generating = {one for one in models if getattr(transformers, one).can_generate()}
    assert generating == {one for one in models if getattr(bertie, one).can_generate()}


def test_arguments_are_in_the_hubs_order_but_where_the_docs_say_so() -> None:
    """By position. docs/family.md: DistilBERT and MPNet have BERT's, which has token_type_ids third."""
    for _, name in CASES:
        ours, theirs = (
            [one for one in inspect.signature(getattr(library, name).forward).parameters if one not in ANY]
            for library in (bertie, transformers)
        )
        if name.startswith(("DistilBert", "MPNet")):
            assert ours[3] == "token_type_ids"
            theirs = [*theirs[:3], *(["position_ids"] if "position_ids" in theirs else [])]
            ours = [one for one in ours if one != "token_type_ids"][: len(theirs)]
        elif name == "ElectraForMaskedLM":
            ours, theirs = ours[:7], theirs[:7]
        common = 8 if name.endswith("MultipleChoice") else len(theirs)
        assert ours[:common] == theirs[:common], name


def test_segments_for_a_model_without_them_are_refused_when_they_cannot_be_segments() -> None:
    for name in ("DistilBertModel", "MPNetModel"):
        kind = getattr(bertie, name)
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        model = kind(kind.config_class(**sizes, vocab_size=40)).eval()
        ids, mask = torch.tensor([[0, 5, 2]]), torch.ones(1, 3)
        assert torch.equal(model(ids, mask, torch.tensor([[0, 1, 1]]))[0], model(ids, mask)[0])
        with pytest.raises(bertie.BertieError, match=r"token_type_ids holds 4, and a .* no segments\.\nName the arg"):
            model(ids, mask, torch.tensor([[2, 3, 4]]))


def test_new_models_have_the_hubs_parameters() -> None:
    for _, name in CASES:
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        ours = getattr(bertie, name)(getattr(bertie, name).config_class(**sizes, vocab_size=40))
        config = json.loads(ours.config.to_json())
        theirs = getattr(transformers, name)(getattr(transformers, name).config_class(**config))
        in_files = [(mine, its) for its, mine in ours.names_in_files]
        found = {renamed(key, in_files): tuple(value.shape) for key, value in ours.named_parameters()}
        assert found == {key: tuple(value.shape) for key, value in theirs.named_parameters()}, name


def test_relatives_are_chosen_by_their_model_type(tmp_path: Path) -> None:
    other = transformers.DistilBertConfig(vocab_size=300, dim=8, n_heads=2, n_layers=1, hidden_dim=8)
    transformers.DistilBertForMaskedLM(other).save_pretrained(tmp_path)
    assert type(bertie.AutoConfig.from_pretrained(tmp_path)) is bertie.DistilBertConfig
    assert type(bertie.AutoModel.from_pretrained(tmp_path)) is bertie.DistilBertModel
    assert type(bertie.AutoModelForMaskedLM.from_config(other)) is bertie.DistilBertForMaskedLM
    assert type(bertie.AutoModelForPreTraining.from_pretrained(tmp_path)) is bertie.DistilBertForMaskedLM
    assert bertie.AutoConfig.for_model("roberta").pad_token_id == 1
    with pytest.raises(bertie.BertieError, match="nothing like BertLMHeadModel"):
        bertie.AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("relative", family_models.RELATIVES)
def test_their_auto_classes_give_ours_after_register(relative: str, tmp_path: Path) -> None:
    folder = family_models.saved(tmp_path, f"{relative}ForMaskedLM")
    undo = bertie.register()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, my_key="mine")
        model = transformers.AutoModelForMaskedLM.from_pretrained(folder, config=config)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    finally:
        undo()
    assert isinstance(config, transformers.PretrainedConfig)
    assert isinstance(config, getattr(bertie, f"{relative}Config"))
    assert pickle.loads(pickle.dumps(config)) == config
    assert type(model) is getattr(bertie, f"{relative}ForMaskedLM")
    assert model.config.my_key == "mine"
    assert isinstance(tokenizer, bertie.BertTokenizer)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert type(theirs) is getattr(transformers, f"{relative}ForMaskedLM")
    batch = tokenizer(tiny_models.SENTENCES, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        wanted, found = (one.eval()(**batch).logits[batch["attention_mask"].bool()] for one in (theirs, model))
    assert torch.allclose(found, wanted, atol=1e-4)
