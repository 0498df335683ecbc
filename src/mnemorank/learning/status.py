"""Where a loop stands: what `mnemorank learn status` and the server's status route tell."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mnemorank.learning import deletion, examples
from mnemorank.learning.gate import check_shadow
from mnemorank.learning.mining import HELD_OUT, TRAIN
from mnemorank.learning.shadow_report import count_scored

if TYPE_CHECKING:
    from mnemorank.learning.loop import Loop


def status_of(loop: Loop) -> dict[str, Any]:
    current, previous, run = loop.registry.current(), loop.registry.previous(), loop.runs.open_run()
    last = run or next(iter(loop.runs.all()[-1:]), None)
    return {
        "current": current.name if current else None,
        "previous": previous.name if previous else None,
        "versions": [version.name for version in loop.registry.versions()],
        **loop.store.counts(),
        "examples": {TRAIN: 0, HELD_OUT: 0, **examples.counts(loop.store.database)},
        "untrained_examples": loop.untrained(),
        "stores_texts": loop.settings.privacy.texts,
        "run": None if last is None else {**last.summary(), "progress": loop.runs.progress(last.id)},
        "deletions_since_training": _deletions_by_version(loop),
        "shadow": _shadow_status(loop),
    }


def _shadow_status(loop: Loop) -> dict[str, Any] | None:
    candidate = loop.shadow_candidate() if loop.settings.shadow else None
    if candidate is None:
        return None
    found = loop.shadow_result(candidate.name)
    told = {"version": candidate.name, "scored": count_scored(loop.store, candidate.name)}
    return {
        **told,
        "result": asdict(found) if found else None,
        "check": asdict(check_shadow(found, loop.settings.gate)),
    }


def _deletions_by_version(loop: Loop) -> dict[str, int]:
    """Version → how many of the examples it was trained on have been deleted since."""
    made_by = {f"run:{version.facts.get('run')}": version.name for version in loop.registry.versions()}
    total: dict[str, int] = {}
    for done in deletion.deletions(loop.store):
        for model, count in done.models.items():
            # While it trained, a version was known by its run. Once it is made, it is known by both.
            version = made_by.get(model, model) if made_by.get(model) not in done.models else model
            if not version.startswith("run:"):
                total[version] = total.get(version, 0) + count
    return total
