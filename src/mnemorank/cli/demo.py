"""mnemorank demo: rerank the bundled sample memories."""

from __future__ import annotations

import argparse

from mnemorank.cli.output import add_model

HELP = "rerank the bundled sample memories for a few questions"
EXAMPLE = "mnemorank demo"

QUESTIONS: tuple[tuple[str, str | None], ...] = (
    ("Where does Ruby work now?", None),
    ("Where was Ruby working in 2021?", None),
    ("Which medication does Dad take for his blood pressure?", None),
    ("what db do we run in production", None),
    ("Which database was in production?", "2023-06-01"),
    ("What is the capital gains tax rate in Portugal?", None),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--query", metavar="TEXT", help="ask this instead of the sample questions")


def run(arguments: argparse.Namespace) -> None:
    import time
    from importlib.resources import as_file, files

    from mnemorank import Reranker
    from mnemorank.cli.output import paint
    from mnemorank.cli.ranking_view import show
    from mnemorank.memory.files import load_memories

    with as_file(files("mnemorank") / "assets" / "samples" / "memories.jsonl") as path:
        memories = load_memories(path)
    questions = ((arguments.query, None),) if arguments.query else QUESTIONS
    with Reranker(arguments.model) as reranker:
        reranker.rerank("warm up", ["the first run is slower"])
        print(f"{len(memories)} memories of one life: work, family, health, code. The three best for each question,")
        print("with relevance, places gained over the given order, and dates.\n")
        started = time.monotonic()
        for query, as_of in questions:
            asked = f"  (as of {as_of})" if as_of else ""
            print(paint(f"  {query}{asked}", 1, 35))
            print(show(reranker.rerank(query, memories, top_k=3, as_of=as_of)) + "\n")
        pairs = len(questions) * len(memories)
        seconds = time.monotonic() - started
        print(f"{pairs} pairs in {seconds:.1f} s on this CPU.")
        print("Try: mnemorank demo --query 'when is the dentist?'  or  mnemorank rerank QUERY your-memories.jsonl")
