"""Fine-tune a token classifier on words with tags; after run_ner_no_trainer.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from script_loop import begin, fit_vocabulary, multiple_of, parse, read, train
from seqeval.metrics import accuracy_score, f1_score
from transformers import CONFIG_MAPPING, DataCollatorForTokenClassification, PretrainedConfig, default_data_collator

# isort: split
from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(argv, label_all_tokens={"action": "store_true"})
    accelerator = begin(args)
    raw_datasets = read(args)
    label_list = sorted({label for row in raw_datasets["train"]["ner_tags"] for label in row})
    label_to_id = {label: i for i, label in enumerate(label_list)}
    num_labels = len(label_list)

    if args.config_name or args.model_name_or_path:
        config = AutoConfig.from_pretrained(
            args.config_name or args.model_name_or_path,
            num_labels=num_labels,
            trust_remote_code=args.trust_remote_code,
        )
    else:
        config = CONFIG_MAPPING[args.model_type](num_labels=num_labels)
    name = args.tokenizer_name or args.model_name_or_path
    assert config.model_type not in {"bloom", "gpt2", "roberta"}  # these want add_prefix_space=True
    tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=args.trust_remote_code)
    if args.model_name_or_path:
        model = AutoModelForTokenClassification.from_pretrained(
            args.model_name_or_path,
            from_tf=bool(".ckpt" in args.model_name_or_path),
            config=config,
            ignore_mismatched_sizes=args.ignore_mismatched_sizes,
            trust_remote_code=args.trust_remote_code,
        )
    else:
        model = AutoModelForTokenClassification.from_config(config, trust_remote_code=args.trust_remote_code)
    fit_vocabulary(model, tokenizer)

    known = model.config.label2id != PretrainedConfig(num_labels=num_labels).label2id
    if known and sorted(model.config.label2id.keys()) == sorted(label_list):
        label_list = [model.config.id2label[i] for i in range(num_labels)]
        label_to_id = {label: i for i, label in enumerate(label_list)}
    model.config.label2id = {label: i for i, label in enumerate(label_list)}
    model.config.id2label = dict(enumerate(label_list))
    inside = [label.replace("B-", "I-") for label in label_list]
    b_to_i_label = [label_list.index(label) if label in label_list else i for i, label in enumerate(inside)]

    def tokenize_and_align_labels(examples: Any) -> Any:
        tokenized_inputs = tokenizer(
            examples["tokens"],
            max_length=args.max_length,
            padding="max_length" if args.pad_to_max_length else False,
            truncation=True,
            is_split_into_words=True,
        )
        labels = []
        for i, tags in enumerate(examples["ner_tags"]):
            row: list[int] = []
            previous = None
            for word in tokenized_inputs.word_ids(batch_index=i):
                if word is None or (word == previous and not args.label_all_tokens):
                    row.append(-100)
                elif word == previous:
                    row.append(b_to_i_label[label_to_id[tags[word]]])
                else:
                    row.append(label_to_id[tags[word]])
                previous = word
            labels.append(row)
        tokenized_inputs["labels"] = labels
        return tokenized_inputs

    with accelerator.main_process_first():
        processed = raw_datasets.map(
            tokenize_and_align_labels,
            batched=True,
            remove_columns=raw_datasets["train"].column_names,
            desc="Running tokenizer on dataset",
        )
    collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=multiple_of(accelerator))

    def evaluate(model: Any, dataloader: Any) -> dict[str, float]:
        predicted: list[list[str]] = []
        wanted: list[list[str]] = []
        for batch in dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions, labels = outputs.logits.argmax(dim=-1), batch["labels"]
            if not args.pad_to_max_length:
                predictions = accelerator.pad_across_processes(predictions, dim=1, pad_index=-100)
                labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
            predictions, labels = accelerator.gather_for_metrics((predictions, labels))
            for guesses, golds in zip(predictions.tolist(), labels.tolist(), strict=True):
                kept = [(label_list[p], label_list[g]) for p, g in zip(guesses, golds, strict=True) if g != -100]
                predicted.append([guess for guess, _ in kept])
                wanted.append([gold for _, gold in kept])
        return {"f1": float(f1_score(wanted, predicted)), "accuracy": float(accuracy_score(wanted, predicted))}

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
