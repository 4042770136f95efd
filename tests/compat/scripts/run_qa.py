"""Fine-tune a model that finds answers in a text, also where there is none; after run_qa_no_trainer.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from script_loop import begin, multiple_of, parse, read, train
from transformers import CONFIG_MAPPING, DataCollatorWithPadding, EvalPrediction, default_data_collator

# isort: split
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(
        argv,
        doc_stride={"type": int, "default": 8},
        n_best_size={"type": int, "default": 10},
        max_answer_length={"type": int, "default": 12},
        preprocessing_num_workers={"type": int, "default": None},
    )
    accelerator = begin(args)
    raw_datasets = read(args, field="data")
    if args.config_name or args.model_name_or_path:
        config = AutoConfig.from_pretrained(
            args.config_name or args.model_name_or_path, trust_remote_code=args.trust_remote_code
        )
    else:
        config = CONFIG_MAPPING[args.model_type]()
    tokenizer = AutoTokenizer.from_pretrained(
        args.tokenizer_name or args.model_name_or_path, use_fast=True, trust_remote_code=args.trust_remote_code
    )
    if args.model_name_or_path:
        model = AutoModelForQuestionAnswering.from_pretrained(
            args.model_name_or_path,
            from_tf=bool(".ckpt" in args.model_name_or_path),
            config=config,
            trust_remote_code=args.trust_remote_code,
        )
    else:
        model = AutoModelForQuestionAnswering.from_config(config, trust_remote_code=args.trust_remote_code)

    column_names = raw_datasets["train"].column_names
    pad_on_right = tokenizer.padding_side == "right"
    max_length = min(args.max_length, tokenizer.model_max_length)
    sides = ("question", "context") if pad_on_right else ("context", "question")
    context_index = 1 if pad_on_right else 0

    def windows(examples: Any) -> Any:
        examples["question"] = [question.lstrip() for question in examples["question"]]
        return tokenizer(
            examples[sides[0]],
            examples[sides[1]],
            truncation="only_second" if pad_on_right else "only_first",
            max_length=max_length,
            stride=args.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length" if args.pad_to_max_length else False,
        )

    def prepare_train_features(examples: Any) -> Any:
        tokenized = windows(examples)
        sample_mapping = tokenized.pop("overflow_to_sample_mapping")
        offset_mapping = tokenized.pop("offset_mapping")
        tokenized["start_positions"], tokenized["end_positions"] = [], []
        for i, offsets in enumerate(offset_mapping):
            cls_index = tokenized["input_ids"][i].index(tokenizer.cls_token_id)
            inside = [k for k, side in enumerate(tokenized.sequence_ids(i)) if side == context_index]
            answers = examples["answers"][sample_mapping[i]]
            start = end = cls_index
            if answers["answer_start"]:
                first = answers["answer_start"][0]
                last = first + len(answers["text"][0])
                if offsets[inside[0]][0] <= first and offsets[inside[-1]][1] >= last:
                    start = max(k for k in inside if offsets[k][0] <= first)
                    end = min(k for k in inside if offsets[k][1] >= last)
            tokenized["start_positions"].append(start)
            tokenized["end_positions"].append(end)
        return tokenized

    def prepare_validation_features(examples: Any) -> Any:
        tokenized = windows(examples)
        sample_mapping = tokenized.pop("overflow_to_sample_mapping")
        tokenized["example_id"] = [examples["id"][sample] for sample in sample_mapping]
        for i in range(len(tokenized["input_ids"])):
            sides = tokenized.sequence_ids(i)
            tokenized["offset_mapping"][i] = [
                offset if sides[k] == context_index else None for k, offset in enumerate(tokenized["offset_mapping"][i])
            ]
        return tokenized

    settings = {"batched": True, "num_proc": args.preprocessing_num_workers, "remove_columns": column_names}
    with accelerator.main_process_first():
        train_dataset = raw_datasets["train"].map(prepare_train_features, **settings)
        features = raw_datasets["validation"].map(prepare_validation_features, **settings)
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple_of(accelerator))

    def evaluate(model: Any, dataloader: Any) -> dict[str, float]:
        starts: list[np.ndarray] = []
        ends: list[np.ndarray] = []
        for batch in dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            for logits, kept in ((outputs.start_logits, starts), (outputs.end_logits, ends)):
                if not args.pad_to_max_length:
                    logits = accelerator.pad_across_processes(logits, dim=1, pad_index=-100)
                kept.extend(accelerator.gather_for_metrics(logits).cpu().numpy())
        best: dict[str, tuple[float, str]] = {}
        contexts = dict(zip(raw_datasets["validation"]["id"], raw_datasets["validation"]["context"], strict=True))
        for feature, start, end in zip(features, starts, ends, strict=True):
            name, offsets = feature["example_id"], feature["offset_mapping"]
            for i in np.argsort(start)[::-1][: args.n_best_size]:
                for j in np.argsort(end)[::-1][: args.n_best_size]:
                    if max(i, j) >= len(offsets) or not offsets[i] or not offsets[j]:
                        continue
                    score = float(start[i] + end[j])
                    if i <= j < i + args.max_answer_length and score > best.get(name, (-np.inf, ""))[0]:
                        best[name] = (score, contexts[name][offsets[i][0] : offsets[j][1]])
        references = [{"id": row["id"], "answers": row["answers"]} for row in raw_datasets["validation"]]
        predicted = [{"id": row["id"], "prediction_text": best[row["id"]][1]} for row in references]
        found = EvalPrediction(predictions=predicted, label_ids=references)
        exact = [
            prediction["prediction_text"] in row["answers"]["text"]
            for prediction, row in zip(found.predictions, found.label_ids, strict=True)
        ]
        return {"exact": float(np.mean(exact)), "score": float(np.mean([score for score, _ in best.values()]))}

    return train(
        args,
        accelerator,
        model,
        tokenizer,
        train_dataset,
        features.remove_columns(["example_id", "offset_mapping"]),
        default_data_collator if args.pad_to_max_length else collator,
        evaluate,
    )


if __name__ == "__main__":
    main()
