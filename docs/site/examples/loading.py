# %%
import torch
import bertie

ids = torch.tensor([[2, 45, 97, 3]])  # [batch, length]

# %% load
model = bertie.load("bertie-mini").eval()
print(type(model).__name__, model(ids).prediction_logits.shape)  # [batch, length, vocabulary]
# → BertForPreTraining torch.Size([1, 4, 8192])

# %% compile, FastBert
from bertie.engine import FastBert

fast = bertie.compile(model)  # the same class, faster
assert type(fast) is type(model) and isinstance(fast.bert, FastBert)
assert torch.allclose(fast(ids).prediction_logits, model(ids).prediction_logits, atol=1e-3)

# %% compress
result = bertie.compress("my-bert", vocab_from=["the quick brown fox"], output="small-bert")
assert bertie.load("small-bert").config.vocab_size < bertie.load("my-bert").config.vocab_size

# %% register
import transformers

undo = bertie.register()
assert isinstance(transformers.AutoModel.from_pretrained("my-bert"), bertie.BertModel)
undo()

# %% AutoConfig, AutoTokenizer
assert type(bertie.AutoConfig.from_pretrained("my-bert")) is bertie.BertConfig
assert isinstance(bertie.AutoTokenizer.from_pretrained("my-bert"), bertie.BertTokenizer)

# %% AutoModel, AutoModelForTextEncoding
assert type(bertie.AutoModel.from_pretrained("my-bert")) is bertie.BertModel
assert type(bertie.AutoModelForTextEncoding.from_pretrained("my-bert")) is bertie.BertModel

# %% AutoModelForPreTraining, AutoModelForMaskedLM, AutoModelForNextSentencePrediction
assert type(bertie.AutoModelForPreTraining.from_pretrained("my-bert")) is bertie.BertForPreTraining
assert type(bertie.AutoModelForMaskedLM.from_pretrained("my-bert")) is bertie.BertForMaskedLM
model = bertie.AutoModelForNextSentencePrediction.from_pretrained("my-bert")
print(model(ids).logits.shape)  # [batch, 2]
# → torch.Size([1, 2])

# %% AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoModelForQuestionAnswering
model = bertie.AutoModelForSequenceClassification.from_pretrained("my-sentiment")
print(model(ids).logits.shape)  # [batch, labels]
# → torch.Size([1, 2])
assert bertie.AutoModelForTokenClassification.from_pretrained("my-ner")(ids).logits.shape == (1, 4, 5)
assert bertie.AutoModelForQuestionAnswering.from_pretrained("my-squad")(ids).start_logits.shape == (1, 4)

# %% AutoModelForCausalLM
model = bertie.AutoModelForCausalLM.from_pretrained("my-decoder")
assert type(model) is bertie.BertLMHeadModel

# %% AutoModelForMultipleChoice
config = bertie.BertConfig.preset("tiny", vocab_size=1000)
bertie.BertForMultipleChoice(config).save_pretrained("my-choice")
model = bertie.AutoModelForMultipleChoice.from_pretrained("my-choice")
print(model(ids.expand(1, 3, 4)).logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% list_variables, load_variable
from bertie.checkpoint.tensorflow import list_variables, load_variable

from bertie.convert import convert

convert("my-bert", "google", target="tf")
shapes = dict(list_variables("google/bert_model.ckpt"))
kernel = load_variable("google/bert_model.ckpt", "bert/pooler/dense/kernel")
assert tuple(shapes["bert/pooler/dense/kernel"]) == kernel.shape
