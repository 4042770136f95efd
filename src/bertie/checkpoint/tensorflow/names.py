"""What TensorFlow calls BERT's weights, and what the hub calls them.

Three layouts are known, each a table of modules:

- **TF1**, the variable scopes of google-research/bert (2018) and of its fine-tuning scripts;
- **TF2**, the object paths of the BERT in TensorFlow's model garden (`official.nlp`), in both its forms: layers counted
  (`layer_with_weights-4/…`, the functional encoder) and layers named (`_transformer_layers/0/…`, BertEncoderV2);
- **Keras**, the object paths of the hub's own TFBert classes, from `save_weights` or `tf.train.Checkpoint`.

TensorFlow keeps a dense layer's kernel as [in, out], torch as [out, in], so kernels are transposed; the model garden
keeps attention kernels per head, [in, heads, size] and [heads, size, out]. Google's classifiers multiply by the
transpose of `output_weights`, which is therefore [out, in] already.

Every variable is either mapped, or on the list of what is not part of a model (optimizer slots, step counters), or an
error that names it. The plan reports the second kind; nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from bertie.checkpoint.report import listed
from bertie.errors import WeightsMismatch

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class Transform(Enum):
    """What turns a TensorFlow tensor into the hub's."""

    NONE = "none"
    TRANSPOSE = "transpose"  # [in, out] -> [out, in]
    MERGE_OUT = "merge_out"  # [in, heads, size] -> [heads * size, in]
    MERGE_IN = "merge_in"  # [heads, size, out] -> [out, heads * size]
    FLATTEN = "flatten"  # [heads, size] -> [heads * size]


@dataclass(frozen=True)
class Mapped:
    """One variable that belongs to the model, under both its names. `shape` is the hub's."""

    tf_name: str
    hub_name: str
    transform: Transform
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class NamePlan:
    """Every variable of a checkpoint: those to convert, and the names of those that are not the model's."""

    kept: tuple[Mapped, ...]
    ignored: tuple[str, ...]


class Kind(Enum):
    """What a module holds: (TensorFlow's leaf, the hub's leaf) for each of its variables."""

    DENSE = (("/kernel", ".weight"), ("/bias", ".bias"))
    NORM = (("/gamma", ".weight"), ("/beta", ".bias"))
    TABLE = (("", ".weight"),)  # an embedding
    OUTPUT = (("/output_weights", ".weight"), ("/output_bias", ".bias"))
    BARE = (("", ""),)  # a variable without a module


Module = tuple[str, str, Kind]  # TensorFlow's name, the hub's name, what is in it; {n} is a layer's number

# The modules of one layer: the hub's name and TF1's (which has slashes for dots), Keras's, TF2's.
_LAYER: tuple[tuple[str, Kind, str, str], ...] = (
    ("attention.self.query", Kind.DENSE, "attention/self_attention/query", "_attention_layer/_query_dense"),
    ("attention.self.key", Kind.DENSE, "attention/self_attention/key", "_attention_layer/_key_dense"),
    ("attention.self.value", Kind.DENSE, "attention/self_attention/value", "_attention_layer/_value_dense"),
    ("attention.output.dense", Kind.DENSE, "attention/dense_output/dense", "_attention_layer/_output_dense"),
    ("attention.output.LayerNorm", Kind.NORM, "attention/dense_output/LayerNorm", "_attention_layer_norm"),
    ("intermediate.dense", Kind.DENSE, "intermediate/dense", "_intermediate_dense"),
    ("output.dense", Kind.DENSE, "bert_output/dense", "_output_dense"),
    ("output.LayerNorm", Kind.NORM, "bert_output/LayerNorm", "_output_layer_norm"),
)


def _in_layers(block: str, names: Iterable[tuple[str, Kind, str]]) -> tuple[Module, ...]:
    return tuple((f"{block}/{tf}", f"bert.encoder.layer.{{n}}.{hub}", kind) for hub, kind, tf in names)


