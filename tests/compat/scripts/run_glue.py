"""Fine-tune a text classifier, or a regressor, on pairs of sentences or single ones; after run_glue_no_trainer.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from script_loop import begin, multiple_of, parse, read, train
from sklearn.metrics import accuracy_score, mean_squared_error
from transformers import DataCollatorWithPadding, PretrainedConfig, default_data_collator

# isort: split
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(argv)
    accelerator = begin(args)
    raw_datasets = read(args)
    is_regression = raw_datasets["train"].features["label"].dtype in ["float32", "float64"]
    label_list = [] if is_regression else sorted(raw_datasets["train"].unique("label"))
    num_labels = 1 if is_regression else len(label_list)

    config = AutoConfig.from_pretrained(
        args.model_name_or_path,
        num_labels=num_labels,
        finetuning_task=None,
        trust_remote_code=args.trust_remote_code,
    )
    tokenizer = AutoTokenizer.from_pretrained(
        args.model_name_or_path, use_fast=not args.use_slow_tokenizer, trust_remote_code=args.trust_remote_code
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config.pad_token_id = tokenizer.pad_token_id
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model_name_or_path,
        from_tf=bool(".ckpt" in args.model_name_or_path),
        config=config,
        ignore_mismatched_sizes=args.ignore_mismatched_sizes,
        trust_remote_code=args.trust_remote_code,
    )

    columns = [name for name in raw_datasets["train"].column_names if name != "label"]
    # The model may know the labels already, in an order of its own.
    label_to_id = {label: i for i, label in enumerate(label_list)}
    if not is_regression and model.config.label2id != PretrainedConfig(num_labels=num_labels).label2id:
        named = {label.lower(): i for label, i in model.config.label2id.items()}
        if sorted(named) == sorted(str(label).lower() for label in label_list):
            label_to_id = {label: named[str(label).lower()] for label in label_list}
    if not is_regression:
        model.config.label2id = label_to_id
        model.config.id2label = {i: label for label, i in model.config.label2id.items()}

    def preprocess(examples: Any) -> Any:
        texts = [examples[column] for column in columns[:2]]
        padding = "max_length" if args.pad_to_max_length else False
        result = tokenizer(*texts, padding=padding, max_length=args.max_length, truncation=True)
        result["labels"] = [label if is_regression else label_to_id[label] for label in examples["label"]]
        return result

    with accelerator.main_process_first():
        processed = raw_datasets.map(
            preprocess,
            batched=True,
            remove_columns=raw_datasets["train"].column_names,
            desc="Running tokenizer on dataset",
        )
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple_of(accelerator))

    def evaluate(model: Any, dataloader: Any) -> dict[str, float]:
        predictions, references = [], []
        for batch in dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predicted = outputs.logits.squeeze() if is_regression else outputs.logits.argmax(dim=-1)
            predicted, reference = accelerator.gather((predicted, batch["labels"]))
            predictions += predicted.reshape(-1).tolist()
            references += reference.tolist()
        if is_regression:
            return {"mse": mean_squared_error(references, predictions)}
        return {"accuracy": accuracy_score(references, predictions)}

    return train(
        args,
        accelerator,
        model,
        tokenizer,
        processed["train"],
        processed["validation"],
        default_data_collator if args.pad_to_max_length else collator,
        evaluate,
    )


if __name__ == "__main__":
    main()
