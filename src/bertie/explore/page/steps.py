"""What each step of the walk is called, does and computes, in English and Chinese, and where its source is.

`marks` are parts of the lines that compute the step; a test holds that each is found in its function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bertie.model.bert import (
    BertAttention,
    BertEmbeddings,
    BertEncoder,
    BertIntermediate,
    BertOutput,
    BertPooler,
    BertSelfAttention,
    BertSelfOutput,
)
from bertie.model.classifiers import BertForQuestionAnswering, BertForTokenClassification, TextModel
from bertie.model.heads import BertLMPredictionHead, BertOnlyNSPHead, BertPredictionHeadTransform
from bertie.ops.attention import attention_probabilities
from bertie.text.wordpiece.reference import longest_pieces


@dataclass(frozen=True, eq=False)
class StepText:
    title: str
    title_zh: str
    says: str
    says_zh: str
    formula: str
    function: Callable[..., object]
    marks: tuple[str, ...]


STEPS: Mapping[str, StepText] = {
    "id": StepText(
        "Word piece to id",
        "词元变成 id",
        "The text was cut into word pieces, the longest that the vocabulary has. This one, “{token}”, is number {id}. "
        "From here on the model sees only the number.",
        "文本按词表被切成尽可能长的词元。这个词元“{token}”的 id 是 {id}。从这里开始，模型看到的只有 id。",
        "id = vocabulary[“{token}”] = {id}",
        longest_pieces,
        ("piece in vocab",),
    ),
    "word": StepText(
        "Word vector",
        "词向量",
        "Row {id} of the table of word vectors: what the word means before anything around it is known.",
        "词向量表的第 {id} 行：在看到上下文之前，这个词本身的含义。",
        "e = E_word[{id}]",
        BertEmbeddings.forward,
        ("self.word_embeddings(",),
    ),
    "segment": StepText(
        "+ segment",
        "＋片段向量",
        "A vector for the first or second text is added; this token is in segment {segment}.",
        "加上表示属于哪一段文本的向量；这个词元属于片段 {segment}。",
        "e ← e + E_segment[{segment}]",
        BertEmbeddings.forward,
        ("self.token_type_embeddings(",),
    ),
    "position": StepText(
        "+ position",
        "＋位置向量",
        "Attention has no notion of order, so a vector for place {place} is added.",
        "注意力本身不区分顺序，所以要加上位置 {place} 的向量。",
        "e ← e + E_position[{place}]",
        BertEmbeddings.forward,
        ("self.position_embeddings(",),
    ),
    "embedding_norm": StepText(
        "LayerNorm",
        "层归一化",
        "The numbers are shifted and scaled to mean 0 and deviation 1, then stretched by learned factors. This is what "
        "the first layer gets.",
        "把这些数平移、缩放，使均值为 0、标准差为 1，再乘上学到的系数。这就是第一层的输入。",
        "x₀ = γ · (e − mean(e)) / √(var(e) + ε) + β",
        BertEmbeddings.forward,
        ("self.LayerNorm(",),
    ),
    "project": StepText(
        "To the width of the layers",
        "变到各层的宽度",
        "This model's embeddings are narrower than its layers. A learned matrix makes them as wide as the first layer "
        "wants them.",
        "这个模型的嵌入比各层窄，要用一个学到的矩阵变到第一层需要的宽度。",
        "x₀ ← W x₀ + b",
        BertEmbeddings.forward,
        ("self.project(",),
    ),
    "query": StepText(
        "Query: what is looked for",
        "查询（query）：在找什么",
        "Every head asks a question of the other tokens. The question is a learned mix of this token's state.",
        "每个头都向其他词元提一个问题，这个问题由当前词元的状态算出。",
        "q = W_Q x + b_Q",
        BertSelfAttention.forward,
        ("self.query(hidden_states)",),
    ),
    "key": StepText(
        "Key: what it is found by",
        "键（key）：靠什么被找到",
        "What this token offers to the questions of others.",
        "这个词元拿什么来应答其他词元的问题。",
        "k = W_K x + b_K",
        BertSelfAttention.forward,
        ("self.key(hidden_states)",),
    ),
    "value": StepText(
        "Value: what it hands over",
        "值（value）：交出什么",
        "What others receive if they look at this token.",
        "其他词元关注这个词元时得到的内容。",
        "v = W_V x + b_V",
        BertSelfAttention.forward,
        ("self.value(hidden_states)",),
    ),
    "weights": StepText(
        "Attention weights",
        "注意力权重",
        "The question is compared with the key of every token; softmax turns the scores into shares that add up to 1. "
        "These are the shares of the chosen head.",
        "把查询与每个词元的键比较，softmax 把分数变成总和为 1 的权重。下面是所选的头的权重。",
        "a = softmax(q · kᵀ / √H)",
        attention_probabilities,
        ("q @ k.transpose", "torch.softmax("),
    ),
    "context": StepText(
        "Context: what was gathered",
        "上下文：收集到的内容",
        "The values of all tokens, averaged by those shares, head by head.",
        "每个头各自按这些权重，对所有词元的值加权平均。",
        "c = Σ a · v",
        BertSelfAttention.forward,
        ("context, maps = attention(", "q, k, v, plan", "self.join_heads(context)"),
    ),
    "mix": StepText(
        "Heads mixed",
        "混合各个头",
        "What the heads gathered side by side is mixed into one vector.",
        "各个头收集到的内容并排放着，在这里混合成一个向量。",
        "m = W_O c + b_O",
        BertSelfOutput.forward,
        ("self.dense(hidden_states)",),
    ),
    "attention_norm": StepText(
        "+ what came in, LayerNorm",
        "＋输入，层归一化",
        "The token keeps what it was: the mix is added to the state that came in, and the sum normalised.",
        "残差连接：把混合的结果加到输入的状态上，保留原有内容，再做归一化。",
        "y = LayerNorm(m + x)",
        BertAttention.forward,
        ("self.output(context, hidden_states)",),
    ),
    "wide": StepText(
        "Feed-forward: wide",
        "前馈：变宽",
        "Each token by itself goes through a wide layer. GELU lets through what is positive and stops most of the "
        "rest.",
        "每个词元单独经过一个更宽的层。GELU 让正数通过，其余大部分被抑制。",
        "h = GELU(W₁ y + b₁)",
        BertIntermediate.forward,
        ("self.intermediate_act_fn(",),
    ),
    "narrow": StepText(
        "Feed-forward: narrow",
        "前馈：变窄",
        "And back to the width of the state.",
        "再变回状态原来的宽度。",
        "f = W₂ h + b₂",
        BertOutput.forward,
        ("self.dense(hidden_states)",),
    ),
    "feed_norm": StepText(
        "+ what came in, LayerNorm",
        "＋输入，层归一化",
        "Added to what came in and normalised: the state that the next layer gets.",
        "再次残差连接并归一化，得到送入下一层的状态。",
        "x′ = LayerNorm(f + y)",
        BertOutput.forward,
        ("self.LayerNorm(",),
    ),
    "transform": StepText(
        "Before the vocabulary",
        "映射到词表之前",
        "After the last layer, one more dense layer with GELU and LayerNorm prepares the state to be compared with "
        "words.",
        "最后一层之后，再经过一个带 GELU 和层归一化的全连接层，为与各个词比较做准备。",
        "z = LayerNorm(GELU(W x + b))",
        BertPredictionHeadTransform.forward,
        ("self.LayerNorm(",),
    ),
    "vocabulary": StepText(
        "A score for every word",
        "每个词的分数",
        "The state is compared with the vector of every word of the vocabulary; softmax makes probabilities of the "
        "scores. At [MASK] the best is the prediction; elsewhere it is mostly the token itself.",
        "把状态与词表里每个词的向量比较，softmax 把分数变成概率。"
        "在 [MASK] 处，概率最高的词就是预测结果；在其他位置，多半是词元自己。",
        "p = softmax(E_word z + b)",
        BertLMPredictionHead.forward,
        ("self.decoder(",),
    ),
    "pooler": StepText(
        "Pooler: [CLS] for the whole text",
        "池化：[CLS] 代表全文",
        "Only the state of the first token, [CLS], goes on. It has gathered from all others, this one included.",
        "只有第一个词元 [CLS] 的状态继续往下走；它已经从所有词元（包括这一个）那里收集了信息。",
        "p = tanh(W x_CLS + b)",
        BertPooler.forward,
        ("self.activation(self.dense(first))",),
    ),
    "classify": StepText(
        "A score for every label",
        "每个标签的分数",
        "One row of weights to a label; softmax makes probabilities of the scores.",
        "每个标签对应一行权重，softmax 把分数变成概率。",
        "p = softmax(W p + b)",
        TextModel.judge,
        ("self.classifier(",),
    ),
    "tag": StepText(
        "A score for every tag",
        "每个实体标签的分数",
        "This token's last state is judged by itself: one row of weights to a tag.",
        "只看这个词元的最终状态来判断：每个标签对应一行权重。",
        "p = softmax(W x + b)",
        BertForTokenClassification.forward,
        ("self.classifier(",),
    ),
    "span": StepText(
        "Does the answer start or end here?",
        "答案从这里开始或结束吗？",
        "Two scores for each token. The best pair of start and end in the text is the answer.",
        "每个词元有两个分数。全文中分数最高的一对起点和终点就是答案。",
        "(start, end) = W x + b",
        BertForQuestionAnswering.forward,
        ("self.qa_outputs(",),
    ),
    "next": StepText(
        "Does the second text follow?",
        "第二段是下一句吗？",
        "Two scores: the second text follows the first, or is from elsewhere.",
        "两个分数：第二段接在第一段之后，或者来自别处。",
        "p = softmax(W p + b)",
        BertOnlyNSPHead.forward,
        ("self.seq_relationship(",),
    ),
    "state": StepText(
        "The last state",
        "最终状态",
        "What the token means in this text. A sentence's vector is the mean of these, or that of [CLS].",
        "这个词元在这段文本中的含义。句向量是所有最终状态的平均，或者直接取 [CLS] 的状态。",
        "x = xₗ",
        BertEncoder.forward,
        ("hidden_states, maps, cross_maps = run_layer(",),
    ),
}
