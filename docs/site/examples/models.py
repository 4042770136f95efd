# %%
import torch
import bertie

ids = torch.tensor([[2, 45, 97, 3]])  # [batch, length]
config = bertie.BertConfig.preset("tiny", vocab_size=1000)  # 2 layers of width 128

# %% BertConfig
config = bertie.BertConfig.preset("tiny", vocab_size=1000)
print(config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
# → 2 128 2

# %% BertModel
output = bertie.BertModel(config).eval()(ids, output_attentions=True)
print(output.last_hidden_state.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 128])
print(output.pooler_output.shape)  # [batch, hidden]
# → torch.Size([1, 128])
print(len(output.attentions), output.attentions[0].shape)  # a layer each: [batch, heads, queries, keys]
# → 2 torch.Size([1, 2, 4, 4])

# %% BertForPreTraining
output = bertie.BertForPreTraining(config).eval()(ids)
print(output.prediction_logits.shape, output.seq_relationship_logits.shape)  # [batch, length, vocabulary], [batch, 2]
# → torch.Size([1, 4, 1000]) torch.Size([1, 2])

# %% BertForMaskedLM
output = bertie.BertForMaskedLM(config).eval()(ids, labels=ids)
print(output.logits.shape, output.loss.shape)  # [batch, length, vocabulary], one number
# → torch.Size([1, 4, 1000]) torch.Size([])

# %% BertForNextSentencePrediction
output = bertie.BertForNextSentencePrediction(config).eval()(ids)
print(output.logits.shape)  # [batch, 2]: class 0 says that the second text follows
# → torch.Size([1, 2])

# %% BertForSequenceClassification
labelled = bertie.BertConfig.preset("tiny", vocab_size=1000, num_labels=3)
output = bertie.BertForSequenceClassification(labelled).eval()(ids, labels=torch.tensor([2]))
print(output.logits.shape)  # [batch, labels]
# → torch.Size([1, 3])

# %% BertForTokenClassification
output = bertie.BertForTokenClassification(labelled).eval()(ids)
print(output.logits.shape)  # [batch, length, labels]
# → torch.Size([1, 4, 3])

# %% BertForQuestionAnswering
output = bertie.BertForQuestionAnswering(config).eval()(ids)
print(output.start_logits.shape, output.end_logits.shape)  # [batch, length] each
# → torch.Size([1, 4]) torch.Size([1, 4])

# %% BertForMultipleChoice
output = bertie.BertForMultipleChoice(config).eval()(ids.expand(1, 3, 4))  # [batch, choices, length]
print(output.logits.shape)  # [batch, choices]
# → torch.Size([1, 3])

# %% BertLMHeadModel
decoder = bertie.BertLMHeadModel(bertie.BertConfig.preset("tiny", vocab_size=1000, is_decoder=True)).eval()
output = decoder(ids, use_cache=True)
after = decoder(torch.tensor([[7]]), past_key_values=output.past_key_values)
print(after.logits.shape)  # [batch, new tokens, vocabulary]
# → torch.Size([1, 1, 1000])

# %% GenerationConfig
settings = bertie.GenerationConfig(max_new_tokens=5, do_sample=False)
written = decoder.generate(ids, generation_config=settings)
assert written.shape[1] <= 4 + 5  # [batch, prompt and new tokens]

# %% BertEncoderDecoder, EncoderDecoderModel
reader = bertie.BertModel(config)
writer = bertie.BertLMHeadModel(
    bertie.BertConfig.preset("tiny", vocab_size=60, is_decoder=True, add_cross_attention=True)
)
model = bertie.BertEncoderDecoder.from_encoder_decoder(reader, writer, decoder_start_token_id=1, pad_token_id=0)
print(model.eval()(ids, labels=torch.tensor([[7, 8]])).logits.shape)  # [batch, target length, target vocabulary]
# → torch.Size([1, 2, 60])
assert bertie.EncoderDecoderModel is bertie.BertEncoderDecoder  # transformers' name for it

# %% EncoderDecoderConfig
both = bertie.EncoderDecoderConfig.from_encoder_decoder_configs(reader.config, writer.config)
assert both.decoder.vocab_size == 60

# %% BertPreTrainedModel
model = bertie.BertModel(config)
assert isinstance(model, bertie.BertPreTrainedModel)  # every model has its methods
model.save_pretrained("tiny-bert")
print(bertie.BertModel.from_pretrained("tiny-bert").num_parameters() == model.num_parameters())
# → True
