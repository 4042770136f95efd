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
        "词元变编号",
        "The text was cut into word pieces, the longest that the vocabulary has. This one, “{token}”, is number {id}. "
        "From here on the model sees only the number.",
        "文本被切成词表里最长的词元。这一个“{token}”的编号是 {id}。从这里起，模型只看到编号。",
        "id = vocabulary[“{token}”] = {id}",
        longest_pieces,
        ("piece in vocab",),
    ),
    "word": StepText(
        "Word vector",
        "词向量",
        "Row {id} of the table of word vectors: what the word means before anything around it is known.",
        "词向量表的第 {id} 行：在看到上下文之前，这个词的意思。",
        "e = E_word[{id}]",
        BertEmbeddings.forward,
        ("self.word_embeddings(",),
    ),
    "segment": StepText(
        "+ segment",
        "＋片段向量",
        "A vector for the first or second text is added; this token is in segment {segment}.",
        "加上表示第几段文本的向量；这个词元属于片段 {segment}。",
        "e ← e + E_segment[{segment}]",
        BertEmbeddings.forward,
        ("self.token_type_embeddings(",),
    ),
    "position": StepText(
        "+ position",
        "＋位置向量",
        "Attention has no notion of order, so a vector for place {place} is added.",
        "注意力本身不知道顺序，所以加上位置 {place} 的向量。",
        "e ← e + E_position[{place}]",
        BertEmbeddings.forward,
        ("self.position_embeddings(",),
    ),
    "embedding_norm": StepText(
        "LayerNorm",
        "层归一化",
        "The numbers are shifted and scaled to mean 0 and deviation 1, then stretched by learned factors. This is what "
        "the first layer gets.",
        "把这些数平移、缩放到均值 0、标准差 1，再乘上学到的系数。这就是第一层的输入。",
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
        "每个头都向其他词元提一个问题；问题由这个词元的状态计算得来。",
        "q = W_Q x + b_Q",
        BertSelfAttention.forward,
        ("self.query(hidden_states)",),
    ),
    "key": StepText(
        "Key: what it is found by",
        "键（key）：凭什么被找到",
        "What this token offers to the questions of others.",
        "这个词元用什么来回应别人的问题。",
        "k = W_K x + b_K",
        BertSelfAttention.forward,
        ("self.key(hidden_states)",),
    ),
    "value": StepText(
        "Value: what it hands over",
        "值（value）：交出什么",
        "What others receive if they look at this token.",
        "别人看向这个词元时得到的内容。",
        "v = W_V x + b_V",
        BertSelfAttention.forward,
        ("self.value(hidden_states)",),
    ),
    "weights": StepText(
        "Attention weights",
        "注意力权重",
        "The question is compared with the key of every token; softmax turns the scores into shares that add up to 1. "
        "These are the shares of the chosen head.",
        "把查询与每个词元的键比较；softmax 把得分变成总和为 1 的份额。下面是所选头的份额。",
        "a = softmax(q · kᵀ / √H)",
        attention_probabilities,
        ("q @ k.transpose", "torch.softmax("),
    ),
    "context": StepText(
        "Context: what was gathered",
        "上下文：收集到的内容",
        "The values of all tokens, averaged by those shares, head by head.",
        "按这些份额对所有词元的值加权平均，逐头进行。",
        "c = Σ a · v",
        BertSelfAttention.forward,
        ("context, maps = attention(", "q, k, v, plan", "self.join_heads(context)"),
    ),
    "mix": StepText(
        "Heads mixed",
        "各头混合",
        "What the heads gathered side by side is mixed into one vector.",
        "把各个头并排收集的内容混合成一个向量。",
        "m = W_O c + b_O",
        BertSelfOutput.forward,
        ("self.dense(hidden_states)",),
    ),
    "attention_norm": StepText(
        "+ what came in, LayerNorm",
        "＋输入，层归一化",
        "The token keeps what it was: the mix is added to the state that came in, and the sum normalised.",
        "词元保留原来的内容：把混合结果加到输入的状态上，再归一化。",
        "y = LayerNorm(m + x)",
        BertAttention.forward,
        ("self.output(context, hidden_states)",),
    ),
    "wide": StepText(
        "Feed-forward: wide",
        "前馈：变宽",
        "Each token by itself goes through a wide layer. GELU lets through what is positive and stops most of the "
        "rest.",
        "每个词元各自经过一个更宽的层。GELU 让正数通过，抑制其余的大部分。",
        "h = GELU(W₁ y + b₁)",
        BertIntermediate.forward,
        ("self.intermediate_act_fn(",),
    ),
    "narrow": StepText(
        "Feed-forward: narrow",
        "前馈：变窄",
        "And back to the width of the state.",
        "再变回状态的宽度。",
        "f = W₂ h + b₂",
        BertOutput.forward,
        ("self.dense(hidden_states)",),
    ),
    "feed_norm": StepText(
        "+ what came in, LayerNorm",
        "＋输入，层归一化",
        "Added to what came in and normalised: the state that the next layer gets.",
        "加到输入上并归一化：这就是下一层得到的状态。",
        "x′ = LayerNorm(f + y)",
        BertOutput.forward,
        ("self.LayerNorm(",),
    ),
    "transform": StepText(
        "Before the vocabulary",
        "进入词表之前",
        "After the last layer, one more dense layer with GELU and LayerNorm prepares the state to be compared with "
        "words.",
        "最后一层之后，再经过一个带 GELU 和层归一化的全连接层，准备与词比较。",
        "z = LayerNorm(GELU(W x + b))",
        BertPredictionHeadTransform.forward,
        ("self.LayerNorm(",),
    ),
    "vocabulary": StepText(
        "A score for every word",
        "每个词的得分",
        "The state is compared with the vector of every word of the vocabulary; softmax makes probabilities of the "
        "scores. At [MASK] the best is the prediction; elsewhere it is mostly the token itself.",
        "把状态与词表里每个词的向量比较；softmax 把得分变成概率。"
        "在 [MASK] 处，最高者就是预测；其他位置大多是词元自己。",
        "p = softmax(E_word z + b)",
        BertLMPredictionHead.forward,
        ("self.decoder(",),
    ),
    "pooler": StepText(
        "Pooler: [CLS] for the whole text",
        "池化：[CLS] 代表全文",
        "Only the state of the first token, [CLS], goes on. It has gathered from all others, this one included.",
        "只有第一个词元 [CLS] 的状态继续向前；它已从所有词元（包括这一个）收集了内容。",
        "p = tanh(W x_CLS + b)",
        BertPooler.forward,
        ("self.activation(self.dense(first))",),
    ),
    "classify": StepText(
        "A score for every label",
        "每个标签的得分",
        "One row of weights to a label; softmax makes probabilities of the scores.",
        "每个标签一行权重；softmax 把得分变成概率。",
        "p = softmax(W p + b)",
        TextModel.judge,
        ("self.classifier(",),
    ),
    "tag": StepText(
        "A score for every tag",
        "每个标记的得分",
        "This token's last state is judged by itself: one row of weights to a tag.",
        "单独判断这个词元的最后状态：每个标记一行权重。",
        "p = softmax(W x + b)",
        BertForTokenClassification.forward,
        ("self.classifier(",),
    ),
    "span": StepText(
        "Does the answer start or end here?",
        "答案在此开始或结束吗？",
        "Two scores for each token. The best pair of start and end in the text is the answer.",
        "每个词元两个得分。全文中最好的一对起点与终点就是答案。",
        "(start, end) = W x + b",
        BertForQuestionAnswering.forward,
        ("self.qa_outputs(",),
    ),
    "next": StepText(
        "Does the second text follow?",
        "第二段是下一句吗？",
        "Two scores: the second text follows the first, or is from elsewhere.",
        "两个得分：第二段紧接第一段，或来自别处。",
        "p = softmax(W p + b)",
        BertOnlyNSPHead.forward,
        ("self.seq_relationship(",),
    ),
    "state": StepText(
        "The last state",
        "最后的状态",
        "What the token means in this text. A sentence's vector is the mean of these, or that of [CLS].",
        "这个词元在本文中的意思。句子的向量是它们的平均，或是 [CLS] 的状态。",
        "x = xₗ",
        BertEncoder.forward,
        ("hidden_states, maps, cross_maps = run_layer(",),
    ),
}
