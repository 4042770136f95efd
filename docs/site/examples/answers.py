# %%
import bertie
from bertie import answers

# %% Classification
answer = bertie.classify("A fine film.", model="my-sentiment", top_k=None)
assert isinstance(answer, answers.Classification) and answer.label == answer.labels[0][0]
print(round(sum(score for label, score in answer.labels), 3))
# → 1.0

# %% Entity
text = "Ada Lovelace lived in London."
for entity in bertie.tag(text, model="my-ner"):
    assert isinstance(entity, answers.Entity) and text[entity.start : entity.end] == entity.text

# %% WordTag
from bertie.tasks.tag import WordTagger

for word in WordTagger("my-ner")(("Ada", "lived", "in", "London")):
    assert isinstance(word, answers.WordTag) and 0 <= word.score <= 1

# %% AnswerResult, FoundAnswer
found = bertie.answer("Where did Ada live?", text, model="my-squad", no_answer=False)
assert isinstance(found, answers.AnswerResult) and isinstance(found.best, answers.FoundAnswer)
assert found.candidates[0] == found.best and text[found.best.start : found.best.end] == found.best.text

# %% Filled, Candidate, Filling
filled = bertie.fill("He drank a cup of [MASK] and a glass of [MASK].", top_k=3)
assert isinstance(filled, answers.Filled) and isinstance(filled.candidates[0], answers.Candidate)
print(len(filled.masks), [candidate.token for candidate in filled.masks[0]])  # of each mask by itself
# → 2 ['wine', 'coffee', 'glass']
assert isinstance(filled.fillings[0], answers.Filling)  # of all masks together
print(filled.text)
# → He drank a cup of wine and a glass of wine.

# %% Generated
written = bertie.generate("The quick", model="my-decoder", max_new_tokens=3)
assert isinstance(written, answers.Generated) and written.prompt == "The quick"

# %% NextSentence
answer = bertie.next_sentence("She opened the door.", "The room was empty.")
assert isinstance(answer, answers.NextSentence) and float(answer) == answer.probability
print(answer.follows)
# → True

# %% Ranked
ranking = bertie.rerank("how do bats hunt?", ["Stamps were printed in 1840.", "Bats listen for echoes."])
assert isinstance(ranking[0], answers.Ranked) and ranking[0].score >= ranking[1].score
print(ranking[0].index)
# → 1

# %% Features, TokenFeatures
features = bertie.features("Who?", layers=[-1, -2])
assert isinstance(features, answers.Features) and isinstance(features.tokens[0], answers.TokenFeatures)
print(features.tokens[1].token, features.tokens[1].vector(-2).shape)
# → who (256,)

# %% Representation
found = bertie.represent("The quick fox.", model="my-bert", vectors="sparse")
assert isinstance(found, answers.Representation) and found.dense is None and found.multi is None

# %% Hit
index = bertie.build_index(["Bats listen for echoes.", "Stamps were printed in 1840."], "small-index")
hit = index.search("how do animals find food?", k=1)[0]
assert isinstance(hit, answers.Hit)
print(hit.position, hit.text)
# → 0 Bats listen for echoes.
