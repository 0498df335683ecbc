"""Built-in pairs for comparing graphs and for calibrating activation ranges when the caller has no data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import read_triplets
from mnemorank.memory.memory import Memory

_TRIPLET_STEP = 100  # every hundredth of the dated training triplets is used
_JOINED_TEXTS = 8  # the number of texts that make a long one
_QUERIES = (
    "Where does Ruby work now?",
    "What database does the billing service use?",
    "When did we visit the lighthouse?",
    "Which medicine does my father take?",
    "How do I restart the staging cluster after a failed deploy?",
    "What did Tom think of the second draft?",
)
_MEMORIES: tuple[dict[str, str], ...] = (
    {"text": "Ruby moved to the harbour office of Ellery & Sons.", "occurred_start": "2024-02-01", "type": "world"},
    {
        "text": "Ruby worked at the library in Kestrel Street.",
        "occurred_start": "2019-05-01",
        "occurred_end": "2024-01-31",
        "type": "world",
    },
    {
        "text": "The billing service was migrated from MySQL to PostgreSQL 16.",
        "occurred_start": "2025-03",
        "type": "event",
    },
    {"text": "The search service keeps its index in SQLite files, one for each tenant, and rebuilds them at night."},
    {
        "text": "We walked to the lighthouse in the rain, and the keeper let the children climb all 140 steps.",
        "occurred_start": "2023-08-14",
        "occurred_end": "2023-08-14",
        "type": "event",
    },
    {"text": "The lighthouse on the box of matches is the one at Portland Head.", "type": "observation"},
    {"text": "Father takes 5 mg of bisoprolol in the morning.", "occurred_start": "2022-11-20", "type": "world"},
    {"text": "The vet gave the dog a medicine against ticks.", "occurred_start": "2025-06-02", "type": "event"},
    {
        "text": "Runbook: drain the nodes, roll back the last release, then run the restart job for staging. Wait for "
        "all health checks to pass before traffic is let in again, and write the time into the incident channel.",
        "context": "Operations",
    },
    {"text": "Staging shares its cluster with the demo environment since the move.", "occurred_start": "2024"},
    {
        "text": "Tom found the second draft clearer, but wants chapter three cut.",
        "occurred_start": "2025-01-09",
    },
    {
        "text": "Tom has not read the first draft: he was on parental leave.",
        "occurred_start": "2024-10",
        "type": "event",
    },
)


def sample_examples() -> list[Example]:
    """Return every query with every memory, unlabeled: they serve to compare scores, not quality."""
    candidates = tuple(Candidate(Memory.of(record), 0.0) for record in _MEMORIES)
    return [Example(str(i), query, candidates, source="sample") for i, query in enumerate(_QUERIES)]


def calibration_examples() -> Iterator[Example]:
    """Yield real queries with their memories, and with several memories joined into a long text.

    Ranges calibrated on short texts alone are too narrow for long ones.
    """
    triplets = list(read_triplets(bundled_dataset("dated", "train")))[::_TRIPLET_STEP]
    for i, triplet in enumerate(triplets):
        texts = [each.positive.text for each in triplets[i : i + _JOINED_TEXTS]]
        long = replace(triplet.positive, text=" ".join(texts))
        memories = (triplet.positive, triplet.negative, long)
        yield Example(str(i), triplet.query, tuple(Candidate(memory, 0.0) for memory in memories), source="dated")
