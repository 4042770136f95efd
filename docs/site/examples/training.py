# %%
from bertie.training import Settings, finetune

rows = [{"text": "A fine film.", "label": "good"}, {"text": "It never ends.", "label": "bad"}] * 4

# %% finetune, Result
from bertie.training import Result

result = finetune("classify", model="my-bert", train=rows, output="my-films", epochs=1, batch_size=4, show=False)
assert isinstance(result, Result) and (result.output / "report.md").exists()
print(result.steps)
# → 2

# %% Settings
from bertie.training import Settings

settings = Settings(max_steps=1, batch_size=8, learning_rate=1e-4)
print(finetune("classify", model="my-bert", train=rows, output="one-step", settings=settings, show=False).steps)
# → 1

# %% TaskOptions, Columns
from bertie.training import Columns, TaskOptions

named = [{"review": row["text"], "stars": row["label"]} for row in rows]
options = TaskOptions(columns=Columns(text="review", label="stars"), dev_share=0.25, label_smoothing=0.1)
result = finetune(
    "classify", model="my-bert", train=named, output="by-stars", settings=settings, options=options, show=False
)
assert "accuracy" in result.metrics

# %% Weights
from bertie.training import Weights

result = finetune(
    "classify",
    model="my-bert",
    teacher="my-films",
    distillation=Weights(task=0.5, logits=0.5),
    train=rows,
    output="my-small-films",
    settings=settings,
    show=False,
)

# %% pretrain, PretrainOptions, PRETRAINING
from dataclasses import replace
from pathlib import Path
from bertie.training import PRETRAINING, PretrainOptions, pretrain

Path("books.txt").write_text("She opened the door.\nThe room was empty.\n\n" * 200)
options = PretrainOptions(size="tiny", vocab_size=60, max_length=32, dev_share=0)
settings = replace(PRETRAINING, max_steps=1, batch_size=4)  # the defaults of pretraining, but for these
result = pretrain(corpus="books.txt", output="my-tiny-bert", options=options, settings=settings, show=False)
print(result.steps)
# → 1

# %% Interrupted, Diverged
from bertie.training import Diverged, Interrupted

try:
    finetune("classify", model="my-bert", train=rows, output="new-films", epochs=1, batch_size=4, show=False)
except Interrupted as stop:  # Ctrl-C or SIGTERM: the run is saved
    print("continue with resume=True" if stop.began else "start again")
except Diverged:  # gradients that are not finite
    print("use a lower learning_rate")

# %% train
import bertie
import torch
from bertie.training import train
from bertie.training.contract import Batch, Examples, Objective


class Numbers(Examples):
    """Sixteen texts of three ids; the label says whether the first is even."""

    def __len__(self):
        return 16

    def length(self, index):
        return 3

    def get(self, index, epoch):
        return [2, 5 + index, 3], index % 2

    def fingerprint(self):
        return "numbers"


class Even(Objective):
    name, best_metric, greater_is_better = "even", "accuracy", True

    def __init__(self):
        self.model = bertie.BertForSequenceClassification(bertie.BertConfig.preset("tiny", vocab_size=40))

    def collate(self, examples):  # end to end, without padding
        ids = torch.tensor([one for ids, _ in examples for one in ids])
        ends = torch.arange(len(examples) + 1) * 3
        labels = torch.tensor([label for _, label in examples])
        return Batch({"input_ids": ids, "cu_seqlens": ends, "labels": labels}, len(examples), len(ids), len(examples))

    def loss(self, model, batch):  # the sum over the batch, and more figures to log
        logits = model(batch.tensors["input_ids"], cu_seqlens=batch.tensors["cu_seqlens"]).logits
        return torch.nn.functional.cross_entropy(logits, batch.tensors["labels"], reduction="sum"), {}


print(train(Even(), Numbers(), None, Settings(epochs=1, batch_size=8), "even", show=False).steps)
# → 2
