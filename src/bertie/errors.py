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
`cause` and `remedy` hold the two sentences, and `str(error)` is both, one per line.

Settings are spelled differently by different users: `resume=True` in Python is `--resume` in a shell and
`"resume": true` over HTTP. So a sentence has only the place of a setting, in braces, and the error carries the data:

    raise ConfigError("{learning_rate:is} it must be a number above 0.", learning_rate=0.0)
    raise InputError("There is a run in it already.", "Continue it with {resume}, or name another {output}.",
                     resume=True, output=...)

`{name}` is the setting with its value, or its name alone where the value is `...`; `{name:is}` begins a sentence that
judges the value; `{name=value}` is a value that the sentence itself proposes, as `{long=windows}` or `{resume=True}`;
`{column=}` leaves it to the user. `said(speller)` gives both sentences as another user has them.

    TruncationWarning      (UserWarning)  texts were longer than the model, and only a part of each was read
    CalibrationWarning     (UserWarning)  texts were unlike those that int8 was fitted on, and may lose more than those
"""

from __future__ import annotations

import re
from typing import Protocol


class Speller(Protocol):
    """How a kind of user writes a setting; `judged` is what a sentence about its value begins with."""

    def __call__(self, name: str, value: object, *, judged: bool) -> str: ...


def in_python(name: str, value: object, *, judged: bool) -> str:
    if value is ...:
        return name
    return f"{name} is {value!r};" if judged else f"{name}={value!r}"


class Spoken(Exception):
    """Sentences with places for settings, and the settings.

    `setting` and `value` are the first of the settings, and `accepted` lists what that one takes, where it takes one of
    a few. `sentences` are cause and remedy as they were written, to be said again in another error.
    """

    def __init__(
        self, cause: str, remedy: str | None = None, /, *, accepted: object = None, **settings: object
    ) -> None:
        self.sentences = cause, remedy
        self.settings = settings
        self.setting = next(iter(settings), None)
        self.value = settings.get(self.setting or "")
        self.accepted = accepted
        self.cause, self.remedy = self.said(in_python)
        super().__init__(str(self))

    def said(self, speller: Speller) -> tuple[str, str | None]:
        """Cause and remedy, with every setting as `speller` writes it."""

        def spelled(found: re.Match[str]) -> str:
            name, proposed = found["name"], found["value"]
            if proposed == "":
                return speller(name, ..., judged=False) + ("=" if speller is in_python else "")
            if proposed is not None:
                return speller(name, _CONSTANTS.get(proposed, proposed), judged=False)
            return speller(name, self.settings[name], judged=bool(found["is"])) if name in self.settings else found[0]

        cause, remedy = self.sentences
        return _PLACE.sub(spelled, cause), None if remedy is None else _PLACE.sub(spelled, remedy)

    def __str__(self) -> str:
        # OSError and ImportError format themselves by other fields; all our errors read the same way.
        return self.cause if self.remedy is None else f"{self.cause}\n{self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross processes whole."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[Spoken], args: tuple[object, ...], state: dict[str, object]) -> Spoken:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


_PLACE = re.compile(r"\{(?P<name>[a-z][a-z_0-9]*)(?:=(?P<value>[\w.-]*)|(?P<is>:is))?\}")
_CONSTANTS: dict[str, object] = {"True": True, "False": False, "None": None}


class BertieError(Spoken):
    """Root of the tree. Catch it to catch everything Bertie raises on purpose."""


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


class TruncationWarning(Spoken, UserWarning):
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
