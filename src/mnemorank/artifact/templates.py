"""Templates: how a query and the text of a memory become one model input. The manifest names the model's template.

To add a template, write a function that renders query, text and instruction, and register it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mnemorank._internal.plugins import PluginTable
from mnemorank.artifact.hop_features import feature_prefix


@dataclass(frozen=True, slots=True)
class Rendered:
    """A model input as text.

    :param second: the second segment, for models whose tokenizer joins two (BERT's `[CLS] a [SEP] b [SEP]`).
    :param prefix: pieces before the content. Each piece is tokenized on its own and never truncated.
    :param suffix: pieces after the content, treated likewise.
    """

    first: str
    second: str | None = None
    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "".join((*self.prefix, self.first, self.second or "", *self.suffix))


@dataclass(frozen=True, slots=True)
class Template:
    """A named way to write model inputs.

    :param instruction: the default instruction; None if the template takes none.
    :param answers: for language models, the two words whose logits are compared: (no, yes). If the first is None, the
        score is the logit of the second.
    :param reserve: tokens reserved for what the template derives from the passage.
    """

    name: str
    description: str
    render: Callable[[str, str, str], Rendered]
    instruction: str | None = None
    answers: tuple[str | None, str] | None = None
    reserve: int = 0


templates: PluginTable[Template] = PluginTable("template")

YES_NO_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
YES_NO_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def _pair(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(query, text)


def _instructed(query: str, text: str, instruction: str) -> str:
    return f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {text}"


def _instruct(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(_instructed(query, text, instruction))


def _yes_no(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(_instructed(query, text, instruction), prefix=(YES_NO_PREFIX,), suffix=(YES_NO_SUFFIX,))


def _features(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(f"{feature_prefix(query, text)} {query} [SEP] {text}")


templates.add(Template("pair", "two segments, joined by the tokenizer (cross-encoders)", _pair))
templates.add(
    Template(
        "instruct",
        "<Instruct>, <Query>, <Document> lines for a sequence classifier (LycheeMem)",
        _instruct,
        instruction="Given a user query, retrieve memory snippets that answer the query",
    )
)
templates.add(
    Template(
        "yes-no",
        "chat prompt whose next token is yes or no (RerankerService, Qwen3-Reranker)",
        _yes_no,
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        answers=("no", "yes"),
    )
)
templates.add(
    Template("features", "[HOP:h] [ROLE:r] [ENT:…] … query [SEP] text (multi-hop-rag-reranker)", _features, reserve=48)
)


def _mxbai(query: str, text: str, instruction: str) -> Rendered:
    question = f"instruction: {instruction}\nquery: {query}" if instruction else f"query: {query}"
    return Rendered(
        f"document: {text}", prefix=(_MXBAI_PREFIX, question, "\n"), suffix=("\n", _MXBAI_TASK, _MXBAI_SUFFIX)
    )


_MXBAI_PREFIX = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n"
)
_MXBAI_TASK = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 "
    "for not relevant, 1 for relevant).\nRelevance:"
)
_MXBAI_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"

templates.add(
    Template(
        "mxbai",
        "chat prompt whose next token is 0 or 1 (mxbai-rerank v2)",
        _mxbai,
        instruction="",
        answers=("0", "1"),
    )
)


def _gemma(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(f"B: {text}", prefix=(f"A: {query}", "\n"), suffix=("\n", instruction))


templates.add(
    Template(
        "gemma",
        "A: query, B: text and a question whose next token is Yes (bge-reranker-v2-gemma)",
        _gemma,
        instruction="Given a query A and a passage B, determine whether the passage contains an answer to the query by "
        "providing a prediction of either 'Yes' or 'No'.",
        answers=(None, "Yes"),
    )
)
