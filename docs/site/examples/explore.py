# %%
import bertie
from bertie.explore import Switches

man = bertie.explore("The man put on [MASK] hat.")
mask = man.rows[0].names.index("[MASK]")

# %% explore, open_session, Session
from bertie.explore import Session, open_session

session = bertie.explore("The man put on [MASK] hat.")
assert isinstance(session, Session)
print(session.answer().text, open_session("The woman put on [MASK] hat.").answer().text)
# → his her

# %% TASKS, VIEWS
from bertie.explore import TASKS, VIEWS

print(TASKS)
# → ('fill', 'next', 'classify', 'tag', 'answer', 'choice', 'embed')
assert set(man.views) <= set(VIEWS)

# %% Answer
from bertie.explore import Answer

answer = man.answer()
assert isinstance(answer, Answer)
print(answer.task, answer.text, round(answer.top[0][1], 2))
# → fill his 0.89

# %% TextRow
from bertie.explore import TextRow

row = man.rows[0]
assert isinstance(row, TextRow)
print(row.names)
# → ('[CLS]', 'the', 'man', 'put', 'on', '[MASK]', 'hat', '.', '[SEP]')

# %% Result
from bertie.explore import Result

head = man.attention(1, 0)
assert isinstance(head, Result)  # every view is one: it becomes a table, and a plot
print(head.to_frame().shape)
# → (81, 3)

# %% AttentionMap
from bertie.explore import AttentionMap

head = man.attention(1, 0)
assert isinstance(head, AttentionMap)
print(head.weights.shape)  # [query, key]
# → (9, 9)

# %% HeadStatistics
from bertie.explore import HeadStatistics

heads = man.head_statistics()
assert isinstance(heads, HeadStatistics)
best = heads.previous.argmax()  # the head that looks most at the previous token
print(heads.layer[best], heads.head[best])
# → 1 0

# %% TokenFlow
from bertie.explore import TokenFlow

assert isinstance(man.rollout(), TokenFlow)
print(man.rollout().weights.shape)  # [token, input token]
# → (9, 9)

# %% NeuronView
from bertie.explore import NeuronView

why = man.neuron_view(1, 0, query=mask, key=mask - 1)
assert isinstance(why, NeuronView)
print(why.query_token, why.key_token, why.q.shape)  # [head size]
# → [MASK] on (64,)

# %% Switches, Ablation
from bertie.explore import Ablation

without = man.ablate(Switches(heads={(1, 0)}))
assert isinstance(without, Ablation)
print(without.before.text, without.after.text)
# → his his

# %% Means
from bertie.explore import Means

means = man.means_of(["She opened the door.", "They went home."])
assert isinstance(means, Means)
print(man.ablate(Switches(heads={(1, 0)}), means).after.text)  # replaced by its mean, not by zero
# → his

# %% switched
import torch
from bertie.explore import switched

model = bertie.load("bertie-mini").eval()
ids = torch.tensor([[2, 45, 97, 3]])
whole = model(ids).prediction_logits
with switched(model, Switches(layers={3})):
    assert not torch.equal(model(ids).prediction_logits, whole)
assert torch.equal(model(ids).prediction_logits, whole)

# %% Attribution, Target
from bertie.explore import Attribution, Target

scores = man.attribute()
assert isinstance(scores, Attribution) and isinstance(scores.target, Target)
print(scores.target.label, man.rows[0].names[scores.scores[0].argmax()])
# → his hat

# %% Lens, Drift
from bertie.explore import Drift, Lens

layers = man.lens(places=[mask])
assert isinstance(layers, Lens) and isinstance(man.drift(), Drift)
print(layers.words[-1][0][0], man.drift().to_last.shape)  # [layers + 1, tokens]
# → his (5, 9)

# %% Patching
from bertie.explore import Patching

traced = man.patch(bertie.explore("The woman put on [MASK] hat."))
assert isinstance(traced, Patching)
print(traced.target.label, traced.effect.shape)  # [layers + 1, tokens]
# → her (5, 9)

# %% Embedded
from bertie.explore import Embedded

vector = bertie.explore("A man is eating food.", task="embed").answer().value
assert isinstance(vector, Embedded)
print(vector.vector.shape)
# → (384,)

# %% Similarity, TokenMatch
from bertie.explore import Similarity, TokenMatch

pair = bertie.explore("A man is eating food.", "Someone eats a meal.", task="embed")
assert isinstance(pair.answer().value, Similarity) and isinstance(pair.match(), TokenMatch)
print(abs(pair.match().weights.sum() - pair.score()) < 1e-4)  # [tokens of a, tokens of b]
# → True

# %% Choices
from bertie.explore import Choices

bertie.BertForMultipleChoice(bertie.AutoConfig.from_pretrained("my-bert")).save_pretrained("my-choice")
bertie.BertTokenizer.from_pretrained("my-bert").save_pretrained("my-choice")
question = bertie.explore("Where do fish live?", ["in water", "in trees"], model="my-choice")
assert isinstance(question.answer().value, Choices)
print(len(question.answer().value.probabilities))
# → 2

# %% importance, Importance
from bertie.explore import Importance, importance

ranking = importance(["She opened the door and went in.", "The king sat on his throne."])
assert isinstance(ranking, Importance)
print(ranking.values.shape)  # [layers, heads]
# → (4, 4)

# %% Trace, Step, Source
from bertie.explore import Source, Step, Trace

walk = man.trace(place=mask)
query = walk.find("bert.encoder.layer.0.attention.self.query")
assert isinstance(walk, Trace) and isinstance(query, Step) and isinstance(query.source, Source)
print(query.source.lines[0].strip())
# → q = self.split_heads(self.query(hidden_states))
