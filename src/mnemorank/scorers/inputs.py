"""The token ids of a model's inputs: query, passage and template, each tokenized once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer

from mnemorank.errors import QueryTooLongError
from mnemorank.manifest import Manifest
from mnemorank.scorers.base import Pair, Passage
from mnemorank.scorers.tokens import Ids, PairLayout, clean, encode, offsets
from mnemorank.templates import Rendered, templates

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
