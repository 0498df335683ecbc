"""How memories are read: whole where they fit the model, else by the windows that are worth scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnemorank.artifact.formats import Formatted, formats
from mnemorank.artifact.manifest import Manifest
from mnemorank.memory.memory import Memory
from mnemorank.scorers import Passage, Scorer
from mnemorank.text.bm25 import bm25
from mnemorank.text.chat import user_turns
from mnemorank.text.windows import Span, best_windows, coarse_split, split

# A text of so many characters is long whatever its tokens, and is not tokenized whole to find that out.
_LONG_TEXT = 32_768
# So many turns of a chat are looked at for each window that they may fill.
_TURNS_A_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """A passage to score for the memory at `owner`, and the window's text if it is one of several."""

    owner: int
    passage: Passage
    window: str | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads memories for one query. What is read of a memory does not depend on the others.

    :param limit: tokens that a passage may have.
    """

    scorer: Scorer
    manifest: Manifest
    query: str
    limit: int

    @classmethod
    def of(cls, scorer: Scorer, manifest: Manifest, query: str, instruction: str | None) -> Reader:
        room = scorer.room(query, instruction)
        return cls(scorer, manifest, query, min(room, manifest.windows.tokens or room))

    def read(self, memories: Sequence[Memory]) -> list[Reading]:
        """What to score, in the memories' order. Empty ones are left out."""
        write = formats[self.manifest.format].write
        written = [(i, write(memory)) for i, memory in enumerate(memories) if memory.text.strip()]
        short = [(i, text.text) for i, text in written if len(text.text) <= _LONG_TEXT]
        passages = self.scorer.prepare([text for _, text in short])
        whole = {i: passage for (i, _), passage in zip(short, passages, strict=True) if passage.length <= self.limit}
        readings: list[Reading] = []
        for i, text in written:
            readings += [Reading(i, whole[i])] if i in whole else self._best_windows(i, text)
        return readings

    def _best_windows(self, owner: int, written: Formatted) -> list[Reading]:
        around = self.scorer.prepare([written.before, written.after])
        room = self.limit - sum(part.length for part in around)
        if room < max(self.limit // 4, 8):
            # A heading that leaves the text no room (a very long context) is read as text itself.
            written, room = Formatted("", written.text), self.limit
        return self._windows(owner, written, self._worth_reading(written.body, room))

    def _worth_reading(self, body: str, room: int) -> list[Span]:
        """All windows, or those that BM25 finds best; of a chat the user's turns and the best windows of the rest."""
        most = self.manifest.windows.most
        blocks = self._best_blocks(body)
        windows = [window for block in blocks for window in self._split(body, block, room)]
        if len(windows) <= most and blocks == [(0, len(body))]:
            return windows
        said, left = self._said(body, room)
        unread = [(window, rest) for window in windows if (rest := _outside(body, window, said)).strip()]
        scores = bm25(self.query, [rest for _, rest in unread])
        return [*said, *(unread[i][0] for i in best_windows(scores, 1 + left))]

    def _best_blocks(self, body: str) -> list[Span]:
        """The text itself, or the best parts of an endless one."""
        if len(body) <= _LONG_TEXT:
            return [(0, len(body))]
        parts = _parts(body, [(0, len(body))])
        return [parts[i] for i in best_windows(self._bm25(body, parts), self.manifest.windows.most)]

    def _said(self, body: str, room: int) -> tuple[list[Span], int]:
        """What the user of a chat said, turn by turn: as much as the tokens of all windows but one allow, the best by
        BM25 first, of a long turn the best piece. Second, how many of these windows are left."""
        most = self.manifest.windows.most
        turns = self._best_first(body, _parts(body, user_turns(body)))[: _TURNS_A_WINDOW * (most - 1)]
        pieces = [self._best_first(body, self._split(body, turn, room)) for turn in turns]
        # To read a turn takes the query and a heading too.
        beside = self.limit - room + self.scorer.prepare([self.query])[0].length
        left = (room + beside) * (most - 1)
        said = []
        for piece in [*(first for first, *_ in pieces), *(other for _, *others in pieces for other in others)]:
            taken = len(self.scorer.offsets(body[slice(*piece)])) + beside
            if taken <= left:
                said.append(piece)
                left -= taken
        return sorted(said), left // (room + beside)

    def _split(self, body: str, span: Span, room: int) -> list[Span]:
        first, last = span
        part = body[first:last]
        pieces = split(part, self.scorer.offsets(part), room, self.manifest.windows.overlap)
        return [(first + start, first + end) for start, end in pieces]

    def _best_first(self, body: str, spans: list[Span]) -> list[Span]:
        """Of those alike the shorter first, so that more are read."""
        if len(spans) < 2:
            return spans  # most turns are of one piece
        lengths = np.array([end - start for start, end in spans], dtype=np.float64)
        return [spans[i] for i in np.lexsort((lengths, -self._bm25(body, spans)))]

    def _bm25(self, body: str, spans: Sequence[Span]) -> NDArray[np.float64]:
        return bm25(self.query, [body[start:end] for start, end in spans])

    def _windows(self, owner: int, written: Formatted, spans: Sequence[Span]) -> list[Reading]:
        windows = [written.body[start:end].strip() for start, end in spans]
        passages = self.scorer.prepare([written.before + window + written.after for window in windows])
        return [
            reading
            for window, passage in zip(windows, passages, strict=True)
            for reading in self._fitting(Reading(owner, passage, window), written)
        ]

    def _fitting(self, reading: Reading, written: Formatted) -> list[Reading]:
        """The window, or two halves of it: cut out of its text, a word may be tokenized longer than it was inside."""
        window = reading.window or ""
        if reading.passage.length <= self.limit or len(window) < 2:
            return [reading]
        tokens = self.scorer.offsets(window)
        halves = split(window, tokens, max((len(tokens) + 1) // 2, 1), overlap=0)
        if len(halves) < 2:
            halves = [(0, len(window) // 2), (len(window) // 2, len(window))]
        return self._windows(reading.owner, Formatted(written.before, window, written.after), halves)


def _parts(body: str, spans: Sequence[Span]) -> list[Span]:
    """The spans, an endless one in parts."""
    return [
        (first + start, first + end)
        for first, last in spans
        for start, end in coarse_split(body[first:last], _LONG_TEXT // 4)
        if body[first + start : first + end].strip()
    ]


def _outside(body: str, window: Span, said: Sequence[Span]) -> str:
    """The window's text without what is read anyway."""
    start, end = window
    kept = []
    for first, last in said:
        if last > start and first < end:
            kept.append(body[start : max(first, start)])
            start = last
    return "".join([*kept, body[start:end]])
