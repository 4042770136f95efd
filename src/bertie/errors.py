"""Every error Bertie raises on purpose, as one small tree.

    BertieError
    ├── ConfigError        (ValueError)   a configuration field holds something it cannot hold
    ├── InputError         (ValueError)   ids, masks, labels or shapes a model cannot take
    │   └── IdOutOfRange       (IndexError)              an id or a label that a table has no row for
    ├── CheckpointError    (OSError)      a checkpoint that cannot be found, read or understood
    │   ├── CheckpointNotFound (FileNotFoundError)   nothing there: a path, a file or a hub name
    │   ├── CorruptCheckpoint                        there, but damaged, truncated or hostile
    │   └── WeightsMismatch    (RuntimeError)        sound, but the tensors are not this model's
    ├── TokenizerError     (ValueError)   a vocabulary or tokenizer file, or a text it refuses
    │   └── TokenizerTypeError (TypeError)               no text at all: None, a number, bytes
    ├── DataError          (ValueError)   a user's data file: names the file and the line
    └── MissingExtra       (ImportError)  an optional package is not installed

An error says what was wrong (with the values that were wrong) and, where there is something to do, what to do:
`cause` and `remedy` hold the two sentences, and `str(error)` is both, one to a line.

    TruncationWarning      (UserWarning)  texts were longer than the model, and only a part of each was read
    CalibrationWarning     (UserWarning)  texts were unlike those that int8 was fitted on, and may lose more than those
"""

from __future__ import annotations


class BertieError(Exception):
    """Root of the tree. Catch it to catch everything Bertie raises on purpose."""

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause if remedy is None else f"{cause}\n{remedy}")
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        # OSError and ImportError format themselves by other fields; all of ours read the same way.
        return self.cause if self.remedy is None else f"{self.cause}\n{self.remedy}"


class ConfigError(BertieError, ValueError):
    """A configuration field holds something it cannot hold."""


class InputError(BertieError, ValueError):
    """Ids, masks, labels or shapes a model cannot take."""


class IdOutOfRange(InputError, IndexError):
    """An id or a label that is below 0 or past the last row of its table."""


class CheckpointError(BertieError, OSError):
    """A checkpoint that cannot be found, read or understood."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """Nothing there: a path, a file inside it, or a hub name."""


class CorruptCheckpoint(CheckpointError):
    """A file that is there but damaged, truncated or hostile."""


class WeightsMismatch(CheckpointError, RuntimeError):
    """Sound tensors that are not this model's: missing, misshaped or unknown names."""


class TokenizerError(BertieError, ValueError):
    """A vocabulary or tokenizer file, or a text a tokenizer refuses."""


class TokenizerTypeError(TokenizerError, TypeError):
    """Something that is no text or token at all, such as None, a number or bytes."""


class DataError(BertieError, ValueError):
    """A user's data file could not be read; the message names the file and the line."""


class TruncationWarning(UserWarning):
    """Texts were longer than the model takes, and only a part of each was read."""


class CalibrationWarning(UserWarning):
    """Texts were unlike those that int8 was fitted on, and may lose more than was measured on those."""


class MissingExtra(BertieError, ImportError):
    """An optional package is needed and not installed; the remedy is the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed.",
            f"Install it with: pip install 'bertie[{extra}]'",
        )
