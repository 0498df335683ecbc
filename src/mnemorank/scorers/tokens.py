"""Token ids of query and passage, each tokenized once, joined as the tokenizer itself would join them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mnemorank.errors import ArtefactError

Ids = NDArray[np.int64]


def load_tokenizer(path: Path) -> Tokenizer:
    """Read `tokenizer.json` with truncation and padding off: both are ours to do, and never silently."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ArtefactError(f"{path}: cannot be read as a tokenizer: {error}") from None
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
            raise ArtefactError("the tokenizer does not join two segments; the pair template cannot be used with it")
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