_TF1: tuple[Module, ...] = (
    ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings", Kind.TABLE),
    ("bert/embeddings/position_embeddings", "bert.embeddings.position_embeddings", Kind.TABLE),
    ("bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings", Kind.TABLE),
    ("bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm", Kind.NORM),
    *_in_layers("bert/encoder/layer_{n}", ((hub, kind, hub.replace(".", "/")) for hub, kind, _, _ in _LAYER)),
    ("bert/pooler/dense", "bert.pooler.dense", Kind.DENSE),
    ("cls/predictions/transform/dense", "cls.predictions.transform.dense", Kind.DENSE),
    ("cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm", Kind.NORM),
    ("cls/predictions/output_bias", "cls.predictions.bias", Kind.BARE),
    ("cls/seq_relationship", "cls.seq_relationship", Kind.OUTPUT),
    ("cls/squad", "qa_outputs", Kind.OUTPUT),  # run_squad.py
    ("", "classifier", Kind.OUTPUT),  # run_classifier.py: top-level output_weights and output_bias
)
_KERAS: tuple[Module, ...] = (
    ("bert/embeddings/weight", "bert.embeddings.word_embeddings", Kind.TABLE),
    ("bert/embeddings/embeddings", "bert.embeddings.position_embeddings", Kind.TABLE),
    ("bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings", Kind.TABLE),
    # Older releases kept each table in a layer of its own.
    ("bert/embeddings/word_embeddings/weight", "bert.embeddings.word_embeddings", Kind.TABLE),
    ("bert/embeddings/position_embeddings/embeddings", "bert.embeddings.position_embeddings", Kind.TABLE),
    ("bert/embeddings/token_type_embeddings/embeddings", "bert.embeddings.token_type_embeddings", Kind.TABLE),
    ("bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm", Kind.NORM),
    *_in_layers("bert/encoder/layer/{n}", ((hub, kind, keras) for hub, kind, keras, _ in _LAYER)),
    ("bert/pooler/dense", "bert.pooler.dense", Kind.DENSE),
    ("mlm/predictions/transform/dense", "cls.predictions.transform.dense", Kind.DENSE),
    ("mlm/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm", Kind.NORM),
    ("mlm/predictions/bias", "cls.predictions.bias", Kind.BARE),
    ("nsp/seq_relationship", "cls.seq_relationship", Kind.DENSE),
    ("classifier", "classifier", Kind.DENSE),
    ("qa_outputs", "qa_outputs", Kind.DENSE),
)
_TF2_BLOCK = "encoder/_transformer_layers/{n}"
_TF2: tuple[Module, ...] = (
    ("encoder/_embedding_layer/embeddings", "bert.embeddings.word_embeddings", Kind.TABLE),
    ("encoder/_position_embedding_layer/embeddings", "bert.embeddings.position_embeddings", Kind.TABLE),
    ("encoder/_type_embedding_layer/embeddings", "bert.embeddings.token_type_embeddings", Kind.TABLE),
    ("encoder/_embedding_norm_layer", "bert.embeddings.LayerNorm", Kind.NORM),
    *_in_layers(_TF2_BLOCK, ((hub, kind, tf2) for hub, kind, _, tf2 in _LAYER)),
    *_in_layers(_TF2_BLOCK, [("attention.output.dense", Kind.DENSE, "_attention_output_dense")]),  # up to release 2.3
    ("encoder/_pooler_layer", "bert.pooler.dense", Kind.DENSE),
    # The embedding table is shared, and saved once, under whichever path to it is the shorter.
    ("masked_lm/embedding_table", "bert.embeddings.word_embeddings", Kind.TABLE),
    ("masked_lm/dense", "cls.predictions.transform.dense", Kind.DENSE),
    ("masked_lm/layer_norm", "cls.predictions.transform.LayerNorm", Kind.NORM),
    ("masked_lm/output_bias.Sbias", "cls.predictions.bias", Kind.BARE),  # .S is an escaped slash
    ("masked_lm/bias", "cls.predictions.bias", Kind.BARE),
    ("head/dense", "bert.pooler.dense", Kind.DENSE),
    ("head/out_proj", "{head}", Kind.DENSE),
)

# Not the model's: an optimizer's memory of each weight, counters, and TensorFlow's own notes about the objects saved.
_IGNORED = re.compile(
    r"""
      (.*/)?(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamW(_1)?|LAMB(_1)?|Momentum|RMSProp(_1)?|Adafactor\w*|vr|vc)$
    | (.*/)?ExponentialMovingAverage$
    | (AdamWeightDecayOptimizer|LAMBOptimizer|LAMBWeightDecayOptimizer|AdamOptimizer)(_\d+)?/.*
    | (.*/)?(beta[12]_power|global_step|current_loss_scale|loss_scale|good_steps|num_good_steps)$
    | (.*/)?(iter|decay|learning_rate|step|epoch|current_iteration)$
    | _CHECKPOINTABLE_OBJECT_GRAPH$
    | .*/\.OPTIMIZER_SLOT/.*
    | (.*/)?\.ATTRIBUTES/OBJECT_CONFIG_JSON$
    | (model/|trainer/|root/)*(optimizer|_optimizer|save_counter|keras_api|metrics|train_loss|train_metrics)(/.*|$)
    """,
    re.VERBOSE,
)

# In a hub model, but not in a TF1 checkpoint: buffers, and the decoder that is the embedding table again.
_HUB_ONLY = re.compile(r"(bert\.)?embeddings\.(position_ids|token_type_ids)|cls\.predictions\.decoder\.(weight|bias)")


