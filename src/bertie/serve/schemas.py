"""The bodies of requests and answers, as types: decoding checks them, and the OpenAPI document is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from bertie.answers import Candidate, Filling

R = TypeVar("R")
E = TypeVar("E")

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Direction = Literal["Left", "Right", "left", "right"]
Texts = str | list[str]
Pair = tuple[str, str]
# A label, a target: what is kept for the time of a request is bounded by its bytes, too.
Word = Annotated[str, Meta(max_length=4096)]
# A string, or [text], or [text, second text].
TextOrPairIn = str | Annotated[list[str], Meta(min_length=1, max_length=2)]


class Request(Struct, kw_only=True):
    """A body; unknown fields are ignored, as other servers do."""

    model: str | None = None


# -- OpenAI ---------------------------------------------------------------------------------------------------------


class EmbeddingsRequest(Request):
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None
    prompt_name: str | None = None  # ours
    normalize: bool | None = None  # ours
    truncate_dim: Count | None = None  # ours: as `dimensions`, the numbers left as they are


class EmbeddingOut(Struct):
    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class Usage(Struct, omit_defaults=True):
    prompt_tokens: int
    total_tokens: int
    truncated_texts: int | UnsetType = UNSET  # cut to the model's length, where any were


class Answer(Struct, Generic[R]):
    """What our own routes give: as many results as there were inputs."""

    model: str
    results: list[R]
    usage: Usage


def answer_of(task: str, kind: Any) -> type[Struct]:
    """The same for the document, with a name that generators of code can use."""
    return defstruct(f"{task.capitalize()}Answer", [("model", str), ("results", list[kind]), ("usage", Usage)])


class EmbeddingsAnswer(Struct):
    object: Literal["list"]
    data: list[EmbeddingOut]
    model: str
    usage: Usage


class ModelCard(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    tasks: list[str]
    state: str
    labels: list[str] | None = None
    mask_token: str | None = None
    max_input_length: int | None = None
    dimensions: int | None = None


class ModelList(Struct):
    object: Literal["list"]
    data: list[ModelCard]


# -- text-embeddings-inference --------------------------------------------------------------------------------------


class TeiRequest(Request, kw_only=True):
    truncate: bool | None = None
    truncation_direction: Direction = "Right"


class EmbedRequest(TeiRequest):
    inputs: str | list[str | TokenId | list[TokenId]]
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: Count | None = None


class EmbedAllRequest(TeiRequest):
    inputs: Texts
    prompt_name: str | None = None


class EmbedSparseRequest(EmbedAllRequest):
    pass


class SparseValue(Struct):
    index: int
    value: float


class TeiRerankRequest(TeiRequest):
    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False
    relevant: str | None = None  # ours: the label to rank by, of a classifier that has several


class Rank(Struct, omit_defaults=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


class PredictRequest(TeiRequest):
    inputs: str | list[str | list[str]]
    raw_scores: bool = False


class SimilarityInputs(Struct, kw_only=True):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Struct, kw_only=True):
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: str | None = None


class TeiSimilarityRequest(Request):
    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class TokenizeRequest(Request):
    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None


class DecodeRequest(Request):
    ids: list[TokenId | list[TokenId]]
    skip_special_tokens: bool = True


class Info(Struct):
    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
    models: list[ModelCard]


# -- Cohere ---------------------------------------------------------------------------------------------------------


class DocumentIn(Struct, kw_only=True):
    text: str


class CohereRerankRequest(Request):
    query: str
    documents: list[str | DocumentIn]
    top_n: Count | None = None
    return_documents: bool = False
    relevant: str | None = None  # ours: the label to rank by, of a classifier that has several


class CohereRank(Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: dict[str, str] | UnsetType = UNSET


class CohereRerankAnswer(Struct):
    id: str
    results: list[CohereRank]
    model: str
    usage: Usage
    meta: dict[str, dict[str, str | int]]


# -- ours -----------------------------------------------------------------------------------------------------------


class ClassifyRequest(Request):
    inputs: str | list[TextOrPairIn]
    top_k: Count | None = None
    multi_label: bool | None = None
    labels: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    hypothesis: Annotated[str, Meta(max_length=1000)] | None = None
    long: Literal["truncate", "windows"] = "truncate"


class FillRequest(Request):
    inputs: Texts
    top_k: Annotated[int, Meta(ge=1, le=100)] = 5
    targets: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    joint: bool = True


class FilledOut(Struct):
    text: str
    masks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...]


class NextRequest(Request):
    inputs: list[Pair]


class NextOut(Struct):
    probability: float
    follows: bool


class SimilarityRequest(Request):
    a: Texts
    b: Texts | None = None
    function: Literal["cosine", "dot", "euclidean", "manhattan"] | None = None


class SimilarityAnswer(Struct):
    model: str
    scores: list[list[float]]
    usage: Usage


# -- running the server ---------------------------------------------------------------------------------------------


class LoadRequest(Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^/?#%\x00-\x1f]+$")]
    source: Annotated[str, Meta(min_length=1, max_length=4096)]
    tasks: list[str] = []


class State(Struct, omit_defaults=True):
    status: str
    models: dict[str, str]
    engines: dict[str, str] | UnsetType = UNSET  # where they are processes of their own


class TeiError(Struct, omit_defaults=True):
    error: str
    error_type: str
    remedy: str | None = None


class OpenAIErrorDetail(Struct):
    message: str
    type: str
    param: str | None
    code: str | None
    remedy: str | None = None


class OpenAIError(Struct):
    error: OpenAIErrorDetail


def as_list(given: str | list[E]) -> list[str | E]:
    """One text as a list of it."""
    return [given] if isinstance(given, str) else [*given]


def as_item(given: str | list[str]) -> str | tuple[str, str]:
    """A text, or [text], or [text, second text]."""
    parts = as_list(given)
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])
