"""TensorFlow checkpoints without TensorFlow: the tensor-bundle format, read and written, and BERT's names in it.

The path of one tensor: `sstable` (the index's pairs, guarded by `crc32c`) → `wire` (what an entry says) → `bundle` (the
bytes, checked) → `names` (whose weight it is) → `weights` (turned the hub's way round).
"""

from bertie.checkpoint.tensorflow.bundle import BundleReader, list_variables, load_variable
from bertie.checkpoint.tensorflow.names import Mapped, NamePlan, Transform, to_hub, to_tf1
from bertie.checkpoint.tensorflow.weights import load_tf_checkpoint, save_tf_checkpoint
from bertie.checkpoint.tensorflow.wire import BundleEntry
from bertie.checkpoint.tensorflow.writer import BundleWriter, write_bundle
from bertie.checkpoint.tensorflow_files import bundles_in, find_bundle

__all__ = [
    "BundleEntry",
    "BundleReader",
    "BundleWriter",
    "Mapped",
    "NamePlan",
    "Transform",
    "bundles_in",
    "find_bundle",
    "list_variables",
    "load_tf_checkpoint",
    "load_variable",
    "save_tf_checkpoint",
    "to_hub",
    "to_tf1",
    "write_bundle",
]
