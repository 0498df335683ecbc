"""Short excerpts of a text, for a closer look: every two sentences that follow each other, under the text's heading.

A model of few layers that reads a whole paragraph overlooks the one sentence that answers; shown that sentence and its
neighbour alone, it does not.
"""

from __future__ import annotations

import re

from mnemorank.ranking.links import heading_of

_SENTENCES = 2
# A sentence ends where the next begins as sentences do: not after `e.g.` or within `3.5`.
_SENTENCE_END = re.compile(r"(?:(?<=[.!?…])|(?<=[.!?…][\"'”’)\]]))\s+(?=[\"'“‘(\[]*[A-Z0-9])|(?<=[。！？])|\n+")


def excerpts(text: str) -> list[str]:
    """None of a text of two sentences or fewer, which is an excerpt itself."""
    heading = heading_of(text)
    sentences = [part.strip() for part in _SENTENCE_END.split(text[len(heading) :]) if part.strip()]
    if len(sentences) <= _SENTENCES:
        return []
    runs = (sentences[i : i + _SENTENCES] for i in range(len(sentences) - _SENTENCES + 1))
    return [heading + " ".join(run) for run in runs]
