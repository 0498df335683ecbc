"""HotpotQA (distractor setting) and 2WikiMultiHopQA: the paragraphs of a question are its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mnemorank.data.benchmarks.loader import Loader, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.records import Record, read_records
from mnemorank.memory.memory import Memory


def read(path: Path, source: str) -> Iterator[Example]:
    """Yield a question with its paragraphs, each as `title: sentences`; those of supporting titles are relevant."""
    for number, record in enumerate(read_records(path)):
        paragraphs = _paragraphs(record)
        titles = {title for title, _ in paragraphs}
        supporting = _supporting_titles(record)
        memories = [Memory(f"{title}: {text}", id=title) for title, text in paragraphs]
        yield Example(
            id=str(record.values.get("_id", record.values.get("id", number))),
            query=record.text("question"),
            candidates=label_candidates(memories, (title in supporting for title, _ in paragraphs)),
            source=source,
            kind=record.optional_text("type"),
            missing=(1.0,) * len(supporting - titles),
        )


def _paragraphs(record: Record) -> list[tuple[str, str]]:
    """Read `[[title, [sentence, …]], …]`, or columns `{"title": […], "sentences": [[…], …]}` of the Hub's copies."""
    context = record.values.get("context")
    if isinstance(context, dict):
        titles, texts = context.get("title"), context.get("sentences", context.get("content"))
        if not isinstance(titles, list) or not isinstance(texts, list) or len(titles) != len(texts):
            raise record.error(f"expected as many titles as lists of sentences, got {context!r:.60}", "context")
        context = list(zip(titles, texts, strict=True))
    if not isinstance(context, list) or not context:
        raise record.error(f"expected a list of [title, sentences], got {context!r:.60}", "context")
    return [_paragraph(entry, record, f"context.{index}") for index, entry in enumerate(context)]


def _paragraph(entry: Any, record: Record, key: str) -> tuple[str, str]:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2 or not isinstance(entry[0], str):
        raise record.error(f"expected [title, sentences], got {entry!r:.60}", key)
    title, sentences = entry
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise record.error(f"expected a list of sentences, got {sentences!r:.60}", key)
    return title, " ".join(sentence.strip() for sentence in sentences)


def _supporting_titles(record: Record) -> set[str]:
    """Read `[[title, sentence number], …]` or `{"title": […], "sent_id": […]}`."""
    facts = record.values.get("supporting_facts")
    if isinstance(facts, dict):
        facts = [[title] for title in facts.get("title", ())]
    if not isinstance(facts, list) or not all(isinstance(fact, list) and fact for fact in facts):
        raise record.error(f"expected a list of [title, sentence number], got {facts!r:.60}", "supporting_facts")
    return {str(fact[0]) for fact in facts}


loaders.add(Loader("hotpotqa", "HotpotQA (distractor), paragraphs as candidates", partial(read, source="hotpotqa")))
loaders.add(Loader("2wiki", "2WikiMultiHopQA, paragraphs as candidates", partial(read, source="2wiki")))
