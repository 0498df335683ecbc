"""`mnemorank demo`: rerank the bundled sample memories."""

from __future__ import annotations

import argparse

from mnemorank.cli.arguments import add_model

HELP = "rerank the bundled sample memories for a few questions"
EXAMPLE = "mnemorank demo"

# Each with its `as_of` date; None for now.
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
    parser.add_argument("--query", metavar="TEXT", help="rerank for this query instead of the sample questions")


def run(arguments: argparse.Namespace) -> None:
    import time
    from importlib.resources import as_file, files

    from mnemorank import Reranker
    from mnemorank.cli.output import BOLD, MAGENTA, paint, ranking_table
    from mnemorank.memory.files import load_memories

    with as_file(files("mnemorank") / "assets" / "samples" / "memories.jsonl") as path:
        memories = load_memories(path)
    questions = ((arguments.query, None),) if arguments.query else QUESTIONS
    with Reranker(arguments.model) as reranker:
        reranker.rerank("warm up", ["the first call is slower"])
        print(f"{len(memories)} memories of one person: work, family, health, code. The three best for each question,")
        print("with rank, score, relevance, places moved from the first stage, and dates.\n")
        started = time.monotonic()
        for query, as_of in questions:
            suffix = f"  (as of {as_of})" if as_of else ""
            print(paint(f"  {query}{suffix}", BOLD, MAGENTA))
            print(ranking_table(reranker.rerank(query, memories, top_k=3, as_of=as_of), header=False) + "\n")
        seconds = time.monotonic() - started
    print(f"{len(questions) * len(memories)} pairs in {seconds:.1f} s on this CPU.")
    print("Try: mnemorank demo --query 'when is the dentist?'  or  mnemorank rerank QUERY your-memories.jsonl")
