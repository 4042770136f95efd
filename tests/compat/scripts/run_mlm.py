"""Go on with masked-language pretraining on a text file; after run_mlm_no_trainer.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from script_loop import begin, fit_vocabulary, parse, read, train
from transformers import CONFIG_MAPPING, DataCollatorForLanguageModeling

# isort: split
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(
        argv,
        line_by_line={"action": "store_true"},
        mlm_probability={"type": float, "default": 0.15},
        config_overrides={"default": None},
        low_cpu_mem_usage={"action": "store_true"},
        preprocessing_num_workers={"type": int, "default": None},
    )
    accelerator = begin(args)
    raw_datasets = read(args)
    if args.config_name or args.model_name_or_path:
        config = AutoConfig.from_pretrained(
            args.config_name or args.model_name_or_path, trust_remote_code=args.trust_remote_code
        )
    else:
        config = CONFIG_MAPPING[args.model_type]()
    if args.config_overrides:
        config.update_from_string(args.config_overrides)
    tokenizer = AutoTokenizer.from_pretrained(
        args.tokenizer_name or args.model_name_or_path,
        use_fast=not args.use_slow_tokenizer,
        trust_remote_code=args.trust_remote_code,
    )
    if args.model_name_or_path:
        model = AutoModelForMaskedLM.from_pretrained(
            args.model_name_or_path,
            from_tf=bool(".ckpt" in args.model_name_or_path),
            config=config,
            low_cpu_mem_usage=args.low_cpu_mem_usage,
            trust_remote_code=args.trust_remote_code,
        )
    else:
        model = AutoModelForMaskedLM.from_config(config, trust_remote_code=args.trust_remote_code)
    fit_vocabulary(model, tokenizer)

    max_seq_length = min(args.max_length, tokenizer.model_max_length)
    column_names = raw_datasets["train"].column_names

    def tokenize_lines(examples: Any) -> Any:
        lines = [line for line in examples["text"] if line and not line.isspace()]
        padding = "max_length" if args.pad_to_max_length else False
        return tokenizer(
            lines, padding=padding, truncation=True, max_length=max_seq_length, return_special_tokens_mask=True
        )

    def tokenize(examples: Any) -> Any:
        return tokenizer(examples["text"], return_special_tokens_mask=True, verbose=False)

    def group_texts(examples: Any) -> Any:
        joined = {name: list(chain(*examples[name])) for name in examples}
        whole = len(next(iter(joined.values()))) // max_seq_length * max_seq_length
        return {
            name: [values[i : i + max_seq_length] for i in range(0, whole, max_seq_length)]
            for name, values in joined.items()
        }

    with accelerator.main_process_first():
        processed = raw_datasets.map(
            tokenize_lines if args.line_by_line else tokenize,
            batched=True,
            num_proc=args.preprocessing_num_workers,
            remove_columns=column_names,
            load_from_cache_file=True,
            desc="Running tokenizer on every text in dataset",
        )
        if not args.line_by_line:
            processed = processed.map(group_texts, batched=True, num_proc=args.preprocessing_num_workers)
    collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=args.mlm_probability)

    def evaluate(model: Any, dataloader: Any) -> dict[str, float]:
        losses = []
        for batch in dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            losses.append(accelerator.gather_for_metrics(outputs.loss.repeat(args.per_device_eval_batch_size)))
        return {"perplexity": math.exp(torch.mean(torch.cat(losses)))}

    return train(args, accelerator, model, tokenizer, processed["train"], processed["validation"], collator, evaluate)


if __name__ == "__main__":
    main()
