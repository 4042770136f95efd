"""Which words are hidden for the masked language model, for a whole batch at once.

The rules are those of google-research/bert `create_pretraining_data.py`:

- of a sequence of n tokens, special ones counted, max(1, round(n · probability)) are predicted, `max_predictions` at
  most; [CLS], [SEP] and [PAD] never are;
- 80 % of them become [MASK], 10 % a random token of the vocabulary, 10 % stay as they are;
- with `whole_words` all pieces of a word are predicted or none: words are taken in random order, and one that would be
  too many is skipped.

**Ours**: a piece (##ing) right after a special token begins a word of its own; Google adds it to the word before the
separator. And chance is a function of (key, position): every random number is a hash, so a sequence is masked the same
way alone or in any batch, and keys of (seed, epoch, index) make the masking dynamic and yet repeatable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertie.arguments import number
from bertie.errors import ConfigError, TokenizerError
from bertie.text import BertTokenizer
from bertie.text.corpus.sentence_pairs import example_key
from bertie.training.contract import Numbers

Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@dataclass(frozen=True)
class Masked:
    """A batch after masking: `ids` as the model sees them, where it predicts, and what was there."""

    ids: Numbers  # [T]
    positions: Numbers  # [P], rising
    labels: Numbers  # [P]


@dataclass(frozen=True)
class MaskRules:
    """What to hide, with what the tokenizer has to say: see `of`."""

    mask_id: int
    vocab_size: int
    is_special: Flags  # [vocabulary]
    continues: Flags  # [vocabulary]: is it the ##continuation of a word?
    probability: float = 0.15
    max_predictions: int | None = None
    whole_words: bool = False
    mask_share: float = 0.8
    random_share: float = 0.1

    @classmethod
    def of(
        cls,
        tokenizer: BertTokenizer,
        *,
        probability: float = 0.15,
        max_predictions: int | None = None,
        whole_words: bool = False,
        mask_share: float = 0.8,
        random_share: float = 0.1,
    ) -> MaskRules:
        number("probability", probability, above=0, below=1, error=ConfigError)
        if mask_share < 0 or random_share < 0 or mask_share + random_share > 1:
            raise ConfigError(f"mask_share ({mask_share}) and random_share ({random_share}) exceed 1 together.")
        if max_predictions is not None:
            number("max_predictions", max_predictions, least=1, error=ConfigError)
        if tokenizer.mask_token_id is None:
            raise TokenizerError("The vocabulary has no mask token.", "Add one: tokenizer.add_special_tokens.")
        vocabulary = tokenizer.get_vocab()
        size = max(vocabulary.values()) + 1
        continues = np.zeros(size, dtype=np.bool_)
        continues[[index for token, index in vocabulary.items() if tokenizer.continues_word(token)]] = True
        special = np.zeros(size, dtype=np.bool_)
        outer = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
        special[[index for index in outer if index is not None]] = True
        return cls(
            tokenizer.mask_token_id,
            size,
            special,
            continues,
            probability,
            max_predictions,
            whole_words,
            mask_share,
            random_share,
        )

    def num_predictions(self, lengths: Numbers) -> Numbers:
        """How many tokens of sequences of these lengths are predicted (fewer if there are not as many words)."""
        # Python's round, which Google uses, goes to even at a half; numpy's does too.
        wanted = np.maximum(1, np.round(lengths * self.probability)).astype(np.int64)
        return wanted if self.max_predictions is None else np.minimum(wanted, self.max_predictions)


def mask_tokens(ids: Numbers, lengths: Numbers, keys: Words, rules: MaskRules) -> Masked:
    """Mask sequences that lie end to end: `ids [T]`, `lengths [n]` and a key for each (`example_key`)."""
    ends = np.cumsum(lengths)
    places = np.arange(len(ids), dtype=np.int64) - np.repeat(ends - lengths, lengths)
    owner_keys = np.repeat(keys, lengths)
    allowed = ~rules.is_special[ids]
    budgets = rules.num_predictions(lengths)
    order = _draw(owner_keys, places, 0)
    choose = _whole_words if rules.whole_words else _single_tokens
    positions = choose(ids, lengths, allowed, order, budgets, rules)
    labels = ids[positions]
    masked = ids.copy()
    fate = _unit(_draw(owner_keys[positions], places[positions], 1))
    masked[positions[fate < rules.mask_share]] = rules.mask_id
    random = (fate >= rules.mask_share) & (fate < rules.mask_share + rules.random_share)
    replaced = positions[random]
    words = _draw(owner_keys[replaced], places[replaced], 2) % np.uint64(rules.vocab_size)
    masked[replaced] = words.astype(np.int64)
    return Masked(masked, positions, labels)


def _single_tokens(
    ids: Numbers, lengths: Numbers, allowed: Flags, order: Words, budgets: Numbers, rules: MaskRules
) -> Numbers:
    """The first `budget` allowed tokens of each sequence in random order."""
    candidates = np.flatnonzero(allowed)
    owners = np.repeat(np.arange(len(lengths)), lengths)[candidates]
    # One sort for the batch: the sequence in the high bits, chance in the low ones.
    bits = np.uint64(max(1, len(lengths) - 1).bit_length())
    mixed = (owners.astype(np.uint64) << (np.uint64(64) - bits)) | (order[candidates] >> bits)
    ranked = candidates[np.argsort(mixed)]
    counts = np.bincount(owners, minlength=len(lengths))
    ranks = np.arange(len(candidates)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(ranked[ranks < np.repeat(budgets, counts)])


def _whole_words(
    ids: Numbers, lengths: Numbers, allowed: Flags, order: Words, budgets: Numbers, rules: MaskRules
) -> Numbers:
    """Whole words in random order, skipping any that would exceed the budget."""
    firsts = np.cumsum(lengths) - lengths
    before = np.concatenate([[False], allowed[:-1]])
    before[firsts] = False
    starts = np.flatnonzero(allowed & ~(rules.continues[ids] & before))
    # A word ends where the next begins or where a special token stands.
    boundary = np.ones(len(ids) + 1, dtype=np.bool_)
    boundary[:-1] = ~allowed
    boundary[starts] = boundary[firsts] = True
    bounds = np.flatnonzero(boundary)
    sizes = bounds[np.searchsorted(bounds, starts, side="right")] - starts
    begins = np.searchsorted(starts, np.concatenate([[0], np.cumsum(lengths)]))
    chosen: list[int] = []
    chosen_sizes: list[int] = []
    for index, budget in enumerate(budgets.tolist()):
        first, last = begins[index], begins[index + 1]
        ranking = np.argsort(order[starts[first:last]], kind="stable") + first
        left = budget
        for word, size in zip(ranking.tolist(), sizes[ranking].tolist(), strict=True):
            if size <= left:
                chosen.append(word)
                chosen_sizes.append(size)
                left -= size
                if not left:
                    break
    if not chosen:
        return np.zeros(0, dtype=np.int64)
    counts = np.asarray(chosen_sizes)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(np.repeat(starts[chosen], counts) + offsets)


def _draw(keys: Words, places: Numbers, stream: int) -> Words:
    """64 random bits for each (key, place), by splitmix64's mixing (Steele, Lea & Flood 2014)."""
    bits = keys + (places.astype(np.uint64) * np.uint64(4) + np.uint64(stream + 1)) * _GOLDEN
    bits = (bits ^ (bits >> _SHIFTS[0])) * _MIX_1
    bits = (bits ^ (bits >> _SHIFTS[1])) * _MIX_2
    return np.asarray(bits ^ (bits >> _SHIFTS[2]))


def _unit(bits: Words) -> npt.NDArray[np.float64]:
    """Bits as a number from 0 up to 1."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


__all__ = ["MaskRules", "Masked", "example_key", "mask_tokens"]
