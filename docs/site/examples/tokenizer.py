# %%
from bertie import BertTokenizer

tokenizer = BertTokenizer.from_pretrained("bertie-mini")

# %% BertTokenizer, BertTokenizerFast
batch = tokenizer(["She opened the door.", "Why?"], padding=True, return_tensors="pt")
print(batch["input_ids"].shape, batch["attention_mask"].shape)  # [batch, length]
# → torch.Size([2, 7]) torch.Size([2, 7])
print(tokenizer.tokenize("peaceably"), tokenizer.decode(batch["input_ids"][1], skip_special_tokens=True))
# → ['peace', '##ably'] why?
from bertie import BertTokenizerFast

assert BertTokenizerFast.from_pretrained("bertie-mini")("Why?") == tokenizer("Why?")

# %% BatchEncoding, TokenSpan, CharSpan
from bertie.text import BatchEncoding, CharSpan, TokenSpan

encoded = tokenizer("Behave peaceably.")
assert isinstance(encoded, BatchEncoding)
print(encoded.tokens(), encoded.word_ids())
# → ['[CLS]', 'behav', '##e', 'peace', '##ably', '.', '[SEP]'] [None, 0, 0, 1, 1, 2, None]
print(encoded.word_to_tokens(1), encoded.word_to_chars(1))
# → TokenSpan(start=3, end=5) CharSpan(start=7, end=16)
assert isinstance(encoded.word_to_tokens(1), TokenSpan) and isinstance(encoded.word_to_chars(1), CharSpan)

# %% EncodedRow
from bertie.text import EncodedRow

row = tokenizer("Why?").encodings[0]
assert isinstance(row, EncodedRow)
print(row.tokens, row.offsets)
# → ['[CLS]', 'why', '?', '[SEP]'] [(0, 0), (0, 3), (3, 4), (0, 0)]

# %% WordPieceTokenizer, Token
from bertie.text import Token, WordPieceTokenizer

pieces = WordPieceTokenizer({"[UNK]": 0, "un": 1, "##aff": 2, "##able": 3}).tokenize("Unaffable")
assert all(isinstance(piece, Token) for piece in pieces)
print([piece.text for piece in pieces])
# → ['un', '##aff', '##able']

# %% BasicTokenizer, WordpieceTokenizer
from bertie.text import BasicTokenizer, WordpieceTokenizer

print(BasicTokenizer().tokenize("Schöne Grüße!"))
# → ['schone', 'gruße', '!']
print(WordpieceTokenizer({"[UNK]": 0, "un": 1, "##aff": 2, "##able": 3}).tokenize("unaffable"))
# → ['un', '##aff', '##able']

# %% BertTokenizerSlow
from bertie.text import BertTokenizerSlow

assert BertTokenizerSlow.from_pretrained("bertie-mini")("Why?")["input_ids"] == tokenizer("Why?")["input_ids"]

# %% train_vocabulary, read_vocabulary
from bertie.text import read_vocabulary, train_vocabulary

own = train_vocabulary(["the dog sees the dog", "the fox sees the dog"], vocab_size=40, min_frequency=1)
print(own.tokenize("the dog"))
# → ['the', 'dog']
own.save_pretrained("own-vocabulary")
assert read_vocabulary("own-vocabulary/vocab.txt")["[PAD]"] == own.pad_token_id

# %% split_document, split_documents, WindowedDocument, Window
from bertie.text import Window, WindowedDocument, split_document, split_documents

document = split_document(tokenizer, "She opened the door. " * 20, max_length=64, stride=16)
assert isinstance(document, WindowedDocument) and isinstance(document.windows[0], Window)
print(len(document.windows), len(document.windows[0].input_ids))
# → 2 64
assert list(split_documents(tokenizer, [document.text], max_length=64, stride=16)) == [document]

# %% max_context_windows
from bertie.text import max_context_windows

print(max_context_windows([(0, 5), (3, 8), (6, 10)], 10))  # the window in which each token has most context
# → (0, 0, 0, 0, 1, 1, 1, 2, 2, 2)
