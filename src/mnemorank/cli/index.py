"""`mnemorank index`: a store of memories in one file, searched without a retriever."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mnemorank.cli.arguments import add_json, add_model, positive_int
from mnemorank.errors import InputError

HELP = "add memories to an index, search it, delete from it"
EXAMPLE = "mnemorank index add memories.db memories.jsonl"

_MEMORIES_AT_ONCE = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(
        name: str, function: Callable[[argparse.Namespace], None], help_text: str, example: str
    ) -> argparse.ArgumentParser:
        action = actions.add_parser(
            name,
            help=help_text,
            description=help_text,
            epilog=f"Example:\n  mnemorank index {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        action.add_argument("path", metavar="PATH", help="file of the index")
        action.set_defaults(function=function)
        return action

    added = add("add", _add, "add the memories of a file", EXAMPLE.removeprefix("mnemorank index "))
    added.add_argument("file", metavar="FILE", help="JSON Lines, JSON array or CSV of memories; - for standard input")
    added.add_argument("--field", metavar="NAME", help="field of the text (default: text, content, memory, …)")
    added.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="fail on a bad date or number (default), or ignore it with a warning",
    )
    search = add("search", _search, "find memories for a query", "search memories.db 'where does Ruby work now?'")
    search.add_argument("query", metavar="QUERY")
    search.add_argument("--top-k", type=positive_int, default=10, metavar="N", help="number of results (default: 10)")
    search.add_argument("--now", metavar="DATE", help="the current date (default: today)")
    search.add_argument("--as-of", metavar="DATE", help="search what was true on this date")
    search.add_argument("--time-range", nargs=2, metavar=("FROM", "TO"), help="the period that the query is about")
    search.add_argument(
        "--filter",
        action="append",
        default=[],
        type=_named_value,
        metavar="NAME=VALUE",
        help="search only memories with this value of a field or of the metadata; may be repeated",
    )
    search.add_argument(
        "--candidates", type=positive_int, default=64, metavar="N", help="memories to score (default: 64)"
    )
    search.add_argument("--deadline-ms", type=float, metavar="MS", help="stop scoring after this many milliseconds")
    search.add_argument("--explain", action="store_true", help="show the factors of each score")
    delete = add("delete", _delete, "delete memories by their ids", "delete memories.db m1 m2")
    delete.add_argument("ids", nargs="+", metavar="ID")
    stats = add("stats", _stats, "show what is in an index", "stats memories.db")
    for action in (added, search):
        add_model(action)
        action.add_argument(
            "--reindex", action="store_true", help="read all memories again if the index was made with another model"
        )
    for action in (added, search, delete, stats):
        add_json(action)


def run(arguments: argparse.Namespace) -> None:
    arguments.function(arguments)


def _add(arguments: argparse.Namespace) -> None:
    from mnemorank import MemoryIndex
    from mnemorank.cli.output import YELLOW, paint, print_json, progress
    from mnemorank.memory.files import load_memories

    warnings: list[str] = []
    memories = load_memories(arguments.file, field=arguments.field, on_error=arguments.on_error, report=warnings.append)
    ids: list[str] = []
    with MemoryIndex.open(arguments.path, arguments.model, reindex=arguments.reindex) as index:
        before = len(index)
        starts = range(0, len(memories), _MEMORIES_AT_ONCE)
        for first in progress(starts, "add", len(starts)):
            ids += index.add(memories[first : first + _MEMORIES_AT_ONCE])
        count = len(index)
    if arguments.json:
        print_json({"ids": ids, "memories": count, "new": count - before, "warnings": warnings})
        return
    print(f"{len(memories)} memories: {count - before} new; the index has {count}")
    for warning in warnings:
        print(paint(f"warning: {warning}", YELLOW))


def _search(arguments: argparse.Namespace) -> None:
    from mnemorank import MemoryIndex
    from mnemorank.cli.output import print_json, ranking_table, ranking_to_json

    with MemoryIndex.open(arguments.path, arguments.model, create=False, reindex=arguments.reindex) as index:
        ranking = index.search(
            arguments.query,
            arguments.top_k,
            now=arguments.now,
            as_of=arguments.as_of,
            time_range=arguments.time_range and tuple(arguments.time_range),
            filter=_accepts(arguments.filter) if arguments.filter else None,
            candidates=arguments.candidates,
            deadline_ms=arguments.deadline_ms,
            explain=arguments.explain,
        )
    if arguments.json:
        print_json({"query": arguments.query, **ranking_to_json(ranking)})
    else:
        print(ranking_table(ranking, explain=arguments.explain))


def _delete(arguments: argparse.Namespace) -> None:
    from mnemorank.cli.output import print_json
    from mnemorank.index.store import IndexStore

    store = IndexStore(arguments.path, create=False)  # deleting needs no model
    try:
        deleted, count = store.delete(list(dict.fromkeys(arguments.ids))), store.count()
    finally:
        store.close()
    if arguments.json:
        print_json({"deleted": deleted, "memories": count})
    else:
        print(f"{deleted} deleted; the index has {count} memories")


def _stats(arguments: argparse.Namespace) -> None:
    from mnemorank.cli.output import print_json
    from mnemorank.index.store import IndexStore

    store = IndexStore(arguments.path, create=False)
    try:
        stats = asdict(store.stats())
    finally:
        store.close()
    if arguments.json:
        print_json(stats)
        return
    for name, value in stats.items():
        print(f"{name:<9} {value if value is not None else '–'}")


def _named_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _accepts(wanted: list[tuple[str, str]]) -> Callable[[Any], bool]:
    """Return a filter that compares values as text: a command line cannot tell a number from a string."""
    from mnemorank.index.index import value_of

    for name, _ in wanted:
        if sum(other == name for other, _ in wanted) > 1:
            raise InputError("is given twice", field=f"--filter {name}")

    def accepts(memory: Any) -> bool:
        return all(_as_text(value_of(memory, name)) == value for name, value in wanted)

    return accepts


def _as_text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
