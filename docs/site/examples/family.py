# %%
import torch
import bertie

ids = torch.tensor([[0, 45, 46, 2]])  # [batch, length]
sizes = dict(vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)

# %% RobertaConfig, RobertaModel, RobertaPreTrainedModel
config = bertie.RobertaConfig(**sizes)
model = bertie.RobertaModel(config).eval()
assert isinstance(model, bertie.RobertaPreTrainedModel)
print(model(ids).last_hidden_state.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 32])

# %% RobertaForCausalLM, RobertaForMaskedLM
print(bertie.RobertaForMaskedLM(config).eval()(ids).logits.shape)  # [batch, length, vocabulary]
# → torch.Size([1, 4, 300])
decoder = bertie.RobertaForCausalLM(bertie.RobertaConfig(**sizes, is_decoder=True)).eval()
print(decoder(ids, use_cache=True).logits.shape)
# → torch.Size([1, 4, 300])

# %% RobertaForSequenceClassification, RobertaForTokenClassification
print(bertie.RobertaForSequenceClassification(config).eval()(ids).logits.shape)  # [batch, labels]
# → torch.Size([1, 2])
print(bertie.RobertaForTokenClassification(config).eval()(ids).logits.shape)  # [batch, length, labels]
# → torch.Size([1, 4, 2])

# %% RobertaForQuestionAnswering, RobertaForMultipleChoice
print(bertie.RobertaForQuestionAnswering(config).eval()(ids).start_logits.shape)  # [batch, length]
# → torch.Size([1, 4])
print(bertie.RobertaForMultipleChoice(config).eval()(ids.expand(1, 3, 4)).logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% XLMRobertaConfig, XLMRobertaModel, XLMRobertaPreTrainedModel
config = bertie.XLMRobertaConfig(**sizes)
model = bertie.XLMRobertaModel(config).eval()
assert isinstance(model, bertie.XLMRobertaPreTrainedModel)
print(model(ids).last_hidden_state.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 32])

# %% XLMRobertaForCausalLM, XLMRobertaForMaskedLM
print(bertie.XLMRobertaForMaskedLM(config).eval()(ids).logits.shape)  # [batch, length, vocabulary]
# → torch.Size([1, 4, 300])
decoder = bertie.XLMRobertaForCausalLM(bertie.XLMRobertaConfig(**sizes, is_decoder=True)).eval()
print(decoder(ids, use_cache=True).logits.shape)
# → torch.Size([1, 4, 300])

# %% XLMRobertaForSequenceClassification, XLMRobertaForTokenClassification
print(bertie.XLMRobertaForSequenceClassification(config).eval()(ids).logits.shape)  # [batch, labels]
# → torch.Size([1, 2])
print(bertie.XLMRobertaForTokenClassification(config).eval()(ids).logits.shape)  # [batch, length, labels]
# → torch.Size([1, 4, 2])

# %% XLMRobertaForQuestionAnswering, XLMRobertaForMultipleChoice
print(bertie.XLMRobertaForQuestionAnswering(config).eval()(ids).start_logits.shape)  # [batch, length]
# → torch.Size([1, 4])
print(bertie.XLMRobertaForMultipleChoice(config).eval()(ids.expand(1, 3, 4)).logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% CamembertConfig, CamembertModel, CamembertPreTrainedModel
config = bertie.CamembertConfig(**sizes)
model = bertie.CamembertModel(config).eval()
assert isinstance(model, bertie.CamembertPreTrainedModel)
print(model(ids).last_hidden_state.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 32])

# %% CamembertForCausalLM, CamembertForMaskedLM
print(bertie.CamembertForMaskedLM(config).eval()(ids).logits.shape)  # [batch, length, vocabulary]
# → torch.Size([1, 4, 300])
decoder = bertie.CamembertForCausalLM(bertie.CamembertConfig(**sizes, is_decoder=True)).eval()
print(decoder(ids, use_cache=True).logits.shape)
# → torch.Size([1, 4, 300])

# %% CamembertForSequenceClassification, CamembertForTokenClassification
print(bertie.CamembertForSequenceClassification(config).eval()(ids).logits.shape)  # [batch, labels]
# → torch.Size([1, 2])
print(bertie.CamembertForTokenClassification(config).eval()(ids).logits.shape)  # [batch, length, labels]
# → torch.Size([1, 4, 2])

# %% CamembertForQuestionAnswering, CamembertForMultipleChoice
print(bertie.CamembertForQuestionAnswering(config).eval()(ids).start_logits.shape)  # [batch, length]
# → torch.Size([1, 4])
print(bertie.CamembertForMultipleChoice(config).eval()(ids.expand(1, 3, 4)).logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% DistilBertConfig, DistilBertModel, DistilBertPreTrainedModel
config = bertie.DistilBertConfig(vocab_size=300, dim=32, n_layers=2, n_heads=2, hidden_dim=64)
model = bertie.DistilBertModel(config).eval()
assert isinstance(model, bertie.DistilBertPreTrainedModel)
print(model(ids).last_hidden_state.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 32])

# %% DistilBertForMaskedLM
print(bertie.DistilBertForMaskedLM(config).eval()(ids).logits.shape)  # [batch, length, vocabulary]
# → torch.Size([1, 4, 300])

# %% DistilBertForSequenceClassification, DistilBertForTokenClassification
print(bertie.DistilBertForSequenceClassification(config).eval()(ids).logits.shape)  # [batch, labels]
# → torch.Size([1, 2])
print(bertie.DistilBertForTokenClassification(config).eval()(ids).logits.shape)  # [batch, length, labels]
# → torch.Size([1, 4, 2])

