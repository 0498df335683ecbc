"""From pairs of query and passage to token ids, and from token ids to batches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mnemorank._internal.byte_cache import ByteCache
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.templates import Rendered, templates
from mnemorank.errors import ArtifactError, QueryTooLongError, ScorerError
from mnemorank.scorers.protocol import Pair, Passage, Scores

Ids = NDArray[np.int64]

_MIN_ROOM = 8
# Of tokenized texts that are kept: about 6,000 memories of 80 tokens.
_CACHED_BYTES = 8_000_000
_BYTES_PER_PASSAGE = 400  # of a passage's objects, without its text and its token ids


@dataclass(frozen=True, slots=True)
class Input:
    """The token ids of one model input, and the segment ids (`token_type_ids`) for models that have two segments."""

    ids: Ids
    types: Ids


class InputWriter:
    """Writes model inputs with the template, instruction and length of the manifest.

    Pair templates are joined the way the tokenizer joins two segments. All others consist of the tokenizer's opening
    token (if any), prefix, content, suffix and the tokenizer's closing token. Language models get no closing token,
    since they continue the text.
    """

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self.tokenizer = tokenizer
        self.max_length = manifest.max_length
        self.template = templates[manifest.template]
        self._instruction = manifest.instruction or self.template.instruction or ""
        sample = self.template.render("a", "b", self._instruction)
        self._layout = PairLayout.of(tokenizer) if sample.second is not None else None
        # A plain pair is joined from existing token ids; templates that add text must be tokenized again.
        self._is_plain_pair = sample == Rendered("a", "b")
        opening, closing = _special_ids(tokenizer)
        self._opening = opening
        self._closing = () if self.template.answers else closing
        # Not a method: a cache that refers to its owner would keep a closed model in memory until the next collection.
        # Not a bound method: the cycle would keep a closed model in memory until the next garbage collection.
        self._piece = lru_cache(maxsize=256)(partial(_encode_piece, tokenizer))
        self._passages = PassageEncoder(tokenizer)

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        return self._passages.encode(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return offsets(self.tokenizer, text)

    def room(self, query: str, instruction: str | None = None) -> int:
        """Return how many tokens of a passage fit next to the query."""
        rendered = self._render(query, "", instruction)
        if self._layout is not None:
            first, second = encode(self.tokenizer, [rendered.first, rendered.second or ""])
            fixed = len(first) + len(second) + self._layout.special + (0 if self._is_plain_pair else 1)
        else:
            before, after = self._around(rendered)
            # One more, since the text before the passage can split its first token.
            content = len(encode(self.tokenizer, [rendered.first])[0]) + 1
            fixed = len(before) + content + len(after) + self.template.reserve
        if self.max_length - fixed < _MIN_ROOM:
            raise QueryTooLongError(fixed, self.max_length)
        return self.max_length - fixed

    def write(self, pairs: Sequence[Pair]) -> list[Input]:
        """Return the inputs in order. Content that is too long is truncated, prefix and suffix never are."""
        if self._layout is not None and self._is_plain_pair:
            queries = list(dict.fromkeys(pair.query for pair in pairs))
            query_ids = dict(zip(queries, encode(self.tokenizer, queries), strict=True))
            return [Input(*self._layout.join(query_ids[pair.query], pair.passage.encoded)) for pair in pairs]
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


def _encode_piece(tokenizer: Tokenizer, piece: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(clean(piece), add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True)
class PairLayout:
    """The special tokens around two segments, and the segment ids of the five parts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[int, int, int, int, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairLayout:
        """Derive the layout from a sample, so that BERT, RoBERTa, XLM-R and DeBERTa need no special cases."""
        sample = tokenizer.encode("a", "b")
        first = [i for i, sequence in enumerate(sample.sequence_ids) if sequence == 0]
        second = [i for i, sequence in enumerate(sample.sequence_ids) if sequence == 1]
        if not first or not second:
            raise ArtifactError("the tokenizer does not join two segments, as the pair template needs")
        a, b, c, d = first[0], first[-1] + 1, second[0], second[-1] + 1
        ids, types = sample.ids, sample.type_ids
        return cls(
            tuple(ids[:a]),
            tuple(ids[b:c]),
            tuple(ids[d:]),
            tuple(types[min(i, len(types) - 1)] for i in (0, a, b, c, d)),  # type: ignore[arg-type]
        )

    @property
    def special(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, query: Ids, passage: Ids) -> tuple[Ids, Ids]:
        """Return the token ids and segment ids of a pair."""
        parts = (self.before, query, self.between, passage, self.after)
        ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        return ids, np.repeat(np.array(self.types, dtype=np.int64), [len(part) for part in parts])


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`, with truncation and padding turned off: the scorer does both."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ArtifactError(f"{path}: not a valid tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def clean(text: str) -> str:
    """Replace lone surrogates, which no tokenizer can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    """Return the token ids of each text, without special tokens."""
    cleaned = [clean(text) for text in texts]
    return [np.array(e.ids, dtype=np.int64) for e in tokenizer.encode_batch_fast(cleaned, add_special_tokens=False)]


class PassageEncoder:
    """Tokenizes texts, several at once on all cores, and keeps those used last: a memory comes up at many queries."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache: ByteCache[str, Passage] = ByteCache(_CACHED_BYTES, _size_of)

    def encode(self, texts: Sequence[str]) -> list[Passage]:
        known = self._cache.get(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            ids = encode(self._tokenizer, missing)
            new = {text: Passage(text, len(each), each) for text, each in zip(missing, ids, strict=True)}
            self._cache.put(new)
            known |= new
        return [known[text] for text in texts]


def _size_of(passage: Passage) -> int:
    return sys.getsizeof(passage.text) + int(passage.encoded.nbytes) + _BYTES_PER_PASSAGE


def offsets(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Return the character span of each token.

    The spans hold for the original text, too: a lone surrogate is one character before and after cleaning.
    """
    return list(tokenizer.encode(clean(text), add_special_tokens=False).offsets)


def _special_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that the tokenizer puts before and after a single text."""
    sample = tokenizer.encode("a")
    content = [i for i, is_special in enumerate(sample.special_tokens_mask) if not is_special]
    return tuple(sample.ids[: content[0]]), tuple(sample.ids[content[-1] + 1 :])


def pack(lengths: Sequence[int], token_budget: int, max_rows: int | None = None) -> list[list[int]]:
    """Group positions into batches, longest first, whose padded size stays within the budget.

    Similar lengths share a batch, so that there is little padding. An input longer than the budget is a batch of its
    own.

    :param max_rows: the largest number of inputs in a batch.
    """
    if token_budget < 1 or (max_rows is not None and max_rows < 1):
        raise ValueError(f"expected token_budget and max_rows of at least 1, got {token_budget} and {max_rows}")
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    return _fill_batches(order, lengths, token_budget, max_rows)


def pack_in_order(lengths: Sequence[int], token_budget: int, max_rows: int | None = None) -> list[list[int]]:
    """Group positions into batches in the given order, so that under a deadline the first ones are scored first."""
    return _fill_batches(range(len(lengths)), lengths, token_budget, max_rows)


def _fill_batches(
    order: Sequence[int], lengths: Sequence[int], token_budget: int, max_rows: int | None
) -> list[list[int]]:
    batches: list[list[int]] = []
    longest = 0
    for position in order:
        longest = max(longest, lengths[position])
        batch = batches[-1] if batches else None
        has_room = batch is not None and (max_rows is None or len(batch) < max_rows)
        if batch is not None and has_room and longest * (len(batch) + 1) <= token_budget:
            batch.append(position)
        else:
            batches.append([position])
            longest = lengths[position]
    return batches


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """The arrays of a batch, one input per row."""

    ids: Ids
    types: Ids
    mask: Ids


def pad(inputs: Sequence[Input], pad_id: int, side: Literal["left", "right"] = "right") -> PaddedBatch:
    """Pad inputs to the length of the longest."""
    longest = max(len(each.ids) for each in inputs)
    shape = (len(inputs), longest)
    ids, types, mask = (np.full(shape, fill, dtype=np.int64) for fill in (pad_id, 0, 0))
    for row, each in enumerate(inputs):
        length = len(each.ids)
        span = slice(longest - length, longest) if side == "left" else slice(0, length)
        ids[row, span], types[row, span], mask[row, span] = each.ids, each.types, 1
    return PaddedBatch(ids, types, mask)


def check_length(inputs: Sequence[Input], max_length: int, name: str) -> None:
    """Raise ScorerError if an input is longer than the model reads: it must not be truncated silently."""
    longest = max(len(each.ids) for each in inputs)
    if longest > max_length:
        raise ScorerError(f"{name}: input of {longest} tokens exceeds the model's limit of {max_length}")


def one_score_per_row(logits: Scores, name: str) -> Scores:
    """Return the only logit of each row, or the log-odds of the second of two classes."""
    if logits.ndim == 1:
        return logits
    if logits.ndim == 2 and logits.shape[1] == 1:
        return np.asarray(logits[:, 0])
    if logits.ndim == 2 and logits.shape[1] == 2:
        return np.asarray(logits[:, 1] - logits[:, 0])
    raise ScorerError(f"{name}: expected one or two logits per pair, got an output of shape {logits.shape}")
