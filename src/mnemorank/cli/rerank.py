"""mnemorank rerank: rank the memories of a file for a query."""

from __future__ import annotations

import argparse

from mnemorank.cli.output import add_json, add_model, positive_number

HELP = "rank the memories of a file for a query"
EXAMPLE = "mnemorank rerank 'where does Ruby work now?' memories.jsonl --top-k 5 --explain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("file", metavar="FILE", help="JSON Lines, JSON array or CSV of memories; - for standard input")
    parser.add_argument("--top-k", type=positive_number, metavar="N", help="show the N best (default: all)")
    add_model(parser)
    parser.add_argument("--field", metavar="NAME", help="field that holds the text (default: text, content, memory, …)")
    parser.add_argument("--now", metavar="DATE", help="the present, for recency (default: today)")
    parser.add_argument("--as-of", metavar="DATE", help="ask for the state at this date")
    parser.add_argument("--time-range", nargs=2, metavar=("FROM", "TO"), help="the period the query is about")
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
        help="first-stage evidence: the memories' scores, BM25 over the file, or none (default: scores, else BM25)",
    )
    parser.add_argument(
        "--recency", choices=("none", "linear", "exponential"), default="none", help="favour recent memories"
    )
    parser.add_argument(
        "--floor", type=float, metavar="P", help="drop memories under this relevance, and unscored ones"
    )
    parser.add_argument(
        "--abstain-below",
        type=float,
        metavar="P",
        help="relevance the best must reach (default: the model's; 0: never)",
    )
    parser.add_argument("--diversity", type=float, metavar="L", help="MMR's lambda, e.g. 0.9; lower is stronger")
    parser.add_argument(
        "--token-budget", type=positive_number, metavar="N", help="stop before N tokens are exceeded (the first stays)"
    )
    parser.add_argument("--max-scored", type=positive_number, metavar="N", help="score only the first stage's N best")
    parser.add_argument("--deadline-ms", type=float, metavar="MS", help="stop scoring after so many milliseconds")
    parser.add_argument("--instruction", metavar="TEXT", help="for models that take one")
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help="skip: report bad dates, go on")
    parser.add_argument("--explain", action="store_true", help="show what each score is made of")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    from mnemorank import Options, Reranker
    from mnemorank.cli.output import print_json
    from mnemorank.cli.ranking_view import as_json, show
    from mnemorank.memory.files import load_memories

    problems: list[str] = []
    memories = load_memories(arguments.file, field=arguments.field, on_error=arguments.on_error, report=problems.append)
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
    with Reranker(arguments.model, options=options) as reranker:
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
        record = as_json(ranking)
        print_json({"query": arguments.query, **record, "warnings": problems + record["warnings"]})
        return
    print(show(ranking, arguments.explain))
    for problem in problems:
        print(f"note: {problem}")
