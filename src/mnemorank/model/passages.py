"""Choose the part of each memory that the model reads: the whole text if it fits, else its most promising windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.formats import Formatted, formats
from mnemorank.artifact.manifest import Manifest
from mnemorank.memory.memory import Memory
from mnemorank.scorers.protocol import Passage, Scorer
from mnemorank.text.bm25 import bm25
from mnemorank.text.chat import user_turns
from mnemorank.text.windows import Span, best_windows, coarse_split, split

# Longer texts are not tokenized whole; BM25 chooses the parts to tokenize.
_MAX_TOKENIZED = 32_768
# A text of more characters per token than this almost never fits, and is tokenized only once, for its windows.
_CHARACTERS_PER_TOKEN = 6
# Joined to its heading, a text can have a few tokens fewer than alone.
_MERGED_TOKENS = 8
_TURNS_PER_WINDOW = 16


@dataclass(frozen=True, slots=True)
class MemoryPassage:
    """A passage to score.

    :param owner: the position of its memory.
    :param window: the part of the memory's text that the passage holds, None for all of it.
    """

    owner: int
    passage: Passage
    window: str | None = None


@dataclass(frozen=True, slots=True)
class PassageReader:
    """Chooses the parts of memories to read for one query. The choice for a memory does not depend on the others.

    :param query: None to read every part that a query could choose.
    :param limit: how many tokens a passage may have.
    :param query_length: in tokens.
    :param deadline: memories not read by then have no passages.
    """

    scorer: Scorer
    manifest: Manifest
    query: str | None
    limit: int
    query_length: int
    deadline: Deadline | None = None

    @classmethod
    def create(
        cls,
        scorer: Scorer,
        manifest: Manifest,
        query: str | None,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> PassageReader:
        room = scorer.room(query or "", instruction)
        limit = min(room, manifest.windows.max_tokens or room)
        return cls(scorer, manifest, query, limit, scorer.prepare([query or ""])[0].length, deadline)

    def read(self, memories: Sequence[Memory]) -> list[MemoryPassage]:
        """Return the passages to score, in the order of the memories. Memories without text have none."""
        write = formats[self.manifest.format].write
        written = {i: write(memory) for i, memory in enumerate(memories) if memory.text.strip()}
        short = [i for i, memory in written.items() if len(memory.text) <= self.limit * _CHARACTERS_PER_TOKEN]
        prepared = self.scorer.prepare([written[i].text for i in short])
        whole = {i: passage for i, passage in zip(short, prepared, strict=True) if passage.length <= self.limit}
        passages: list[MemoryPassage] = []
        for i, memory in written.items():
            if i in whole:
                passages.append(MemoryPassage(i, whole[i]))
            elif self._expired:
                break
            else:
                passages += self._read_long(i, memory)
        return passages

    @property
    def _expired(self) -> bool:
        return self.deadline is not None and self.deadline.expired

    def _read_long(self, owner: int, written: Formatted) -> list[MemoryPassage]:
        """Return the passages of a memory that is too long, or nearly so."""
        tokens = None
        if len(written.text) <= _MAX_TOKENIZED:
            tokens = self.scorer.offsets(written.body)
            if len(tokens) <= self.limit + _MERGED_TOKENS:
                (passage,) = self.scorer.prepare([written.text])
                if passage.length <= self.limit:
                    return [MemoryPassage(owner, passage)]
        around = self.scorer.prepare([written.before, written.after])
        room = self.limit - sum(part.length for part in around)
        if room < max(self.limit // 4, 8):
            # A heading that leaves the text too little room (a very long context) is read as text.
            written, room, tokens = Formatted("", written.text), self.limit, None
        return self._windows(owner, written, self._choose_windows(written.body, room, tokens))

    def _choose_windows(self, body: str, room: int, tokens: Sequence[Span] | None) -> list[Span]:
        """Return all windows, or the best by BM25; of a chat, the user's turns and the best windows of the rest.

        :param tokens: the span of each token of the body, if known.
        """
        max_count = self.manifest.windows.max_count
        blocks = self._best_blocks(body)
        is_whole = blocks == [(0, len(body))]
        windows = [
            window for block in blocks for window in self._split(body, block, room, tokens if is_whole else None)
        ]
        if len(windows) <= max_count and is_whole:
            return windows
        if self.query is None:
            turns = [piece for turn in _parts(body, user_turns(body)) for piece in self._split(body, turn, room, None)]
            return [*windows, *turns]
        turns, windows_left = self._user_turns(body, room)
        unread = [(window, rest) for window in windows if (rest := _without(body, window, turns)).strip()]
        scores = bm25(self.query, [rest for _, rest in unread])
        return [*turns, *(unread[i][0] for i in best_windows(scores, 1 + windows_left))]

    def _best_blocks(self, body: str) -> list[Span]:
        """Return the whole text, or the best parts of a very long one; none if the deadline expires meanwhile."""
        if len(body) <= _MAX_TOKENIZED:
            return [(0, len(body))]
        parts = _parts(body, [(0, len(body))])
        if self.query is None:
            return parts
        scores = bm25(self.query, [body[start:end] for start, end in parts], deadline=self.deadline)
        if np.isnan(scores).any():
            return []
        return [parts[i] for i in best_windows(scores, self.manifest.windows.max_count)]

    def _user_turns(self, body: str, room: int) -> tuple[list[Span], int]:
        """Return the user's turns in a chat that are worth reading, and how many windows they leave.

        They may take the tokens of all windows but one, the best by BM25 first; of a long turn, its best piece.
        """
        if self._expired:
            return [], 0
        max_count = self.manifest.windows.max_count
        turns = self._best_first(body, _parts(body, user_turns(body)))[: _TURNS_PER_WINDOW * (max_count - 1)]
        tokens = {turn: self.scorer.offsets(body[slice(*turn)]) for turn in turns}
        pieces = [self._best_first(body, self._split(body, turn, room, tokens[turn])) for turn in turns]
        # Every passage costs the tokens of the query and of a heading, too.
        overhead = self.limit - room + self.query_length
        budget = (room + overhead) * (max_count - 1)
        chosen = []
        for piece in [*(first for first, *_ in pieces), *(other for _, *others in pieces for other in others)]:
            length = len(tokens[piece]) if piece in tokens else len(self.scorer.offsets(body[slice(*piece)]))
            if length + overhead <= budget:
                chosen.append(piece)
                budget -= length + overhead
        return sorted(chosen), budget // (room + overhead)

    def _split(self, body: str, span: Span, room: int, tokens: Sequence[Span] | None) -> list[Span]:
        """Split a part of the text into windows.

        :param tokens: the span of each token within the part to split, if known.
        """
        first, last = span
        part = body[first:last]
        if tokens is None:
            tokens = self.scorer.offsets(part)
        windows = split(part, tokens, room, self.manifest.windows.overlap)
        return [(first + start, first + end) for start, end in windows]

    def _best_first(self, body: str, spans: list[Span]) -> list[Span]:
        """Return the spans by BM25; of equal ones the shorter first, so that more are read."""
        if len(spans) < 2:
            return spans
        lengths = np.array([end - start for start, end in spans], dtype=np.float64)
        return [spans[i] for i in np.lexsort((lengths, -self._bm25(body, spans)))]

    def _bm25(self, body: str, spans: Sequence[Span]) -> NDArray[np.float64]:
        return bm25(self.query or "", [body[start:end] for start, end in spans])

    def _windows(self, owner: int, written: Formatted, spans: Sequence[Span]) -> list[MemoryPassage]:
        windows = [written.body[start:end].strip() for start, end in spans]
        passages = self.scorer.prepare([written.before + window + written.after for window in windows])
        return [
            fitting
            for window, passage in zip(windows, passages, strict=True)
            for fitting in self._fit(MemoryPassage(owner, passage, window), written)
        ]

    def _fit(self, passage: MemoryPassage, written: Formatted) -> list[MemoryPassage]:
        """Return the passage, or its two halves: a window cut out of its text can have more tokens than inside it."""
        window = passage.window or ""
        if passage.passage.length <= self.limit or len(window) < 2:
            return [passage]
        tokens = self.scorer.offsets(window)
        halves = split(window, tokens, max((len(tokens) + 1) // 2, 1), overlap=0)
        if len(halves) < 2:
            halves = [(0, len(window) // 2), (len(window) // 2, len(window))]
        return self._windows(passage.owner, Formatted(written.before, window, written.after), halves)


def _parts(body: str, spans: Sequence[Span]) -> list[Span]:
    """Return the spans, with very long ones cut into parts and blank ones left out."""
    return [
        (first + start, first + end)
        for first, last in spans
        for start, end in coarse_split(body[first:last], _MAX_TOKENIZED // 4)
        if body[first + start : first + end].strip()
    ]


def _without(body: str, window: Span, spans: Sequence[Span]) -> str:
    """Return the text of the window without the spans, which are read anyway."""
    start, end = window
    kept = []
    for first, last in spans:
        if last > start and first < end:
            kept.append(body[start : max(first, start)])
            start = last
    return "".join([*kept, body[start:end]])
