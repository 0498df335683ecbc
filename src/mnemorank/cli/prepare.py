"""`mnemorank prepare`: compute what a split model reads of memories, once for all queries."""

from __future__ import annotations

import argparse
from pathlib import Path

from mnemorank.cli.arguments import add_json, add_model, add_states, positive_int

HELP = "prepare the memories of a file, so that ranking them is fast"
EXAMPLE = "mnemorank prepare memories.jsonl --states states"

_MEMORIES_AT_ONCE = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="JSON Lines, JSON array or CSV of memories; - for standard input; or the output of `bulk prepare`",
    )
    add_states(parser, required=True)
    parser.add_argument(
        "--states-megabytes",
        type=positive_int,
        metavar="N",
        help="size limit of the folder, which remembers it; the oldest are deleted (default: 16000)",
    )
    add_model(parser)
    parser.add_argument("--field", metavar="NAME", help="field of the text (default: text, content, memory, …)")
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="fail on a bad date or number (default), or ignore it with a warning",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from mnemorank import Prepared, Reranker
    from mnemorank.cli.output import YELLOW, paint, print_json, progress
    from mnemorank.memory.files import load_memories

    if (Path(arguments.file) / "_job.json").is_file():
        return _load(arguments)
    warnings: list[str] = []
    memories = load_memories(arguments.file, field=arguments.field, on_error=arguments.on_error, report=warnings.append)
    total = Prepared()
    with Reranker(arguments.model, states=arguments.states, states_megabytes=arguments.states_megabytes) as reranker:
        starts = range(0, len(memories), _MEMORIES_AT_ONCE)
        for first in progress(starts, "prepare", len(starts)):
            total += reranker.prepare(memories[first : first + _MEMORIES_AT_ONCE])
    if arguments.json:
        counts = {"new": total.new, "known": total.known, "not_stored": total.not_stored}
        print_json({"memories": len(memories), **counts, "warnings": warnings})
    else:
        print(f"{len(memories)} memories: {total.new} new, {total.known} already prepared")
        if total.not_stored:
            warnings.append(f"{total.not_stored} memories could not be stored; see the messages above")
        for warning in warnings:
            print(paint(f"warning: {warning}", YELLOW))
    return 1 if total.not_stored else 0


def _load(arguments: argparse.Namespace) -> int:
    """Load what `bulk prepare` computed."""
    from mnemorank.bulk.states import load_states
    from mnemorank.cli.output import print_json

    memories, not_stored = load_states(arguments.file, arguments.model, arguments.states, arguments.states_megabytes)
    if arguments.json:
        print_json({"memories": memories, "new": memories - not_stored, "known": 0, "not_stored": not_stored})
    else:
        print(f"{memories} memories loaded" + (f", {not_stored} could not be stored" if not_stored else ""))
    return 1 if not_stored else 0