def _variables(modules: Iterable[Module]) -> Iterator[tuple[str, str, bool]]:
    """(TensorFlow's name, the hub's name, is it a kernel) for every variable of a table."""
    for tf_module, hub_module, kind in modules:
        for tf_leaf, hub_leaf in kind.value:
            yield (tf_module + tf_leaf).lstrip("/"), hub_module + hub_leaf, tf_leaf == "/kernel"


_TF1_TO_HUB = {tf: (hub, kernel) for tf, hub, kernel in _variables(_TF1)}
_HUB_TO_TF1 = {hub: (tf, kernel) for tf, hub, kernel in _variables(_TF1)}
_TF2_TO_HUB = {tf: (hub, kernel) for tf, hub, kernel in (*_variables(_KERAS), *_variables(_TF2))}


def to_hub(shapes: Mapping[str, Sequence[int]], *, head: str | None = None) -> NamePlan:
    """Plan the conversion of a checkpoint's variables (name → shape), whichever of the layouts it has.

    `head` is the hub's name for a classification head that the checkpoint leaves unnamed, as the model garden does:
    "classifier", "qa_outputs" or "cls.seq_relationship". Left out, it is guessed: next-sentence beside a masked-LM
    head, a span head where the layout allows one and there are two outputs, else a classifier. Raises WeightsMismatch
    for unknown names.
    """
    ignored = [name for name in shapes if _IGNORED.match(name.removesuffix(_SUFFIX))]
    skipped = set(ignored)
    wanted = [name for name in shapes if name not in skipped]
    if any(name.endswith(_SUFFIX) for name in shapes):
        paths = _object_paths(wanted)
        table = _TF2_TO_HUB
        head = head or _guess_head(paths, shapes)
    else:
        paths = {name: name for name in wanted}
        table = _TF1_TO_HUB
    kept: dict[str, Mapped] = {}
    unknown: list[str] = []
    for name, path in paths.items():
        pattern, number = _numbered(path)
        if pattern not in table:
            unknown.append(name)
            continue
        template, is_kernel = table[pattern]
        hub_name = template.replace("{n}", number).replace("{head}", head or "classifier")
        one = _mapped(name, hub_name, is_kernel, tuple(shapes[name]))
        rival = kept.get(hub_name)
        if rival is not None:
            one, other = _preferred(one, rival, paths)
            ignored.append(other.tf_name)
        kept[hub_name] = one
    if unknown:
        raise _unknown(unknown, "this checkpoint", "a standard BERT in any TensorFlow layout")
    return NamePlan(tuple(kept.values()), tuple(ignored))


def to_tf1(hub_names: Iterable[str]) -> NamePlan:
    """Plan the writing of hub parameters under Google's TF1 names. A base model's names may lack their `bert.`."""
    kept: list[Mapped] = []
    ignored: list[str] = []
    unknown: list[str] = []
    for name in hub_names:
        if _HUB_ONLY.fullmatch(name):
            ignored.append(name)
            continue
        full = f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
        pattern, number = _numbered(full)
        if pattern not in _HUB_TO_TF1:
            unknown.append(name)
            continue
        template, is_kernel = _HUB_TO_TF1[pattern]
        transform = Transform.TRANSPOSE if is_kernel else Transform.NONE
        kept.append(Mapped(template.replace("{n}", number), name, transform))
    if unknown:
        raise _unknown(unknown, "this model", "Google's TF1 layout")
    return NamePlan(tuple(kept), tuple(ignored))


def _numbered(name: str) -> tuple[str, str]:
    """`…layer_7/…` as (`…layer_{n}/…`, "7"), for each way the layouts write it: layer_7, layer/7, layer.7."""
    found = re.search(r"(?<=encoder[/.]layer[_/.])[0-9]{1,6}(?=[/.])|(?<=_transformer_layers/)[0-9]{1,6}(?=/)", name)
    if found is None:
        return name.replace("{n}", "{?}"), ""  # no name may pass for a pattern
    return name[: found.start()] + "{n}" + name[found.end() :], found.group()


# Where the model garden's functional encoder keeps what: layers are counted in the order of the forward pass.
_COUNTED = ("_embedding_layer", "_position_embedding_layer", "_type_embedding_layer", "_embedding_norm_layer")
_ATTENTION = re.compile(
    r"(?P<root>.*?)(_transformer_layers/[0-9]+|layer_with_weights-(?P<k>[0-9]{1,6}))/_attention_layer/.*"
)
_HEAD = re.compile(
    r"(?:layer_with_weights-1|classification_heads/0|next_sentence|classifier|sentence_prediction)"
    r"(?:/(?P<part>dense|out_proj|layer_with_weights-0))?/(?P<leaf>kernel|bias)"
)
_HEAD_POOLER = re.compile(r"next_sentence\.\.pooler_dense/(kernel|bias)")  # two dots are one, escaped


