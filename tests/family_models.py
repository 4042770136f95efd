"""Small random models of BERT's relatives with tokenizers of their kinds, as folders."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    ByteLevelBPETokenizer,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import bertie
import tiny_models

LENGTH = 48
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
RELATIVES = {  # how its classes begin: its tokenizer, by the hub's name
    "Roberta": "RobertaTokenizer",
    "XLMRoberta": "XLMRobertaTokenizer",
    "Camembert": "XLMRobertaTokenizer",
    "DistilBert": "DistilBertTokenizer",
    "Electra": "ElectraTokenizer",
    "MPNet": "MPNetTokenizer",
}


@cache
def _pieces() -> Tokenizer:
    """SentencePiece's Unigram, learned by the Rust library, framed as XLM-RoBERTa's is."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    learner = trainers.UnigramTrainer(vocab_size=250, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(tiny_models.SENTENCES * 3, learner)
    frame = [("<s>", 0), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=frame
    )
    return backend


def save_tokenizer(kind: str, folder: Path) -> None:
    """The files of such a tokenizer as checkpoints have them: some as tokenizer.json, some the older way."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "RobertaTokenizer":
        learned = ByteLevelBPETokenizer()
        learned.train_from_iterator(
            tiny_models.SENTENCES * 3, vocab_size=330, special_tokens=SPECIAL, show_progress=False
        )
        learned.save_model(str(folder))
    elif kind == "XLMRobertaTokenizer":
        _pieces().save(str(folder / "tokenizer.json"))
    else:
        words = [*tiny_models.tokenizer().get_vocab()]
        if kind == "MPNetTokenizer":
            names = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[MASK]": "<mask>"}
            words = [*SPECIAL[:3], "[UNK]", "<mask>", *(w for w in words if w not in names and w != "[UNK]")]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    config = {"tokenizer_class": kind, "model_max_length": LENGTH, "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def tiny(name: str, *, vocab_size: int, seed: int = 0, **config: Any) -> Any:
    """A model of the class called `name`, every weight of it random and large enough to matter."""
    kind = getattr(bertie, name)
    values: dict[str, Any] = {
        "vocab_size": vocab_size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": LENGTH, "initializer_range": 0.2,
    }  # fmt: skip
    if name.startswith("Electra"):
        values["embedding_size"] = 32
    if kind.config_class(**values).position_padding is not None:
        values["max_position_embeddings"] += 2
    torch.manual_seed(seed)
    model = kind(kind.config_class(**values | config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def saved(folder: Path, name: str, **config: Any) -> str:
    """A folder with a tiny model and its tokenizer, as anyone's checkpoint is."""
    kind = next(kind for prefix, kind in RELATIVES.items() if name.startswith(prefix))
    save_tokenizer(kind, folder)
    tokenizer = bertie.BertTokenizer.from_pretrained(folder)
    tiny(name, vocab_size=len(tokenizer), **config).save_pretrained(folder)
    return str(folder)
