"""`mnemorank rerank`: rank the memories of a file for a query."""

from __future__ import annotations

import argparse

from mnemorank.cli.arguments import add_json, add_model, add_states, positive_int

HELP = "rank the memories of a file for a query"
EXAMPLE = "mnemorank rerank 'where does Ruby work now?' memories.jsonl --top-k 5 --explain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("file", metavar="FILE", help="JSON Lines, JSON array or CSV of memories; - for standard input")
    parser.add_argument("--top-k", type=positive_int, metavar="N", help="number of results (default: all)")
    add_model(parser)
    add_states(parser)
    parser.add_argument("--field", metavar="NAME", help="field of the text (default: text, content, memory, …)")
    parser.add_argument("--now", metavar="DATE", help="the current date (default: today)")
    parser.add_argument("--as-of", metavar="DATE", help="rank what was true on this date")
    parser.add_argument("--time-range", nargs=2, metavar=("FROM", "TO"), help="the period that the query is about")
    parser.add_argument(
        "--supersession",
        choices=("demote", "drop", "off"),
        default="demote",
        help="rank outdated memories below their successor (default), leave them out, or ignore supersession",
    )
    parser.add_argument(
        "--first-stage",
        choices=("auto", "given", "bm25", "none"),
        default="auto",
        help="first-stage evidence: the memories' scores (given), BM25 over the file, none, or the scores if there are "
        "any and BM25 otherwise (auto, the default)",
    )
    parser.add_argument(
        "--recency", choices=("none", "linear", "exponential"), default="none", help="prefer recent memories"
    )
    parser.add_argument("--floor", type=float, metavar="P", help="leave out memories with a relevance below P")
    parser.add_argument(
        "--abstain-below",
        type=float,
        metavar="P",
        help="abstain if no memory reaches this relevance (default: set by the model; 0: never)",
    )
    parser.add_argument(
        "--diversity", type=float, metavar="LAMBDA", help="diversify the results by MMR; 1 is relevance alone"
    )
    parser.add_argument("--token-budget", type=positive_int, metavar="N", help="limit the results to N tokens in total")
    parser.add_argument(
        "--max-scored", type=positive_int, metavar="N", help="score only the N best memories of the first stage"
    )
    parser.add_argument("--deadline-ms", type=float, metavar="MS", help="stop scoring after this many milliseconds")
    parser.add_argument("--instruction", metavar="TEXT", help="the instruction, for models that take one")
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="fail on a bad date or number (default), or ignore it with a warning",
    )
    parser.add_argument("--explain", action="store_true", help="show the factors of each score")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    from mnemorank import Options, Reranker
    from mnemorank.cli.output import YELLOW, paint, print_json, ranking_table, ranking_to_json
    from mnemorank.memory.files import load_memories

    warnings: list[str] = []
    memories = load_memories(arguments.file, field=arguments.field, on_error=arguments.on_error, report=warnings.append)
    options = Options(
        recency=arguments.recency,
        floor=arguments.floor,
        diversity=arguments.diversity,
        token_budget=arguments.token_budget,
        first_stage=arguments.first_stage,
        supersession=arguments.supersession,
        max_scored=arguments.max_scored,
        abstain_below=arguments.abstain_below,
    )
    with Reranker(arguments.model, options=options, states=arguments.states) as reranker:
        ranking = reranker.rerank(
            arguments.query,
            memories,
            top_k=arguments.top_k,
            now=arguments.now,
            as_of=arguments.as_of,
            time_range=arguments.time_range and tuple(arguments.time_range),
            deadline_ms=arguments.deadline_ms,
            instruction=arguments.instruction,
            explain=arguments.explain,
        )
    if arguments.json:
        record = ranking_to_json(ranking)
        print_json({"query": arguments.query, **record, "warnings": warnings + record["warnings"]})
        return
    print(ranking_table(ranking, explain=arguments.explain))
    for warning in warnings:
        print(paint(f"warning: {warning}", YELLOW))