# %% DistilBertForQuestionAnswering, DistilBertForMultipleChoice
print(bertie.DistilBertForQuestionAnswering(config).eval()(ids).start_logits.shape)  # [batch, length]
# → torch.Size([1, 4])
print(bertie.DistilBertForMultipleChoice(config).eval()(ids.expand(1, 3, 4)).logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% ElectraConfig, ElectraModel, ElectraPreTrainedModel
config = bertie.ElectraConfig(**sizes)
model = bertie.ElectraModel(config).eval()
assert isinstance(model, bertie.ElectraPreTrainedModel)
print(model(ids).last_hidden_state.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 32])

# %% ElectraForCausalLM, ElectraForMaskedLM
print(bertie.ElectraForMaskedLM(config).eval()(ids).logits.shape)  # [batch, length, vocabulary]
# → torch.Size([1, 4, 300])
decoder = bertie.ElectraForCausalLM(bertie.ElectraConfig(**sizes, is_decoder=True)).eval()
print(decoder(ids, use_cache=True).logits.shape)
# → torch.Size([1, 4, 300])

# %% ElectraForPreTraining
print(bertie.ElectraForPreTraining(config).eval()(ids).logits.shape)  # [batch, length]: whether a token was replaced
# → torch.Size([1, 4])

# %% ElectraForSequenceClassification, ElectraForTokenClassification
print(bertie.ElectraForSequenceClassification(config).eval()(ids).logits.shape)  # [batch, labels]
# → torch.Size([1, 2])
print(bertie.ElectraForTokenClassification(config).eval()(ids).logits.shape)  # [batch, length, labels]
# → torch.Size([1, 4, 2])

# %% ElectraForQuestionAnswering, ElectraForMultipleChoice
print(bertie.ElectraForQuestionAnswering(config).eval()(ids).start_logits.shape)  # [batch, length]
# → torch.Size([1, 4])
print(bertie.ElectraForMultipleChoice(config).eval()(ids.expand(1, 3, 4)).logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% MPNetConfig, MPNetModel, MPNetPreTrainedModel
config = bertie.MPNetConfig(**sizes)
model = bertie.MPNetModel(config).eval()
assert isinstance(model, bertie.MPNetPreTrainedModel)
print(model(ids).last_hidden_state.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 32])

# %% MPNetForMaskedLM
print(bertie.MPNetForMaskedLM(config).eval()(ids).logits.shape)  # [batch, length, vocabulary]
# → torch.Size([1, 4, 300])

# %% MPNetForSequenceClassification, MPNetForTokenClassification
print(bertie.MPNetForSequenceClassification(config).eval()(ids).logits.shape)  # [batch, labels]
# → torch.Size([1, 2])
print(bertie.MPNetForTokenClassification(config).eval()(ids).logits.shape)  # [batch, length, labels]
# → torch.Size([1, 4, 2])

# %% MPNetForQuestionAnswering, MPNetForMultipleChoice
print(bertie.MPNetForQuestionAnswering(config).eval()(ids).start_logits.shape)  # [batch, length]
# → torch.Size([1, 4])
print(bertie.MPNetForMultipleChoice(config).eval()(ids.expand(1, 3, 4)).logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% RobertaTokenizer, RobertaTokenizerFast
import tempfile
from tokenizers import ByteLevelBPETokenizer

learned = ByteLevelBPETokenizer()
special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
learned.train_from_iterator(["a red fox"] * 9, vocab_size=280, special_tokens=special, show_progress=False)
with tempfile.TemporaryDirectory() as folder:
    learned.save_model(folder)
    tokenizer = bertie.RobertaTokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt")
    assert bertie.RobertaTokenizerFast.from_pretrained(folder)("a fox") == tokenizer("a fox")
print(tokenizer("a red", "fox").tokens())
# → ['<s>', 'a', 'Ġred', '</s>', '</s>', 'fo', 'x', '</s>']

# %% XLMRobertaTokenizer, XLMRobertaTokenizerFast, CamembertTokenizer, CamembertTokenizerFast
from tokenizers import Tokenizer, models

scores = [(piece, -1.0) for piece in ["<s>", "<pad>", "</s>", "<unk>", "red", " fox"]]
pieces = Tokenizer(models.Unigram(scores, unk_id=3))
print(bertie.XLMRobertaTokenizer(tokenizer_object=pieces).tokenize("red fox"))
# → ['red', ' fox']
print(bertie.CamembertTokenizer(tokenizer_object=pieces).model_input_names)
# → ['input_ids', 'attention_mask']
assert bertie.XLMRobertaTokenizerFast is bertie.XLMRobertaTokenizer
assert bertie.CamembertTokenizerFast is bertie.CamembertTokenizer

# %% DistilBertTokenizer, DistilBertTokenizerFast, ElectraTokenizer, ElectraTokenizerFast
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "fox"]
print(list(bertie.ElectraTokenizer(words)("a fox")), list(bertie.DistilBertTokenizer(words)("a fox")))
# → ['input_ids', 'token_type_ids', 'attention_mask'] ['input_ids', 'attention_mask']
assert bertie.ElectraTokenizerFast(words)("a fox") == bertie.ElectraTokenizer(words)("a fox")
assert bertie.DistilBertTokenizerFast is bertie.DistilBertTokenizer

# %% MPNetTokenizer, MPNetTokenizerFast
with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    print("<s>", "<pad>", "</s>", "[UNK]", "<mask>", "red", "fox", sep="\n", file=file, flush=True)
    print(bertie.MPNetTokenizer(file.name)("red", "fox").tokens())
# → ['<s>', 'red', '</s>', '</s>', 'fox', '</s>']
assert bertie.MPNetTokenizerFast is bertie.MPNetTokenizer
