"""The token ids of a model's inputs: query, passage and template, each tokenized once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.templates import Rendered, templates
from mnemorank.errors import ArtifactError, QueryTooLongError, ScorerError
from mnemorank.scorers.protocol import Pair, Passage, Scores

_LEAST_ROOM = 8


@dataclass(frozen=True, slots=True)
class Input:
    """One model input. `types` are the segment ids of models that tell two segments apart."""

    ids: Ids
    types: Ids


class InputWriter:
    """Writes inputs as the manifest says: its template, instruction and length.

    Pair templates are joined as the tokenizer joins two segments. Others are the tokenizer's opening token (if it has
    one), prefix, content, suffix and the tokenizer's closing token; language models go without the closing one, since
    they are to continue the text.
    """

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self.tokenizer = tokenizer
        self.max_length = manifest.max_length
        self.template = templates[manifest.template]
        self._instruction = manifest.instruction or self.template.instruction or ""
        sample = self.template.render("a", "b", self._instruction)
        self._layout = PairLayout.of(tokenizer) if sample.second is not None else None
        # The plain pair is joined from ids at hand; a template that writes round its segments is tokenized again.
        self._is_plain_pair = sample == Rendered("a", "b")
        opening, closing = _special_ids(tokenizer)
        self._opening = opening
        self._closing = () if self.template.answers else closing
        self._piece = lru_cache(maxsize=256)(self._encode_piece)

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        return [Passage(text, len(ids), ids) for text, ids in zip(texts, encode(self.tokenizer, texts), strict=True)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return offsets(self.tokenizer, text)

    def room(self, query: str, instruction: str | None = None) -> int:
        """Tokens of a passage that fit beside this query."""
        rendered = self._render(query, "", instruction)
        if self._layout is not None:
            first, second = encode(self.tokenizer, [rendered.first, rendered.second or ""])
            fixed = len(first) + len(second) + self._layout.special + (0 if self._is_plain_pair else 1)
        else:
            before, after = self._around(rendered)
            # One more where the text's first token is split by what comes before it.
            content = len(encode(self.tokenizer, [rendered.first])[0]) + 1
            fixed = len(before) + content + len(after) + self.template.reserve
        if self.max_length - fixed < _LEAST_ROOM:
            raise QueryTooLongError(fixed, self.max_length)
        return self.max_length - fixed

    def write(self, pairs: Sequence[Pair]) -> list[Input]:
        """The inputs, in order. Content that is too long all the same is cut; prefix and suffix never are."""
        if self._layout is not None and self._is_plain_pair:
            queries = list(dict.fromkeys(pair.query for pair in pairs))
            asked = dict(zip(queries, encode(self.tokenizer, queries), strict=True))
            return [Input(*self._layout.join(asked[pair.query], pair.passage.ready)) for pair in pairs]
        rendered = [self._render(pair.query, pair.passage.text, pair.instruction) for pair in pairs]
        if self._layout is not None:
            firsts = encode(self.tokenizer, [each.first for each in rendered])
            seconds = encode(self.tokenizer, [each.second or "" for each in rendered])
            return [Input(*self._layout.join(*both)) for both in zip(firsts, seconds, strict=True)]
        contents = encode(self.tokenizer, [each.first for each in rendered])
        return [self._join(each, content) for each, content in zip(rendered, contents, strict=True)]

    def _render(self, query: str, text: str, instruction: str | None) -> Rendered:
        return self.template.render(query, text, instruction or self._instruction)

    def _join(self, rendered: Rendered, content: Ids) -> Input:
        before, after = self._around(rendered)
        room = max(self.max_length - len(before) - len(after), 0)
        ids = np.concatenate([before, content[:room], after])
        return Input(ids, np.zeros(len(ids), dtype=np.int64))

    def _around(self, rendered: Rendered) -> tuple[Ids, Ids]:
        before = [token for piece in rendered.prefix for token in self._piece(piece)]
        after = [token for piece in rendered.suffix for token in self._piece(piece)]
        return (
            np.array([*self._opening, *before], dtype=np.int64),
            np.array([*after, *self._closing], dtype=np.int64),
        )

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(clean(piece), add_special_tokens=False).ids)


def _special_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the tokenizer puts before and after a single text."""
    probe = tokenizer.encode("a")
    own = [i for i, special in enumerate(probe.special_tokens_mask) if not special]
    return tuple(probe.ids[: own[0]]), tuple(probe.ids[own[-1] + 1 :])


