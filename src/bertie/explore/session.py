"""A text, a model and its task, opened to be looked into.

    session = bertie.explore("The capital of France is [MASK].")
    session.attention(2, 1)                                  how much each token looks at each other in a head
    session.ablate(Switches(heads={(2, 1)}))                 the answer before and after
    session.attribute()                                      which tokens the answer depends on
    session.lens()                                           what the model would say after each layer

A session runs the model once for the states between its layers, keeps those, and computes views from them when they are
asked for. It can be used by several threads: all sessions of one model take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from bertie.arguments import is_whole, whole_number
from bertie.checkpoint.shipped import plain_name
from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.explore import ablation, attention, attribution, flow, lens, patching, trace
from bertie.explore.answers import Answer, Target
from bertie.explore.attention import AttentionMap, Bytes, HeadStatistics, NeuronView
from bertie.explore.attribution import Attribution, Baseline, Method, TokenMatch
from bertie.explore.flow import TokenFlow
from bertie.explore.lens import Drift, Lens
from bertie.explore.opening import open_for
from bertie.explore.patching import Part, Patching
from bertie.explore.progress import Progress
from bertie.explore.reading import Measure, Reading, TextRow
from bertie.explore.readings import read
from bertie.explore.states import States
from bertie.explore.switches import EVERYTHING_ON, Means, Switches, encoder_of, from_layer, held, switched
from bertie.explore.trace import Trace
from bertie.model import BertModel
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.open import ModelLike
from bertie.running.task import checked_text
from bertie.text import BertTokenizer

# Every view, with what it needs: an answer to explain, the masked-word head, a pair of texts, or nothing.
VIEWS: Mapping[str, str | None] = {
    "attention": None,
    "head_statistics": None,
    "rollout": None,
    "flow": None,
    "neuron_view": None,
    "drift": None,
    "trace": None,
    "answer": "a text that the task can answer",
    "ablate": "a text that the task can answer",
    "attribute": "an answer to explain",
    "patch": "an answer to explain",
    "lens": "a masked-word head",
    "match": "the similarity of two texts",
}


def open_session(
    text: str | tuple[str, str],
    second: str | Sequence[str] | None = None,
    *,
    model: ModelLike | None = None,
    task: str | None = None,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    warn: bool = True,
) -> Session:
    """Open `text`, or a text and a `second` one, with a `model`: a name, a path, or an object with its `tokenizer`.

    `device` and `dtype` are those of the tasks.

    `task` is how it is read: "fill", "next", "classify", "tag", "answer" (the question, then the context), "choice"
    (the question, then a list of choices) or "embed" (with a second text: how similar they are). By default it is what
    the checkpoint was made for. Without a model it is bertie-mini, or for "embed" all-MiniLM-L6-v2. A text that is
    longer than the model is cut at the end of a word, with a warning unless `warn` is False; `truncated` says so too.
    """
    if isinstance(text, tuple):
        if second is not None or len(text) != 2:
            raise InputError("A pair of texts and a second text were both given.", "Give two texts in all.")
        text, second = text
    checked_text(text, "The text")
    if second is not None and not isinstance(second, str):
        second = [checked_text(choice, f"Choice {number}") for number, choice in enumerate(second)]
    opened, found, tasks = open_for(
        model, task, paired=second is not None, tokenizer=tokenizer, device=device, dtype=dtype
    )
    reading, truncated = read(opened, found, text, second, warn=warn)
    return Session(reading, tasks=tasks, truncated=truncated)


class Session:
    """See the top of this file; `open_session` makes one. `off` is what is switched off in everything it shows."""

    def __init__(
        self,
        reading: Reading,
        *,
        tasks: tuple[str, ...],
        truncated: bool,
        off: Switches = EVERYTHING_ON,
        means: Means | None = None,
        states: States | None = None,
    ) -> None:
        self.reading, self.tasks, self.truncated = reading, tasks, truncated
        self.off, self.means = off, means
        self._shared = states or States(reading)  # of all sessions that differ in what is off
        self._states: dict[int, Tensor] = {}
        self._thumbnails: dict[int, tuple[int, Bytes]] = {}  # of each row: the last size that was asked for
        self._statistics: dict[int, HeadStatistics] = {}
        self._answer: Answer | None = None
        self._scores: dict[tuple[Target, str], float] = {}
        self.off.check(self.bert)

    # -- what is open ------------------------------------------------------------------------------------------------

    @property
    def task(self) -> str:
        """How the text is read."""
        return self.reading.task

    @property
    def texts(self) -> tuple[str, ...]:
        """What is read of the texts; the choices follow their question."""
        return self.reading.texts

    @property
    def rows(self) -> tuple[TextRow, ...]:
        """The inputs of the model: one, two for a similarity, one for each choice."""
        return self.reading.rows

    @property
    def name(self) -> str:
        """What the model is called."""
        return plain_name(self.reading.loaded.name)

    @property
    def model(self) -> BertPreTrainedModel:
        """The model."""
        return self.reading.loaded.model

    @property
    def tokenizer(self) -> BertTokenizer:
        """The model's tokenizer."""
        return self.reading.loaded.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.reading.loaded.device

    @property
    def config(self) -> BertConfig:
        """The model's configuration."""
        return self.model.config

    @cached_property
    def bert(self) -> BertModel:
        return encoder_of(self.model)

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return self.config.num_hidden_layers

    @property
    def num_heads(self) -> int:
        """How many heads a layer had before pruning."""
        return self.config.num_attention_heads

    @property
    def heads(self) -> dict[int, tuple[int, ...]]:
        """The heads that are left in each layer, by their original numbers."""
        return {number: tuple(layer.attention.self.heads) for number, layer in enumerate(self.bert.encoder.layer)}

    @property
    def views(self) -> tuple[str, ...]:
        """The views there are for this model and text."""
        return tuple(view for view, need in VIEWS.items() if need is None or self._lacks(view) is None)

    def _lacks(self, view: str) -> tuple[str, str] | None:
        if view == "lens":
            if self.task == "fill":
                return None
            return (
                f"The lens needs a masked-word head, and this model is open as {self.task!r}.",
                "Open it with {task=fill}, or another checkpoint."
                if "fill" in self.tasks
                else "Use a checkpoint that has it.",
            )
        if view == "match":
            return (
                None
                if self.task == "embed" and len(self.rows) == 2
                else ("Matching tokens needs the similarity of two texts.", "Open two texts with {task=embed}.")
            )
        if view in ("answer", "ablate") and self.task == "embed":
            return None
        return self.reading.no_answer()

    def need(self, view: str) -> None:
        """Refuse a view that this session does not have, and say which there are."""
        if (found := self._lacks(view)) is not None:
            raise InputError(found[0], f"{found[1]} There are: {', '.join(self.views)}.")

    def check_place(self, place: int, row: int, name: str = "place") -> None:
        self.check_row(row)
        if not is_whole(place, 0, len(self.rows[row]) - 1):
            raise InputError(
                f"{{{name}:is}} the row has {len(self.rows[row])} tokens, counted from 0.", **{name: place}
            )

    def check_row(self, row: int) -> None:
        if not is_whole(row, 0, len(self.rows) - 1):
            raise InputError(f"{{row:is}} there are {len(self.rows)} rows, counted from 0.", row=row)

    def switch(self, off: Switches, means: Means | None = None) -> Session:
        """The same text with parts of the model off (or, with `means`, at their mean), in every view."""
        return Session(
            self.reading, tasks=self.tasks, truncated=self.truncated, off=off, means=means, states=self._shared
        )

    def __repr__(self) -> str:
        off = f", off={self.off}" if self.off else ""
        return f"Session({', '.join(map(repr, self.texts))}, task={self.task!r}, model={self.name!r}{off})"

    def _repr_html_(self) -> str:
        """The page, in a notebook: without a server and without a network."""
        from bertie.explore.page.saved import inline  # it needs sessions

        return inline(self)

    # -- running -----------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """The model is this thread's, with the switches as they are in this session."""
        with held(self.model), switched(self.model, self.off, self.means):
            yield

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """The model is this thread's, and gives its heads the states that are kept. Not for gradients."""
        if self.reading.loaded.is_fast:
            with self.running():
                yield
            return
        states = [self.states(row) for row in range(len(self.rows))]
        layers = len(self.bert.encoder.layer)
        with held(self.model), from_layer(self.bert, lambda: states[self.reading.current], layers):
            yield

    def states(self, row: int = 0) -> Tensor:
        """`[layers + 1, S, D]`: the states of a row's tokens, after the embeddings and after each layer."""
        self.check_row(row)
        if row not in self._states:
            self._states[row] = self._shared.get(row, self.off, self.means)
        return self._states[row]

    # -- attention ---------------------------------------------------------------------------------------------------

    def attention(self, layer: int, head: int, row: int = 0) -> AttentionMap:
        """The map of one head, as the model computes it; what a switch turns off is its effect, not its map."""
        self.check_row(row)
        return attention.attention_map(self, layer, head, row)

    def map_bytes(self, layer: int, head: int, row: int = 0) -> bytes:
        """The same as S·S bytes, query by query: a weight is (byte / 255)²."""
        self.check_row(row)
        return attention.map_bytes(self, layer, head, row)

    def thumbnails(self, size: int = 32, row: int = 0) -> Bytes:
        """All maps at once, `[layers, heads, h, w]`, at most `size` cells high and wide, each the largest of its part.

        A cell is a byte as in `map_bytes`; pruned heads are 0.
        """
        whole_number("size", size)
        self.check_row(row)
        if self._thumbnails.get(row, (0,))[0] != size:
            self._thumbnails[row] = size, attention.thumbnails(self, row, size)
        return self._thumbnails[row][1]

    def head_statistics(self, row: int = 0) -> HeadStatistics:
        """Where each head looks, in numbers to sort by."""
        self.check_row(row)
        if row not in self._statistics:
            self._statistics[row] = attention.head_statistics(self, row)
        return self._statistics[row]

    def neuron_view(self, layer: int, head: int, query: int, key: int, row: int = 0) -> NeuronView:
        """Why one token looks at another: q, k and their product, neuron by neuron."""
        return attention.neuron_view(self, layer, head, query, key, row)

    def rollout(self, row: int = 0, layers: int | None = None) -> TokenFlow:
        """What share of each token's state comes from which input token, by attention through the first `layers`."""
        self.check_row(row)
        return flow.rollout(self, row, layers)

    def flow(self, row: int = 0, places: Sequence[int] | None = None, layers: int | None = None) -> TokenFlow:
        """How much can flow from each input token to the tokens `places`; by default those that the head reads.

        A maximum flow for each pair takes its time: a second for one place of a text of 64 tokens and 12 layers.
        """
        self.check_row(row)
        if places is None:
            target = self._targets[0] if self._targets else Target("")
            places = self.reading.pooled_places(target) if target.row == row else [0]
        return flow.flow(self, row, places, layers)

    def check_layers(self, layers: int | None) -> int:
        """How many layers to walk: all by default."""
        if layers is None:
            return self.num_layers
        if not is_whole(layers, 0, self.num_layers):
            raise InputError(f"{{layers:is}} the model has {self.num_layers}.", layers=layers)
        return layers

    # -- the answer ----------------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        """The task's own answer."""
        self.need("answer")
        if self._answer is None:
            with self._answering():
                self._answer = self.reading.answer()
        return self._answer

    @cached_property
    def _targets(self) -> tuple[Target, ...]:
        with self._answering():
            return self.reading.targets()

    def targets(self) -> tuple[Target, ...]:
        """The numbers of the answer that can be explained, the model's own choice first."""
        return self._targets

    def target(self, given: Target | None = None) -> Target:
        """`given`, checked, or the model's own answer."""
        if given is None:
            if not self._targets:
                raise InputError(*(self.reading.no_answer() or ("The text has no answer to explain.",)))
            return self._targets[0]
        self.check_row(given.row)
        for place in (given.place, given.end):
            if place is not None:
                self.check_place(place, given.row)
        return given

    @torch.no_grad()
    def score(self, target: Target | None = None, measure: Measure = "probability") -> float:
        """The number behind an answer: a probability, or the logit it is made from."""
        chosen = self.target(target)
        if (chosen, measure) in self._scores:
            return self._scores[chosen, measure]
        with self._answering():
            readouts = [self.reading.readout(row, self.reading.embeds(row)[None]) for row in range(len(self.rows))]
        self._scores[chosen, measure] = float(self.reading.score(readouts, chosen, measure)[0])
        return self._scores[chosen, measure]

    def ablate(self, off: Switches, means: Means | None = None) -> ablation.Ablation:
        """The answer without some parts of the model, or with their means (`session.means_of`) in their place."""
        self.need("ablate")
        return ablation.ablate(self, off, means)

    def attribute(
        self,
        method: Method = "integrated_gradients",
        target: Target | None = None,
        *,
        steps: int | None = None,
        baseline: Baseline = "pad",
        progress: Progress = None,
    ) -> Attribution:
        """Which tokens the answer, or another `target`, depends on.

        Integrated gradients take as many `steps` as their scores need to add up to within 1 % (50 to 800), or those
        that are given. `progress` is a bar, or a function that is given (done, of how many) and may raise to stop.
        """
        self.need("attribute")
        return attribution.attribute(self, method, target, steps, baseline, progress)

    def match(self) -> TokenMatch:
        """Which token of the first text matched which of the second."""
        self.need("match")
        return attribution.match(self)

    def patch(
        self,
        clean: Session,
        *,
        row: int = 0,
        target: Target | None = None,
        layers: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
        part: Part = "state",
        measure: Measure = "probability",
        progress: Progress = None,
    ) -> Patching:
        """The states of another text put into this one, layer by layer and token by token: which bring its answer back?

        `part` is the whole state, or what attention or the feed-forward network adds. Texts of different lengths need
        the `places` that stand for the same in both.
        """
        self.need("patch")
        return patching.patch(self, clean, row, target, layers, places, part, measure, progress)

    def patched_answer(
        self, clean: Session, layer: int, places: Sequence[int] | None = None, *, row: int = 0, part: Part = "state"
    ) -> Answer:
        """The task's own answer with the other text's states of a layer at some tokens, or at all."""
        self.need("patch")
        return patching.patched_answer(self, clean, row=row, layer=layer, places=places, part=part)

    # -- states ------------------------------------------------------------------------------------------------------

    def lens(self, top_k: int = 5, row: int = 0, places: Sequence[int] | None = None) -> Lens:
        """What the masked-word head says after each layer, at every token or at some."""
        self.need("lens")
        self.check_row(row)
        whole_number("top_k", top_k)
        return lens.lens(self, top_k, row, places)

    def drift(self, row: int = 0) -> Drift:
        """How far each token's state is from its first and from its last, after each layer."""
        return lens.drift(self, row)

    def trace(self, row: int = 0, place: int | None = None) -> Trace:
        """One forward pass, module by module, with the source; the numbers of one token (`place`), or of all."""
        return trace.trace(self, row, place)

    @torch.no_grad()
    def word_vector(self, id_: int) -> Tensor:
        """`[D]`."""
        vector: Tensor = self.model.get_input_embeddings()(torch.tensor([id_], device=self.device))[0]
        return vector

    def means_of(self, texts: Iterable[str | tuple[str, str]]) -> Means:
        """What every part of the model gives on average over the tokens of these texts."""
        return ablation.means_of(self.reading.loaded, texts)
