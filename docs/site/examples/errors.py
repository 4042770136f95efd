# %%
import bertie
from bertie import errors

# %% BertieError, InputError
try:
    bertie.fill("A text without a mask.")
except errors.InputError as error:
    assert isinstance(error, bertie.BertieError)  # every error that is raised on purpose
    print(error.cause)
    print(error.remedy)

# %% ConfigError
try:
    bertie.BertConfig(hidden_size=100, num_attention_heads=12)
except errors.ConfigError as error:
    print(error)

# %% IdOutOfRange
import torch

model = bertie.load("bertie-mini")
try:
    model(torch.tensor([[2, 999_999, 3]]))
except errors.IdOutOfRange as error:
    print(error)

# %% CheckpointError, CheckpointNotFound
try:
    bertie.load("./no-such-folder")
except errors.CheckpointNotFound as error:
    assert isinstance(error, errors.CheckpointError)
    print(error)

# %% CorruptCheckpoint
from pathlib import Path

bertie.load("bertie-mini").save_pretrained("damaged")
Path("damaged/model.safetensors").write_bytes(b"not a tensor")
try:
    bertie.load("damaged")
except errors.CorruptCheckpoint as error:
    print(error)

# %% WeightsMismatch
try:
    bertie.BertModel.from_pretrained("bertie-mini", hidden_size=128)
except errors.WeightsMismatch as error:
    print(error)

# %% TokenizerError, TokenizerTypeError
tokenizer = bertie.BertTokenizer.from_pretrained("bertie-mini")
try:
    tokenizer(17)
except errors.TokenizerTypeError as error:
    assert isinstance(error, errors.TokenizerError)
    print(error)

# %% DataError
Path("empty.jsonl").write_text('{"text": }\n')
try:
    bertie.embed(Path("empty.jsonl"))
except errors.DataError as error:
    print(error)

# %% MissingExtra
try:
    bertie.bulk("embed", "texts.txt", "vectors")  # without pyarrow: pip install 'bertie[data]'
except errors.MissingExtra as error:
    print(error)

# %% TruncationWarning, CalibrationWarning
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", bertie.TruncationWarning)  # texts longer than the model
    warnings.simplefilter("ignore", bertie.CalibrationWarning)  # texts unlike those that int8 was fitted on
    print(bertie.embed("A long text. " * 500).shape)
# → (384,)
