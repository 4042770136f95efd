"""Fine-tune a model that chooses among four endings; after run_swag_no_trainer.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from script_loop import begin, fit_vocabulary, multiple_of, parse, read, train
from sklearn.metrics import accuracy_score
from transformers import CONFIG_MAPPING, DataCollatorForMultipleChoice, default_data_collator

# isort: split
from transformers import AutoConfig, AutoModelForMultipleChoice, AutoTokenizer


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(argv)
    accelerator = begin(args)
    raw_datasets = read(args)
    if args.model_name_or_path:
        config = AutoConfig.from_pretrained(args.model_name_or_path, trust_remote_code=args.trust_remote_code)
    else:
        config = CONFIG_MAPPING[args.model_type]()
    tokenizer = AutoTokenizer.from_pretrained(
        args.tokenizer_name or args.model_name_or_path,
        use_fast=not args.use_slow_tokenizer,
        trust_remote_code=args.trust_remote_code,
    )
    if args.model_name_or_path:
        model = AutoModelForMultipleChoice.from_pretrained(
            args.model_name_or_path,
            from_tf=bool(".ckpt" in args.model_name_or_path),
            config=config,
            trust_remote_code=args.trust_remote_code,
        )
    else:
        model = AutoModelForMultipleChoice.from_config(config, trust_remote_code=args.trust_remote_code)
    fit_vocabulary(model, tokenizer)

    def preprocess(examples: Any) -> Any:
        first = [[context] * 4 for context in examples["sent1"]]
        second = [
            [f"{header} {examples[f'ending{end}'][i]}" for end in range(4)]
            for i, header in enumerate(examples["sent2"])
        ]
        tokenized = tokenizer(
            list(chain(*first)),
            list(chain(*second)),
            max_length=args.max_length,
            padding="max_length" if args.pad_to_max_length else False,
            truncation=True,
        )
        inputs = {name: [rows[i : i + 4] for i in range(0, len(rows), 4)] for name, rows in tokenized.items()}
        inputs["labels"] = examples["label"]
        return inputs

    with accelerator.main_process_first():
        processed = raw_datasets.map(preprocess, batched=True, remove_columns=raw_datasets["train"].column_names)
    collator = DataCollatorForMultipleChoice(
        tokenizer, pad_to_multiple_of=multiple_of(accelerator), return_tensors="pt"
    )

    def evaluate(model: Any, dataloader: Any) -> dict[str, float]:
        predictions, references = [], []
        for batch in dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predicted, wanted = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
            predictions += predicted.tolist()
            references += wanted.tolist()
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
