# %%
import bertie

texts = ["A man plays the guitar.", "Someone makes music."]
documents = ["Stamps were printed in 1840.", "Bats listen for echoes."]

# %% embed
vectors = bertie.embed(texts)
print(vectors.shape)  # [texts, 384]
# → (2, 384)
one = bertie.embed("A text.", truncate_dim=128, normalize=True)
print(one.shape)
# → (128,)

# %% Embedder
embedder = bertie.Embedder(normalize=True)  # keeps the model loaded
print(embedder.embed("A text.").shape, embedder.embed(texts).shape)
# → (384,) (2, 384)

# %% similarity
print(round(bertie.similarity("a sad song", "a mournful melody"), 2))
# → 0.63
print(bertie.similarity(texts, documents).shape)  # [len(a), len(b)]
# → (2, 2)

# %% score_matrix, score_pairs
from bertie.tasks import score_matrix, score_pairs

a, b = [[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [3.0, 4.0]]
print(score_matrix(a, b).tolist())  # every row of a with every row of b
# → [[1.0, 0.6000000238418579], [0.0, 0.800000011920929]]
print(score_pairs(a, b, "dot").tolist())  # row by row
# → [3.0, 8.0]

# %% represent, Representer
from bertie.tasks import Representer

print(bertie.represent("A text.", model="my-bert", vectors="sparse").sparse.keys() <= set(range(300)))
# → True
representer = Representer("my-bert", vectors="sparse")
print(len(representer(texts)))
# → 2

# %% classify, Classifier
from bertie.tasks import Classifier

answer = bertie.classify("A fine film.", model="my-sentiment")
assert answer.label in ("positive", "negative") and 0.5 <= answer.score <= 1
classifier = Classifier("my-sentiment", top_k=None)  # every label, not only the best
print([len(each.labels) for each in classifier(texts)])
# → [2, 2]

# %% zero_shot, ZeroShotClassifier
from bertie.tasks import ZeroShotClassifier

answer = bertie.zero_shot("She won the race.", ["sport", "money"], model="my-nli")
print(sorted(label for label, score in answer.labels))
# → ['money', 'sport']
judge = ZeroShotClassifier(["sport", "money"], "my-nli", multi_label=True)
assert all(0 <= score <= 1 for label, score in judge("She won the race.").labels)

# %% rerank, Reranker
from bertie.tasks import Reranker

ranking = bertie.rerank("how do bats hunt?", documents)
print(ranking[0].index, ranking[0].text)
# → 1 Bats listen for echoes.
cross_encoder = Reranker("my-cross-encoder")
print(len(cross_encoder("how do bats hunt?", documents)))
# → 2

# %% tag, Tagger
from bertie.tasks import Tagger

text = "Ada Lovelace lived in London."
for entity in bertie.tag(text, model="my-ner"):
    assert text[entity.start : entity.end] == entity.text
tagger = Tagger("my-ner", aggregation="none")
print(len(tagger([text, text])))
# → 2

# %% answer, Answerer
from bertie.tasks import Answerer

context = "Ada Lovelace lived in London."
found = bertie.answer("Where did Ada live?", context, model="my-squad", no_answer=False)
assert context[found.best.start : found.best.end] == found.best.text
answerer = Answerer("my-squad", n_best=3, no_answer=False)
print(len(answerer(["Where?", "Who?"], [context, context])))
# → 2

# %% fill, MaskFiller
from bertie.tasks import MaskFiller

print(bertie.fill("She opened the [MASK] and went in.").candidates[0].token)
# → door
filler = MaskFiller("bertie-mini", top_k=2)
print([word.token for word in filler("He drank a cup of [MASK].").candidates])
# → ['wine', 'coffee']

# %% next_sentence, NextSentencePredictor
from bertie.tasks import NextSentencePredictor

print(bertie.next_sentence("She opened the door.", "The room was empty.").follows)
# → True
predictor = NextSentencePredictor("bertie-mini")
print(len(predictor([("She opened the door.", "The room was empty."), ("It rained.", "Hydrogen is a gas.")])))
# → 2

# %% features, FeatureExtractor
from bertie.tasks import FeatureExtractor

tokens = bertie.features("Who? ||| Ada.", layers=[-1]).tokens
print([each.token for each in tokens], tokens[0].vector(-1).shape)
# → ['[CLS]', 'who', '?', '[SEP]', 'ada', '.', '[SEP]'] (256,)
extractor = FeatureExtractor("bertie-mini", layers=[-1, -2])
print(extractor("A text.").tokens[0].vector(-2).shape)
# → (256,)

# %% generate, TextGenerator
from bertie.tasks import TextGenerator

written = bertie.generate("The quick", model="my-decoder", max_new_tokens=3)
assert len(written.ids) <= 3
generator = TextGenerator("my-decoder", max_new_tokens=3, num_beams=2)
print(len(generator(["The quick", "Paris is"])))
# → 2
