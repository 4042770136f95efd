# %%
import torch
import bertie

config = bertie.BertConfig.preset("tiny", vocab_size=1000)  # width 128, 2 heads of 64, feed-forward 512
states = torch.randn(1, 4, 128)  # [batch, length, hidden]

# %% BertEmbeddings
print(bertie.BertEmbeddings(config)(torch.tensor([[2, 45, 97, 3]])).shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 128])

# %% BertSelfAttention
context, maps = bertie.BertSelfAttention(config)(states)
print(context.shape)  # [batch, length, hidden]
# → torch.Size([1, 4, 128])

# %% BertSelfOutput
print(bertie.BertSelfOutput(config)(context, states).shape)  # the residual connection is inside
# → torch.Size([1, 4, 128])

# %% BertAttention
attention = bertie.BertAttention(config)
attention.prune_heads({0})
print(attention(states)[0].shape, attention.self.query.weight.shape)  # one head of 64 is left
# → torch.Size([1, 4, 128]) torch.Size([64, 128])

# %% BertIntermediate, BertOutput
wide = bertie.BertIntermediate(config)(states)
print(wide.shape)  # [batch, length, intermediate]
# → torch.Size([1, 4, 512])
print(bertie.BertOutput(config)(wide, states).shape)
# → torch.Size([1, 4, 128])

# %% BertLayer
print(bertie.BertLayer(config)(states)[0].shape)
# → torch.Size([1, 4, 128])

# %% BertEncoder
output = bertie.BertEncoder(config)(states, output_hidden_states=True)
print(output.last_hidden_state.shape, len(output.hidden_states))  # before the first layer and after each
# → torch.Size([1, 4, 128]) 3

# %% BertPooler
print(bertie.BertPooler(config)(states).shape)  # [batch, hidden]
# → torch.Size([1, 128])

# %% BertPredictionHeadTransform, BertLMPredictionHead, BertOnlyMLMHead
print(bertie.BertPredictionHeadTransform(config)(states).shape)
# → torch.Size([1, 4, 128])
print(bertie.BertLMPredictionHead(config)(states).shape)  # [batch, length, vocabulary]
# → torch.Size([1, 4, 1000])
print(bertie.BertOnlyMLMHead(config)(states).shape)
# → torch.Size([1, 4, 1000])

# %% BertOnlyNSPHead, BertPreTrainingHeads
pooled = torch.randn(1, 128)  # [batch, hidden]
print(bertie.BertOnlyNSPHead(config)(pooled).shape)
# → torch.Size([1, 2])
words, follows = bertie.BertPreTrainingHeads(config)(states, pooled)
print(words.shape, follows.shape)
# → torch.Size([1, 4, 1000]) torch.Size([1, 2])

# %% KeyValueCache
decoder = bertie.BertLMHeadModel(bertie.BertConfig.preset("tiny", vocab_size=1000, is_decoder=True)).eval()
cache = bertie.KeyValueCache(num_layers=2)
decoder(torch.tensor([[2, 45, 97]]), past_key_values=cache, use_cache=True)
keys, values = cache[0]
print(keys.shape)  # [batch, heads, positions, head size]
# → torch.Size([1, 2, 3, 64])

# %% apply_chunking_to_forward
doubled = bertie.apply_chunking_to_forward(lambda piece: 2 * piece, 3, 1, states)  # 3 positions at a time
assert torch.equal(doubled, 2 * states)
