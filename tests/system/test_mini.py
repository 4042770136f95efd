"""bertie-mini as it is shipped: its size, and that it has learned what fill, next_sentence and features are for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from safetensors import safe_open

from bertie import BertConfig, defaults, load
from bertie.tasks.features import features
from bertie.tasks.fill import MaskFiller, fill
from bertie.tasks.next_sentence import next_sentence
from bertie.text import BertTokenizer

FOLDER: Path = defaults.LANGUAGE_MODEL

# What anyone would say, and more than one word of it where there is more than one. Those it does not know stay here.
EVERYDAY = {
    "She opened the [MASK] and walked into the room.": {"door", "doors", "window", "gate"},
    "He drank a cup of [MASK].": {"tea", "coffee", "water", "wine", "milk", "chocolate"},
    "The sun was shining and the [MASK] was blue.": {"sky", "sea", "water", "air", "heaven"},
    "The capital of France is [MASK].": {"paris"},
    "The old [MASK] sat by the fire and smoked his pipe.": {"man", "gentleman", "fellow", "sailor", "soldier"},
    "She [MASK] him on the cheek.": {"kissed", "struck", "slapped"},
    "The ship sailed across the [MASK].": {"sea", "ocean", "bay", "channel", "lake", "water", "atlantic"},
    "He put his hat on his [MASK].": {"head"},
    "The horse galloped down the [MASK].": {"road", "street", "hill", "lane", "path", "track", "slope", "valley"},
    "It was a dark and stormy [MASK].": {"night", "evening", "day"},
    "The king sat upon his [MASK].": {"throne", "seat", "chair", "horse"},
    "The doctor came to see the [MASK].": {"patient", "child", "sick", "invalid"},
    "They were married in the [MASK].": {"church", "chapel", "cathedral", "spring", "summer", "autumn", "winter"},
    "He looked at his [MASK] to see what time it was.": {"watch", "clock"},
    "The baby began to [MASK].": {"cry", "scream", "weep", "sob", "laugh", "smile"},
    "The dog began to [MASK].": {"bark", "howl", "growl", "whine"},
    "She had two daughters and one [MASK].": {"son", "boy"},
    "I have never [MASK] him before.": {"seen", "met", "known", "heard"},
    "In the morning he [MASK] his breakfast.": {"ate", "had", "took", "made", "finished"},
    "The birds were singing in the [MASK].": {"trees", "tree", "woods", "wood", "garden", "forest", "air", "sky"},
    "He paid ten [MASK] for the book.": {"dollars", "pounds", "shillings", "francs", "cents", "pence", "guineas"},
    "My brother and my [MASK] live in London.": {"sister", "mother", "father", "wife", "son", "daughter", "uncle"},
}

# (source, a passage, how it goes on): in the public domain, and not in the books that bertie-mini has read.
PASSAGES = [
    (
        "Mansfield, The Garden-Party",
        "And after all the weather was ideal. They could not have had a more perfect day for a garden-party if they "
        "had ordered it. Windless, warm, the sky without a cloud.",
        "Only the blue was veiled with a haze of light gold, as it is sometimes in early summer. The gardener had been "
        "up since dawn, mowing the lawns and sweeping them, until the grass and the dark flat rosettes where the daisy "
        "plants had been seemed to shine.",
    ),
    (
        "Saki, The Open Window",
        '"My aunt will be down presently, Mr. Nuttel," said a very self-possessed young lady of fifteen; "in the '
        'meantime you must try and put up with me."',
        "Framton Nuttel endeavoured to say the correct something which should duly flatter the niece of the moment "
        "without unduly discounting the aunt that was to come. Privately he doubted more than ever whether these "
        "formal visits on a succession of total strangers would do much towards helping the nerve cure which he was "
        "supposed to be undergoing.",
    ),
    (
        "Woolf, Mrs. Dalloway",
        "Mrs. Dalloway said she would buy the flowers herself. For Lucy had her work cut out for her.",
        "The doors would be taken off their hinges; Rumpelmayer's men were coming. And then, thought Clarissa "
        "Dalloway, what a morning—fresh as if issued to children on a beach.",
    ),
    (
        "Chopin, The Story of an Hour",
        "Knowing that Mrs. Mallard was afflicted with a heart trouble, great care was taken to break to her as gently "
        "as possible the news of her husband's death.",
        "It was her sister Josephine who told her, in broken sentences; veiled hints that revealed in half concealing. "
        "Her husband's friend Richards was there, too, near her.",
    ),
    (
        "Fitzgerald, The Great Gatsby",
        "In my younger and more vulnerable years my father gave me some advice that I've been turning over in my mind "
        "ever since.",
        '"Whenever you feel like criticizing anyone," he told me, "just remember that all the people in this world '
        "haven't had the advantages that you've had.\" He didn't say any more, but we've always been unusually "
        "communicative in a reserved way, and I understood that he meant a great deal more than that.",
    ),
    (
        "Williams, The Velveteen Rabbit",
        "There was once a velveteen rabbit, and in the beginning he was really splendid. He was fat and bunchy, as a "
        "rabbit should be; his coat was spotted brown and white, he had real thread whiskers, and his ears were lined "
        "with pink sateen.",
        "On Christmas morning, when he sat wedged in the top of the Boy's stocking, with a sprig of holly between his "
        "paws, the effect was charming.",
    ),
    (
        "Mansfield, Miss Brill",
        "Although it was so brilliantly fine—the blue sky powdered with gold and great spots of light like white wine "
        "splashed over the Jardins Publiques—Miss Brill was glad that she had decided on her fur.",
        "The air was motionless, but when you opened your mouth there was just a faint chill, like a chill from a "
        "glass of iced water before you sip, and now and again a leaf came drifting—from nowhere, from the sky. Miss "
        "Brill put up her hand and touched her fur.",
    ),
    (
        "Lincoln, at Gettysburg",
        "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in "
        "Liberty, and dedicated to the proposition that all men are created equal.",
        "Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so "
        "dedicated, can long endure. We are met on a great battle-field of that war.",
    ),
    (
        "Woolf, To the Lighthouse",
        '"Yes, of course, if it\'s fine tomorrow," said Mrs. Ramsay. "But you\'ll have to be up with the lark," she '
        "added.",
        "To her son these words conveyed an extraordinary joy, as if it were settled, the expedition were bound to "
        "take place, and the wonder to which he had looked forward, for years and years it seemed, was, after a "
        "night's darkness and a day's sail, within touch.",
    ),
    (
        "O. Henry, The Gift of the Magi",
        "One dollar and eighty-seven cents. That was all. And sixty cents of it was in pennies. Pennies saved one and "
        "two at a time by bulldozing the grocer and the vegetable man and the butcher until one's cheeks burned with "
        "the silent imputation of parsimony that such close dealing implied.",
        "Three times Della counted it. One dollar and eighty-seven cents. And the next day would be Christmas.",
    ),
]
# Every passage with what follows it, and with what follows another one.
FOLLOWING = [(first, second) for _, first, second in PASSAGES]
ELSEWHERE = [(first, PASSAGES[(n + 3) % len(PASSAGES)][2]) for n, (_, first, _) in enumerate(PASSAGES)]


def test_it_is_small_and_what_it_says_it_is() -> None:
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    tokenizer_files = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    assert set(files) == {"README.md", "config.json", "model.safetensors"} | tokenizer_files
    assert sum(files.values()) <= 12_000_000
    with safe_open(FOLDER / "model.safetensors", framework="np") as stored:
        names = set(stored.keys())
        assert {stored.get_slice(name).get_dtype() for name in names} == {"F16"}
    heads = {"bert.pooler.dense.weight", "cls.predictions.transform.dense.weight", "cls.seq_relationship.weight"}
    assert heads <= names
    assert "cls.predictions.decoder.weight" not in names  # it is the word embeddings, stored once
    model = load(FOLDER)
    config: BertConfig = model.config
    assert type(model).__name__ == "BertForPreTraining"
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert (config.num_hidden_layers, config.hidden_size) == (4, 256)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    tokenizer = BertTokenizer.from_pretrained(FOLDER)
    assert len(tokenizer) <= config.vocab_size
    assert tokenizer.tokenize("Paris") == tokenizer.tokenize("paris")


def test_fill_gives_five_fillings_computed_in_float32() -> None:
    filler = MaskFiller()
    assert filler.loaded.dtype == "float32"
    found = filler("The capital of France is [MASK].")
    scores = [one.score for one in found.fillings]
    assert len(scores) == len({one.tokens for one in found.fillings}) == 5
    assert scores == sorted(scores, reverse=True)
    assert all(math.isfinite(score) and 0 < score <= 1 for score in scores)
    assert all(one.text.startswith("The capital of France is") for one in found.fillings)
    # Thousands of words to choose from: an untrained model gives each about as much as any other.
    assert scores[0] > 20 / filler.loaded.model.config.vocab_size


def test_fill_finds_an_everyday_word_more_often_than_not() -> None:
    known = 0
    for sentence, found in zip(EVERYDAY, fill(list(EVERYDAY), top_k=5), strict=True):
        words = [one.token for one in found.candidates]
        known += bool(set(words) & EVERYDAY[sentence])
        print(f"{'  ' if set(words) & EVERYDAY[sentence] else '- '}{sentence} {' '.join(words)}")
    print(f"{known} of {len(EVERYDAY)}")
    assert known > len(EVERYDAY) / 2


def test_next_sentence_tells_what_follows_from_what_does_not() -> None:
    found = next_sentence(FOLLOWING + ELSEWHERE)
    right = [one.follows == (number < len(FOLLOWING)) for number, one in enumerate(found)]
    follows, elsewhere = right[: len(FOLLOWING)], right[len(FOLLOWING) :]
    print(f"{sum(follows)} of {len(follows)} that follow, {sum(elsewhere)} of {len(elsewhere)} from elsewhere")
    assert len(right) == 20
    assert sum(right) >= 13, [f"{one.probability:.2f}" for one in found]


def test_features_are_a_vector_for_every_token() -> None:
    text = "He drank a cup of tea."
    found = features(text)
    vectors = np.stack([token.vector(-1) for token in found.tokens])
    assert vectors.shape == (len(BertTokenizer.from_pretrained(FOLDER).encode(text)), 256)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