Ids = NDArray[np.int64]


def load_tokenizer(path: Path) -> Tokenizer:
    """Read `tokenizer.json` with truncation and padding off: both are ours to do, and never silently."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ArtifactError(f"{path}: cannot be read as a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def clean(text: str) -> str:
    """The text with lone surrogates replaced, which no tokenizer can encode; all else is left to the tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@dataclass(frozen=True, slots=True)
class PairLayout:
    """The special tokens around two segments, and the segments' type ids."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[int, int, int, int, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairLayout:
        """Read the layout off a probe, so that BERT, RoBERTa, XLM-R and DeBERTa need no code of their own."""
        probe = tokenizer.encode("a", "b")
        side = probe.sequence_ids
        first = [i for i, s in enumerate(side) if s == 0]
        second = [i for i, s in enumerate(side) if s == 1]
        if not first or not second:
            raise ArtifactError("the tokenizer does not join two segments; the pair template cannot be used with it")
        a, b, c, d = first[0], first[-1] + 1, second[0], second[-1] + 1
        ids, types = probe.ids, probe.type_ids
        return cls(
            tuple(ids[:a]),
            tuple(ids[b:c]),
            tuple(ids[d:]),
            tuple(types[min(i, len(types) - 1)] for i in (0, a, b, c, d)),  # type: ignore[arg-type]
        )

    @property
    def special(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, query: Ids, passage: Ids) -> tuple[Ids, Ids]:
        """Token ids and type ids of the pair."""
        parts = (self.before, query, self.between, passage, self.after)
        ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        return ids, np.repeat(np.array(self.types, dtype=np.int64), [len(part) for part in parts])


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    """Token ids of each text, without special tokens."""
    cleaned = [clean(text) for text in texts]
    return [np.array(e.ids, dtype=np.int64) for e in tokenizer.encode_batch_fast(cleaned, add_special_tokens=False)]


def offsets(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Character spans of the text's tokens. A lone surrogate is one character, before and after cleaning."""
    return list(tokenizer.encode(clean(text), add_special_tokens=False).offsets)


def pack(lengths: Sequence[int], token_budget: int, most: int | None = None) -> list[list[int]]:
    """Positions grouped into batches, longest first; a batch's padded size stays within the budget.

    Like lengths go together, so that little is padding. A passage longer than the budget is a batch of its own.

    :param most: the largest number of passages in a batch.
    """
    if token_budget < 1 or (most is not None and most < 1):
        raise ValueError(f"token_budget and most must be at least 1, got {token_budget} and {most}")
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda p: -lengths[p]):
        batch = batches[-1] if batches else None
        if (
            batch is not None
            and lengths[batch[0]] * (len(batch) + 1) <= token_budget
            and (most is None or len(batch) < most)
        ):
            batch.append(position)
        else:
            batches.append([position])
    return batches


def pack_in_order(lengths: Sequence[int], token_budget: int, most: int | None = None) -> list[list[int]]:
    """Like `pack`, but earlier positions come in earlier batches: for a deadline, where the first matter most."""
    batches: list[list[int]] = []
    longest = 0
    for position, length in enumerate(lengths):
        longest = max(longest, length)
        batch = batches[-1] if batches else None
        if batch is not None and longest * (len(batch) + 1) <= token_budget and (most is None or len(batch) < most):
            batch.append(position)
        else:
            batches.append([position])
            longest = length
    return batches


def one_score_a_row(logits: Scores, name: str) -> Scores:
    """The only logit of a regression head, or the log-odds of the second of two classes."""
    if logits.ndim == 1:
        return logits
    if logits.ndim == 2 and logits.shape[1] == 1:
        return np.asarray(logits[:, 0])
    if logits.ndim == 2 and logits.shape[1] == 2:
        return np.asarray(logits[:, 1] - logits[:, 0])
    raise ScorerError(f"{name}: expected one or two logits a pair, got an output of shape {logits.shape}")
