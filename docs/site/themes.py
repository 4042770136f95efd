"""The pages of the Python reference: which public names are on which, and an example for each, which a test runs."""

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
    example: str


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
        """
import bertie

vectors = bertie.embed(["A man plays the guitar.", "Someone makes music."])      # [2, 384]
ranking = bertie.rerank("how do bats hunt?", ["Stamps were printed in 1840.", "Bats listen for echoes."])
filled = bertie.fill("He drank a cup of [MASK].")
assert vectors.shape == (2, 384) and ranking[0].index == 1 and len(filled.candidates) == 5

embedder = bertie.Embedder(normalize=True)                                       # keeps the model loaded
assert embedder.embed("A text.").shape == (384,)
""",
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
        """
import bertie

filled = bertie.fill("He drank a cup of [MASK].", top_k=3)
for candidate in filled.candidates:
    print(candidate.token, round(candidate.score, 3))
assert filled.candidates[0].score >= filled.candidates[1].score
""",
    ),
    Theme("search", "Search", "A collection embedded on disk, and searched by meaning.", ("build_index", "Index"),
        """
import tempfile
import bertie

with tempfile.TemporaryDirectory() as folder:
    index = bertie.build_index(["Bats hunt by listening for echoes.", "Stamps were printed in 1840."], folder)
    assert index.search("how do animals find food?", k=1)[0].text.startswith("Bats")
""",
    ),
    Theme(
        "loading", "Loading and compiling",
        "`load` opens any checkpoint with the class it was saved from. The `Auto…` classes and `register` are for code "
        "that was written for transformers.",
        (
            "load", "compile", "engine:FastBert", "compress", "register",
            *(name for name in sorted(bertie.__all__) if name.startswith("Auto")),
            "checkpoint.tensorflow:list_variables", "checkpoint.tensorflow:load_variable",
        ),
        """
import torch
import bertie

model = bertie.load("bertie-mini").eval()
fast = bertie.compile(model)                         # the same class, faster
ids = torch.tensor([[2, 45, 97, 3]])
assert type(fast) is type(model)
assert torch.allclose(fast(ids).prediction_logits, model(ids).prediction_logits, atol=1e-3)
""",
    ),
    Theme(
        "models", "Models", "BERT and its heads, with the names and parameters of the hub.",
        ("BertConfig", "EncoderDecoderConfig", "GenerationConfig", *MODEL),
        """
import torch
from bertie import BertConfig, BertModel

model = BertModel(BertConfig.preset("tiny", vocab_size=1000)).eval()
output = model(torch.tensor([[2, 45, 97, 3]]), output_attentions=True)
assert output.last_hidden_state.shape == (1, 4, 128)           # [batch, length, hidden]
assert output.attentions[0].shape == (1, 2, 4, 4)              # [batch, heads, queries, keys]
""",
    ),
    Theme("parts", "Parts of a model", "What the models are built of, for those who build their own.", PARTS,
        """
import torch
from bertie import BertConfig, BertEmbeddings, BertPooler

config = BertConfig.preset("tiny", vocab_size=1000)
states = BertEmbeddings(config)(torch.tensor([[2, 45, 97, 3]]))
assert states.shape == (1, 4, 128)                             # [batch, length, hidden]
assert BertPooler(config)(states).shape == (1, 128)            # [batch, hidden]
""",
    ),
    Theme(
        "family", "Relatives of BERT", "RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA and MPNet.",
        tuple(name for name in sorted(bertie.__all__) if name.startswith(RELATIVES)),
        """
import torch
import bertie

config = bertie.RobertaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                              intermediate_size=64)
model = bertie.RobertaModel(config).eval()
assert model(torch.tensor([[0, 45, 46, 2]])).last_hidden_state.shape == (1, 4, 32)
""",
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
        """
from bertie import BertTokenizer

tokenizer = BertTokenizer.from_pretrained("bertie-mini")
batch = tokenizer(["She opened the door.", "Why?"], padding=True, return_tensors="pt")
assert batch["input_ids"].shape == batch["attention_mask"].shape        # [batch, length]
assert tokenizer.tokenize("peaceably") == ["peace", "##ably"]
""",
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
        """
import tempfile
from bertie.training import finetune

rows = [{"text": "A fine film.", "label": "good"}, {"text": "It never ends.", "label": "bad"}] * 4
with tempfile.TemporaryDirectory() as folder:
    result = finetune("classify", model="bertie-mini", train=rows, output=f"{folder}/out", epochs=1, batch_size=4,
                      device="cpu", show=False)
assert result.steps == 2
""",
    ),
    Theme(
        "explore", "Explore", "`bertie.explore`: what happens inside a model.",
        ("explore", *(f"explore:{name}" for name in importlib.import_module("bertie.explore").__all__)),
        """
import bertie

session = bertie.explore("The man put on [MASK] hat.")
assert session.answer().text == "his"
assert session.attention(1, 0).weights.shape == (9, 9)                  # [query, key]
""",
    ),
    Theme(
        "bulk", "Bulk jobs", "`bertie.bulk`: every row of many files, answered once.",
        ("bulk", "bulk:BulkReport", "bulk:prepare", "bulk:Prepared", "bulk:run"),
        """
import json, pathlib, tempfile
import bertie

folder = pathlib.Path(tempfile.mkdtemp())
(folder / "texts.jsonl").write_text(json.dumps({"text": "A text."}) + "\\n")
report = bertie.bulk("embed", folder / "texts.jsonl", folder / "vectors")
assert (report.rows, report.errors) == (1, 0)
""",
    ),
    Theme(
        "serving", "Server and client", "A server inside a program, and the client of any Bertie server.",
        (
            "Client", "AsyncClient", "client:Retrying", "client:ServerError", "serve.run:Running",
            "serve.settings:Settings", "serve.settings:ModelChoice", "serve.settings:Limits",
        ),
        """
from bertie.client import Client
from bertie.serve.run import Running
from bertie.serve.settings import ModelChoice, Settings

models = (ModelChoice("mini", "bertie-mini"),)
with Running(Settings(models=models, port=0, log_level="error")) as server, Client(server.url) as client:
    assert client.models() == ["mini"]
""",
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
        """
import bertie
from bertie.errors import InputError

try:
    bertie.fill("A text without a mask.")
except InputError as error:
    print(error.cause)
    print(error.remedy)
""",
    ),
)  # fmt: skip