def _object_paths(names: Sequence[str]) -> dict[str, str]:
    """Each TF2 variable's path as the tables spell it: no suffix, no `model/`, the encoder's layers by name."""
    paths = {name: re.sub(r"^(model/)+", "", name.removesuffix(_SUFFIX)) for name in names}
    found = [match for match in map(_ATTENTION.fullmatch, paths.values()) if match]
    roots = {match["root"] for match in found}
    if len(roots) != 1:
        return paths  # no model-garden encoder, or several: the tables know it, or it is rejected with its name
    root = roots.pop()
    blocks = sorted({int(match["k"]) for match in found if match["k"]})
    first = len(_COUNTED)
    layers: dict[str, str] = {}
    if blocks and blocks == list(range(first, first + len(blocks))):
        layers = {f"{root}layer_with_weights-{k}": layer for k, layer in enumerate(_COUNTED)}
        layers |= {f"{root}layer_with_weights-{k}": f"_transformer_layers/{k - first}" for k in blocks}
        layers[f"{root}layer_with_weights-{first + len(blocks)}"] = "_pooler_layer"
    masked_lm = {path.removesuffix("/embedding_table") for path in paths.values() if path.endswith("/embedding_table")}
    return {name: _spelled(path, root, layers, masked_lm) for name, path in paths.items()}


def _spelled(path: str, root: str, layers: Mapping[str, str], masked_lm: set[str]) -> str:
    counted = re.match(re.escape(root) + r"layer_with_weights-[0-9]+", path)
    if counted and counted[0] in layers:
        return f"encoder/{layers[counted[0]]}{path[counted.end() :]}"
    if not layers and path.startswith(f"{root}_"):
        return "encoder/" + path.removeprefix(root)
    parent, _, rest = path.partition("/")
    if parent in masked_lm:
        return f"masked_lm/{rest}"
    if head := _HEAD.fullmatch(path):
        return f"head/{'dense' if head['part'] == 'dense' else 'out_proj'}/{head['leaf']}"
    if pooler := _HEAD_POOLER.fullmatch(path):
        return f"head/dense/{pooler[1]}"
    return path


def _guess_head(paths: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> str:
    spelled = {path: name for name, path in paths.items()}
    if any(path.startswith("masked_lm/") for path in spelled):
        return "cls.seq_relationship"
    name = spelled.get("head/out_proj/kernel", "")
    nested = name.removesuffix(_SUFFIX).endswith("/layer_with_weights-0/kernel")
    return "qa_outputs" if nested and tuple(shapes[name])[-1:] == (2,) else "classifier"


def _preferred(one: Mapped, other: Mapped, paths: Mapping[str, str]) -> tuple[Mapped, Mapped]:
    """Of two variables for one weight, the one to keep. A next-sentence head may bring a pooler of its own, and then
    the encoder's stays untrained beside it; anything else is two models in one checkpoint."""
    heads = [paths[mapped.tf_name].startswith("head/dense/") for mapped in (one, other)]
    if heads == [True, False]:
        return one, other
    if heads == [False, True]:
        return other, one
    raise WeightsMismatch(
        f"The variables {other.tf_name} and {one.tf_name} are both {one.hub_name}.", "A checkpoint holds one model."
    )


def _mapped(name: str, hub_name: str, is_kernel: bool, shape: tuple[int, ...]) -> Mapped:
    if ".attention." in hub_name and len(shape) == 3 and is_kernel:
        a, b, c = shape
        if ".attention.output." in hub_name:
            return Mapped(name, hub_name, Transform.MERGE_IN, (c, a * b))
        return Mapped(name, hub_name, Transform.MERGE_OUT, (b * c, a))
    if ".attention.self." in hub_name and len(shape) == 2 and hub_name.endswith(".bias"):
        return Mapped(name, hub_name, Transform.FLATTEN, (shape[0] * shape[1],))
    is_matrix = is_kernel or (hub_name.endswith(".weight") and "LayerNorm" not in hub_name)
    if len(shape) != (2 if is_matrix else 1):
        raise WeightsMismatch(
            f"{name} has the shape {list(shape)}; {hub_name} has {2 if is_matrix else 1} axes.",
            "The checkpoint's variables bear BERT's names, but are not BERT's.",
        )
    if is_kernel:
        return Mapped(name, hub_name, Transform.TRANSPOSE, shape[::-1])
    return Mapped(name, hub_name, Transform.NONE, shape)


def _unknown(names: Sequence[str], whose: str, layout: str) -> WeightsMismatch:
    remedy = "Its tensors can still be read one by one with BundleReader." if whose == "this checkpoint" else None
    if any("embedding_hidden_mapping" in name or "word_embeddings_2" in name for name in names):
        remedy = f"It has a factorised embedding, as ALBERT has, which BERT has not. {remedy}"
    return WeightsMismatch(
        f"{len(names)} variable(s) of {whose} are not those of {layout}: {listed(names, shown=20)}.", remedy
    )
