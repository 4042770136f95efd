"""Tools around a model: attribution, pictures of attention, Lightning, sentence-transformers, pipelines, Trainer."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bertie
import tiny_models
from compat.hub_cases import FIVE, inputs, labels
from parity.oracle import difference, pair

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NAME = "BertForSequenceClassification"
BATCH = inputs(NAME, 3, 7)
LIBRARIES = (transformers, bertie)
LONG = " ".join(tiny_models.SENTENCES)


# -- attribution and pictures ------------------------------------------------------------------------------------------


def test_captum_attributes_alike() -> None:
    attr = pytest.importorskip("captum.attr")
    ids, mask = BATCH["input_ids"], BATCH["attention_mask"]
    found = []
    for model in pair(NAME, attention="sdpa"):

        def score(ids: Any, mask: Any, model: Any = model) -> torch.Tensor:
            return model(ids, attention_mask=mask).logits[:, 1]

        def score_embeddings(states: Any, mask: Any, model: Any = model) -> torch.Tensor:
            return model(inputs_embeds=states, attention_mask=mask).logits[:, 1]

        settings = {"baselines": torch.zeros_like(ids), "additional_forward_args": (mask,), "n_steps": 8}
        integrated = attr.LayerIntegratedGradients(score, model.bert.embeddings).attribute(ids, **settings)
        states = model.get_input_embeddings()(ids).detach()
        by_input = attr.InputXGradient(score_embeddings).attribute(states, additional_forward_args=(mask,))
        layer = attr.LayerActivation(score, model.bert.encoder.layer[1].output)
        activated = layer.attribute(ids, additional_forward_args=(mask,))
        ablated = attr.FeatureAblation(score).attribute(ids, additional_forward_args=(mask,))
        found.append([integrated, by_input, activated, ablated.float()])
    assert difference(*found) <= 1e-4


def test_attention_maps_have_gradients() -> None:
    found = []
    for model in pair(NAME, attention="eager"):
        output = model(**BATCH, output_attentions=True)
        for maps in output.attentions:
            maps.retain_grad()
        output.logits[:, 1].sum().backward()
        found.append([maps.grad for maps in output.attentions])
    assert min(float(gradient.abs().max()) for gradient in found[0]) > 1e-5
    assert difference(*found) <= 1e-5


def test_bertviz_draws_the_same_pictures() -> None:
    bertviz = pytest.importorskip("bertviz")
    tokens = [f"t{i}" for i in range(7)]
    numbers = []
    for model in pair("BertModel", attention="eager"):
        maps = model(BATCH["input_ids"][:1], output_attentions=True).attentions
        pages = [
            view(maps, tokens, html_action="return", **more).data
            for view, more in ((bertviz.head_view, {"sentence_b_start": 4}), (bertviz.model_view, {}))
        ]
        numbers.append([np.array([float(x) for x in re.findall(r"\b0\.\d+(?:e-\d+)?", page)]) for page in pages])
    for theirs, ours in zip(*numbers, strict=True):
        assert len(theirs) == len(ours) > 100
        assert np.abs(theirs - ours).max() <= 1e-5


# -- training ----------------------------------------------------------------------------------------------------------


def test_lightning_trains_alike(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    columns = inputs(NAME, 8, 7) | labels(NAME, 8, 7)
    rows = [{key: value[i] for key, value in columns.items()} for i in range(8)]

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(**batch)

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", self.model(**batch)["loss"])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    found = []
    for model in pair(NAME, attention="sdpa"):
        loader = torch.utils.data.DataLoader(rows, batch_size=4)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, gradient_clip_val=1.0, accumulate_grad_batches=2, default_root_dir=tmp_path,
        )  # fmt: skip
        module = Module(model)
        trainer.fit(module, loader)
        loss = trainer.validate(module, loader, verbose=False)[0]["loss"]
        trainer.save_checkpoint(tmp_path / "module.ckpt")
        again = Module.load_from_checkpoint(tmp_path / "module.ckpt", model=copy.deepcopy(model), weights_only=False)
        assert difference(again.model.classifier.weight, model.classifier.weight) == 0
        found.append([torch.tensor(loss), *model.state_dict().values()])
    assert difference(*found) <= 1e-5


def trainer_run(model: Any, tokenizer: Any, folder: Path, **changes: Any) -> tuple[list[float], Any]:
    texts = [tiny_models.SENTENCES[i % 7][: 12 + 5 * i] for i in range(12)]
    rows = [{**tokenizer(text, truncation=True), "labels": i % 2} for i, text in enumerate(texts)]
    values: dict[str, Any] = {
        "per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 1, "learning_rate": 1e-3, "seed": 3,
        "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(output_dir=str(folder), **values | changes),
        train_dataset=rows,
        eval_dataset=rows[:5],
        processing_class=tokenizer,
        compute_metrics=lambda found: {"mean": float(found.predictions.mean()), "kinds": len(set(found.label_ids))},
    )
    trainer.train()
    numbers = [entry[key] for entry in trainer.state.log_history for key in ("loss", "grad_norm") if key in entry]
    evaluated = trainer.evaluate()
    assert evaluated["eval_kinds"] == 2
    predicted = trainer.predict(rows[:5])
    return [*numbers, evaluated["eval_loss"], evaluated["eval_mean"]], predicted.predictions


TRAINER_OPTIONS: list[Any] = [
    {"label_smoothing_factor": 0.2},
    {"train_sampling_strategy": "group_by_length"} if FIVE else {"group_by_length": True},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"neftune_noise_alpha": 5.0},
    {"bf16": True},
    {"optim": "adafactor", "max_grad_norm": 0.5},
    {"auto_find_batch_size": True, "gradient_accumulation_steps": 2},
    pytest.param({"torch_compile": True, "torch_compile_backend": "eager"}, marks=pytest.mark.slow),
    {"include_for_metrics": ["loss"], "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": False},
]


@pytest.mark.parametrize(
    "options", TRAINER_OPTIONS, ids=lambda options: " ".join(f"{k}={v}" for k, v in options.items())
)
def test_a_trainers_options_mean_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    if FIVE and "gradient_accumulation_steps" in options:
        pytest.skip("transformers 5 adds up the losses of a classifier's accumulated batches; 4.57.6 and we average")
    folder = tiny_models.saved(tmp_path / "model", NAME, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    found = []
    for library in LIBRARIES:
        torch._dynamo.reset()
        model = getattr(library, NAME).from_pretrained(folder)
        tokenizer = library.BertTokenizerFast.from_pretrained(folder)
        found.append(trainer_run(model, tokenizer, tmp_path / library.__name__, **options))
    (their_numbers, theirs), (our_numbers, ours) = found
    tolerance = 2e-2 if options.get("bf16") else 1e-4
    assert our_numbers == pytest.approx(their_numbers, abs=tolerance)
    assert np.abs(theirs - ours).max() <= tolerance


def test_a_trainer_trains_an_adapted_model_and_saves_the_adapter(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = tiny_models.saved(tmp_path / "model", NAME, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    found = []
    for library in LIBRARIES:
        torch.manual_seed(5)
        model = getattr(library, NAME).from_pretrained(folder)
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2))
        tokenizer = library.BertTokenizerFast.from_pretrained(folder)
        place = tmp_path / library.__name__
        found.append(trainer_run(adapted, tokenizer, place, save_strategy="steps", save_steps=4))
        names = {file.name for file in (place / "checkpoint-4").iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
        assert "model.safetensors" not in names
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-4)
    assert np.abs(found[0][1] - found[1][1]).max() <= 1e-4


# -- sentence-transformers ---------------------------------------------------------------------------------------------


def test_sentence_transformers_and_ours_exchange_folders(tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

    texts = tiny_models.SENTENCES
    plain = tiny_models.saved(tmp_path / "plain", "BertModel")
    # Theirs reads what we saved, and we read what it saves.
    modules = [models.Transformer(plain), models.Pooling(32), models.Normalize()]
    theirs = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
    wanted = theirs.encode(texts)
    theirs.save(str(tmp_path / "sentence"))
    ours = bertie.embed(texts, model=str(tmp_path / "sentence"))
    assert np.abs(np.asarray(ours) - wanted).max() <= 1e-5
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "sentence"), device="cpu")
    assert np.abs(again.encode(texts) - wanted).max() <= 1e-5


def test_sentence_transformers_runs_on_our_model_and_tokenizer(tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers import losses, models

    plain = tiny_models.saved(
        tmp_path / "plain", "BertModel", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    found = []
    for register in (False, True):
        undo = bertie.register() if register else lambda: None
        try:
            modules = [models.Transformer(plain, max_seq_length=32), models.Pooling(32, "cls")]
            torch.manual_seed(7)
            modules.append(models.Dense(32, 8))
            model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
            assert isinstance(model[0].auto_model, bertie.BertModel) == register
            assert isinstance(model.tokenizer, bertie.BertTokenizer) == register
            vectors = model.encode([*tiny_models.SENTENCES, LONG], batch_size=3)
            batch = [model.tokenize(tiny_models.SENTENCES[i : i + 2]) for i in (0, 2)]
            loss = losses.CosineSimilarityLoss(model)(batch, torch.tensor([0.2, 0.9]))
            loss.backward()
            slope = model[0].auto_model.embeddings.word_embeddings.weight.grad
            model.save(str(tmp_path / str(register)))
        finally:
            undo()
        again = sentence_transformers.SentenceTransformer(str(tmp_path / str(register)), device="cpu")
        assert np.abs(again.encode(tiny_models.SENTENCES) - vectors[:-1]).max() <= 1e-5
        found.append([torch.from_numpy(vectors), loss, slope])
    assert difference(*found) <= 1e-5


# -- pipelines ---------------------------------------------------------------------------------------------------------

PIPELINES: list[tuple[str, str, Any, dict[str, Any], dict[str, Any]]] = [
    ("question-answering", "BertForQuestionAnswering", {"question": "What is the capital?", "context": LONG}, {},
     {"doc_stride": 8, "max_seq_len": 32, "top_k": 4, "handle_impossible_answer": True}),
    ("token-classification", "BertForTokenClassification", [LONG, "dog"], {"stride": 6},
     {"aggregation_strategy": "average"}),
    ("token-classification", "BertForTokenClassification", tiny_models.SENTENCES, {"batch_size": 3}, {}),
    ("feature-extraction", "BertModel", tiny_models.TEXTS, {"batch_size": 4},
     {"truncation": True, "return_tensors": False}),
    ("text-classification", NAME, tiny_models.TEXTS, {"batch_size": 5},
     {"truncation": True, "padding": True, "top_k": None, "function_to_apply": "sigmoid"}),
    ("zero-shot-classification", NAME, tiny_models.SENTENCES[:2], {},
     {"candidate_labels": "film, weather", "multi_label": True, "hypothesis_template": "It is about {}."}),
    ("fill-mask", "BertForMaskedLM", ["The [MASK] fox. " + LONG, "[MASK] and [MASK]"], {},
     {"tokenizer_kwargs": {"truncation": True}, "top_k": 3}),
    ("text-generation", "BertLMHeadModel", "The quick", {}, {"max_new_tokens": 6, "do_sample": False}),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "given", "made", "called"), PIPELINES)
def test_pipelines_answer_alike_on_long_and_many_texts(
    task: str, name: str, given: Any, made: dict[str, Any], called: dict[str, Any], tmp_path: Path
) -> None:
    if FIVE and task == "question-answering":
        pytest.skip("transformers 5 has no such pipeline")
    config: dict[str, Any] = {"is_decoder": True} if name == "BertLMHeadModel" else {}
    if name == NAME:
        config["id2label"] = {0: "entailment", 1: "neutral", 2: "contradiction"}
    folder = tiny_models.saved(tmp_path, name, **config)
    answers = []
    for library in LIBRARIES:
        model = getattr(library, name).from_pretrained(folder).eval()
        tokenizer = library.BertTokenizerFast.from_pretrained(folder)
        pipe = transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu", **made)
        answers.append(rounded(pipe(copy.deepcopy(given), **called)))
    assert answers[1] == answers[0]


def rounded(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: rounded(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [rounded(value) for value in answer]
    return pytest.approx(float(answer), abs=1e-4) if isinstance(answer, float) or hasattr(answer, "dtype") else answer
