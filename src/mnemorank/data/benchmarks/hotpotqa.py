"""HotpotQA (distractor setting) and 2WikiMultiHopQA: the paragraphs of a question are its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mnemorank.data.benchmarks.loader import Loader, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.formats import optional_text, required_text
from mnemorank.data.json_records import read_json_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory


def read(path: Path, source: str) -> Iterator[Example]:
    """Yield a question with its paragraphs, each as `title: sentences`; those of supporting titles are relevant."""
    for number, (where, record) in enumerate(read_json_records(path)):
        paragraphs = _paragraphs(record.get("context"), f"{where}: context")
        titles = {title for title, _ in paragraphs}
        supporting = _titles(record.get("supporting_facts"), f"{where}: supporting_facts")
        memories = [Memory(f"{title}: {text}", id=title) for title, text in paragraphs]
        yield Example(
            id=str(record.get("_id", record.get("id", number))),
            query=required_text(record, "question", where),
            candidates=label_candidates(memories, (title in supporting for title, _ in paragraphs)),
            source=source,
            kind=optional_text(record, "type", where),
            missing=(1.0,) * len(supporting - titles),
        )


def _paragraphs(context: object, where: str) -> list[tuple[str, str]]:
    """Read `[[title, [sentence, …]], …]`, or columns `{"title": […], "sentences": [[…], …]}` of the Hub's copies."""
    if isinstance(context, dict):
        titles, texts = context.get("title"), context.get("sentences", context.get("content"))
        if not isinstance(titles, list) or not isinstance(texts, list) or len(titles) != len(texts):
            raise InputError(f"{where}: expected as many titles as lists of sentences, got {context!r:.60}")
        context = list(zip(titles, texts, strict=True))
    if not isinstance(context, list) or not context:
        raise InputError(f"{where}: expected a list of [title, sentences], got {context!r:.60}")
    return [_paragraph(entry, f"{where} {index}") for index, entry in enumerate(context)]


def _paragraph(entry: Any, where: str) -> tuple[str, str]:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2 or not isinstance(entry[0], str):
        raise InputError(f"{where}: expected [title, sentences], got {entry!r:.60}")
    title, sentences = entry
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise InputError(f"{where}: expected a list of sentences, got {sentences!r:.60}")
    return title, " ".join(sentence.strip() for sentence in sentences)


def _titles(facts: object, where: str) -> set[str]:
    """Read `[[title, sentence number], …]` or `{"title": […], "sent_id": […]}`."""
    if isinstance(facts, dict):
        facts = [[title] for title in facts.get("title", ())]
    if not isinstance(facts, list) or not all(isinstance(fact, list) and fact for fact in facts):
        raise InputError(f"{where}: expected a list of [title, sentence number], got {facts!r:.60}")
    return {str(fact[0]) for fact in facts}


loaders.add(Loader("hotpotqa", "HotpotQA (distractor), paragraphs as candidates", partial(read, source="hotpotqa")))
loaders.add(Loader("2wiki", "2WikiMultiHopQA, paragraphs as candidates", partial(read, source="2wiki")))
