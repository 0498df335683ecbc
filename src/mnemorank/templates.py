"""How a query and a written memory become one model input. Named in the model's manifest.

To add one: write a function that renders query, text and instruction, and register it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mnemorank.features import feature_prefix
from mnemorank.registry import Registry


@dataclass(frozen=True, slots=True)
class Rendered:
    """A model input as text.

    `second` is set where the tokenizer joins two segments in its own way (BERT's `[CLS] a [SEP] b [SEP]`). `prefix` and
    `suffix` are tokenized apart from the rest and are never cut.
    """

    first: str
    second: str | None = None
    prefix: str = ""
    suffix: str = ""

    @property
    def text(self) -> str:
        return self.prefix + self.first + (self.second or "") + self.suffix


@dataclass(frozen=True, slots=True)
class Template:
    """:param instruction: the default instruction, None where the template has no place for one.
    :param answers: for language models, the two words whose logits are the score: (no, yes).
    """

    name: str
    description: str
    render: Callable[[str, str, str], Rendered]
    instruction: str | None = None
    answers: tuple[str, str] | None = None


templates: Registry[Template] = Registry("template")

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
    return Rendered(_instructed(query, text, instruction), prefix=YES_NO_PREFIX, suffix=YES_NO_SUFFIX)


def _features(query: str, text: str, instruction: str) -> Rendered:
    return Rendered(f"{feature_prefix(query, text)} {query} [SEP] {text}")


templates.add(Template("pair", "two segments, joined by the tokenizer (cross-encoders)", _pair))
templates.add(
    Template(
        "instruct",
        "<Instruct>, <Query>, <Document> lines for a sequence classifier (R1)",
        _instruct,
        instruction="Given a user query, retrieve memory snippets that answer the query",
    )
)
templates.add(
    Template(
        "yes-no",
        "chat prompt whose next token is yes or no (R3, Qwen3-Reranker)",
        _yes_no,
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        answers=("no", "yes"),
    )
)
templates.add(Template("features", "[HOP:h] [ROLE:r] [ENT:…] … query [SEP] text (R4)", _features))
