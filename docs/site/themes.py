"""The pages of the Python reference: which public names are on which. examples/ has an example for each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import bertie

MODEL = (
    "BertModel", "BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel", "BertForNextSentencePrediction",
    "BertForSequenceClassification", "BertForMultipleChoice", "BertForTokenClassification", "BertForQuestionAnswering",
    "BertEncoderDecoder", "EncoderDecoderModel", "BertPreTrainedModel",
)  # fmt: skip
PARTS = (
    "BertEmbeddings", "BertSelfAttention", "BertSelfOutput", "BertAttention", "BertIntermediate", "BertOutput",
    "BertLayer", "BertEncoder", "BertPooler", "BertPredictionHeadTransform", "BertLMPredictionHead", "BertOnlyMLMHead",
    "BertOnlyNSPHead", "BertPreTrainingHeads", "KeyValueCache", "apply_chunking_to_forward",
)  # fmt: skip
RELATIVES = ("Roberta", "XLMRoberta", "Camembert", "DistilBert", "Electra", "MPNet")


@dataclass(frozen=True)
class Theme:
    """A page of the reference: names of `bertie`, then names of other modules (`module:name`)."""

    page: str
    title: str
    introduction: str
    names: tuple[str, ...]


THEMES = (
    Theme(
        "tasks", "Tasks",
        "One call each: texts in, typed answers out. A text gives one answer, a list gives a list, an iterator an "
        "iterator. The classes keep a model loaded for many calls.",
        (
            "embed", "Embedder", "similarity", "tasks:score_matrix", "tasks:score_pairs", "represent",
            "tasks:Representer", "classify", "tasks:Classifier", "zero_shot", "tasks:ZeroShotClassifier", "rerank",
            "tasks:Reranker", "tag", "tasks:Tagger", "answer", "tasks:Answerer", "fill", "tasks:MaskFiller",
            "next_sentence", "tasks:NextSentencePredictor", "features", "tasks:FeatureExtractor", "generate",
            "tasks:TextGenerator",
        ),
    ),
    Theme(
        "answers", "Answers", "What the tasks return. All are frozen dataclasses.",
        tuple(
            f"answers:{name}"
            for name in (
                "Classification", "Entity", "WordTag", "FoundAnswer", "AnswerResult", "Candidate", "Filling", "Filled",
                "Generated", "NextSentence", "Ranked", "TokenFeatures", "Features", "Representation", "Hit",
            )
        ),
    ),
    Theme("search", "Search", "A collection embedded on disk, and searched by meaning.", ("build_index", "Index")),
    Theme(
        "loading", "Loading and compiling",
        "`load` opens any checkpoint with the class it was saved from. The `Auto…` classes and `register` are for code "
        "that was written for transformers.",
        (
            "load", "compile", "engine:FastBert", "compress", "register",
            *(name for name in sorted(bertie.__all__) if name.startswith("Auto")),
            "checkpoint.tensorflow:list_variables", "checkpoint.tensorflow:load_variable",
        ),
    ),
    Theme(
        "models", "Models", "BERT and its heads, with the names and parameters of the hub.",
        ("BertConfig", "EncoderDecoderConfig", "GenerationConfig", *MODEL),
    ),
    Theme("parts", "Parts of a model", "What the models are built of, for those who build their own.", PARTS,
    ),
    Theme(
        "family", "Relatives of BERT", "RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA and MPNet.",
        tuple(name for name in sorted(bertie.__all__) if name.startswith(RELATIVES)),
    ),
    Theme(
        "tokenizer", "Tokenizer", "Texts to ids and back.",
        (
            "BertTokenizer", "BertTokenizerFast",
            *(
                f"text:{name}"
                for name in (
                    "BatchEncoding", "EncodedRow", "Token", "TokenSpan", "CharSpan", "BertTokenizerSlow",
                    "WordPieceTokenizer", "WordpieceTokenizer", "BasicTokenizer", "train_vocabulary", "read_vocabulary",
                    "split_document", "split_documents", "Window", "WindowedDocument", "max_context_windows",
                )
            ),
        ),
    ),
    Theme(
        "training", "Training", "`bertie.training`: fine-tuning, pretraining, and the loop for losses of your own.",
        tuple(
            f"training:{name}"
            for name in (
                "finetune", "pretrain", "train", "Settings", "TaskOptions", "PretrainOptions", "Columns", "Weights",
                "PRETRAINING", "Result", "Interrupted", "Diverged",
            )
        ),
    ),
    Theme(
        "explore", "Explore", "`bertie.explore`: what happens inside a model.",
        ("explore", *(f"explore:{name}" for name in importlib.import_module("bertie.explore").__all__)),
    ),
    Theme(
        "bulk", "Bulk jobs", "`bertie.bulk`: every row of many files, answered once.",
        ("bulk", "bulk:BulkReport", "bulk:prepare", "bulk:Prepared", "bulk:run"),
    ),
    Theme(
        "serving", "Server and client", "A server inside a program, and the client of any Bertie server.",
        (
            "Client", "AsyncClient", "client:Retrying", "client:ServerError", "serve.run:Running",
            "serve.settings:Settings", "serve.settings:ModelChoice", "serve.settings:Limits",
        ),
    ),
    Theme(
        "errors", "Errors and warnings", "Every error that Bertie raises on purpose says the cause and what to do.",
        (
            "BertieError", "TruncationWarning", "CalibrationWarning",
            *(
                f"errors:{name}"
                for name in (
                    "ConfigError", "InputError", "IdOutOfRange", "CheckpointError", "CheckpointNotFound",
                    "CorruptCheckpoint", "WeightsMismatch", "TokenizerError", "TokenizerTypeError", "DataError",
                    "MissingExtra",
                )
            ),
        ),
    ),
)  # fmt: skip
