"""How memories are read: whole where they fit the model, else by the windows that are worth scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnemorank.formats import Formatted, formats
from mnemorank.manifest import Manifest
from mnemorank.memory import Memory
from mnemorank.ranking.conversation import spans_bm25
from mnemorank.ranking.windows import Span, best_windows, coarse_split, split
from mnemorank.scorers import Passage, Scorer

# A text of so many characters is long whatever its tokens, and is not tokenized whole to find that out.
_LONG_TEXT = 32_768


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
        spans = [
            (first + start, first + end)
            for first, block in self._best_blocks(written.body)
            for start, end in split(block, self.scorer.offsets(block), room, self.manifest.windows.overlap)
        ]
        return self._windows(owner, written, self._best(written.body, spans))

    def _best_blocks(self, body: str) -> list[tuple[int, str]]:
        """The text itself, or of an endless one the best parts, each with where it begins."""
        if len(body) <= _LONG_TEXT:
            return [(0, body)]
        return [(start, body[start:end]) for start, end in self._best(body, coarse_split(body, _LONG_TEXT // 4))]

    def _best(self, body: str, spans: list[Span]) -> list[Span]:
        """The spans that BM25 among them finds best, above all by what the user says in them, in reading order."""
        most = self.manifest.windows.most
        if len(spans) <= most:
            return spans
        scores = spans_bm25(self.query, body, spans)
        return [spans[position] for position in best_windows(scores, most)]

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
