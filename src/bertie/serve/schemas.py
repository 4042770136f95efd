"""The bodies of requests and answers, as types: decoding checks them, and the OpenAPI document is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

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
    """A body; fields that are not known are passed over, as other servers do."""

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


class EmbedRequest(Request):
    inputs: str | list[str | TokenId | list[TokenId]]
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: Count | None = None


class EmbedAllRequest(Request):
    inputs: Texts
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: str | None = None


class EmbedSparseRequest(Request):
    inputs: Texts
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: str | None = None


class SparseValue(Struct):
    index: int
    value: float


class TeiRerankRequest(Request):
    query: str
    texts: list[str]
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    raw_scores: bool = False
    return_text: bool = False
    relevant: str | None = None  # ours: the label to rank by, of a classifier that has several


class Rank(Struct, omit_defaults=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


class PredictRequest(Request):
    inputs: str | list[str | list[str]]
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    raw_scores: bool = False


class Prediction(Struct):
    label: str
    score: float


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


class TokenOut(Struct):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


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
    meta: dict[str, Any]


# -- ours -----------------------------------------------------------------------------------------------------------


class ClassifyRequest(Request):
    inputs: str | list[TextOrPairIn]
    top_k: Count | None = None
    multi_label: bool | None = None
    labels: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    hypothesis: Annotated[str, Meta(max_length=1000)] | None = None
    long: Literal["truncate", "windows"] = "truncate"


class ClassifyAnswer(Struct):
    model: str
    results: list[list[Prediction]]
    usage: Usage


class TagRequest(Request):
    inputs: Texts
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignore_labels: Annotated[list[Word], Meta(max_length=100)] | None = None


class EntityOut(Struct):
    label: str
    text: str
    start: int
    end: int
    score: float
    index: int


class TagAnswer(Struct):
    model: str
    results: list[list[EntityOut]]
    usage: Usage


class QuestionIn(Struct, kw_only=True):
    question: str
    context: str


class AnswerRequest(Request):
    question: str | None = None
    context: str | None = None
    inputs: list[QuestionIn] | None = None
    n_best: Annotated[int, Meta(ge=1, le=100)] = 1
    max_answer_tokens: Annotated[int, Meta(ge=1, le=512)] = 30
    no_answer: bool | None = None
    threshold: float = 0.0


class FoundOut(Struct):
    text: str
    start: int
    end: int
    score: float
    logit: float


class AnswerOut(Struct):
    question: str
    best: FoundOut | None
    candidates: list[FoundOut]
    no_answer_score: float
    no_answer_logit: float


class AnswerAnswer(Struct):
    model: str
    results: list[AnswerOut]
    usage: Usage


class FillRequest(Request):
    inputs: Texts
    top_k: Annotated[int, Meta(ge=1, le=100)] = 5
    targets: Annotated[list[Word], Meta(min_length=1, max_length=100)] | None = None
    joint: bool = True


class CandidateOut(Struct):
    token: str
    score: float
    text: str
    ids: list[int]


class FillingOut(Struct):
    tokens: list[str]
    score: float
    text: str


class FilledOut(Struct):
    text: str
    masks: list[list[CandidateOut]]
    fillings: list[FillingOut]


class FillAnswer(Struct):
    model: str
    results: list[FilledOut]
    usage: Usage


class NextRequest(Request):
    inputs: list[Pair]


class NextOut(Struct):
    probability: float
    follows: bool


class NextAnswer(Struct):
    model: str
    results: list[NextOut]
    usage: Usage


class FeaturesRequest(Request):
    inputs: str | list[TextOrPairIn]
    layers: Annotated[list[Annotated[int, Meta(ge=-1000, le=1000)]], Meta(min_length=1, max_length=100)] | None = None
    long: Literal["truncate", "windows"] = "truncate"


class LayerOut(Struct):
    index: int
    values: list[float]


class TokenFeaturesOut(Struct):
    token: str
    layers: list[LayerOut]


class FeaturesOut(Struct):
    tokens: list[TokenFeaturesOut]


class FeaturesAnswer(Struct):
    model: str
    results: list[FeaturesOut]
    usage: Usage


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


class State(Struct):
    status: str
    models: dict[str, str]


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
